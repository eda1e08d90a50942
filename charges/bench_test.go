package charges_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/charges"
)

// BenchmarkLedger is what Postgres does for a charge, beside a bare INSERT …
// SELECT of the same rows into a table of the same shape: rows a second for
// each step, and the share of settlings that touched no index.
//
//	go test -run '^$' -bench Ledger -benchtime 100000x ./charges
func BenchmarkLedger(b *testing.B) {
	t := setup(b)
	t.exec(b, `
		INSERT INTO duesday.customers (id, amount, currency)
		SELECT 'cust_' || lpad(i::text, 9, '0'), 1000 + i % 977, 'usd' FROM generate_series(1, $1::int) AS i`, b.N)
	t.exec(b, `CREATE TABLE bare_dues (LIKE duesday.dues INCLUDING ALL)`)
	t.exec(b, `CREATE TABLE bare_charges (LIKE duesday.charges INCLUDING ALL)`)
	t.exec(b, `ANALYZE`)
	t.exec(b, `CHECKPOINT`)

	b.ResetTimer()
	measure := func(name string, run func()) {
		before := b.Elapsed()
		run()
		b.ReportMetric(float64(b.N)/(b.Elapsed()-before).Seconds(), name+"/s")
	}
	measure("bare-open", func() {
		t.exec(b, `
			INSERT INTO bare_dues (billing_period, customer_id, amount, currency, description, stripe_method)
			SELECT '2026-10', id, amount, currency, 'Billing period 2026-10', 'charges' FROM duesday.customers WHERE active`)
	})
	measure("open", func() { t.open(b) })
	measure("bare-claim", func() {
		t.exec(b, `
			INSERT INTO bare_charges (customer_id, billing_period, idempotency_key, amount, currency, status)
			SELECT customer_id, billing_period, left(encode(sha256(convert_to(customer_id || ':2026-10:monthly-billing', 'UTF8')), 'hex'), 32),
				amount, currency, 'claimed' FROM duesday.dues`)
	})
	var slots []charges.Slot
	measure("claim", func() { slots = t.claimAll(b) })
	require.Len(b, slots, b.N)
	measure("settle", func() {
		batch := make([]charges.Settlement, 0, 256)
		for i := range slots {
			batch = append(batch, charges.Settlement{Key: slots[i].Key, Status: charges.Succeeded,
				ChargeID: fmt.Sprintf("ch_%024d", i), RequestID: fmt.Sprintf("req_%014d", i)})
			if len(batch) == cap(batch) || i == len(slots)-1 {
				require.Equal(b, len(batch), t.settle(b, batch...))
				batch = batch[:0]
			}
		}
	})
	b.StopTimer()
	b.ReportMetric(0, "ns/op")
	b.Logf("updates that touched no index: %s", t.text(b, `
		SELECT n_tup_hot_upd || ' of ' || n_tup_upd FROM pg_stat_user_tables WHERE relid = 'duesday.charges'::regclass`))
}
