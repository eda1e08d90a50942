package charges_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/duesday/duesday/charges"
)

// shard is one shard of the bundle's period, and a session that holds its locks.
type shard struct {
	charges.Ledger
	conn *pgx.Conn
}

// shards ends the bundle's having the period alone, and gives it to n shards.
func (b *testBundle) shards(t testing.TB, n int) []*shard {
	t.Helper()
	b.exec(t, `SELECT pg_advisory_unlock_all()`)
	all := make([]*shard, n)
	for i := range all {
		s := &shard{Ledger: *b.Ledger, conn: b.connect(t)}
		s.Shard = charges.Shard{Index: i, Of: n}
		b.lockShard(t, s)
		all[i] = s
	}
	return all
}

func (b *testBundle) lockShard(t testing.TB, s *shard) {
	t.Helper()
	var own, shared bool
	require.NoError(t, s.conn.QueryRow(b.ctx, `SELECT pg_try_advisory_lock($1), pg_try_advisory_lock_shared($2)`,
		s.ShardLockID(), charges.LockID(s.Namespace, s.Period.String())).Scan(&own, &shared))
	require.True(t, own && shared)
}

// alone ends the shards, and gives the bundle the period.
func (b *testBundle) alone(t testing.TB, shards []*shard) {
	t.Helper()
	for _, s := range shards {
		_, err := s.conn.Exec(b.ctx, `SELECT pg_advisory_unlock_all()`)
		require.NoError(t, err)
		require.NoError(t, s.conn.Close(b.ctx))
	}
	b.lock(t, b.conn)
}

// claim claims pages of limit dues until it has gone through so many pages, or
// all if that is 0, and returns the slots.
func (s *shard) claim(t testing.TB, pages, limit int) (slots []charges.Slot) {
	t.Helper()
	cursor, err := s.Cursor(t.Context(), s.conn)
	require.NoError(t, err)
	for n := 0; pages == 0 || n < pages; n++ {
		page, err := s.Claim(t.Context(), s.conn, cursor, limit)
		require.NoError(t, err)
		slots = append(slots, page.Slots...)
		if page.Dues < limit {
			break
		}
		cursor = page.Next
	}
	return slots
}

// pay settles the slots.
func (b *testBundle) pay(t testing.TB, slots ...charges.Slot) {
	t.Helper()
	var results []charges.Settlement
	for _, s := range slots {
		results = append(results, charges.Settlement{Key: s.Key, Status: charges.Succeeded, ChargeID: "ch_" + s.CustomerID})
	}
	require.Equal(t, len(results), b.settle(t, results...))
}

func (s *shard) settlePeriod(t testing.TB) bool {
	t.Helper()
	settled, err := s.SettlePeriod(t.Context(), s.conn)
	require.NoError(t, err)
	return settled
}

func (s *shard) done(t testing.TB) bool {
	t.Helper()
	done, err := s.ShardDone(t.Context(), s.conn)
	require.NoError(t, err)
	return done
}

// A release that splits otherwise would leave a shard's slots in doubt to
// nobody, or to two.
func TestShardOf_neverChanges(t *testing.T) {
	t.Parallel()
	for customer, want := range map[string][5]int{
		"cust_123": {1, 0, 1, 3, 65}, "": {0, 2, 2, 1, 10}, "Müller": {1, 0, 1, 4, 57}, `quark\x`: {1, 2, 1, 5, 25},
	} {
		for i, of := range []int{2, 3, 4, 7, 100} {
			require.Equal(t, want[i], charges.ShardOf(customer, of), "%q of %d", customer, of)
		}
	}
	b := setup(t)
	for _, of := range []int{2, 3, 4, 7, 100} {
		rows, err := b.conn.Query(b.ctx, `
			SELECT id, `+charges.ShardSQL("id", "$1::integer")+` FROM (
				SELECT 'cust_' || i AS id FROM generate_series(1, 2000) AS i
				UNION ALL VALUES (''), ('Müller'), ('a\b'), ('日本'), ('%')) AS customer`, of)
		require.NoError(t, err)
		var (
			id   string
			in   int
			each = make([]int, of)
		)
		_, err = pgx.ForEachRow(rows, []any{&id, &in}, func() error {
			require.Equal(t, charges.ShardOf(id, of), in, id)
			each[in]++
			return nil
		})
		require.NoError(t, err)
		require.Less(t, float64(slices.Max(each)), 2*2005/float64(of), "%v", each)
	}
}

func TestClaim_byShards(t *testing.T) {
	t.Parallel()
	b := opened(t, 200)
	var all []string
	for i, s := range b.shards(t, 4) {
		slots := s.claim(t, 0, 7)
		for _, slot := range slots {
			require.Equal(t, i, charges.ShardOf(slot.CustomerID, 4))
		}
		all = append(all, ids(slots)...)
		require.Empty(t, s.claim(t, 0, 7), "a second time")
	}
	slices.Sort(all)
	require.Len(t, slices.Compact(all), 200)
	require.Equal(t, "200000", b.text(t, `SELECT claimed_total FROM duesday.totals`))
	require.Equal(t, "<nil>", b.text(t, `SELECT coalesce(claim_cursor, '<nil>') FROM duesday.periods`), "no shard moves it alone")
}

func TestClaim_byAShardWantsBothLocks(t *testing.T) {
	t.Parallel()
	b := opened(t, 20)
	s := b.shards(t, 2)[0]
	for name, unlock := range map[string]string{
		"its own":      fmt.Sprintf(`SELECT pg_advisory_unlock(%d)`, s.ShardLockID()),
		"the period's": fmt.Sprintf(`SELECT pg_advisory_unlock_shared(%d)`, charges.LockID(namespace, period)),
	} {
		_, err := s.conn.Exec(b.ctx, unlock)
		require.NoError(t, err)
		_, err = s.Claim(b.ctx, s.conn, charges.ClaimCursor{}, 10)
		require.ErrorIs(t, err, charges.ErrFenced, "without %s", name)
		settled, err := s.SettlePeriod(b.ctx, s.conn)
		require.NoError(t, err)
		require.False(t, settled)
		_, err = s.conn.Exec(b.ctx, `SELECT pg_advisory_unlock_all()`)
		require.NoError(t, err)
		b.lockShard(t, s)
	}
	sister := charges.Ledger{Period: s.Period, Namespace: namespace, Shard: charges.Shard{Index: 1, Of: 2}}
	_, err := sister.Claim(b.ctx, s.conn, charges.ClaimCursor{}, 10)
	require.ErrorIs(t, err, charges.ErrFenced, "the lock of a sister")
	require.Equal(t, "0", b.text(t, `SELECT count(*) FROM duesday.charges`))
	require.NotEmpty(t, s.claim(t, 1, 5))
}

// Whatever its number was before: what is in doubt has one owner.
func TestOpenSlots_belongToOneShard(t *testing.T) {
	t.Parallel()
	b := opened(t, 90)
	b.pay(t, b.claimAll(t)[:30]...)
	b.exec(t, `UPDATE duesday.charges SET status = 'processing' WHERE customer_id > 'c0060'`)
	b.exec(t, `UPDATE duesday.charges SET status = 'declined', settled_at = clock_timestamp() - interval '10 days' WHERE customer_id <= 'c0030'`)
	dunning := charges.Dunning{Schedule: []time.Duration{time.Hour}, Customers: b.relation(t, "duesday.customers")}
	all := map[string][]string{}
	for i, s := range b.shards(t, 3) {
		inDoubt, err := s.InDoubt(b.ctx, s.conn, "", 100)
		require.NoError(t, err)
		processing, err := s.Processing(b.ctx, s.conn, "", 100)
		require.NoError(t, err)
		again, err := s.DueAgain(b.ctx, s.conn, dunning, "", 100)
		require.NoError(t, err)
		for what, found := range map[string][]string{"in doubt": ids(inDoubt), "processing": ids(processing), "again": again} {
			for _, id := range found {
				require.Equal(t, i, charges.ShardOf(id, 3), what)
			}
			all[what] = append(all[what], found...)
		}
		retried, err := s.RetryDeclined(b.ctx, s.conn, dunning, again)
		require.NoError(t, err)
		require.Len(t, retried, len(again))
	}
	for what, found := range all {
		slices.Sort(found)
		require.Len(t, slices.Compact(found), 30, what)
	}
}

func TestSettlePeriod_isForTheLastShard(t *testing.T) {
	t.Parallel()
	b := opened(t, 60)
	shards := b.shards(t, 3)
	var slots [3][]charges.Slot
	for i, s := range shards {
		require.False(t, s.done(t), "nothing is claimed yet")
		slots[i] = s.claim(t, 0, 10)
		require.False(t, s.done(t), "nothing is settled yet")
		require.False(t, s.settlePeriod(t))
	}
	for i, s := range shards {
		b.pay(t, slots[i]...)
		require.Equal(t, i == 2, s.settlePeriod(t), "%d of 3 are through", i+1)
		require.True(t, s.done(t))
	}
	require.Equal(t, "c0060", b.text(t, `SELECT claim_cursor FROM duesday.periods`))
	b.alone(t, shards)
	require.Empty(t, b.claimAll(t))
}

// A shard without customers finds nothing to claim, and leaves no cursor.
func TestSettlePeriod_withFewerDuesThanShards(t *testing.T) {
	t.Parallel()
	for _, dues := range []int{0, 1, 3} {
		b := setup(t)
		b.some(t, dues)
		o := b.opening(t)
		o.AllowEmpty = true
		require.NoError(t, b.Open(b.ctx, b.conn, o))
		shards := b.shards(t, 5)
		for _, s := range shards {
			b.pay(t, s.claim(t, 0, 10)...)
			require.True(t, s.done(t))
		}
		require.True(t, shards[0].settlePeriod(t), "%d dues", dues)
	}
}

// After any history of numbers the period is settled when all processes of one
// number have gone through, none has left a slot in doubt, and not before each
// due is paid.
func TestSettlePeriod_afterAnyHistory(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 0))
		b := opened(t, 1+r.IntN(60))
		dues := b.text(t, `SELECT count(*) FROM duesday.dues`)
		settled := false
		for round := 0; !settled; round++ {
			number := 1 + r.IntN(5)
			last := round == r.IntN(5) || round == 5
			shards := []*shard{{Ledger: *b.Ledger, conn: b.conn}}
			if number > 1 {
				shards = b.shards(t, number)
			}
			for _, i := range r.Perm(number) {
				s := shards[i]
				require.NoError(t, s.GatherCursors(b.ctx, s.conn))
				pages, limit := r.IntN(4), 1+r.IntN(8) // 0 pages: to the end
				if last {
					pages = 0
				}
				slots := s.claim(t, pages, limit)
				if r.IntN(3) > 0 || last {
					open, err := s.InDoubt(b.ctx, s.conn, "", 100)
					require.NoError(t, err)
					b.pay(t, open...)
				} else if len(slots) > 0 {
					b.pay(t, slots[0])
				}
				settled = s.settlePeriod(t)
				paid := b.text(t, `SELECT count(*) FROM duesday.charges WHERE status = 'succeeded'`)
				require.True(t, paid == dues || !settled, "seed %d: settled with %s of %s paid", seed, paid, dues)
				require.Equal(t, "0", b.text(t, `
					SELECT count(*) FROM duesday.dues JOIN duesday.periods USING (billing_period)
					WHERE customer_id <= claim_cursor AND NOT EXISTS (
						SELECT FROM duesday.charges AS slot WHERE slot.customer_id = dues.customer_id)`), "seed %d: a due before the cursor has no slot", seed)
			}
			if number > 1 {
				b.alone(t, shards)
			}
			require.True(t, settled || !last, "seed %d: all are through, and it is not settled", seed)
		}
	}
}

// A reopening adds customers anywhere.
func TestReopen_setsTheShardsBack(t *testing.T) {
	t.Parallel()
	b := opened(t, 30)
	shards := b.shards(t, 2)
	for _, s := range shards {
		b.pay(t, s.claim(t, 0, 10)...)
	}
	require.True(t, shards[1].settlePeriod(t))
	b.alone(t, shards)
	b.customers(t, `'a0000', NULL, NULL, 7, 'usd', true`, `'c0015b', NULL, NULL, 7, 'usd', true`)
	require.NoError(t, b.Reopen(b.ctx, b.conn, b.opening(t)))
	var added []string
	for _, s := range b.shards(t, 2) {
		require.NoError(t, s.GatherCursors(b.ctx, s.conn))
		require.False(t, s.settlePeriod(t))
		added = append(added, ids(s.claim(t, 0, 10))...)
	}
	require.ElementsMatch(t, []string{"a0000", "c0015b"}, added)
}

// Two that hold the totals of two currencies in two orders would end one
// another's page.
func TestClaim_byShardsAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(t, `
		INSERT INTO duesday.customers (id, amount, currency)
		SELECT 'c' || lpad(i::text, 5, '0'), 1000, (ARRAY['usd', 'eur', 'jpy', 'gbp', 'chf'])[1 + i % 5] FROM generate_series(1, 4000) AS i`)
	b.open(t)
	var g errgroup.Group
	for _, s := range b.shards(t, 4) {
		g.Go(func() error {
			var cursor charges.ClaimCursor
			for {
				page, err := s.Claim(b.ctx, s.conn, cursor, 10)
				if err != nil || page.Dues < 10 {
					return err
				}
				cursor = page.Next
			}
		})
	}
	require.NoError(t, g.Wait())
	require.Equal(t, "4000000", b.text(t, `SELECT sum(claimed_total) FROM duesday.totals`))
	require.Equal(t, "4000", b.text(t, `SELECT count(*) FROM duesday.charges`))
}

// A sister's new attempts come between the look and the mark.
func TestSettlePeriod_isUndoneByASistersNewAttempt(t *testing.T) {
	t.Parallel()
	b := opened(t, 20)
	shards := b.shards(t, 2)
	for _, s := range shards {
		b.pay(t, s.claim(t, 0, 10)...)
	}
	// One declined, long ago, of shard 0.
	b.exec(t, `UPDATE duesday.charges SET status = 'declined', settled_at = clock_timestamp() - interval '10 days'
		WHERE customer_id = (SELECT customer_id FROM duesday.charges WHERE `+charges.ShardSQL("customer_id", "2")+` = 0 LIMIT 1)`)
	dunning := charges.Dunning{Schedule: []time.Duration{time.Hour}, Customers: b.relation(t, "duesday.customers")}
	first, second := shards[0], shards[1]
	again, err := first.DueAgain(b.ctx, first.conn, dunning, "", 10)
	require.NoError(t, err)
	require.Len(t, again, 1)

	tx, err := first.conn.Begin(b.ctx)
	require.NoError(t, err)
	_, err = first.RetryDeclined(b.ctx, first.conn, dunning, again)
	require.NoError(t, err)
	settled := make(chan bool, 1)
	go func() {
		ok, err := second.SettlePeriod(b.ctx, second.conn)
		settled <- ok && err == nil
	}()
	require.Eventually(t, func() bool {
		return b.text(t, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) == "1"
	}, 20*time.Second, 10*time.Millisecond, "it waits for the sister's statement")
	require.NoError(t, tx.Commit(b.ctx))
	require.False(t, <-settled, "settled over a slot in doubt")
	require.Equal(t, "0", b.text(t, `SELECT count(*) FROM duesday.periods WHERE settled_at IS NOT NULL`))
}

// However large the period is, and however little its statistics know of it.
func TestGatherCursors_costsAFewDues(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(t, `
		ALTER TABLE duesday.dues SET (autovacuum_enabled = off);
		INSERT INTO duesday.customers (id, amount, currency)
		SELECT 'c' || lpad(i::text, 6, '0'), 1000, 'usd' FROM generate_series(1, 50000) AS i`)
	b.open(t)
	for _, analysed := range []bool{false, true} {
		if analysed {
			b.exec(t, `ANALYZE`)
		}
		for _, test := range []struct {
			name   string
			behind string // which shards have come less far than to the end
			want   string
		}{
			{"one has not begun", `FALSE`, ""},
			{"one is half-way", `shard = 1`, "^c0(24999|250)"},
			{"all are through", `FALSE`, "c050000"},
		} {
			b.exec(t, `UPDATE duesday.periods SET claim_cursor = NULL`)
			b.exec(t, `DELETE FROM duesday.shard_cursors`)
			b.exec(t, `
				INSERT INTO duesday.shard_cursors (billing_period, shards, shard, claim_cursor)
				SELECT $1, 3, shard, max(customer_id) FILTER (WHERE NOT (`+test.behind+`) OR customer_id < 'c025000')
				FROM (SELECT customer_id, `+charges.ShardSQL("customer_id", "3")+` AS shard FROM duesday.dues) AS due
				GROUP BY shard`, period)
			var floor any
			if test.want == "" {
				b.exec(t, `DELETE FROM duesday.shard_cursors WHERE shard = 1`)
			} else {
				floor = b.text(t, `SELECT min(claim_cursor) FROM duesday.shard_cursors`)
			}
			tx, err := b.conn.Begin(b.ctx)
			require.NoError(t, err)
			var out []byte
			_, err = tx.Exec(b.ctx, `SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_sort = off; SET LOCAL enable_nestloop = off`)
			require.NoError(t, err)
			require.NoError(t, tx.QueryRow(b.ctx, `EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) `+b.GatherSQL(),
				period, charges.LockID(namespace, period), 3, floor).Scan(&out))
			require.NoError(t, tx.Rollback(b.ctx))
			var explained []struct{ Plan plan }
			require.NoError(t, json.Unmarshal(out, &explained))
			require.Less(t, explained[0].Plan.Hit+explained[0].Plan.Read, 100, test.name)

			require.NoError(t, b.GatherCursors(b.ctx, b.conn))
			require.Regexp(t, test.want, b.text(t, `SELECT coalesce(claim_cursor, '') FROM duesday.periods`), test.name)
		}
	}
}
