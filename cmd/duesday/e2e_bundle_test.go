package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/internal/pgtest"
	"github.com/duesday/duesday/internal/stripesim"
)

const (
	testPeriod    = "2026-10"
	testNamespace = "monthly-billing"
	testKey       = "rk_test_51Nx7mQ2eZvKYlo2C"
	lockID        = "5443329690451751746" // of the period and namespace above
)

// bundle is a team's world: its database, and a Stripe.
type bundle struct {
	ctx  context.Context
	db   *pgtest.DB
	pool *pgxpool.Pool
	sim  *stripesim.Server
	env  map[string]string
}

// setup makes a database with the schema in it and a Stripe.
func setup(t testing.TB, opts stripesim.Options) *bundle {
	t.Helper()
	return setupOn(t, pgtest.New(t), opts)
}

func setupOn(t testing.TB, db *pgtest.DB, opts stripesim.Options) *bundle {
	t.Helper()
	_, err := charges.Migrate(context.Background(), db.Connect(t))
	require.NoError(t, err)
	sim := stripesim.Start(t, opts)
	return &bundle{ctx: context.Background(), db: db, pool: db.Pool(t), sim: sim, env: map[string]string{
		"DATABASE_URL": db.URL, "STRIPE_API_KEY": testKey, "STRIPE_API_BASE": sim.URL,
	}}
}

// Leases that outlast a busy machine, and ones for tests in which a leader is
// to be missed.
var (
	longLease  = []string{"--lease-duration=60s", "--renew-deadline=40s", "--retry-period=200ms"}
	shortLease = []string{"--lease-duration=3s", "--renew-deadline=2s", "--retry-period=200ms"}
)

// run starts a run of the period. Flags given later win.
func (b *bundle) run(t testing.TB, flags ...string) *process {
	t.Helper()
	args := append([]string{"run", "--leader-elect=false", "--period=" + testPeriod, "--allow-future", "--rate=1000", "--workers=8"}, longLease...)
	return start(t, b.env, append(args, flags...)...)
}

// command starts any other command.
func (b *bundle) command(t testing.TB, args ...string) *process {
	t.Helper()
	return start(t, b.env, args...)
}

// customer is a row of the customers relation, and what it must be billed.
type customer struct {
	id, stripeID, paymentMethod string
	amount                      int64
	currency                    string
}

// payers makes n customers cust_0001…, each with an amount of its own, in three
// currencies.
func payers(n int) []customer {
	currencies := []string{"usd", "eur", "jpy"}
	all := make([]customer, n)
	for i := range all {
		all[i] = customer{
			id: fmt.Sprintf("cust_%04d", i+1), stripeID: fmt.Sprintf("cus_%04d", i+1),
			amount: int64(1000 + i), currency: currencies[i%3],
		}
	}
	return all
}

func null(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func (b *bundle) add(t testing.TB, customers ...customer) {
	t.Helper()
	_, err := b.pool.CopyFrom(b.ctx, pgx.Identifier{"duesday", "customers"},
		[]string{"id", "stripe_customer_id", "payment_method", "amount", "currency"},
		pgx.CopyFromSlice(len(customers), func(i int) ([]any, error) {
			c := customers[i]
			return []any{c.id, null(c.stripeID), null(c.paymentMethod), c.amount, c.currency}, nil
		}))
	require.NoError(t, err)
}

func (b *bundle) exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	_, err := b.pool.Exec(b.ctx, sql, args...)
	require.NoError(t, err)
}

func (b *bundle) scan(t testing.TB, into any, sql string, args ...any) {
	t.Helper()
	require.NoError(t, b.pool.QueryRow(b.ctx, sql, args...).Scan(into))
}

func (b *bundle) count(t testing.TB, sql string, args ...any) (n int) {
	t.Helper()
	b.scan(t, &n, sql, args...)
	return n
}

// eventually polls the database for what it has no event for.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	require.Eventually(t, is, patience, 20*time.Millisecond, "waited in vain for "+what)
}

// awaitBlocked waits for a session that waits for an advisory lock.
func (b *bundle) awaitBlocked(t testing.TB) {
	t.Helper()
	eventually(t, "a session to wait for the test's lock", func() bool {
		return b.count(t, `SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory' AND datname = current_database()`) == 1
	})
}

// statuses is what the ledger says of every slot.
func (b *bundle) statuses(t testing.TB) map[string]string {
	t.Helper()
	rows, err := b.pool.Query(b.ctx, `SELECT customer_id, status FROM duesday.charges WHERE billing_period = $1`, testPeriod)
	require.NoError(t, err)
	found := map[string]string{}
	var id, status string
	_, err = pgx.ForEachRow(rows, []any{&id, &status}, func() error {
		found[id] = status
		return nil
	})
	require.NoError(t, err)
	return found
}

func (b *bundle) tally(t testing.TB) map[string]int {
	t.Helper()
	n := map[string]int{}
	for _, status := range b.statuses(t) {
		n[status]++
	}
	return n
}

// payment is a succeeded charge as far as the biller decides about it.
type payment struct {
	customer, key      string
	amount             int64
	currency           string
	description        string
	source             string
	metaCustomer, meta string
}

func compare(a, b payment) int {
	return cmp.Or(strings.Compare(a.customer, b.customer), strings.Compare(a.key, b.key))
}

// requireBilled compares the bank with who should have paid: each exactly once,
// the right sum, under the key of its first attempt, and nobody else.
func (b *bundle) requireBilled(t testing.TB, customers []customer) {
	t.Helper()
	var want, got []payment
	period, err := charges.ParsePeriod(testPeriod)
	require.NoError(t, err)
	for _, c := range customers {
		key := charges.Key(c.id, period, testNamespace, 1)
		want = append(want, payment{
			customer: cmp.Or(c.stripeID, c.id), key: key, amount: c.amount, currency: c.currency,
			description: "Billing period " + testPeriod, source: c.paymentMethod,
			metaCustomer: c.id, meta: testPeriod + "/" + key,
		})
	}
	for _, c := range b.sim.Succeeded() {
		got = append(got, payment{
			customer: c.Customer, key: c.IdempotencyKey, amount: c.Amount, currency: c.Currency,
			description: c.Description, source: c.Source,
			metaCustomer: c.Metadata["duesday_customer"], meta: c.Metadata["duesday_period"] + "/" + c.Metadata["duesday_key"],
		})
	}
	slices.SortFunc(want, compare)
	slices.SortFunc(got, compare)
	require.Equal(t, want, got)
	b.requireCleanBooks(t)
}

// requireCleanBooks looks for what Stripe must never see.
func (b *bundle) requireCleanBooks(t testing.TB) {
	t.Helper()
	require.Zero(t, b.sim.Stats().IdempotencyErrors, "a key came with other parameters")
	require.Empty(t, b.sim.Keyless(), "requests without a key")
}

// requireSettled compares the ledger with the bank.
func (b *bundle) requireSettled(t testing.TB) {
	t.Helper()
	var settled bool
	b.scan(t, &settled, `SELECT settled_at IS NOT NULL FROM duesday.periods WHERE billing_period = $1`, testPeriod)
	require.True(t, settled, "the period is not settled")
	paid := map[string]string{}
	for _, c := range b.sim.Succeeded() {
		paid[c.IdempotencyKey] = c.ID
	}
	rows, err := b.pool.Query(b.ctx, `SELECT idempotency_key, charge_id FROM duesday.charges WHERE status = 'succeeded'`)
	require.NoError(t, err)
	recorded := map[string]string{}
	var key, id string
	_, err = pgx.ForEachRow(rows, []any{&key, &id}, func() error {
		recorded[key] = id
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, paid, recorded, "the ledger disagrees with the bank")
	require.Zero(t, b.count(t, `SELECT count(*) FROM duesday.charges WHERE status = 'claimed'`))
}

// finish runs the period again, as its Job would, until it is settled.
func (b *bundle) finish(t testing.TB, flags ...string) {
	t.Helper()
	b.run(t, flags...).requireExit(t, 0)
	b.requireSettled(t)
}

// age moves the period's slots, and Stripe's clock, so that Stripe has
// forgotten their keys.
func (b *bundle) age(t testing.TB) {
	t.Helper()
	b.exec(t, `UPDATE duesday.charges SET claimed_at = claimed_at - interval '25 hours', key_window_at = key_window_at - interval '25 hours'`)
	b.sim.Advance(25 * time.Hour)
}

func with(env map[string]string, pairs ...string) map[string]string {
	out := maps.Clone(env)
	for i := 0; i < len(pairs); i += 2 {
		out[pairs[i]] = pairs[i+1]
	}
	return out
}
