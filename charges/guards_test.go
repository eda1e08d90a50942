package charges_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/internal/exitcode"
)

// lastMonth makes a settled September with n dues of 1000 usd each.
func (b *testBundle) lastMonth(t testing.TB, n int) {
	t.Helper()
	b.exec(t, `INSERT INTO duesday.periods VALUES ('2026-09', 'monthly-billing', now(), now())`)
	b.exec(t, `
		INSERT INTO duesday.dues
		SELECT '2026-09', 'old' || i, NULL, NULL, 1000, 'usd', 'x', 'charges', NULL FROM generate_series(1, $1::int) AS i`, n)
	b.exec(t, `INSERT INTO duesday.totals VALUES ('2026-09', 'usd', 1000 * $1::int, 1100 * $1::int)`, n)
}

// A guard that trips must open nothing, say so in plan and in opening with the
// same words, and be told to let the period through.
func TestGuards(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		last    int // dues of the month before; 0: there was none
		rows    int
		more    []string // further rows of customers
		guards  charges.Guards
		want    string // empty: it opens
		through *charges.Guards
	}{
		"growth at the limit":             {last: 20, rows: 40, guards: charges.Guards{MaxGrowth: "2"}},
		"growth after a handful":          {last: 19, rows: 400, guards: charges.Guards{MaxGrowth: "2"}},
		"growth after nothing":            {rows: 400, guards: charges.Guards{MaxGrowth: "2"}},
		"growth in a new currency":        {last: 20, rows: 20, more: []string{`'n', NULL, NULL, 9999999, 'eur', true`}, guards: charges.Guards{MaxGrowth: "2"}},
		"growth, any":                     {last: 20, rows: 400, guards: charges.Guards{MaxGrowth: "0"}},
		"rejected, three of few":          {rows: 1, more: bad(3), guards: charges.Guards{MaxRejected: "1%"}},
		"rejected, one in a hundred":      {rows: 594, more: bad(6), guards: charges.Guards{MaxRejected: "1%"}},
		"amount at the limit":             {rows: 1, guards: charges.Guards{MaxAmount: map[string]int64{"usd": 1000, "eur": 1}}},
		"two rows of one Stripe customer": {rows: 1, more: []string{`'x', 'c0001', NULL, 5, 'usd', true`}},
		"growth above the limit": {
			last: 20, rows: 41, guards: charges.Guards{MaxGrowth: "2"},
			want:    "the expected total is more than 2 times that of the last settled period ($410.00, after $200.00 in 2026-09): --max-growth 2.05 lets it through",
			through: &charges.Guards{MaxGrowth: "2.05"},
		},
		"growth to a whole factor": {
			last: 20, rows: 60, guards: charges.Guards{MaxGrowth: "2"},
			want:    "the expected total is more than 2 times that of the last settled period ($600.00, after $200.00 in 2026-09): --max-growth 3 lets it through",
			through: &charges.Guards{MaxGrowth: "3"},
		},
		"rejected above a hundredth": {
			rows: 593, more: bad(7), guards: charges.Guards{MaxRejected: "1%"},
			want:    "7 of 600 dues would be rejected, more than 6: duesday plan lists them; --max-rejected 7 lets them through",
			through: &charges.Guards{MaxRejected: "7"},
		},
		"rejected above a number": {
			rows: 1, more: bad(1), guards: charges.Guards{MaxRejected: "0"},
			want:    "1 of 2 dues would be rejected, more than 0: duesday plan lists them; --max-rejected 1 lets them through",
			through: &charges.Guards{MaxRejected: "1"},
		},
		"amount above the limit": {
			rows: 1, more: []string{`'whale', NULL, NULL, 1001, 'usd', true`}, guards: charges.Guards{MaxAmount: map[string]int64{"usd": 1000}},
			want:    "amounts above --max-amount: whale owes usd 1001 ($10.01), the limit is 1000 ($10.00): raise it, or leave the currency out",
			through: &charges.Guards{MaxAmount: map[string]int64{"usd": 1001}},
		},
		"amounts above the limit, more than fit": {
			rows: 1, more: []string{`'k', NULL, NULL, 5010, 'kwd', true`, `'l', NULL, NULL, 5020, 'kwd', true`, `'m', NULL, NULL, 5030, 'kwd', true`,
				`'n', NULL, NULL, 5040, 'kwd', true`, `'o', NULL, NULL, 5050, 'kwd', true`, `'p', NULL, NULL, 502, 'jpy', true`, `'q', NULL, NULL, 501, 'jpy', true`},
			guards: charges.Guards{MaxAmount: map[string]int64{"kwd": 5000, "jpy": 500}},
			want: "amounts above --max-amount: o owes kwd 5050 (KWD 5.050), the limit is 5000 (KWD 5.000), n owes kwd 5040 (KWD 5.040), the limit is 5000 (KWD 5.000), " +
				"m owes kwd 5030 (KWD 5.030), the limit is 5000 (KWD 5.000), l owes kwd 5020 (KWD 5.020), the limit is 5000 (KWD 5.000), " +
				"k owes kwd 5010 (KWD 5.010), the limit is 5000 (KWD 5.000), and 2 more: raise it, or leave the currency out",
			through: &charges.Guards{},
		},
		"a Stripe customer behind two rows": {
			rows: 1, more: []string{`'x', 'c0001', NULL, 5, 'usd', true`}, guards: charges.Guards{UniqueStripeCustomers: true},
			want:    "Stripe customers would be charged for more than one row: c0001 by c0001 and x: --unique-stripe-customers=false lets them through",
			through: &charges.Guards{},
		},
		"two at once": {
			last: 20, rows: 41, more: bad(4), guards: charges.Guards{MaxGrowth: "2", MaxRejected: "1%"},
			want: "the expected total is more than 2 times that of the last settled period ($410.00, after $200.00 in 2026-09): --max-growth 2.05 lets it through; " +
				"4 of 45 dues would be rejected, more than 3: duesday plan lists them; --max-rejected 4 lets them through",
			through: &charges.Guards{MaxGrowth: "2.05", MaxRejected: "4"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			if tc.last > 0 {
				b.lastMonth(t, tc.last)
			}
			b.some(t, tc.rows)
			b.customers(t, tc.more...)
			o := b.opening(t)
			o.Guards = tc.guards
			before := b.ledgerState(t)
			plan := func() error {
				_, err := b.Plan(b.ctx, b.conn, "duesday.customers", o, func(charges.PlannedReject) error { return nil })
				return err
			}
			if tc.want == "" {
				require.NoError(t, plan())
				require.NoError(t, b.Open(b.ctx, b.conn, o))
				return
			}
			const tripped = "a guard tripped, nothing was opened: "
			require.EqualError(t, plan(), tripped+tc.want)
			err := b.Open(b.ctx, b.conn, o)
			require.EqualError(t, err, "open period 2026-10: "+tripped+tc.want)
			require.ErrorIs(t, err, charges.ErrGuard)
			require.Equal(t, exitcode.Stopped, exitcode.Of(err))
			require.Equal(t, before, b.ledgerState(t))

			o.Guards = *tc.through
			require.NoError(t, plan())
			require.NoError(t, b.Open(b.ctx, b.conn, o))
		})
	}
}

// bad are n rows without an amount.
func bad(n int) []string {
	rows := make([]string, n)
	for i := range rows {
		rows[i] = `'bad` + string(rune('a'+i)) + `', NULL, NULL, NULL, 'usd', true`
	}
	return rows
}

// A year that is off by one would bill everybody once more.
func TestGuards_aMonthBeforeTheFirst(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.some(t, 3)
	b.open(t)
	early := charges.Ledger{Period: b.Period.Add(-12), Namespace: namespace}
	lockID := charges.LockID(namespace, early.Period.String())
	b.exec(t, `SELECT pg_advisory_lock($1)`, lockID)
	before := b.ledgerState(t)
	o := b.opening(t)
	err := early.Open(b.ctx, b.conn, o)
	require.ErrorContains(t, err, "period 2025-10 is before the first that was ever billed, 2026-10, and would bill everybody for it: --allow-past lets it through")
	require.Equal(t, exitcode.Stopped, exitcode.Of(err))
	require.Equal(t, before, b.ledgerState(t))
	o.Guards.AllowPast = true
	require.NoError(t, early.Open(b.ctx, b.conn, o))
}

func TestGuards_thatMakeNoSense(t *testing.T) {
	t.Parallel()
	for want, g := range map[string]charges.Guards{
		`--max-growth "fast": want a decimal, like 2 or 1.5; 0 for any`:                                             {MaxGrowth: "fast"},
		`--max-growth "-1": want a decimal, like 2 or 1.5; 0 for any`:                                               {MaxGrowth: "-1"},
		`--max-growth "1e3": want a decimal, like 2 or 1.5; 0 for any`:                                              {MaxGrowth: "1e3"},
		`--max-growth "1/2": want a decimal, like 2 or 1.5; 0 for any`:                                              {MaxGrowth: "1/2"},
		`--max-amount USD=5: want a lower-case currency and a positive amount in its smallest unit, like usd=50000`: {MaxAmount: map[string]int64{"USD": 5}},
		`--max-amount usd=0: want a lower-case currency and a positive amount in its smallest unit, like usd=50000`: {MaxAmount: map[string]int64{"usd": 0}},
		`--max-rejected "many": want a number of dues, or a percentage like 1%`:                                     {MaxRejected: "many"},
		`--max-rejected "101%": want a number of dues, or a percentage like 1%`:                                     {MaxRejected: "101%"},
		`--max-rejected "1.5": want a number of dues, or a percentage like 1%`:                                      {MaxRejected: "1.5"},
		`--max-rejected "-1": want a number of dues, or a percentage like 1%`:                                       {MaxRejected: "-1"},
		`--max-rejected "NaN%": want a number of dues, or a percentage like 1%`:                                     {MaxRejected: "NaN%"},
	} {
		require.EqualError(t, g.Check(), want)
	}
	require.NoError(t, (&charges.Guards{MaxGrowth: "2", MaxAmount: map[string]int64{"usd": 1}, MaxRejected: "0.5%"}).Check())
	require.NoError(t, (&charges.Guards{}).Check())
}

func TestPlan_namesStripeCustomersBehindTwoRows(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.some(t, 2)
	b.customers(t, `'x', 'c0001', NULL, 5, 'usd', true`, `'y', 'c0002', NULL, NULL, 'usd', true`)
	p, err := b.Plan(b.ctx, b.conn, "duesday.customers", b.opening(t), func(charges.PlannedReject) error { return nil })
	require.NoError(t, err)
	require.Equal(t, []charges.SharedCustomer{{StripeCustomerID: "c0001", CustomerIDs: []string{"c0001", "x"}}}, p.Shared,
		"a row that would be rejected shares nothing")
}

func TestRaiseCaps(t *testing.T) {
	t.Parallel()
	b := opened(t, 2)
	var run int64
	require.NoError(t, b.conn.QueryRow(b.ctx, `
		INSERT INTO duesday.runs (command, billing_period, holder, lock_id, backend_pid)
		VALUES ('run', '2026-10', 'me', 1, 1) RETURNING id`).Scan(&run))

	before := b.ledgerState(t)
	for want, caps := range map[string]map[string]int64{
		"--raise-cap-to usd=2199: the cap is 2200 ($22.00) already, and is never lowered": {"usd": 2199},
		"--raise-cap-to eur: period 2026-10 has no dues in that currency":                 {"eur": 5, "usd": 5000},
		"--raise-cap-to usd=2000: the cap is 2200 ($22.00) already, and is never lowered": {"usd": 2000},
	} {
		err := b.RaiseCaps(b.ctx, b.conn, run, caps)
		require.EqualError(t, err, want)
		require.Equal(t, exitcode.Misconfigured, exitcode.Of(err))
		require.Equal(t, before, b.ledgerState(t), "all or none")
	}

	require.NoError(t, b.RaiseCaps(b.ctx, b.conn, run, map[string]int64{"usd": 5000}))
	require.Equal(t, "5000", b.text(t, `SELECT cap FROM duesday.totals`))
	require.Equal(t, "2200 5000", b.text(t, `SELECT concat_ws(' ', raised_caps #>> '{usd,from}', raised_caps #>> '{usd,to}') FROM duesday.runs`))
	require.NotEmpty(t, b.text(t, `SELECT raised_caps #>> '{usd,role}' FROM duesday.runs`))

	b.unlock(t)
	require.ErrorIs(t, b.RaiseCaps(b.ctx, b.conn, run, map[string]int64{"usd": 6000}), charges.ErrFenced)
}

// A bug that multiplies every amount after the plan meets the cap.
func TestClaim_amountsThatGrewAfterOpeningMeetTheCap(t *testing.T) {
	t.Parallel()
	b := opened(t, 30)
	b.exec(t, `UPDATE duesday.dues SET amount = amount * 100`)
	_, err := b.Claim(b.ctx, b.conn, charges.ClaimCursor{}, 500)
	require.ErrorIs(t, err, charges.ErrCap)
	require.Equal(t, "0", b.text(t, `SELECT count(*) FROM duesday.charges`))
	_, err = b.conn.Exec(b.ctx, `UPDATE duesday.totals SET claimed_total = cap + 1`)
	require.ErrorContains(t, err, "spend_cap", "the database itself refuses")
}
