package charges_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/duesday/duesday/charges"
)

// Every status against every other: what may replace what.
func TestSettle_lesserNeverReplacesGreater(t *testing.T) {
	t.Parallel()
	rank := []charges.Status{charges.Claimed, charges.Processing, charges.Rejected, charges.Declined, charges.Succeeded}
	b := opened(t, len(rank)*len(rank))
	slots := b.claimAll(t)
	for i, from := range rank {
		for j, to := range rank {
			slot := slots[i*len(rank)+j]
			if from != charges.Claimed {
				require.Equal(t, 1, b.settle(t, charges.Settlement{Key: slot.Key, Status: from, ChargeID: "ch_1", FailureCode: "first", RequestID: "req_1"}))
			}
			want, changed := from, 0
			if j > i {
				want, changed = to, 1
			}
			second := charges.Settlement{Key: slot.Key, Status: to, ChargeID: "ch_2", FailureCode: "second", RequestID: "req_2"}
			require.Equal(t, changed, b.settle(t, second), "%s over %s", to, from)
			require.Equal(t, 0, b.settle(t, second), "%s over %s, again", to, from)

			row := []string{b.text(t, `SELECT status FROM duesday.charges WHERE idempotency_key = $1`, slot.Key)}
			require.Equal(t, string(want), row[0], "%s over %s", to, from)
			settled := b.text(t, `SELECT settled_at IS NOT NULL FROM duesday.charges WHERE idempotency_key = $1`, slot.Key)
			require.Equal(t, fmt.Sprint(want != charges.Claimed && want != charges.Processing)[:1], settled, "%s over %s", to, from)
			attempts := changed
			if from != charges.Claimed {
				attempts++
			}
			require.Equal(t, fmt.Sprint(attempts), b.text(t, `SELECT count(*) FROM duesday.attempts WHERE idempotency_key = $1`, slot.Key))
		}
	}
}

func TestSettle_recordsEverything(t *testing.T) {
	t.Parallel()
	b := opened(t, 3)
	slots := b.claimAll(t)
	slices.SortFunc(slots, func(a, c charges.Slot) int { return strings.Compare(a.CustomerID, c.CustomerID) })
	require.Equal(t, 3, b.settle(t,
		charges.Settlement{Key: slots[0].Key, Status: charges.Succeeded, ChargeID: "ch_1", RequestID: "req_1"},
		charges.Settlement{Key: slots[1].Key, Status: charges.Declined, ChargeID: "ch_2", FailureCode: "insufficient_funds", FailureMessage: "No money.", RequestID: "req_2"},
		charges.Settlement{Key: slots[2].Key, Status: charges.Processing, ChargeID: "py_3"},
	))
	want := []string{
		"c0001 1 1000 usd succeeded ch_1 - -", "c0002 1 1000 usd declined ch_2 insufficient_funds No money.", "c0003 1 1000 usd processing py_3 - -",
	}
	const columns = `SELECT concat_ws(' ', customer_id, attempt, amount, currency, status, charge_id, coalesce(failure_code, '-'), coalesce(failure_message, '-'))`
	require.Equal(t, want, b.texts(t, columns+` FROM duesday.charges ORDER BY customer_id`))
	require.Equal(t, want, b.texts(t, columns+` FROM duesday.attempts ORDER BY customer_id`))
	require.Equal(t, []string{"req_1", "req_2", "-"}, b.texts(t, `SELECT coalesce(request_id, '-') FROM duesday.attempts ORDER BY customer_id`))
	require.Equal(t, "3", b.text(t, `SELECT count(*) FROM duesday.attempts JOIN duesday.charges USING (idempotency_key)`))

	// The bank has made up its mind; the charge's id was known before.
	require.Equal(t, 1, b.settle(t, charges.Settlement{Key: slots[2].Key, Status: charges.Succeeded}))
	require.Equal(t, "succeeded py_3", b.text(t, `SELECT status || ' ' || charge_id FROM duesday.charges WHERE customer_id = 'c0003'`))
}

func TestSettle_ofNothing(t *testing.T) {
	t.Parallel()
	b := opened(t, 1)
	require.Equal(t, 0, b.settle(t))
	require.Equal(t, 0, b.settle(t, charges.Settlement{Key: strings.Repeat("0", 32), Status: charges.Succeeded}), "a key that no slot has")
	require.Equal(t, 0, b.settle(t, charges.Settlement{Key: b.claimAll(t)[0].Key, Status: "paid"}), "no status")
}

func TestSettle_leavesTheCallersResultsAlone(t *testing.T) {
	t.Parallel()
	b := opened(t, 3)
	var results []charges.Settlement
	for _, s := range b.claimAll(t) {
		results = append(results, charges.Settlement{Key: s.Key, Status: charges.Succeeded})
	}
	slices.SortFunc(results, func(a, c charges.Settlement) int { return strings.Compare(c.Key, a.Key) })
	before := slices.Clone(results)
	b.settle(t, results...)
	require.Equal(t, before, results)
}

// Of two results for a slot in one batch the greater stands, in any order.
func TestSettle_twoResultsOfASlotInOneBatch(t *testing.T) {
	t.Parallel()
	b := opened(t, 2)
	slots := b.claimAll(t)
	p := func(i int) charges.Settlement {
		return charges.Settlement{Key: slots[i].Key, Status: charges.Processing}
	}
	s := func(i int) charges.Settlement {
		return charges.Settlement{Key: slots[i].Key, Status: charges.Succeeded}
	}
	require.Equal(t, 2, b.settle(t, p(0), s(0), s(1), p(1)))
	require.Equal(t, []string{"succeeded", "succeeded"}, b.texts(t, `SELECT status FROM duesday.charges`))
}

func TestSettle_storesOddTexts(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ text, want string }{
		"plain":         {"Your card was declined.", "Your card was declined."},
		"quotes":        {`'; DROP TABLE x; -- "`, `'; DROP TABLE x; -- "`},
		"NUL":           {"a\x00b", "ab"},
		"invalid UTF-8": {"a\xff\xfeb", "a\uFFFDb"},
		"emoji":         {"💳 declined", "💳 declined"},
		"very long":     {strings.Repeat("é", 100_000), strings.Repeat("é", 500)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := opened(t, 1)
			slot := b.claimAll(t)[0]
			require.Equal(t, 1, b.settle(t, charges.Settlement{
				Key: slot.Key, Status: charges.Declined, ChargeID: tc.text, FailureCode: tc.text, FailureMessage: tc.text, RequestID: tc.text}))
			for _, column := range []string{"charge_id", "failure_code", "failure_message", "request_id"} {
				require.Equal(t, tc.want, b.text(t, `SELECT `+column+` FROM duesday.attempts`), column)
			}
		})
	}
}

func TestAttempts_areAppendOnly(t *testing.T) {
	t.Parallel()
	b := opened(t, 1)
	b.settle(t, charges.Settlement{Key: b.claimAll(t)[0].Key, Status: charges.Succeeded})
	for _, sql := range []string{
		`UPDATE duesday.attempts SET status = 'declined'`,
		`UPDATE duesday.attempts SET status = status WHERE false`,
		`DELETE FROM duesday.attempts`,
		`TRUNCATE duesday.attempts`,
		`TRUNCATE duesday.charges, duesday.attempts`,
		`INSERT INTO duesday.attempts (id, customer_id, billing_period, attempt, idempotency_key, status) OVERRIDING SYSTEM VALUE
			SELECT id, customer_id, billing_period, attempt, idempotency_key, 'declined' FROM duesday.attempts
			ON CONFLICT (id) DO UPDATE SET status = 'declined'`,
	} {
		_, err := b.conn.Exec(b.ctx, sql)
		require.ErrorContains(t, err, "duesday.attempts is append-only", sql)
	}
	require.Equal(t, "succeeded", b.text(t, `SELECT status FROM duesday.attempts`))
}

// Without one order of taking row locks, some rounds of this deadlock.
func TestSettle_batchesInAnyOrderDoNotDeadlock(t *testing.T) {
	t.Parallel()
	const n, rounds = 500, 15
	b := opened(t, n)
	slots := b.claimAll(t)
	b.exec(t, `ANALYZE duesday.charges`)
	a, c := b.db.Connect(t), b.db.Connect(t)
	// One session's plan looks the slots up in the order of the batch, the
	// other's goes through the table.
	_, err := a.Exec(b.ctx, `SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off`)
	require.NoError(t, err)
	_, err = c.Exec(b.ctx, `SET enable_indexscan = off; SET enable_bitmapscan = off; SET enable_nestloop = off; SET enable_mergejoin = off`)
	require.NoError(t, err)
	for round := range rounds {
		b.exec(t, `UPDATE duesday.charges SET status = 'claimed', settled_at = NULL`)
		forth := make([]charges.Settlement, n)
		for i, s := range slots {
			forth[i] = charges.Settlement{Key: s.Key, Status: charges.Declined}
		}
		back := slices.Clone(forth)
		slices.Reverse(back)
		for i := range back {
			back[i].Status = charges.Succeeded
		}
		var g errgroup.Group
		g.Go(func() error { _, _, err := charges.Settle(b.ctx, a, forth); return err })
		g.Go(func() error { _, _, err := charges.Settle(b.ctx, c, back); return err })
		require.NoError(t, g.Wait(), "round %d", round)
		require.Equal(t, fmt.Sprint(n), b.text(t, `SELECT count(*) FROM duesday.charges WHERE status = 'succeeded'`))
	}
}

func TestSettle_aLateResultOfAnOldAttemptIsNotTheNewOnes(t *testing.T) {
	t.Parallel()
	b := opened(t, 1)
	old := b.claimAll(t)[0]
	b.settle(t, charges.Settlement{Key: old.Key, Status: charges.Rejected, FailureCode: "resource_missing"})
	require.NoError(t, b.Reopen(b.ctx, b.conn, b.opening(t)))
	require.Equal(t, 0, b.settle(t, charges.Settlement{Key: old.Key, Status: charges.Succeeded, ChargeID: "ch_late"}))
	require.Equal(t, "claimed 2", b.text(t, `SELECT status || ' ' || attempt FROM duesday.charges WHERE charge_id IS NULL`))
}

func (b *testBundle) inDoubt(t *testing.T, after string, limit int) []charges.Slot {
	t.Helper()
	slots, err := b.InDoubt(b.ctx, b.conn, after, limit)
	require.NoError(t, err)
	return slots
}

func TestInDoubt_isWhatWasClaimedAndNothingElse(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.customers(t,
		`'c1', 'cus_1', 'pm_1', 1999, 'usd'`, `'c2', NULL, NULL, 500, 'jpy'`, `'c3', NULL, NULL, 1, 'usd'`,
		`'c4', NULL, NULL, 1, 'usd'`, `'c5', NULL, NULL, 1, 'usd'`, `'c6', NULL, NULL, 0, 'usd'`)
	b.open(t)
	claimed := map[string]charges.Slot{}
	for _, s := range b.claimAll(t) {
		claimed[s.CustomerID] = s
	}
	for id, status := range map[string]charges.Status{"c3": charges.Succeeded, "c4": charges.Processing, "c5": charges.Declined} {
		b.settle(t, charges.Settlement{Key: claimed[id].Key, Status: status})
	}
	b.exec(t, `UPDATE duesday.customers SET amount = 7, stripe_customer_id = 'cus_other'`)

	got := b.inDoubt(t, "", 10)
	require.Equal(t, []string{"c1", "c2"}, ids(got))
	for _, s := range got {
		want := claimed[s.CustomerID]
		require.WithinDuration(t, want.ClaimedAt, s.ClaimedAt, 0)
		require.Less(t, s.WindowAge, time.Minute)
		require.Positive(t, s.WindowAge)
		want.ClaimedAt, want.WindowAge, want.ReadAt = s.ClaimedAt, s.WindowAge, s.ReadAt
		require.Equal(t, want, s, "byte-identical parameters")
	}
	require.Equal(t, []string{"c2"}, ids(b.inDoubt(t, "c1", 10)))
	require.Equal(t, []string{"c1"}, ids(b.inDoubt(t, "", 1)))
	require.Empty(t, b.inDoubt(t, "c2", 10))

	next := *b.Ledger
	next.Period = next.Period.Add(1)
	other, err := next.InDoubt(b.ctx, b.conn, "", 10)
	require.NoError(t, err)
	require.Empty(t, other, "of its own period only")
}

func TestInDoubt_knowsTheAgeOfTheKey(t *testing.T) {
	t.Parallel()
	b := opened(t, 1)
	b.claimAll(t)
	for age, resendable := range map[string]bool{"0s": true, "22h59m": true, "23h1m": false, "24h": false, "40 days": false} {
		b.exec(t, `UPDATE duesday.charges SET key_window_at = clock_timestamp() - $1::text::interval`, age)
		slot := b.inDoubt(t, "", 1)[0]
		require.Equal(t, resendable, slot.Resendable(slot.ReadAt), age)
		require.False(t, slot.Resendable(slot.ReadAt.Add(24*time.Hour)), age)
	}
}

func TestResendable(t *testing.T) {
	t.Parallel()
	read := time.Date(2026, 10, 1, 6, 0, 0, 0, time.UTC)
	for _, tc := range []struct {
		age, since time.Duration
		want       bool
	}{
		{0, 0, true}, {0, 23*time.Hour - 1, true}, {0, 23 * time.Hour, false},
		{23*time.Hour - 1, 0, true}, {23 * time.Hour, 0, false}, {12 * time.Hour, 11 * time.Hour, false}, {12 * time.Hour, 10 * time.Hour, true},
	} {
		slot := charges.Slot{WindowAge: tc.age, ReadAt: read}
		require.Equal(t, tc.want, slot.Resendable(read.Add(tc.since)), "%v", tc)
	}
}

func TestRefreshWindow(t *testing.T) {
	t.Parallel()
	b := opened(t, 1)
	b.claimAll(t)
	b.exec(t, `UPDATE duesday.charges SET claimed_at = claimed_at - interval '30 hours', key_window_at = key_window_at - interval '30 hours'`)
	slot := b.inDoubt(t, "", 1)[0]
	claimedAt := slot.ClaimedAt
	require.False(t, slot.Resendable(slot.ReadAt))

	require.ErrorIs(t, b.RefreshWindow(b.ctx, b.connect(t), &slot), charges.ErrFenced)
	require.False(t, slot.Resendable(slot.ReadAt))
	require.False(t, b.inDoubt(t, "", 1)[0].Resendable(time.Now()))

	require.NoError(t, b.RefreshWindow(b.ctx, b.conn, &slot))
	require.True(t, slot.Resendable(time.Now()))
	require.Equal(t, claimedAt, slot.ClaimedAt, "look-ups go on from the claim")
	again := b.inDoubt(t, "", 1)[0]
	require.True(t, again.Resendable(time.Now()))
	require.Equal(t, claimedAt, again.ClaimedAt)

	b.settle(t, charges.Settlement{Key: slot.Key, Status: charges.Succeeded})
	require.Error(t, b.RefreshWindow(b.ctx, b.conn, &slot), "it is settled, and not to be sent")
}

func TestSettlePeriod_onlyWhenAllIsDone(t *testing.T) {
	t.Parallel()
	b := opened(t, 3)
	check := func(want bool, why string) {
		t.Helper()
		done, err := b.SettlePeriod(b.ctx, b.conn)
		require.NoError(t, err)
		require.Equal(t, want, done, why)
		s, err := b.State(b.ctx, b.conn)
		require.NoError(t, err)
		require.Equal(t, want, !s.SettledAt.IsZero(), why)
	}
	check(false, "nothing is claimed")
	page, err := b.Claim(b.ctx, b.conn, charges.ClaimCursor{}, 2)
	require.NoError(t, err)
	check(false, "one due has no slot, and two are in doubt")
	settleAll := func(slots []charges.Slot, status charges.Status) {
		for _, s := range slots {
			b.settle(t, charges.Settlement{Key: s.Key, Status: status})
		}
	}
	settleAll(page.Slots, charges.Succeeded)
	check(false, "one due has no slot")
	page, err = b.Claim(b.ctx, b.conn, page.Next, 2)
	require.NoError(t, err)
	check(false, "one slot is in doubt")
	settleAll(page.Slots, charges.Declined)

	b.unlock(t)
	check(false, "the lock is gone")
	b.lock(t, b.conn)
	check(true, "a decline does not hold the period up")
	at := b.text(t, `SELECT settled_at FROM duesday.periods`)
	check(true, "again")
	require.Equal(t, at, b.text(t, `SELECT settled_at FROM duesday.periods`), "written down once")
}

func TestSettlePeriod_processingAndRejectedDoNotHoldItUp(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.customers(t, `'c1', NULL, NULL, 1000, 'usd'`, `'c2', NULL, NULL, 0, 'usd'`)
	b.open(t)
	b.settle(t, charges.Settlement{Key: b.claimAll(t)[0].Key, Status: charges.Processing})
	done, err := b.SettlePeriod(b.ctx, b.conn)
	require.NoError(t, err)
	require.True(t, done)
}

func TestSettlePeriod_empty(t *testing.T) {
	t.Parallel()
	b := setup(t)
	done, err := b.SettlePeriod(b.ctx, b.conn)
	require.NoError(t, err)
	require.False(t, done, "not opened")
	o := b.opening(t)
	o.AllowEmpty = true
	require.NoError(t, b.Open(b.ctx, b.conn, o))
	done, err = b.SettlePeriod(b.ctx, b.conn)
	require.NoError(t, err)
	require.True(t, done)
}

// Money that was taken under a key which the slot has left is not passed over
// in silence.
func TestSettle_tellsOfChargesThatNoSlotKnows(t *testing.T) {
	t.Parallel()
	b := opened(t, 1)
	slot := b.claimAll(t)[0]
	changed, stray, err := charges.Settle(b.ctx, b.conn, []charges.Settlement{
		{Key: slot.Key, Status: charges.Succeeded, ChargeID: "ch_ours"},
		{Key: strings.Repeat("0", 32), Status: charges.Succeeded, ChargeID: "ch_stray"},
		{Key: strings.Repeat("1", 32), Status: charges.Declined, ChargeID: "ch_declined"},
	})
	require.NoError(t, err)
	require.Equal(t, 1, changed)
	require.Equal(t, []string{"ch_stray"}, stray)

	_, stray, err = charges.Settle(b.ctx, b.conn, []charges.Settlement{{Key: slot.Key, Status: charges.Succeeded, ChargeID: "ch_ours"}})
	require.NoError(t, err)
	require.Empty(t, stray, "a repeat is no stranger")
}
