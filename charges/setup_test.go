package charges_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/internal/pgtest"
)

const (
	namespace = "monthly-billing"
	period    = "2026-10"
)

// testBundle is a database with the schema in it, and a connection that holds
// the period's lock, as package leader would hand it over.
type testBundle struct {
	*charges.Ledger
	ctx  context.Context
	db   *pgtest.DB
	conn *pgx.Conn // holds the lock
}

func setup(t testing.TB) *testBundle {
	t.Helper()
	b := &testBundle{
		Ledger: &charges.Ledger{Period: charges.Period{Year: 2026, Month: time.October}, Namespace: namespace},
		ctx:    t.Context(),
		db:     pgtest.New(t),
	}
	b.conn = b.connect(t)
	_, err := charges.Migrate(b.ctx, b.conn)
	require.NoError(t, err)
	b.lock(t, b.conn)
	return b
}

// connect opens a session like the leader's, without the lock.
func (b *testBundle) connect(t testing.TB) *pgx.Conn {
	t.Helper()
	conn := b.db.Connect(t)
	_, err := conn.Exec(b.ctx, `SET plan_cache_mode = force_custom_plan; SET jit = off`)
	require.NoError(t, err)
	return conn
}

func (b *testBundle) lock(t testing.TB, conn *pgx.Conn) {
	t.Helper()
	var ok bool
	require.NoError(t, conn.QueryRow(b.ctx, `SELECT pg_try_advisory_lock($1)`, charges.LockID(b.Namespace, b.Period.String())).Scan(&ok))
	require.True(t, ok, "the period's lock is taken")
}

func (b *testBundle) unlock(t testing.TB) {
	t.Helper()
	b.exec(t, `SELECT pg_advisory_unlock($1)`, charges.LockID(b.Namespace, b.Period.String()))
}

func (b *testBundle) exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	_, err := b.conn.Exec(b.ctx, sql, args...)
	require.NoError(t, err)
}

// customers fills duesday.customers. Each row is a VALUES list of id,
// stripe_customer_id, payment_method, amount, currency, active.
func (b *testBundle) customers(t testing.TB, rows ...string) {
	t.Helper()
	for _, row := range rows {
		b.exec(t, `INSERT INTO duesday.customers VALUES (`+row+`)`)
	}
}

// some adds n customers c0001… who owe 1000 usd each.
func (b *testBundle) some(t testing.TB, n int) {
	t.Helper()
	b.exec(t, `
		INSERT INTO duesday.customers (id, amount, currency)
		SELECT 'c' || lpad(i::text, 4, '0'), 1000, 'usd' FROM generate_series(1, $1::int) AS i`, n)
}

func (b *testBundle) relation(t testing.TB, name string) charges.Relation {
	t.Helper()
	r, err := charges.FindRelation(b.ctx, b.conn, name)
	require.NoError(t, err)
	return r
}

func (b *testBundle) opening(t testing.TB) charges.Opening {
	t.Helper()
	return charges.Opening{
		Customers: b.relation(t, "duesday.customers"), Description: "Billing period 2026-10",
		Method: charges.MethodCharges, CapFactor: "1.10", Timeout: time.Minute,
	}
}

func (b *testBundle) open(t testing.TB) {
	t.Helper()
	require.NoError(t, b.Open(b.ctx, b.conn, b.opening(t)))
}

// opened is setup with n customers and the period open.
func opened(t testing.TB, n int) *testBundle {
	t.Helper()
	b := setup(t)
	b.some(t, n)
	b.open(t)
	return b
}

func (b *testBundle) claimAll(t testing.TB) []charges.Slot {
	t.Helper()
	var (
		slots []charges.Slot
		from  charges.ClaimCursor
	)
	for {
		page, err := b.Claim(b.ctx, b.conn, from, 500)
		require.NoError(t, err)
		slots = append(slots, page.Slots...)
		if page.Dues < 500 {
			return slots
		}
		from = page.Next
	}
}

func (b *testBundle) settle(t testing.TB, results ...charges.Settlement) int {
	t.Helper()
	n, _, err := charges.Settle(b.ctx, b.conn, results)
	require.NoError(t, err)
	return n
}

// text is the only column of the only row, as text.
func (b *testBundle) text(t testing.TB, sql string, args ...any) string {
	t.Helper()
	rows, err := b.conn.Query(b.ctx, sql, append([]any{pgx.QueryResultFormats{pgx.TextFormatCode}}, args...)...)
	require.NoError(t, err)
	v, err := pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (string, error) {
		return string(row.RawValues()[0]), nil
	})
	require.NoError(t, err)
	return v
}

// texts is the only column of all rows.
func (b *testBundle) texts(t testing.TB, sql string, args ...any) []string {
	t.Helper()
	rows, err := b.conn.Query(b.ctx, sql, args...)
	require.NoError(t, err)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return all
}

// ledgerState is everything that a refused step must leave as it was.
func (b *testBundle) ledgerState(t testing.TB) []string {
	t.Helper()
	var all []string
	for _, table := range []string{"periods", "dues", "totals", "charges", "attempts"} {
		all = append(all, b.texts(t, `SELECT '`+table+` ' || to_jsonb(x)::text FROM duesday.`+table+` AS x ORDER BY 1`)...)
	}
	return all
}

// execAs is exec with a role of the test's own where sql names ROLE %[1]s:
// roles are the server's, and tests share it.
func (b *testBundle) execAs(t testing.TB, sql string) {
	t.Helper()
	if strings.Contains(sql, "%[1]s") {
		role := b.db.Name
		sql = fmt.Sprintf(sql, role)
		t.Cleanup(func() { b.db.Exec(t, `DROP OWNED BY biller_`+role+`; DROP ROLE biller_`+role) })
	}
	b.exec(t, sql)
}
