package charges_test

import (
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/internal/pgtest"
)

func (b *testBundle) report(t *testing.T) []charges.Row {
	t.Helper()
	var rows []charges.Row
	require.NoError(t, b.Report(b.ctx, b.conn, func(r charges.Row) error {
		rows = append(rows, r)
		return nil
	}))
	return rows
}

func TestReport_everyDueInOrder(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.customers(t, `'a', 'cus_a', NULL, 1000, 'usd'`, `'B', NULL, NULL, 500, 'jpy'`, `'c', NULL, NULL, NULL, NULL`, `'d', NULL, NULL, 7, 'usd'`, `'e', NULL, NULL, -1, 'usd'`)
	b.open(t)
	page, err := b.Claim(b.ctx, b.conn, charges.ClaimCursor{}, 3)
	require.NoError(t, err)
	for _, s := range page.Slots {
		if s.CustomerID == "a" {
			b.settle(t, charges.Settlement{Key: s.Key, Status: charges.Declined, ChargeID: "ch_1", FailureCode: "lost_card", FailureMessage: "Lost."})
		}
	}
	amount := func(n int64) *int64 { return &n }
	got := b.report(t)
	for i := range got {
		require.Equal(t, i > 2, got[i].ClaimedAt.IsZero(), got[i].CustomerID)
		require.Equal(t, got[i].Status == "declined" || got[i].Status == "rejected", !got[i].SettledAt.IsZero(), got[i].CustomerID)
		got[i].ClaimedAt, got[i].SettledAt = time.Time{}, time.Time{}
	}
	require.Equal(t, []charges.Row{
		{CustomerID: "B", StripeCustomerID: "B", Amount: amount(500), Currency: "jpy", Status: "claimed", Attempt: 1},
		{CustomerID: "a", StripeCustomerID: "cus_a", Amount: amount(1000), Currency: "usd", Status: "declined", Attempt: 1, ChargeID: "ch_1", FailureCode: "lost_card", FailureMessage: "Lost."},
		{CustomerID: "c", StripeCustomerID: "c", Status: "rejected", Attempt: 1, FailureCode: "amount_missing"},
		{CustomerID: "d", StripeCustomerID: "d", Amount: amount(7), Currency: "usd", Status: charges.Unclaimed},
		{CustomerID: "e", StripeCustomerID: "e", Amount: amount(-1), Currency: "usd", Status: charges.Unclaimed, FailureCode: "amount_not_positive"},
	}, got)
}

func TestReport_ofNothing(t *testing.T) {
	t.Parallel()
	require.Empty(t, setup(t).report(t))
}

func TestReport_readsWithNoRightToWrite(t *testing.T) {
	t.Parallel()
	b := opened(t, 2)
	n := 0
	require.NoError(t, b.Report(b.ctx, b.reader(t), func(charges.Row) error { n++; return nil }))
	require.Equal(t, 2, n)
}

func TestReport_anErrorOfEachEndsIt(t *testing.T) {
	t.Parallel()
	b := opened(t, 3)
	full := errors.New("disk full")
	n := 0
	require.ErrorIs(t, b.Report(b.ctx, b.conn, func(charges.Row) error { n++; return full }), full)
	require.Equal(t, 1, n)
	require.NoError(t, b.conn.Ping(b.ctx), "the connection can be used on")
}

// The rows are handed on as they come: what is alive does not grow with them.
func TestReport_memoryDoesNotGrow(t *testing.T) {
	const n = 30_000
	b := setup(t)
	b.exec(t, `INSERT INTO duesday.customers (id, amount, currency) SELECT 'c' || lpad(i::text, 6, '0'), 1, 'usd' FROM generate_series(1, $1::int) AS i`, n)
	b.open(t)
	var stats runtime.MemStats
	alive := func() uint64 {
		runtime.GC()
		runtime.ReadMemStats(&stats)
		return stats.HeapAlloc
	}
	start, seen, most := alive(), 0, uint64(0)
	require.NoError(t, b.Report(b.ctx, b.conn, func(charges.Row) error {
		if seen++; seen%6_000 == 0 {
			most = max(most, alive())
		}
		return nil
	}))
	require.Equal(t, n, seen)
	require.Less(t, most, start+2<<20, "30,000 rows kept would be over 6 MB")
}

func TestStatuses(t *testing.T) {
	t.Parallel()
	b := setup(t)
	all, err := charges.Statuses(b.ctx, b.conn, "")
	require.NoError(t, err)
	require.Empty(t, all)

	b.some(t, 5)
	b.customers(t, `'x', NULL, NULL, 0, 'usd'`, `'y', NULL, NULL, 70, 'jpy'`, `'z', NULL, NULL, 1000, 'usd'`)
	b.open(t)
	page, err := b.Claim(b.ctx, b.conn, charges.ClaimCursor{}, 7)
	require.NoError(t, err)
	for _, s := range page.Slots {
		if status := map[string]charges.Status{
			"c0001": charges.Succeeded, "c0002": charges.Succeeded, "c0003": charges.Declined, "c0004": charges.Processing, "y": charges.Succeeded,
		}[s.CustomerID]; status != "" {
			b.settle(t, charges.Settlement{Key: s.Key, Status: status})
		}
	}
	earlier := *b
	earlier.Ledger = &charges.Ledger{Period: b.Period.Add(-1), Namespace: namespace}
	earlier.lock(t, b.conn)
	o := b.opening(t)
	o.Customers, o.AllowEmpty, o.Guards.AllowPast = b.relation(t, "duesday.customers"), true, true
	b.exec(t, `UPDATE duesday.customers SET active = false`)
	require.NoError(t, earlier.Open(b.ctx, b.conn, o))
	_, err = earlier.SettlePeriod(b.ctx, b.conn)
	require.NoError(t, err)

	reader := pgtest.ReadOnlyRole(t, b.db)
	pool, err := charges.OpenPool(b.ctx, reader, 2)
	require.NoError(t, err)
	defer pool.Close()
	all, err = charges.Statuses(b.ctx, pool, "")
	require.NoError(t, err)
	require.Len(t, all, 2)
	require.Equal(t, "2026-09", all[0].Period)
	require.False(t, all[0].SettledAt.IsZero())
	require.Zero(t, all[0].Tally)
	require.Empty(t, all[0].Totals)

	oct := all[1]
	require.Equal(t, period, oct.Period)
	require.False(t, oct.OpenedAt.IsZero())
	require.Zero(t, oct.SettledAt)
	require.Equal(t, charges.Tally{Succeeded: 3, Declined: 1, Rejected: 1, Processing: 1, InDoubt: 1, Unclaimed: 1}, oct.Tally)
	require.Equal(t, 8, oct.Tally.Dues())
	require.Equal(t, []charges.Total{
		{Currency: "jpy", Expected: 70, Cap: 77, Claimed: 70, Succeeded: 70},
		{Currency: "usd", Expected: 6000, Cap: 6600, Claimed: 5000, Succeeded: 2000},
	}, oct.Totals)

	one, err := charges.Statuses(b.ctx, pool, period)
	require.NoError(t, err)
	require.Equal(t, []charges.PeriodStatus{oct}, one)
	none, err := charges.Statuses(b.ctx, pool, "2030-01")
	require.NoError(t, err)
	require.Empty(t, none)
}
