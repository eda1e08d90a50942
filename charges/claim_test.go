package charges_test

import (
	"encoding/json"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/charges"
)

func ids(slots []charges.Slot) []string {
	out := make([]string, len(slots))
	for i, s := range slots {
		out[i] = s.CustomerID
	}
	return out
}

func TestClaim_returnsWhatWasFrozen(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.customers(t, `'c1', 'cus_1', 'pm_1', 1999, 'usd'`, `'c2', NULL, NULL, 500, 'jpy'`)
	b.open(t)
	b.exec(t, `UPDATE duesday.customers SET amount = 1, stripe_customer_id = 'cus_other', currency = 'eur'`)
	page, err := b.Claim(b.ctx, b.conn, charges.ClaimCursor{}, 10)
	require.NoError(t, err)
	require.Equal(t, 2, page.Dues)
	require.Equal(t, charges.ClaimCursor{After: "c2", Valid: true}, page.Next)
	require.ElementsMatch(t, []string{"c1", "c2"}, ids(page.Slots))
	for _, got := range page.Slots {
		want := charges.Slot{
			Period: b.Period, CustomerID: "c1", StripeCustomerID: "cus_1", PaymentMethod: "pm_1", Amount: 1999, Currency: "usd",
			Description: "Billing period 2026-10", Method: charges.MethodCharges, Attempt: 1,
		}
		if got.CustomerID == "c2" {
			want.CustomerID, want.StripeCustomerID, want.PaymentMethod, want.Amount, want.Currency = "c2", "c2", "", 500, "jpy"
		}
		want.Key = charges.Key(want.CustomerID, b.Period, namespace, 1)
		want.ClaimedAt, want.ReadAt = got.ClaimedAt, got.ReadAt
		require.Equal(t, want, got)
		require.False(t, got.ReadAt.IsZero())
		require.False(t, got.ClaimedAt.Before(got.ReadAt.Round(0).Add(-1e6)), "the claim is not older than the question")
		require.True(t, got.Resendable(got.ReadAt))
	}
	require.Equal(t, []string{"c1 1 1999 usd claimed open", "c2 1 500 jpy claimed open"}, b.texts(t, `
		SELECT concat_ws(' ', customer_id, attempt, amount, currency, status, CASE WHEN settled_at IS NULL THEN 'open' END)
		FROM duesday.charges ORDER BY customer_id`))
	require.Equal(t, []string{"jpy 500", "usd 1999"}, b.texts(t, `SELECT currency || ' ' || claimed_total FROM duesday.totals ORDER BY 1`))
}

func TestClaim_refusesWithoutTheLock(t *testing.T) {
	t.Parallel()
	b := opened(t, 3)
	before := b.ledgerState(t)
	other := b.connect(t)
	page, err := b.Claim(b.ctx, other, charges.ClaimCursor{}, 10)
	require.ErrorIs(t, err, charges.ErrFenced, "another session holds it")
	require.Zero(t, page)
	b.unlock(t)
	_, err = b.Claim(b.ctx, b.conn, charges.ClaimCursor{}, 10)
	require.ErrorIs(t, err, charges.ErrFenced, "nobody holds it")
	b.lock(t, b.conn)
	other2 := charges.Ledger{Period: b.Period, Namespace: "other"}
	_, err = other2.Claim(b.ctx, b.conn, charges.ClaimCursor{}, 10)
	require.ErrorIs(t, err, charges.ErrFenced, "the lock of another namespace")
	require.Equal(t, before, b.ledgerState(t))
}

// Two sessions can hold a shared lock.
func TestClaim_aSharedLockIsNotTheLock(t *testing.T) {
	t.Parallel()
	b := opened(t, 3)
	b.unlock(t)
	b.exec(t, `SELECT pg_advisory_lock_shared($1)`, charges.LockID(namespace, period))
	_, err := b.Claim(b.ctx, b.conn, charges.ClaimCursor{}, 10)
	require.ErrorIs(t, err, charges.ErrFenced)
}

func TestClaim_aTerminatedBackendClaimsNothingMore(t *testing.T) {
	t.Parallel()
	b := opened(t, 10)
	page, err := b.Claim(b.ctx, b.conn, charges.ClaimCursor{}, 4)
	require.NoError(t, err)

	next := b.connect(t)
	var ended bool
	require.NoError(t, next.QueryRow(b.ctx, `SELECT pg_terminate_backend($1, 10000)`, b.conn.PgConn().PID()).Scan(&ended))
	require.True(t, ended)
	_, err = b.Claim(b.ctx, b.conn, page.Next, 4)
	require.Error(t, err)

	_, err = b.Claim(b.ctx, next, page.Next, 4)
	require.ErrorIs(t, err, charges.ErrFenced, "not yet the next leader")
	b.lock(t, next)
	cursor, err := b.Cursor(b.ctx, next)
	require.NoError(t, err)
	require.Equal(t, page.Next, cursor)
	page, err = b.Claim(b.ctx, next, cursor, 100)
	require.NoError(t, err)
	require.Equal(t, 6, page.Dues)
	require.Len(t, page.Slots, 6)
}

func TestClaim_pagesByTheLastID(t *testing.T) {
	t.Parallel()
	b := setup(t)
	// Bytewise order is not the order of a dictionary.
	b.customers(t, `'B', NULL, NULL, 1, 'usd'`, `'a', NULL, NULL, 1, 'usd'`, `'a-', NULL, NULL, 1, 'usd'`, `'A', NULL, NULL, 1, 'usd'`,
		`'_', NULL, NULL, 1, 'usd'`, `'b', NULL, NULL, 1, 'usd'`, `'é', NULL, NULL, 1, 'usd'`)
	b.open(t)
	cursor, err := b.Cursor(b.ctx, b.conn)
	require.NoError(t, err)
	require.Equal(t, charges.ClaimCursor{}, cursor)
	var pages []string
	for {
		page, err := b.Claim(b.ctx, b.conn, cursor, 2)
		require.NoError(t, err)
		if page.Dues > 0 {
			pages = append(pages, page.Next.After)
		}
		cursor, err = b.Cursor(b.ctx, b.conn)
		require.NoError(t, err)
		require.Equal(t, page.Next, cursor)
		if page.Dues < 2 {
			break
		}
	}
	require.Equal(t, []string{"B", "a", "b", "é"}, pages)
	require.Equal(t, "7", b.text(t, `SELECT count(*) FROM duesday.charges`))
}

func TestClaim_passesOverDuesThatHaveASlot(t *testing.T) {
	t.Parallel()
	b := opened(t, 5)
	_, err := b.Claim(b.ctx, b.conn, charges.ClaimCursor{}, 2)
	require.NoError(t, err)
	before := b.text(t, `SELECT string_agg(c::text, ',' ORDER BY customer_id) FROM duesday.charges AS c`)

	page, err := b.Claim(b.ctx, b.conn, charges.ClaimCursor{}, 5)
	require.NoError(t, err)
	require.Equal(t, 5, page.Dues)
	require.ElementsMatch(t, []string{"c0003", "c0004", "c0005"}, ids(page.Slots))
	require.Equal(t, before, b.text(t, `SELECT string_agg(c::text, ',' ORDER BY customer_id) FROM duesday.charges AS c WHERE customer_id < 'c0003'`))
	require.Equal(t, "5000", b.text(t, `SELECT claimed_total FROM duesday.totals`))

	page, err = b.Claim(b.ctx, b.conn, charges.ClaimCursor{}, 5)
	require.NoError(t, err)
	require.Equal(t, 5, page.Dues)
	require.Empty(t, page.Slots)
	require.Equal(t, "5000", b.text(t, `SELECT claimed_total FROM duesday.totals`))
}

func TestClaim_recordsRejectedDues(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.customers(t, `'', 'cus_0', NULL, 1, 'usd'`, `'c1', NULL, NULL, 1000, 'usd'`, `'c2', NULL, NULL, NULL, NULL`, `'c3', NULL, NULL, -7, 'USD'`)
	b.open(t)
	page, err := b.Claim(b.ctx, b.conn, charges.ClaimCursor{}, 10)
	require.NoError(t, err)
	require.Equal(t, []string{"c1"}, ids(page.Slots))
	require.Equal(t, 3, page.Rejected)
	require.Equal(t, 4, page.Dues)
	want := []string{"- customer_id_missing rejected", "c2 amount_missing rejected", "c3 amount_not_positive rejected"}
	const rejected = ` WHERE status = 'rejected' AND settled_at IS NOT NULL ORDER BY customer_id`
	const columns = `SELECT concat_ws(' ', coalesce(nullif(customer_id, ''), '-'), failure_code, status) FROM `
	require.Equal(t, want, b.texts(t, columns+`duesday.charges`+rejected))
	require.Equal(t, want, b.texts(t, columns+`duesday.attempts`+rejected))
	require.Equal(t, "3", b.text(t, `SELECT count(*) FROM duesday.attempts AS a JOIN duesday.charges USING (idempotency_key, attempt)`))

	_, err = b.Claim(b.ctx, b.conn, charges.ClaimCursor{}, 10)
	require.NoError(t, err)
	require.Equal(t, "3", b.text(t, `SELECT count(*) FROM duesday.attempts`), "once")
}

func TestClaim_stopsAtTheCap(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		cap    int
		limit  int
		pages  []int // slots a page
		capped bool
	}{
		"above":                {10_500, 10, []int{10}, false},
		"exactly":              {10_000, 10, []int{10}, false},
		"one short":            {9_999, 10, []int{5, 2, 2}, true},
		"cut to what fits":     {3_500, 10, []int{2, 1}, true},
		"not even one":         {999, 10, nil, true},
		"pages of one":         {2_000, 1, []int{1, 1}, true},
		"at the end of a page": {4_000, 2, []int{2, 2}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := opened(t, 10)
			b.exec(t, `UPDATE duesday.totals SET cap = $1`, tc.cap)
			var (
				cursor charges.ClaimCursor
				pages  []int
				page   charges.Page
				err    error
				sum    int
			)
			for {
				page, err = b.Claim(b.ctx, b.conn, cursor, tc.limit)
				if err != nil {
					require.Zero(t, page)
					break
				}
				if len(page.Slots) > 0 {
					pages = append(pages, len(page.Slots))
					sum += len(page.Slots)
				}
				if page.Dues < tc.limit {
					break
				}
				cursor = page.Next
			}
			if tc.capped {
				require.ErrorIs(t, err, charges.ErrCap)
			} else {
				require.NoError(t, err)
			}
			require.Equal(t, tc.pages, pages)
			var slots, claimed int
			require.NoError(t, b.conn.QueryRow(b.ctx, `SELECT (SELECT count(*) FROM duesday.charges), (SELECT claimed_total FROM duesday.totals)`).Scan(&slots, &claimed))
			require.Equal(t, sum, slots)
			require.Equal(t, sum*1000, claimed)
			at, err := b.Cursor(b.ctx, b.conn)
			require.NoError(t, err)
			if tc.capped {
				require.Equal(t, cursor, at, "what was refused was not passed over")
			}
		})
	}
}

func TestClaim_capsAreOfOneCurrencyEach(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.customers(t, `'c1', NULL, NULL, 1000, 'usd'`, `'c2', NULL, NULL, 1000, 'eur'`, `'c3', NULL, NULL, 1000, 'usd'`)
	b.open(t)
	b.exec(t, `UPDATE duesday.totals SET cap = 1000`)
	page, err := b.Claim(b.ctx, b.conn, charges.ClaimCursor{}, 10)
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"c1", "c2"}, ids(page.Slots))
	require.Equal(t, 10, page.Dues, "there is more")
	_, err = b.Claim(b.ctx, b.conn, page.Next, 10)
	require.ErrorIs(t, err, charges.ErrCap)
}

func TestSpendCap_isTheDatabasesOwnCheck(t *testing.T) {
	t.Parallel()
	b := opened(t, 1)
	_, err := b.conn.Exec(b.ctx, `UPDATE duesday.totals SET claimed_total = cap + 1`)
	require.ErrorContains(t, err, "spend_cap")
	_, err = b.conn.Exec(b.ctx, `UPDATE duesday.totals SET claimed_total = -1`)
	require.ErrorContains(t, err, "check constraint")
	b.claimAll(t)
	_, err = b.conn.Exec(b.ctx, `UPDATE duesday.totals SET cap = claimed_total - 1`)
	require.ErrorContains(t, err, "spend_cap")
}

func TestSchema_refusesASecondSlot(t *testing.T) {
	t.Parallel()
	b := opened(t, 1)
	b.claimAll(t)
	const insert = `INSERT INTO duesday.charges (customer_id, billing_period, idempotency_key, amount, currency, status) VALUES `
	for values, want := range map[string]string{
		`('c0001', '2026-10', repeat('a', 32), 1, 'usd', 'claimed')`:                                        "charges_once",
		`('c0002', '2026-10', '` + charges.Key("c0001", b.Period, namespace, 1) + `', 1, 'usd', 'claimed')`: "charges_key",
		`('c0002', '2026-10', '', 1, 'usd', 'claimed')`:                                                     "idempotency_key_check",
		`('c0002', '2026-10', repeat('a', 32), 0, 'usd', 'claimed')`:                                        "check constraint",
		`('c0002', '2026-10', repeat('a', 32), 1, NULL, 'claimed')`:                                         "check constraint",
		`('c0002', '2026-10', repeat('a', 32), NULL, 'usd', 'claimed')`:                                     "check constraint",
		`('c0002', '2026-10', repeat('a', 32), 1, 'usd', 'paid')`:                                           "check constraint",
		`('c0002', '2026-10', repeat('a', 32), 1, 'usd', 'succeeded')`:                                      "check constraint",
	} {
		_, err := b.conn.Exec(b.ctx, insert+values)
		require.ErrorContains(t, err, want, values)
	}
}

// plan is what EXPLAIN (FORMAT JSON) says of a node.
type plan struct {
	Type     string `json:"Node Type"`
	Relation string `json:"Relation Name"`
	Index    string `json:"Index Name"`
	Hit      int    `json:"Shared Hit Blocks"`
	Read     int    `json:"Shared Read Blocks"`
	Plans    []plan `json:"Plans"`
}

func (p plan) walk(f func(plan)) {
	f(p)
	for _, sub := range p.Plans {
		sub.walk(f)
	}
}

func (b *testBundle) explainClaim(t *testing.T, after any, limit int) plan {
	t.Helper()
	var out []byte
	require.NoError(t, b.conn.QueryRow(b.ctx, `EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) `+charges.ClaimSQL,
		period, after, limit, charges.LockID(namespace, period), namespace).Scan(&out))
	var explained []struct{ Plan plan }
	require.NoError(t, json.Unmarshal(out, &explained))
	require.Len(t, explained, 1)
	return explained[0].Plan
}

// A page costs the same at the start of 100,000 dues and at their end, with
// statistics and without: it is buffers that are counted, not time.
func TestClaim_costDoesNotGrowWithTheDues(t *testing.T) {
	t.Parallel()
	const page = 500
	b := setup(t)
	b.exec(t, `
		ALTER TABLE duesday.dues SET (autovacuum_enabled = off);
		ALTER TABLE duesday.charges SET (autovacuum_enabled = off);
		INSERT INTO duesday.customers (id, amount, currency)
		SELECT 'c' || lpad(i::text, 6, '0'), 1000, 'usd' FROM generate_series(1, 100000) AS i`)
	b.open(t)

	check := func(p plan) int {
		pages := 0
		p.walk(func(p plan) {
			require.False(t, p.Type == "Seq Scan" && (p.Relation == "dues" || p.Relation == "charges"), "a scan of all %s", p.Relation)
			if p.Index == "dues_pkey" {
				pages++
			}
		})
		require.Equal(t, 1, pages, "the page comes from the primary key")
		return p.Hit + p.Read
	}
	b.explainClaim(t, nil, page) // first touches: catalogs and new files
	first := check(b.explainClaim(t, "c000500", page))
	require.Equal(t, "1000", b.text(t, `SELECT count(*) FROM duesday.charges`))

	b.exec(t, `
		INSERT INTO duesday.charges (customer_id, billing_period, idempotency_key, amount, currency, status)
		SELECT customer_id, billing_period, md5(customer_id), amount, currency, 'claimed'
		FROM duesday.dues WHERE customer_id > 'c001000' AND customer_id <= 'c098000'`)
	last := check(b.explainClaim(t, "c098000", page))
	b.exec(t, `ANALYZE duesday.dues, duesday.charges`)
	analysed := check(b.explainClaim(t, "c098500", page))
	passed := check(b.explainClaim(t, "c050000", page))
	t.Logf("buffers a page of %d: first %d, last %d, analysed %d, over slots that exist %d", page, first, last, analysed, passed)
	// An index over 100,000 entries is a level deeper: 1 buffer more for each
	// of 4 look-ups a row. A scan would be thousands.
	require.Less(t, last, first*3/2)
	require.Less(t, analysed, first*3/2)
	require.Less(t, passed, first)
}

func TestClaim_notOpened(t *testing.T) {
	t.Parallel()
	b := setup(t)
	page, err := b.Claim(b.ctx, b.conn, charges.ClaimCursor{}, 10)
	require.NoError(t, err)
	require.Zero(t, page)
	_, err = b.Cursor(b.ctx, b.conn)
	require.ErrorIs(t, err, pgx.ErrNoRows)
}
