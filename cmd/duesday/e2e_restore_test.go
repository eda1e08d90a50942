package main

import (
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/internal/stripesim"
)

// backup dumps the schema as an operator would, and returns the file.
func (b *bundle) backup(t testing.TB) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "ledger.dump")
	shell(t, "pg_dump", "--format=custom", "--schema=duesday", "--file="+file, b.db.URL)
	return file
}

// restore puts a backup in the place of what is there.
func (b *bundle) restore(t testing.TB, file string) {
	t.Helper()
	b.exec(t, `DROP SCHEMA duesday CASCADE`)
	shell(t, "pg_restore", "--exit-on-error", "--dbname="+b.db.URL, file)
	b.pool.Reset() // its sessions know the old tables
}

func shell(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	require.NoError(t, err, "%s: %s", name, out)
	return string(out)
}

// slotRow is what must be as it was once a ledger is restored.
type slotRow struct {
	Customer, Status string
	Attempt          int
	Key, ChargeID    string
	Amount           int64
	Currency, Code   string
	NeedsCustomer    bool
}

func (b *bundle) slots(t testing.TB) []slotRow {
	t.Helper()
	rows, err := b.pool.Query(b.ctx, `
		SELECT customer_id, status, attempt, idempotency_key, coalesce(charge_id, ''), amount, currency,
			coalesce(failure_code, ''), needs_customer
		FROM duesday.charges ORDER BY customer_id`)
	require.NoError(t, err)
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[slotRow])
	require.NoError(t, err)
	return all
}

// openOnly opens the period, and claims nothing.
func (b *bundle) openOnly(t testing.TB, method string) {
	t.Helper()
	conn := b.db.Connect(t)
	period, err := charges.ParsePeriod(testPeriod)
	require.NoError(t, err)
	_, err = conn.Exec(b.ctx, `SELECT pg_advisory_lock($1)`, charges.LockID(testNamespace, testPeriod))
	require.NoError(t, err)
	relation, err := charges.FindRelation(b.ctx, conn, "duesday.customers")
	require.NoError(t, err)
	ledger := charges.Ledger{Period: period, Namespace: testNamespace}
	require.NoError(t, ledger.Open(b.ctx, conn, charges.Opening{
		Customers: relation, Description: "Billing period " + testPeriod, Method: charges.Method(method), CapFactor: "1.10", Timeout: time.Minute,
	}))
	require.NoError(t, conn.Close(b.ctx))
}

// upTo runs the month until the n-th charge is at the bank, and kills the run.
func (b *bundle) upTo(t testing.TB, n int, flags ...string) {
	t.Helper()
	reached := make(chan struct{})
	var (
		once sync.Once
		mu   sync.Mutex
		left = n
	)
	b.sim.OnCommit(func(stripesim.Charge) {
		mu.Lock()
		defer mu.Unlock()
		if left--; left == 0 {
			once.Do(func() { close(reached) })
		}
	})
	p := b.run(t, append([]string{"--rate=50", "--workers=1"}, flags...)...)
	await(t, "the charge", reached)
	p.kill(t)
}

// Whom the months of these tests bill: of all kinds.
func (b *bundle) restorers(t testing.TB) {
	t.Helper()
	all := payers(24)
	for i := range all {
		all[i].paymentMethod = "pm_1"
	}
	b.add(t, all...)
	b.sim.DeclineOnce("cus_0003")
	b.sim.Decline("cus_0005", "card_declined", "insufficient_funds")
	b.sim.Decline("cus_0006", "expired_card", "")
	b.sim.Pending("cus_0007")
	b.sim.DeclineOnce("cus_0022")
}

func (b *bundle) dun(t testing.TB) {
	t.Helper()
	b.exec(t, `UPDATE duesday.charges SET settled_at = settled_at - interval '73 hours' WHERE status = 'declined'`)
	b.reconcile(t, "--retry-declined").exit(t) // 1: one payment is undecided
}

func isPost(r stripesim.Request) bool { return r.Method == "POST" }

// posts counts the requests that could have charged.
func (b *bundle) posts() (n int) {
	for _, r := range b.sim.Requests() {
		if isPost(r) {
			n++
		}
	}
	return n
}

func TestRestore_anOlderLedgerChargesNobodyTwice(t *testing.T) {
	t.Parallel()
	stages := []struct {
		name    string
		prepare func(b *bundle, method string)
		settled bool // in the backup
	}{
		{"before the opening", func(*bundle, string) {}, false},
		{"opened, nothing claimed", func(b *bundle, method string) { b.openOnly(t, method) }, false},
		{"half-way", func(b *bundle, method string) { b.upTo(t, 11, "--stripe-method="+method) }, false},
		{"declined, before the attempt that was paid", func(b *bundle, method string) {
			b.run(t, "--stripe-method="+method).requireExit(t, 0)
		}, true},
	}
	for _, stage := range stages {
		for _, method := range []string{"charges", "payment_intents"} {
			for _, later := range []time.Duration{time.Hour, 25 * time.Hour} {
				t.Run(stage.name+"/"+method+"/"+later.String(), func(t *testing.T) {
					t.Parallel()
					b := setup(t, stripesim.Options{SearchLag: time.Minute})
					b.restorers(t)
					stage.prepare(b, method)
					backup := b.backup(t)
					b.run(t, "--stripe-method="+method).requireExit(t, 0)
					b.dun(t)
					lost, bank := b.slots(t), b.sim.Bank()
					require.Len(t, lost, 24)

					b.restore(t, backup)
					b.exec(t, `UPDATE duesday.charges SET claimed_at = claimed_at - $1::interval, key_window_at = key_window_at - $1::interval`, later)
					b.exec(t, `UPDATE duesday.charges SET settled_at = settled_at - interval '80 hours'`)
					b.sim.Advance(later)
					found, posts := b.slots(t), b.posts()

					// One after the other: of two at once one leaves the month to the other.
					commands := []func() *process{
						func() *process { return b.run(t, "--retry-declined", "--stripe-method="+method) },
						func() *process { return b.run(t, "--stripe-method="+method) },
					}
					if stage.settled {
						commands[1] = func() *process { return b.reconcile(t, "--retry-declined") }
					}
					for _, start := range commands {
						p := start()
						p.requireExit(t, 3)
						require.Contains(t, p.err.String(), "the ledger is older than what Stripe has")
						require.Contains(t, p.err.String(), "Nothing was claimed or sent. After a restore say once: duesday run --period 2026-10 --after-restore")
					}
					require.Equal(t, posts, b.posts(), "something was sent")
					require.Equal(t, found, b.slots(t), "something was claimed")

					b.run(t, "--after-restore", "--stripe-method="+method).requireExit(t, 0)
					require.Equal(t, bank, b.sim.Bank(), "somebody was charged again")
					require.Equal(t, lost, b.slots(t), "the ledger is not what it was")

					b.sim.Resolve("cus_0007", true)
					b.reconcile(t).requireExit(t, 0)
					require.Len(t, b.sim.Succeeded(), 22)
					b.requireSettled(t)
					b.requireCleanBooks(t)
					b.command(t, "reconcile", "--audit", "--rate=1000").requireExit(t, 0)
					again := b.run(t)
					again.requireExit(t, 0)
					require.NotEmpty(t, again.logs(t, "period already settled, nothing to do"))
				})
			}
		}
	}
}

func TestReconcile_goesOnAfterAPeriodOfAnOlderLedger(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	b.add(t, payers(5)...)
	b.openOnly(t, "charges")
	backup := b.backup(t)
	b.run(t).requireExit(t, 0)
	b.restore(t, backup)
	b.sim.Pending("cus_0002")
	b.run(t, "--period=2026-11").requireExit(t, 0)
	b.sim.Resolve("cus_0002", true)

	p := b.reconcile(t, "--retry-declined")
	p.requireExit(t, 3)
	require.Contains(t, p.err.String(), "period 2026-10: the ledger is older than what Stripe has")
	require.Zero(t, b.count(t, `SELECT count(*) FROM duesday.charges WHERE status <> 'succeeded'`))
	require.Len(t, p.logs(t, "period reconciled"), 1)
}
