package charges_test

import (
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/internal/exitcode"
	"github.com/duesday/duesday/internal/pgtest"
)

// reader is a connection that may read, and nothing else.
func (b *testBundle) reader(t *testing.T) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(b.ctx, pgtest.ReadOnlyRole(t, b.db))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close(b.ctx)) })
	_, err = conn.Exec(b.ctx, `CREATE TABLE public.x (i int)`)
	require.Error(t, err, "it may write")
	return conn
}

func (b *testBundle) plan(t *testing.T, conn *pgx.Conn, relation string, o charges.Opening) (charges.Plan, []charges.PlannedReject, error) {
	t.Helper()
	var rejects []charges.PlannedReject
	p, err := b.Plan(b.ctx, conn, relation, o, func(r charges.PlannedReject) error {
		rejects = append(rejects, r)
		return nil
	})
	return p, rejects, err
}

func TestPlan_isWhatOpeningMakes(t *testing.T) {
	t.Parallel()
	for _, method := range []charges.Method{charges.MethodCharges, charges.MethodPaymentIntents} {
		t.Run(string(method), func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.fill(t)
			b.exec(t, `INSERT INTO public.clients VALUES ('euro', NULL, 'pm_1', 77, 'eur', true), ('yen', NULL, 'pm_1', 99, 'jpy', true)`)
			o := b.opening(t)
			o.Method = method
			before := b.ledgerState(t)
			planned, rejects, err := b.plan(t, b.reader(t), "public.clients", o)
			require.NoError(t, err)
			require.Equal(t, before, b.ledgerState(t))
			require.Equal(t, period, planned.Period)
			require.False(t, planned.Opened)
			require.False(t, planned.Settled)

			o.Customers = b.relation(t, "public.clients")
			require.NoError(t, b.Open(b.ctx, b.conn, o))
			b.claimAll(t)
			made, err := charges.Statuses(b.ctx, b.conn, period)
			require.NoError(t, err)
			for i := range made[0].Totals {
				made[0].Totals[i].Claimed = 0
			}
			require.Equal(t, made[0].Totals, planned.Totals)
			made[0].Tally.Unclaimed, made[0].Tally.InDoubt = made[0].Tally.InDoubt, 0
			require.Equal(t, made[0].Tally, planned.Tally)

			var want []charges.PlannedReject
			rows, err := b.conn.Query(b.ctx, `SELECT customer_id, failure_code FROM duesday.charges WHERE status = 'rejected' ORDER BY customer_id`)
			require.NoError(t, err)
			var r charges.PlannedReject
			_, err = pgx.ForEachRow(rows, []any{&r.CustomerID, &r.Code}, func() error {
				r.Reason = charges.RejectReason(r.Code)
				want = append(want, r)
				return nil
			})
			require.NoError(t, err)
			require.Equal(t, want, rejects)

			opened, again, err := b.plan(t, b.reader(t), "public.clients", o)
			require.NoError(t, err)
			require.True(t, opened.Opened)
			require.Equal(t, want, again)
		})
	}
}

// Every way in which opening fails, plan foretells with the same exit code.
func TestPlan_endsAsOpeningWould(t *testing.T) {
	t.Parallel()
	for name, sql := range map[string]string{
		"nobody": `CREATE TABLE public.clients (` + goodColumns + `)`,
		"repeated ids": `CREATE VIEW public.clients AS SELECT 'c' || i % 2 AS id, NULL::text AS stripe_customer_id, NULL::text AS payment_method,
			1 AS amount, 'usd'::text AS currency, true AS active FROM generate_series(1, 5) AS i`,
		"repeated ids that are too long": `CREATE VIEW public.clients AS SELECT repeat('c', 300) AS id, NULL::text AS stripe_customer_id, NULL::text AS payment_method,
			1 AS amount, 'usd'::text AS currency, true AS active FROM generate_series(1, 2) AS i`,
		"null and empty ids": `CREATE VIEW public.clients AS SELECT id, NULL::text AS stripe_customer_id, NULL::text AS payment_method,
			1 AS amount, 'usd'::text AS currency, true AS active FROM unnest('{NULL,""}'::text[]) AS id`,
		"an error in the view": `CREATE VIEW public.clients AS SELECT 'c' || i AS id, NULL::text AS stripe_customer_id, NULL::text AS payment_method,
			1 / (i - 3) AS amount, 'usd'::text AS currency, true AS active FROM generate_series(1, 5) AS i`,
		"a view without end": `CREATE VIEW public.clients AS WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT 1 FROM n)
			SELECT 'c'::text AS id, NULL::text AS stripe_customer_id, NULL::text AS payment_method,
				count(*)::bigint AS amount, 'usd'::text AS currency, true AS active FROM n`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.exec(t, sql)
			o := b.opening(t)
			o.Timeout = 300 * time.Millisecond
			_, _, planned := b.plan(t, b.reader(t), "public.clients", o)
			require.Error(t, planned)
			o.Customers = b.relation(t, "public.clients")
			opened := b.Open(b.ctx, b.conn, o)
			require.Error(t, opened)
			require.Equal(t, exitcode.Of(opened), exitcode.Of(planned), "%v; %v", opened, planned)
			require.Equal(t, errors.Is(opened, charges.ErrEmpty), errors.Is(planned, charges.ErrEmpty))
		})
	}
}

func TestPlan_namesRepeatedIDs(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(t, `CREATE VIEW public.clients AS SELECT 'c' || i % 2 AS id, NULL::text AS stripe_customer_id, NULL::text AS payment_method,
		1 AS amount, 'usd'::text AS currency, true AS active FROM generate_series(1, 5) AS i`)
	p, _, err := b.plan(t, b.conn, "public.clients", b.opening(t))
	require.EqualError(t, err, "--customers public.clients repeats an id, want one active row a customer: 'c0' (2 rows), 'c1' (3 rows)")
	require.Equal(t, 5, p.Tally.Unclaimed, "as far as it came")
}

func TestPlan_amountsThatAreNeverChargedDoNotOverflow(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.customers(t, `'a', NULL, NULL, 9223372036854775807, 'usd'`, `'b', NULL, NULL, 9223372036854775807, 'usd'`, `'c', NULL, NULL, 10, 'usd'`)
	p, rejects, err := b.plan(t, b.conn, "duesday.customers", b.opening(t))
	require.NoError(t, err)
	require.Len(t, rejects, 2)
	require.Equal(t, []charges.Total{{Currency: "usd", Expected: 10, Cap: 11}}, p.Totals)
}

func TestPlan_ofASettledPeriod(t *testing.T) {
	t.Parallel()
	b := opened(t, 2)
	slots := b.claimAll(t)
	b.settle(t, charges.Settlement{Key: slots[0].Key, Status: charges.Succeeded}, charges.Settlement{Key: slots[1].Key, Status: charges.Rejected})
	_, err := b.SettlePeriod(b.ctx, b.conn)
	require.NoError(t, err)
	p, rejects, err := b.plan(t, b.reader(t), "no such relation, and none is needed", charges.Opening{})
	require.NoError(t, err)
	require.True(t, p.Settled)
	require.Equal(t, charges.Tally{Succeeded: 1, Rejected: 1}, p.Tally)
	require.Len(t, rejects, 1, "also one without a code")
}

func TestPlan_missingRelationAndOtherNamespace(t *testing.T) {
	t.Parallel()
	b := setup(t)
	_, _, err := b.plan(t, b.reader(t), "duesday.clients", b.opening(t))
	require.EqualError(t, err, "--customers duesday.clients: there is no such table or view")
	b.some(t, 1)
	b.open(t)
	b.Namespace = "other"
	_, _, err = b.plan(t, b.conn, "duesday.customers", charges.Opening{})
	require.Equal(t, exitcode.Misconfigured, exitcode.Of(err))
}

func TestPlan_anErrorOfEachEndsIt(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.customers(t, `'a', NULL, NULL, 0, 'usd'`)
	full := errors.New("disk full")
	_, err := b.Plan(b.ctx, b.conn, "duesday.customers", b.opening(t), func(charges.PlannedReject) error { return full })
	require.ErrorIs(t, err, full)
	require.NoError(t, b.conn.Ping(b.ctx))
}
