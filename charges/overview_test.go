package charges_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/charges"
)

func TestOverview_ofAPeriodWithEveryOutcome(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.customers(t, `'a', 'cus_a', NULL, 1000, 'usd'`, `'b', NULL, NULL, 2000, 'usd'`, `'c', NULL, NULL, NULL, NULL`, `'d', NULL, NULL, 3000, 'usd'`,
		`'e', NULL, NULL, 4000, 'usd'`, `'f', NULL, NULL, 9223372036854775807, 'usd'`, `'g', NULL, NULL, 9223372036854775807, 'usd'`,
		`'x', NULL, NULL, 500, 'jpy'`, `'y', NULL, NULL, 600, 'jpy'`)
	b.open(t)
	page, err := b.Claim(b.ctx, b.conn, charges.ClaimCursor{}, 7)
	require.NoError(t, err)
	for _, s := range page.Slots {
		switch s.CustomerID {
		case "a":
			b.settle(t, charges.Settlement{Key: s.Key, Status: charges.Declined, ChargeID: "ch_1", FailureCode: "lost_card", FailureMessage: "Lost.", NeedsCustomer: true})
		case "b":
			b.settle(t, charges.Settlement{Key: s.Key, Status: charges.Declined, ChargeID: "ch_2", FailureCode: "insufficient_funds"})
		case "d":
			b.settle(t, charges.Settlement{Key: s.Key, Status: charges.Succeeded, ChargeID: "ch_3"})
		}
	}
	// Half an hour in one table row, for a timeline of more than one column.
	b.exec(t, `UPDATE duesday.charges SET settled_at = '2026-10-01 12:00:07Z' WHERE settled_at IS NOT NULL AND customer_id < 'c'`)
	b.exec(t, `UPDATE duesday.charges SET settled_at = '2026-10-01 12:30:00Z' WHERE settled_at IS NOT NULL AND customer_id >= 'c'`)

	o, err := b.Overview(b.ctx, b.reader(t), 1)
	require.NoError(t, err)
	require.False(t, o.OpenedAt.IsZero())
	require.True(t, o.SettledAt.IsZero())
	require.Equal(t, charges.Tally{Succeeded: 1, Declined: 2, Rejected: 3, InDoubt: 1, Unclaimed: 2}, o.Tally)
	require.Equal(t, []charges.Money{
		{Currency: "jpy", Expected: 1100, Cap: 1210, Unclaimed: 1100},
		{Currency: "usd", Expected: 10_000, Cap: 11_000, Succeeded: 3000, Declined: 3000, InDoubt: 4000},
	}, o.Money)
	require.Equal(t, []charges.Reason{
		{Status: charges.Rejected, Code: "amount_too_large", Dues: 2},
		{Status: charges.Declined, Code: "insufficient_funds", Dues: 1},
		{Status: charges.Declined, Code: "lost_card", NeedsCustomer: true, Dues: 1},
		{Status: charges.Rejected, Code: "amount_missing", Dues: 1},
	}, o.Reasons)

	noon := time.Date(2026, time.October, 1, 12, 0, 0, 0, time.UTC)
	buckets := o.Timeline.Buckets
	require.Equal(t, time.Minute, o.Timeline.Step)
	require.True(t, o.Timeline.First.Equal(noon.Add(7*time.Second)) && o.Timeline.Last.Equal(noon.Add(30*time.Minute)))
	for i := range buckets {
		buckets[i].At = buckets[i].At.UTC()
	}
	require.Equal(t, []charges.Bucket{
		{At: noon, Status: charges.Declined, Slots: 2},
		{At: noon.Add(30 * time.Minute), Status: charges.Rejected, Slots: 3},
		{At: noon.Add(30 * time.Minute), Status: charges.Succeeded, Slots: 1},
	}, buckets)

	type look struct {
		kind  charges.Kind
		dues  int
		first string
	}
	var looks []look
	for _, l := range o.Look {
		require.Len(t, l.First, 1, "no more than the limit")
		looks = append(looks, look{l.Kind, l.Dues, l.First[0].CustomerID})
	}
	require.Equal(t, []look{
		{charges.KindInDoubt, 1, "e"}, {charges.KindRejected, 3, "c"}, {charges.KindNeedsCustomer, 1, "a"}, {charges.KindUnclaimed, 2, "x"},
	}, looks)
}

func TestOverview_ofNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	_, err := b.Overview(b.ctx, b.conn, 10)
	require.ErrorIs(t, err, pgx.ErrNoRows)

	opening := b.opening(t)
	opening.AllowEmpty = true
	require.NoError(t, b.Open(b.ctx, b.conn, opening))
	o, err := b.Overview(b.ctx, b.conn, 10)
	require.NoError(t, err)
	require.Empty(t, o.Money)
	require.Empty(t, o.Timeline)
	require.Empty(t, o.Look)
}

// However long the period took, the columns fit on a page.
func TestOverview_timelineOfYears(t *testing.T) {
	t.Parallel()
	for span, step := range map[string]time.Duration{
		"1 second": time.Second, "59 seconds": time.Second, "61 seconds": 5 * time.Second, "10 hours": 15 * time.Minute,
		"7 days": 3 * time.Hour, "400 days": 7 * 24 * time.Hour, "20 years": 365 * 24 * time.Hour,
	} {
		t.Run(span, func(t *testing.T) {
			t.Parallel()
			b := opened(t, 2)
			for _, s := range b.claimAll(t) {
				b.settle(t, charges.Settlement{Key: s.Key, Status: charges.Succeeded, ChargeID: "ch_" + s.CustomerID})
			}
			b.exec(t, `UPDATE duesday.charges SET settled_at = settled_at + $1::interval WHERE customer_id = 'c0002'`, span)
			o, err := b.Overview(b.ctx, b.conn, 10)
			require.NoError(t, err)
			require.Equal(t, step, o.Timeline.Step)
			require.LessOrEqual(t, o.Timeline.Last.Sub(o.Timeline.First)/step, time.Duration(60))
		})
	}
}
