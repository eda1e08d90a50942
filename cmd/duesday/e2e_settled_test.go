package main

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/internal/stripesim"
)

// scans are what Postgres has read of the big tables so far.
func (b *bundle) scans(t testing.TB) map[string][2]int64 {
	t.Helper()
	// A session tells of itself at its end.
	eventually(t, "the run's sessions to end", func() bool {
		return b.count(t, `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND application_name LIKE 'duesday%'`) == 0
	})
	rows, err := b.pool.Query(b.ctx, `
		SELECT relname, seq_scan, coalesce(idx_tup_fetch, 0) FROM pg_stat_user_tables
		WHERE schemaname = 'duesday' AND relname IN ('dues', 'charges', 'attempts', 'customers')`)
	require.NoError(t, err)
	found := map[string][2]int64{}
	var (
		name       string
		seq, fetch int64
	)
	_, err = pgx.ForEachRow(rows, []any{&name, &seq, &fetch}, func() error {
		found[name] = [2]int64{seq, fetch}
		return nil
	})
	require.NoError(t, err)
	return found
}

func TestRun_ofASettledPeriodAsksAlmostNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	b.add(t, payers(1)...)
	b.finish(t)
	// The period as it would be with 100,000 customers.
	b.exec(t, `
		INSERT INTO duesday.customers (id, amount, currency)
		SELECT 'more_' || i, 1000, 'usd' FROM generate_series(1, 100000) AS i`)
	b.exec(t, `
		INSERT INTO duesday.dues (billing_period, customer_id, amount, currency, description, stripe_method)
		SELECT '2026-10', id, amount, currency, 'x', 'charges' FROM duesday.customers WHERE id LIKE 'more%'`)
	b.exec(t, `
		INSERT INTO duesday.charges (customer_id, billing_period, idempotency_key, amount, currency, status, charge_id, settled_at)
		SELECT id, '2026-10', md5(id), amount, currency, 'succeeded', 'ch_' || id, now() FROM duesday.customers WHERE id LIKE 'more%'`)
	b.exec(t, `VACUUM ANALYZE duesday.dues, duesday.charges, duesday.customers`)
	before, requests := b.scans(t), b.sim.Stats().Requests

	p := b.run(t)
	p.requireExit(t, 0)
	said := p.logs(t, "period already settled, nothing to do")
	require.Len(t, said, 1)
	require.Equal(t, testPeriod, said[0]["billing_period"])
	require.NotEmpty(t, said[0]["settled_at"])
	require.Equal(t, before, b.scans(t), "the run read dues, charges or customers")
	require.Equal(t, requests, b.sim.Stats().Requests)
	require.Equal(t, "already settled", func() (s string) {
		b.scan(t, &s, `SELECT outcome FROM duesday.runs ORDER BY id DESC LIMIT 1`)
		return s
	}())
}

// What is left is found, in doubt before the cursor and unclaimed behind it.
func TestRun_ofABigPeriodFinishesTheTwoThatAreLeft(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	b.add(t, payers(1)...)
	b.finish(t)
	b.exec(t, `
		INSERT INTO duesday.dues (billing_period, customer_id, amount, currency, description, stripe_method)
		SELECT '2026-10', 'more_' || i, 1000, 'usd', 'x', 'charges' FROM generate_series(1, 30000) AS i`)
	b.exec(t, `
		INSERT INTO duesday.charges (customer_id, billing_period, idempotency_key, amount, currency, status, charge_id, settled_at)
		SELECT customer_id, '2026-10', md5(customer_id), amount, currency, 'succeeded', 'ch_' || customer_id, now()
		FROM duesday.dues WHERE customer_id LIKE 'more%'`)
	// One is in doubt, one is not claimed.
	b.exec(t, `UPDATE duesday.charges SET status = 'claimed', settled_at = NULL, charge_id = NULL WHERE customer_id = 'more_500'`)
	b.exec(t, `INSERT INTO duesday.dues (billing_period, customer_id, amount, currency, description, stripe_method)
		VALUES ('2026-10', 'zzz', 1000, 'usd', 'x', 'charges')`)
	b.exec(t, `INSERT INTO duesday.totals VALUES ('2026-10', 'usd', 1e9, 1e9, 0)
		ON CONFLICT (billing_period, currency) DO UPDATE SET cap = 1e9, expected_total = 1e9`)
	b.exec(t, `UPDATE duesday.periods SET settled_at = NULL, claim_cursor = 'more_99999'`)
	b.exec(t, `VACUUM ANALYZE duesday.dues, duesday.charges`)
	p := b.run(t)
	p.requireExit(t, 0)
	require.Len(t, b.sim.Succeeded(), 3)
	require.EqualValues(t, 2, p.counts(t)["succeeded"])
}
