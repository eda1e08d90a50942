package main

import (
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/internal/stripesim"
)

func TestRun_whoseKeyIsRefusedStopsAtOnceAndDeclinesNobody(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusUnauthorized, http.StatusForbidden} {
		for _, after := range []int{0, 15} {
			t.Run(fmt.Sprintf("%d after %d charges", status, after), func(t *testing.T) {
				t.Parallel()
				b := setup(t, stripesim.Options{})
				customers := payers(60)
				b.add(t, customers...)
				if after == 0 {
					b.sim.SetAuth(status)
				}
				var commits atomic.Int64
				b.sim.OnCommit(func(stripesim.Charge) {
					if commits.Add(1) == int64(after) {
						b.sim.SetAuth(status)
					}
				})
				p := b.run(t, "--rate=100", "--workers=4")
				p.requireExit(t, 3)
				require.Contains(t, p.lastError(t), "the API key was refused")
				require.Contains(t, p.lastError(t), fmt.Sprintf("HTTP %d", status))
				refused := 0
				for _, r := range b.sim.Requests() {
					if isPost(r) && r.Status == status {
						refused++
					}
				}
				require.LessOrEqual(t, refused, 4, "no more than were in flight")
				paid, tally := len(b.sim.Succeeded()), b.tally(t)
				require.GreaterOrEqual(t, paid, after)
				require.Equal(t, paid, tally["succeeded"])
				require.Equal(t, len(customers)-paid, tally["claimed"])
				require.Zero(t, tally["declined"]+tally["rejected"])

				b.sim.SetAuth(0)
				b.finish(t)
				b.requireBilled(t, customers)
			})
		}
	}
}

func TestRun_isSettledByDeclinesRejectsAndPendingCharges(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	customers := payers(20)
	b.add(t, customers...)
	for i, stripeID := range []string{
		"cus_declined_insufficient_funds_1", "cus_declined_lost_card_2", "cus_expired_3", "cus_nosource_4",
		"cus_pending_5", "cus_pending_6", "cus_missing_7",
	} {
		b.add(t, customer{id: fmt.Sprintf("other_%d", i), stripeID: stripeID, amount: 900, currency: "usd"})
	}
	p := b.run(t)
	p.requireExit(t, 0)
	b.requireBilled(t, customers)
	b.requireSettled(t)
	want := map[string]int{"succeeded": 20, "declined": 4, "processing": 2, "rejected": 1}
	require.Equal(t, want, b.tally(t))
	for status, n := range want {
		require.EqualValues(t, n, p.counts(t)[status], status)
	}
	require.Equal(t, 0, b.count(t, `SELECT exit_code FROM duesday.runs`))
	require.Equal(t, 25, b.count(t, `SELECT count(*) FROM duesday.attempts WHERE status <> 'processing'`))
	before := b.sim.Stats().Requests
	b.run(t).requireExit(t, 0)
	require.Equal(t, before, b.sim.Stats().Requests)
}

func TestRun_inAnOutageStopsBeforeThePeriodIsClaimed(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	customers := payers(100)
	b.add(t, customers...)
	// Stripe asks not to be asked again, which spares the test the pauses.
	var over atomic.Bool
	b.sim.FaultNext(func(stripesim.Request) bool { return !over.Load() },
		slices.Repeat([]stripesim.Fault{{Kind: stripesim.Error503, ShouldRetry: "false"}}, 1000)...)
	p := b.run(t, slowPages...)
	p.requireExit(t, 1)
	require.Contains(t, p.lastError(t), "no answer from Stripe")
	require.LessOrEqual(t, b.sim.Stats().Requests, 8)
	require.LessOrEqual(t, b.tally(t)["claimed"], 40, "claimed on")
	require.Len(t, b.tally(t), 1)
	require.Empty(t, b.sim.Bank())

	over.Store(true)
	b.finish(t)
	b.requireBilled(t, customers)
}

func TestRun_atTheSpendCapChargesWhatFitsAndSaysWhatIsLeft(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	var customers []customer
	for _, c := range payers(100) {
		c.amount, c.currency = 1000, "usd"
		customers = append(customers, c)
	}
	b.add(t, customers...)
	b.sim.SetAuth(http.StatusUnauthorized)
	refused := b.run(t, slowPages...)
	refused.requireExit(t, 3) // opened, and a page or two claimed
	require.NotContains(t, refused.lastError(t), "what Stripe keeps failing")
	b.sim.SetAuth(0)
	require.LessOrEqual(t, b.tally(t)["claimed"], 40)
	b.exec(t, `UPDATE duesday.totals SET cap = 55999`)

	for range 2 { // a rerun does not get past it
		p := b.run(t)
		p.requireExit(t, 3)
		require.Contains(t, p.lastError(t), "the spend cap is reached")
		require.Contains(t, p.lastError(t), "(0 in doubt, 45 not yet claimed)")
		require.Contains(t, p.lastError(t), "raise the cap with --raise-cap-to usd=100000 ($1,000.00, the cap is $559.99)")
		b.requireBilled(t, customers[:55])
	}

	b.exec(t, `UPDATE duesday.totals SET cap = 110000`)
	b.finish(t)
	b.requireBilled(t, customers)
}

func TestRun_withAnotherKeyNamespaceIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	customers := payers(10)
	b.add(t, customers...)
	b.sim.SetAuth(http.StatusUnauthorized)
	b.run(t).requireExit(t, 3)
	b.sim.SetAuth(0)
	for _, more := range [][]string{nil, {"--reopen"}} {
		p := b.run(t, append(more, "--key-namespace=other")...)
		p.requireExit(t, 2)
		require.Equal(t, "--key-namespace other: period 2026-10 was opened with monthly-billing, and is finished with it", p.lastError(t))
	}
	require.Empty(t, b.sim.Bank())
	b.finish(t)
	b.requireBilled(t, customers)
	b.run(t, "--key-namespace=other").requireExit(t, 2)
	b.requireBilled(t, customers)
}

func TestRun_byPaymentIntentsMakesOneIntentEachThroughFaults(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{Seed: 11, FaultRate: curable(0.03)})
	customers := payers(90)
	for i := range customers {
		customers[i].paymentMethod = fmt.Sprintf("pm_%04d", i+1)
	}
	b.add(t, customers...)
	b.add(t, customer{id: "without", stripeID: "cus_without", amount: 500, currency: "usd"}) // a payment method
	declined := customer{id: "declined", stripeID: "cus_declined_insufficient_funds", paymentMethod: "pm_x", amount: 500, currency: "usd"}
	b.add(t, declined)
	b.finish(t, "--stripe-method=payment_intents")
	b.requireBilled(t, customers)
	for _, c := range b.sim.Bank() {
		require.Equal(t, stripesim.KindIntent, c.Kind)
	}
	require.Len(t, b.sim.Bank(), len(customers)+1)
	require.Equal(t, map[string]int{"succeeded": 90, "declined": 1, "rejected": 1}, b.tally(t))
}
