package charges_test

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/charges"
)

// BenchmarkMonth is what a billed month leaves on the database's disk, in bytes
// a customer by table and index, and what it wrote to the log to get there. One
// operation is one customer:
//
//	go test -run '^$' -bench Month -benchtime 1000000x ./charges
func BenchmarkMonth(b *testing.B) {
	t := setup(b)
	t.exec(b, `
		INSERT INTO duesday.customers (id, stripe_customer_id, payment_method, amount, currency)
		SELECT 'cust_' || lpad(i::text, 9, '0'), 'cus_' || left(md5(i::text), 14), 'pm_' || left(md5(i::text), 24), 1000 + i % 977, 'usd'
		FROM generate_series(1, $1::int) AS i`, b.N)
	t.exec(b, `VACUUM ANALYZE duesday.customers`)
	wal := func() (bytes int64) {
		require.NoError(b, t.conn.QueryRow(t.ctx, `SELECT pg_current_wal_insert_lsn() - '0/0'`).Scan(&bytes))
		return bytes
	}
	b.ResetTimer()
	began, written := b.Elapsed(), wal()
	step := func(name string) {
		b.ReportMetric(float64(b.N)/(b.Elapsed()-began).Seconds(), name+"/s")
		b.ReportMetric(float64(wal()-written)/float64(b.N), name+"-log-B")
		began, written = b.Elapsed(), wal()
	}
	t.open(b)
	step("open")
	slots := t.claimAll(b)
	step("claim")
	for i, batch := 0, []charges.Settlement(nil); i < len(slots); i++ {
		batch = append(batch, charges.Settlement{Key: slots[i].Key, Status: charges.Succeeded,
			ChargeID: fmt.Sprintf("ch_%024d", i), RequestID: fmt.Sprintf("req_%014d", i)})
		if len(batch) == 256 || i == len(slots)-1 {
			require.Equal(b, len(batch), t.settle(b, batch...))
			batch = batch[:0]
		}
	}
	step("settle")
	b.StopTimer()
	b.ReportMetric(0, "ns/op")
	rows, err := t.conn.Query(t.ctx, `
		SELECT relname::text, pg_table_size(oid) FROM pg_class
		WHERE relnamespace = 'duesday'::regnamespace AND relkind IN ('r', 'i') AND pg_table_size(oid) > 1 << 20
		ORDER BY relkind DESC, relname`)
	require.NoError(b, err)
	var (
		name      string
		size, all int64
	)
	_, err = pgx.ForEachRow(rows, []any{&name, &size}, func() error {
		b.Logf("%-30s %7.1f B", name, float64(size)/float64(b.N))
		if name != "customers" && name != "customers_pkey" {
			all += size
		}
		return nil
	})
	require.NoError(b, err)
	b.ReportMetric(float64(all)/float64(b.N), "disk-B")
}
