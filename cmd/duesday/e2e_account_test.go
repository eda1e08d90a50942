package main

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/internal/stripesim"
)

// An operator's slip: after a lost answer the next run uses another account's
// key, where the customer does not exist. Its 404 says nothing about the first
// send, and the attempt after it must look before it charges.
func TestOtherAccount_aRejectionThereHidesNoChargeHere(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"charges", "payment_intents"} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			b := setup(t, stripesim.Options{})
			all := payers(6)
			for i := range all {
				all[i].paymentMethod = "pm_1"
			}
			b.add(t, all...)
			committed := make(chan struct{}, 100)
			b.sim.FaultCustomer("cus_0001", stripesim.Fault{Kind: stripesim.HangAfterCommit})
			b.sim.OnCommit(func(c stripesim.Charge) {
				if c.Customer == "cus_0001" {
					committed <- struct{}{}
				}
			})
			p := b.run(t, "--stripe-method="+method, "--workers=1")
			await(t, "the commit", committed)
			p.kill(t)

			other := stripesim.Start(t, stripesim.Options{})
			for _, c := range all {
				other.Missing(c.stripeID)
			}
			start(t, with(b.env, "STRIPE_API_BASE", other.URL), append([]string{"run", "--leader-elect=false", "--period=" + testPeriod, "--rate=1000"}, longLease...)...).exit(t)
			require.Equal(t, "rejected", b.statuses(t)["cust_0001"])
			require.Empty(t, other.Succeeded())

			b.run(t, "--reopen").requireExit(t, 0)
			paid := map[string]int{}
			for _, c := range b.sim.Succeeded() {
				paid[c.Customer]++
			}
			require.Len(t, paid, len(all))
			for customer, n := range paid {
				require.Equal(t, 1, n, customer)
			}
			require.Equal(t, map[string]int{"succeeded": len(all)}, b.tally(t))
			b.requireCleanBooks(t)
		})
	}
}

// A few customers that were deleted at Stripe are no other account, however few
// workers there are: exit code 3 would end the Job over them.
func TestOtherAccount_aFewRejectionsInARowDoNot(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	all := payers(30)
	b.add(t, all...)
	for _, c := range all[5:20] {
		b.sim.Missing(c.stripeID)
	}
	b.run(t, "--workers=1").requireExit(t, 0)
	require.Equal(t, map[string]int{"succeeded": 15, "rejected": 15}, b.tally(t))
}

func TestOtherAccount_anUnbrokenRowOfRejectionsStopsTheRun(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	all := payers(100)
	b.add(t, all...)
	for _, c := range all {
		b.sim.Missing(c.stripeID)
	}
	p := b.run(t, "--workers=4")
	p.requireExit(t, 3)
	require.Contains(t, p.err.String(), "every charge is rejected by Stripe")
	require.Contains(t, p.err.String(), "is the API key that of the right account and mode?")
	require.Less(t, b.tally(t)["rejected"], 30)
	for _, c := range all {
		b.sim.Pays(c.stripeID)
	}
	b.run(t, "--reopen").requireExit(t, 0)
	require.Len(t, b.sim.Succeeded(), len(all))
}

// However few they are, and however often a run sees them.
func TestOtherAccount_aMonthThatIsRejectedAsAWholeIsNotSettled(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	all := payers(14)
	b.add(t, all...)
	for _, c := range all {
		b.sim.Missing(c.stripeID)
	}
	for range 3 {
		p := b.run(t, "--workers=4")
		p.requireExit(t, 3)
		require.Contains(t, p.err.String(), "every charge is rejected by Stripe, all 14 of them; is the API key that of the right account and mode?")
		require.Zero(t, b.count(t, `SELECT count(*) FROM duesday.periods WHERE settled_at IS NOT NULL`))
	}
	for _, c := range all {
		b.sim.Pays(c.stripeID)
	}
	b.run(t, "--reopen").requireExit(t, 0)
	b.requireSettled(t)
	require.Len(t, b.sim.Succeeded(), len(all))
}

// The customers relation is a view, and views can be slow: slower than a
// statement on the lock's connection may be.
func TestDunning_readsASlowViewBesideTheLock(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	b.add(t, payers(2)...)
	b.sim.DeclineOnce("cus_0001")
	b.run(t).requireExit(t, 0)
	b.exec(t, `UPDATE duesday.charges SET settled_at = settled_at - interval '73 hours'`)
	b.exec(t, `CREATE VIEW slow AS SELECT c.* FROM duesday.customers AS c, (SELECT pg_sleep(2.5) OFFSET 0) AS s`)
	b.reconcile(t, "--retry-declined", "--customers=slow", "--lease-duration=3s", "--renew-deadline=2s", "--retry-period=200ms").requireExit(t, 0)
	require.Equal(t, map[string]int{"succeeded": 2}, b.tally(t))
}

func TestPeriod_anEmptyOneIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	b.add(t, payers(1)...)
	b.env = with(b.env, "DUESDAY_PERIOD", "")
	p := start(t, b.env, "run", "--leader-elect=false")
	p.requireExit(t, 2)
	require.Contains(t, p.err.String(), "--period: want YYYY-MM, like 2026-10, got an empty text")
	require.Empty(t, b.sim.Bank())
}

// A page of a list that fails once is asked for again, not the end of an audit.
func TestAudit_survivesPagesThatFail(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	b.add(t, payers(250)...)
	b.run(t).requireExit(t, 0)
	for _, kind := range []stripesim.Kind{stripesim.Error429, stripesim.Error503, stripesim.Truncated200, stripesim.DropBefore} {
		b.sim.FaultNext(func(r stripesim.Request) bool { return r.Method == "GET" }, stripesim.Fault{Kind: kind})
	}
	p := b.command(t, "reconcile", "--audit", "--rate=1000")
	p.requireExit(t, 0)
	require.Contains(t, p.err.String(), "the ledger and Stripe agree on 1 settled period")
}

func TestAudit_saysThatThereWasNothingToCompare(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	p := b.command(t, "reconcile", "--audit")
	p.requireExit(t, 0)
	require.Equal(t, "no period is settled yet, and so there was nothing to compare; see duesday status\n", p.err.String())
	p = b.command(t, "reconcile", "--audit", "--quiet")
	p.requireExit(t, 0)
	require.Empty(t, p.err.String()+p.out.String())
}

func TestAudit_writesMoneyForPeopleAndIntegersForMachines(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	b.add(t, customer{id: "a", stripeID: "cus_a", amount: 1999, currency: "usd"})
	b.run(t).requireExit(t, 0)
	b.exec(t, `UPDATE duesday.charges SET amount = 1998`)
	p := b.command(t, "reconcile", "--audit")
	p.requireExit(t, 3)
	require.Regexp(t, `a +amount_differs +ch_\w+ +\$19\.98 +\$19\.99\n`, p.out.String())
	p = b.command(t, "reconcile", "--audit", "--output=json")
	p.requireExit(t, 3)
	require.Contains(t, p.out.String(), `"ledger": "1998 usd"`)
}

func TestMigrate_printsJSON(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	p := b.command(t, "migrate", "--output=json")
	p.requireExit(t, 0)
	require.JSONEq(t, fmt.Sprintf(`{"applied": [], "schema_version": %d}`, charges.SchemaVersion()), p.out.String())
}
