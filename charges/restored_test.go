package charges_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/charges"
)

// at is a finding of customer c0001, as far as a test does not say otherwise.
func at(attempt int, status charges.Status, change ...func(*charges.Finding)) charges.Finding {
	f := charges.Finding{
		CustomerID: "c0001", Attempt: attempt, Key: charges.Key("c0001", charges.Period{Year: 2026, Month: time.October}, namespace, attempt),
		ChargeID: "ch_" + string(rune('0'+attempt)), Amount: 1000, Currency: "usd", Status: status,
		Created: time.Date(2026, 10, 1, 12, attempt, 0, 0, time.UTC),
	}
	for _, c := range change {
		c(&f)
	}
	return f
}

func (b *testBundle) record(t testing.TB, found ...charges.Finding) charges.Restored {
	t.Helper()
	out, err := b.RecordFound(b.ctx, b.conn, found)
	require.NoError(t, err)
	return out
}

func (b *testBundle) int(t testing.TB, sql string) (n int) {
	t.Helper()
	require.NoError(t, b.conn.QueryRow(b.ctx, sql).Scan(&n))
	return n
}

func TestRecordFound_theAttemptThatTookMoneyCountsWhateverItsNumber(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		pages   [][]charges.Finding
		status  charges.Status
		attempt int
	}{
		"paid":                            {[][]charges.Finding{{at(1, charges.Succeeded)}}, charges.Succeeded, 1},
		"declined, then paid":             {[][]charges.Finding{{at(2, charges.Succeeded), at(1, charges.Declined)}}, charges.Succeeded, 2},
		"on two pages":                    {[][]charges.Finding{{at(2, charges.Succeeded)}, {at(1, charges.Declined)}}, charges.Succeeded, 2},
		"paid late, after a new attempt":  {[][]charges.Finding{{at(2, charges.Declined), at(1, charges.Succeeded)}}, charges.Succeeded, 1},
		"the same on two pages":           {[][]charges.Finding{{at(2, charges.Declined)}, {at(1, charges.Succeeded)}}, charges.Succeeded, 1},
		"undecided beats a later decline": {[][]charges.Finding{{at(2, charges.Declined)}, {at(1, charges.Processing)}}, charges.Processing, 1},
		"paid beats undecided":            {[][]charges.Finding{{at(2, charges.Processing)}, {at(1, charges.Succeeded)}}, charges.Succeeded, 1},
		"declined twice":                  {[][]charges.Finding{{at(2, charges.Declined)}, {at(1, charges.Declined)}}, charges.Declined, 2},
		"open, then declined":             {[][]charges.Finding{{at(2, charges.Declined), at(1, charges.Claimed)}}, charges.Declined, 2},
		"unknown even to Stripe":          {[][]charges.Finding{{at(2, charges.Claimed), at(1, charges.Declined)}}, charges.Claimed, 2},
		"one key, two objects":            {[][]charges.Finding{{at(1, charges.Succeeded), at(1, charges.Declined)}}, charges.Succeeded, 1},
		"the same from two lists":         {[][]charges.Finding{{at(1, charges.Succeeded)}, {at(1, charges.Succeeded)}}, charges.Succeeded, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := opened(t, 2)
			for range 2 { // and may be repeated
				for _, page := range tc.pages {
					require.Empty(t, b.record(t, page...).Twice)
				}
			}
			var got charges.Finding
			require.NoError(t, b.conn.QueryRow(b.ctx, `
				SELECT status, attempt, idempotency_key, charge_id FROM duesday.charges WHERE customer_id = 'c0001'`).
				Scan(&got.Status, &got.Attempt, &got.Key, &got.ChargeID))
			want := at(tc.attempt, tc.status)
			require.Equal(t, charges.Finding{Status: want.Status, Attempt: want.Attempt, Key: want.Key, ChargeID: want.ChargeID}, got)
			require.Equal(t, 1000, b.int(t, `SELECT claimed_total FROM duesday.totals`), "claimed once")
			for _, page := range tc.pages { // no key is unknown any more
				for _, f := range page {
					require.Equal(t, 1, b.int(t, `
						SELECT count(*) FROM (
							SELECT idempotency_key FROM duesday.charges UNION SELECT idempotency_key FROM duesday.attempts
						) AS known WHERE idempotency_key = '`+f.Key+`'`), f.Attempt)
				}
			}
		})
	}
}

func TestRecordFound_whatTheLedgerKnowsBetterStays(t *testing.T) {
	t.Parallel()
	b := opened(t, 1)
	slot := b.claimAll(t)[0]
	_, _, err := charges.Settle(b.ctx, b.db.Pool(t), []charges.Settlement{{Key: slot.Key, Status: charges.Succeeded, ChargeID: "ch_1"}})
	require.NoError(t, err)
	require.Equal(t, charges.Restored{}, b.record(t, at(1, charges.Succeeded)))
	require.Equal(t, charges.Restored{}, b.record(t, at(1, charges.Declined)), "an earlier object under the key")
	require.Equal(t, charges.Restored{}, b.record(t, at(2, charges.Declined)))
	require.Equal(t, []string{"ch_2"}, b.record(t, at(2, charges.Succeeded)).Twice)
	require.Equal(t, 1, b.int(t, `SELECT count(*) FROM duesday.charges WHERE status = 'succeeded' AND attempt = 1 AND charge_id = 'ch_1'`))
	require.Equal(t, 1000, b.int(t, `SELECT claimed_total FROM duesday.totals`))
}

func TestRecordFound_keepsAmountAndCurrencyAsAtStripeAndMovesTheCap(t *testing.T) {
	t.Parallel()
	b := opened(t, 2) // the cap is 2200 usd
	b.claimAll(t)
	out := b.record(t,
		at(1, charges.Succeeded, func(f *charges.Finding) { f.Amount = 9000 }),
		at(2, charges.Succeeded, func(f *charges.Finding) { // of another customer, in another currency
			f.CustomerID, f.Key, f.Currency, f.Amount = "c0002", charges.Key("c0002", b.Period, namespace, 2), "eur", 700
		}),
		at(1, charges.Succeeded, func(f *charges.Finding) { f.CustomerID, f.ChargeID = "nobody", "ch_nobody" }))
	require.Equal(t, charges.Restored{NotOwed: []string{"ch_nobody"}}, charges.Restored{NotOwed: out.NotOwed, Twice: out.Twice})
	// The slots were claimed under attempt 1; the one of c0002 is paid by its
	// second, the other by its first.
	require.Equal(t, 2, out.Slots)
	require.Equal(t, 9000, b.int(t, `SELECT claimed_total FROM duesday.totals WHERE currency = 'usd'`))
	require.Equal(t, 9000, b.int(t, `SELECT cap FROM duesday.totals WHERE currency = 'usd'`))
	require.Equal(t, 700, b.int(t, `SELECT claimed_total FROM duesday.totals WHERE currency = 'eur'`))
	require.Equal(t, 700, b.int(t, `SELECT cap FROM duesday.totals WHERE currency = 'eur'`))
}

func TestRecordFound_needsTheLock(t *testing.T) {
	t.Parallel()
	b := opened(t, 1)
	b.unlock(t)
	_, err := b.RecordFound(b.ctx, b.conn, []charges.Finding{at(1, charges.Succeeded)})
	require.ErrorIs(t, err, charges.ErrFenced)
	require.ErrorIs(t, b.BeginLookUp(b.ctx, b.conn, 1), charges.ErrFenced)
	require.ErrorIs(t, b.FinishLookUp(b.ctx, b.conn, 1), charges.ErrFenced)
	require.Zero(t, b.int(t, `SELECT count(*) FROM duesday.charges`))
}
