package charges_test

import (
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
)

// Whatever Postgres knows of the dues: nothing, or all about the months before.
func TestOpen_sharesTheScansOfItsDuesWithWorkers(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ sql, totals string }{
		"in a ledger never analysed": {totals: "HashAggregate"}, // at this size not worth a total of each worker's
		"in a ledger whose earlier months were": {totals: "Partial HashAggregate", sql: `
			INSERT INTO duesday.periods SELECT '2026-0' || month, 'monthly-billing', now() FROM generate_series(6, 9) AS month;
			INSERT INTO duesday.dues (billing_period, customer_id, amount, currency, description, stripe_method)
			SELECT '2026-0' || month, id, amount, currency, 'Billing period', 'charges'
			FROM duesday.customers, generate_series(6, 9) AS month;
			ANALYZE duesday.dues`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.exec(t, `ALTER TABLE duesday.dues SET (autovacuum_enabled = off)`)
			b.exec(t, `
				INSERT INTO duesday.customers (id, amount, currency)
				SELECT 'cust_' || lpad(i::text, 9, '0'), CASE WHEN i > 4 THEN 900 ELSE 0 END, 'usd' FROM generate_series(1, 50000) AS i`)
			b.exec(t, tc.sql)
			o := b.opening(t)

			plans, conn := b.explained(t)
			require.NoError(t, b.Open(b.ctx, conn, o))
			for statement, how := range map[string][]string{
				"IS NOT TRUE":                        {"Workers Planned"},
				"ctid = ANY":                         {"Tid Scan"},
				"FILTER (WHERE reject_code IS NULL)": {"Workers Planned", tc.totals},
			} {
				i := slices.IndexFunc(plans(), func(plan string) bool { return strings.Contains(plan, statement) })
				require.GreaterOrEqual(t, i, 0, statement)
				for _, how := range how {
					require.Contains(t, plans()[i], how)
				}
				require.NotContains(t, plans()[i], "Index Scan using")
			}
			require.Equal(t, "4", b.text(t, `SELECT count(*) FROM duesday.dues WHERE reject_code IS NOT NULL`))
		})
	}
}

// explained opens the leader's session anew, and returns how Postgres has gone
// about each of its statements since.
func (b *testBundle) explained(t *testing.T) (plans func() []string, conn *pgx.Conn) {
	t.Helper()
	var (
		mu  sync.Mutex
		all []string
	)
	config := b.conn.Config()
	config.OnNotice = func(_ *pgconn.PgConn, notice *pgconn.Notice) {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, notice.Message)
	}
	b.unlock(t)
	conn, err := pgx.ConnectConfig(b.ctx, config)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(b.ctx) })
	_, err = conn.Exec(b.ctx, `
		SET plan_cache_mode = force_custom_plan;
		LOAD 'auto_explain';
		SET auto_explain.log_min_duration = 0;
		SET auto_explain.log_level = 'notice'`)
	require.NoError(t, err)
	b.lock(t, conn)
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return all
	}, conn
}
