package main

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/internal/stripesim"
)

// reconcile starts duesday reconcile.
func (b *bundle) reconcile(t testing.TB, flags ...string) *process {
	t.Helper()
	args := append([]string{"reconcile", "--rate=1000", "--workers=8"}, longLease...)
	return start(t, b.env, append(args, flags...)...)
}

func TestDoubt_a500AfterTheChargeIsFoundByLookUp(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	b.add(t, payers(3)...)
	b.sim.FaultCustomer("cus_0002", stripesim.Fault{Kind: stripesim.Error500AfterCommit})
	b.run(t).requireExit(t, 0)
	b.requireBilled(t, payers(3))
	b.requireSettled(t)
}

func TestDoubt_a500WithoutAChargeIsSentAgainWhenItsDayIsOver(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	b.add(t, payers(3)...)
	b.sim.FaultCustomer("cus_0002", stripesim.Fault{Kind: stripesim.Error500BeforeCommit})
	p := b.run(t)
	p.requireExit(t, 1)
	require.Contains(t, p.err.String(), "(1 in doubt, 0 not yet claimed); run again, what Stripe keeps failing can be settled from 20")
	again := b.reconcile(t)
	again.requireExit(t, 1)
	require.Contains(t, again.err.String(), "still open: 1 in doubt, 0 processing; what Stripe keeps failing can be settled from 20")
	require.Len(t, b.sim.Succeeded(), 2, "young and not found proves nothing")

	b.age(t)
	b.reconcile(t).requireExit(t, 0)
	b.requireBilled(t, payers(3))
	b.requireSettled(t)
}

func TestDoubt_aChargeThatAppearsLateIsFoundNotRepeated(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	b.add(t, payers(1)...)
	b.sim.FaultCustomer("cus_0001", stripesim.Fault{Kind: stripesim.Error500CommitLater})
	b.run(t).requireExit(t, 1)
	require.Equal(t, 1, b.sim.RollForward())
	b.reconcile(t).requireExit(t, 0)
	b.requireBilled(t, payers(1))
}

// lostAnswerAndADayLater kills the run when the bank has committed, and finishes
// the period with the binary given 25 hours later.
func lostAnswerAndADayLater(t *testing.T, finish func(b *bundle)) *bundle {
	b := setup(t, stripesim.Options{})
	b.add(t, payers(1)...)
	committed := make(chan struct{})
	var once sync.Once
	b.sim.FaultCustomer("cus_0001", stripesim.Fault{Kind: stripesim.HangAfterCommit})
	b.sim.OnCommit(func(stripesim.Charge) { once.Do(func() { close(committed) }) })
	p := b.run(t)
	await(t, "the commit", committed)
	p.kill(t)
	require.Equal(t, map[string]string{"cust_0001": "claimed"}, b.statuses(t))
	b.age(t)
	finish(b)
	return b
}

func TestDoubt_anAnswerLostADayAgoIsLookedUpNotSentAgain(t *testing.T) {
	t.Parallel()
	b := lostAnswerAndADayLater(t, func(b *bundle) { b.finish(t) })
	b.requireBilled(t, payers(1))
}

// The test above could pass for other reasons than the look-up. Without it, the
// same story must end in a second charge.
func TestDoubt_withoutTheLookUpTheSameStoryChargesTwice(t *testing.T) {
	t.Parallel()
	mutant := filepath.Join(t.TempDir(), "mutant")
	out, err := exec.Command("go", "build", "-tags", "mutant", "-o", mutant, ".").CombinedOutput()
	require.NoError(t, err, string(out))
	b := lostAnswerAndADayLater(t, func(b *bundle) {
		cmd := exec.Command(mutant, append([]string{"run", "--leader-elect=false", "--period=" + testPeriod}, longLease...)...)
		cmd.Env = append(cmd.Env, "DUESDAY_MUTANT=no-lookup")
		for name, value := range b.env {
			cmd.Env = append(cmd.Env, name+"="+value)
		}
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
	})
	require.Len(t, b.sim.Succeeded(), 2)
}

func TestDoubt_theMatchOnThePageThreeIsFound(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"charges", "payment_intents"} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			b := setup(t, stripesim.Options{})
			payer := payers(1)
			payer[0].paymentMethod = "pm_1"
			b.add(t, payer...)
			b.sim.FaultCustomer("cus_0001", stripesim.Fault{Kind: stripesim.Error500AfterCommit})
			// The run's own look fails, so that the answer is not known by then.
			isList := func(r stripesim.Request) bool { return r.Method == "GET" && r.Customer != "" }
			for range 7 {
				b.sim.FaultNext(isList, stripesim.Fault{Kind: stripesim.Error503})
			}
			p := b.run(t, "--stripe-method="+method)
			p.awaitLog(t, "advisory lock acquired")
			p.exit(t)
			kind := stripesim.KindCharge
			if method == "payment_intents" {
				kind = stripesim.KindIntent
			}
			for i := range 250 {
				b.sim.Plant(stripesim.Charge{Kind: kind, Customer: "cus_0001", Amount: int64(100 + i), Currency: "usd",
					Status: stripesim.StatusSucceeded, Created: b.sim.Now()})
			}
			b.exec(t, `UPDATE duesday.charges SET claimed_at = claimed_at - interval '25 hours', key_window_at = key_window_at - interval '25 hours'`)
			b.sim.Advance(25 * time.Hour)
			b.reconcile(t).requireExit(t, 0)
			require.Len(t, b.sim.Succeeded(), 251, "the one of the run and the 250 planted ones")
			require.Equal(t, map[string]string{"cust_0001": "succeeded"}, b.statuses(t))
		})
	}
}

func TestDoubt_aListThatFailsOnPageTwoIsNotNotFound(t *testing.T) {
	t.Parallel()
	for _, kind := range []stripesim.Kind{stripesim.Error429, stripesim.Error503, stripesim.Truncated200, stripesim.HTML200, stripesim.DropBefore} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			b := lostAnswerAndADayLater(t, func(b *bundle) {
				for range 150 {
					b.sim.Plant(stripesim.Charge{Kind: stripesim.KindCharge, Customer: "cus_0001", Amount: 100, Currency: "usd",
						Status: stripesim.StatusSucceeded, Created: b.sim.Now()})
				}
				secondPage := func(r stripesim.Request) bool { return r.Method == "GET" && r.Params.Get("starting_after") != "" }
				for range 50 {
					b.sim.FaultNext(secondPage, stripesim.Fault{Kind: kind})
				}
				p := b.run(t)
				eventually(t, "a failed second page", func() bool {
					for _, r := range b.sim.Requests() {
						if secondPage(r) {
							return true
						}
					}
					return false
				})
				p.kill(t)
			})
			require.Len(t, b.sim.Succeeded(), 151, "a page that failed was taken for the end of the list")
			require.Equal(t, map[string]string{"cust_0001": "claimed"}, b.statuses(t))
		})
	}
}

func TestDoubt_aDeclineResentUnderItsKeyIsAReplayNotAnAttempt(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	b.add(t, payers(1)...)
	b.sim.Decline("cus_0001", "card_declined", "insufficient_funds")
	b.sim.FaultCustomer("cus_0001", stripesim.Fault{Kind: stripesim.DropAfterCommit})
	b.run(t).requireExit(t, 0)
	require.Equal(t, map[string]string{"cust_0001": "declined"}, b.statuses(t))
	require.Equal(t, 1, b.count(t, `SELECT count(*) FROM duesday.attempts`))
	require.Equal(t, 1, b.count(t, `SELECT attempt FROM duesday.charges`))
	require.Len(t, b.sim.Bank(), 1, "the bank was asked once")
}

func TestProcessing_waitsForStripeAndFailsNoRun(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"charges", "payment_intents"} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			b := setup(t, stripesim.Options{})
			all := payers(4)
			for i := range all {
				all[i].paymentMethod = "pm_1"
			}
			b.add(t, all...)
			b.sim.Pending("cus_0002")
			b.sim.Pending("cus_0003")
			b.run(t, "--stripe-method="+method).requireExit(t, 0)
			require.Equal(t, map[string]int{"succeeded": 2, "processing": 2}, b.tally(t))
			posts := b.sim.Stats().Requests

			again := b.run(t, "--stripe-method="+method)
			again.requireExit(t, 0)
			require.NotEmpty(t, again.logs(t, "period already settled, nothing to do"))
			require.Equal(t, posts, b.sim.Stats().Requests, "a run sends nothing for a processing slot")

			b.reconcile(t).requireExit(t, 1)
			b.sim.Resolve("cus_0002", true)
			b.sim.Resolve("cus_0003", false)
			b.reconcile(t).requireExit(t, 0)
			require.Equal(t, map[string]int{"succeeded": 3, "declined": 1}, b.tally(t))
			require.Len(t, b.sim.Succeeded(), 3)
			b.requireCleanBooks(t)
		})
	}
}

func TestMethod_aPeriodIsFinishedWithTheOneItBeganWith(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	all := payers(20)
	for i := range all {
		all[i].paymentMethod = "pm_1"
	}
	b.add(t, all...)
	b.sim.SetAuth(401)
	b.run(t, "--stripe-method=payment_intents").requireExit(t, 3)
	b.sim.SetAuth(0)
	b.run(t, "--stripe-method=charges").requireExit(t, 0)
	for _, c := range b.sim.Bank() {
		require.Equal(t, stripesim.KindIntent, c.Kind)
	}
	b.requireBilled(t, all)
}

func TestReconcile_threeAtOnceAndARunMakeOneAttempt(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{Seed: 7, FaultRate: map[stripesim.Kind]float64{
		stripesim.DropAfterCommit: 0.2, stripesim.Error503: 0.1, stripesim.Truncated200: 0.1,
	}})
	all := payers(60)
	b.add(t, all...)
	for i := 1; i <= 60; i += 3 {
		b.sim.DeclineOnce(fmt.Sprintf("cus_%04d", i))
	}
	b.run(t).requireExit(t, 0)
	require.Equal(t, 20, b.tally(t)["declined"])
	b.exec(t, `UPDATE duesday.charges SET settled_at = settled_at - interval '73 hours'`)
	b.sim.Advance(73 * time.Hour)

	lease := []string{"--lease-duration=60s", "--renew-deadline=40s", "--retry-period=50ms"}
	all4 := []*process{
		b.reconcile(t, append(lease, "--retry-declined")...),
		b.reconcile(t, append(lease, "--retry-declined")...),
		b.reconcile(t, append(lease, "--retry-declined")...),
		b.run(t, append(lease, "--retry-declined")...),
	}
	for _, p := range all4 {
		p.exit(t)
	}
	b.reconcile(t, "--retry-declined").requireExit(t, 0)
	require.Equal(t, map[string]int{"succeeded": 60}, b.tally(t))
	require.Equal(t, 20, b.count(t, `SELECT count(*) FROM duesday.charges WHERE attempt = 2`))
	require.Equal(t, 80, b.count(t, `SELECT count(*) FROM duesday.attempts`))
	require.Len(t, b.sim.Succeeded(), 60)
	b.requireCleanBooks(t)
}

func TestDunning_theSecondAttemptHasItsOwnKeyAndTheOldIntentIsCancelled(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"charges", "payment_intents"} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			b := setup(t, stripesim.Options{})
			payer := payers(1)
			payer[0].paymentMethod = "pm_1"
			b.add(t, payer...)
			b.sim.DeclineOnce("cus_0001")
			b.run(t, "--stripe-method="+method).requireExit(t, 0)
			b.reconcile(t, "--retry-declined").requireExit(t, 0)
			require.Equal(t, 1, b.count(t, `SELECT attempt FROM duesday.charges`), "72 hours are not over")

			b.exec(t, `UPDATE duesday.charges SET settled_at = settled_at - interval '73 hours'`)
			b.exec(t, `UPDATE duesday.customers SET amount = 1`)
			b.reconcile(t, "--retry-declined").requireExit(t, 0)

			period, err := charges.ParsePeriod(testPeriod)
			require.NoError(t, err)
			paid := b.sim.Succeeded()
			require.Len(t, paid, 1)
			require.Equal(t, charges.Key("cust_0001", period, testNamespace, 2), paid[0].IdempotencyKey)
			require.Equal(t, payer[0].amount, paid[0].Amount, "the amount stays that of the slot")
			var keys []string
			b.scan(t, &keys, `SELECT array_agg(idempotency_key || ' ' || status ORDER BY attempt) FROM duesday.attempts`)
			require.Equal(t, []string{
				charges.Key("cust_0001", period, testNamespace, 1) + " declined",
				charges.Key("cust_0001", period, testNamespace, 2) + " succeeded",
			}, keys)
			if method == "payment_intents" {
				for _, c := range b.sim.Bank() {
					if c.ID != paid[0].ID {
						require.Equal(t, stripesim.StatusCanceled, c.Status)
					}
				}
			}
			b.requireSettled(t)
		})
	}
}

func TestDunning_leavesAloneWhoMustActOrHasLeftOrIsOutOfAttempts(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	codes := map[string][]string{
		"cus_0001": {"authentication_required", ""},
		"cus_0002": {"expired_card", ""},
		"cus_0003": {"card_declined", "lost_card"},
		"cus_0004": {"card_declined", "stolen_card"},
		"cus_0005": {"card_declined", "generic_decline", "do_not_try_again"},
		"cus_0006": {"card_declined", "insufficient_funds"}, // leaves
		"cus_0007": {"card_declined", "insufficient_funds"}, // is tried to the end
	}
	b.add(t, payers(len(codes))...)
	for customer, code := range codes {
		b.sim.Decline(customer, code[0], code[1], code[2:]...)
	}
	b.run(t).requireExit(t, 0)
	b.exec(t, `UPDATE duesday.customers SET active = false WHERE id = 'cust_0006'`)
	for range 5 {
		b.exec(t, `UPDATE duesday.charges SET settled_at = settled_at - interval '30 days'`)
		b.reconcile(t, "--retry-declined").requireExit(t, 0)
	}
	for i := range codes {
		want := 1
		if i == "cus_0007" {
			want = 4 // the schedule has three pauses
		}
		require.Equal(t, want, b.count(t, `SELECT attempt FROM duesday.charges WHERE customer_id = replace($1, 'cus', 'cust')`, i), i)
	}
	require.Empty(t, b.sim.Succeeded())
	b.requireCleanBooks(t)
}

func TestAudit_findsWhatWasPlantedAndNothingElse(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	b.add(t, payers(10_000)...)
	b.run(t, "--rate=100000", "--workers=32").requireExit(t, 0)
	quiet := b.command(t, "reconcile", "--audit", "--rate=1000")
	quiet.requireExit(t, 0)
	require.Empty(t, quiet.out.String())

	// Missing: the ledger has a charge that Stripe has not.
	b.exec(t, `
		INSERT INTO duesday.dues SELECT billing_period, 'ghost', 'cus_ghost', NULL, 777, 'usd', 'x', 'charges', NULL
			FROM duesday.periods`)
	b.exec(t, `
		INSERT INTO duesday.charges (customer_id, billing_period, idempotency_key, amount, currency, status, charge_id, settled_at)
		SELECT 'ghost', billing_period, repeat('a', 32), 777, 'usd', 'succeeded', 'ch_ghost', now() FROM duesday.periods`)
	// Extra: Stripe has a second one under a key of ours.
	twice := b.sim.Succeeded()[4321]
	b.sim.Plant(stripesim.Charge{Kind: stripesim.KindCharge, Customer: twice.Customer, Amount: twice.Amount, Currency: twice.Currency,
		Status: stripesim.StatusSucceeded, Metadata: twice.Metadata, Created: b.sim.Now()})
	// Differing: the ledger's amount was changed.
	b.exec(t, `UPDATE duesday.charges SET amount = amount + 1 WHERE customer_id = 'cust_0099'`)

	p := b.command(t, "reconcile", "--audit", "--rate=1000", "--output=json")
	p.requireExit(t, 3)
	kinds := map[string]string{}
	for _, d := range decode[[]charges.Difference](t, p.out.String()) {
		kinds[d.CustomerID] = d.Kind
	}
	require.Equal(t, map[string]string{
		"ghost":                            charges.MissingAtStripe,
		twice.Metadata["duesday_customer"]: charges.UnknownToLedger,
		"cust_0099":                        charges.AmountDiffers,
	}, kinds)
	require.Contains(t, p.err.String(), "the ledger and Stripe differ in 3 charges")

	b.sim.SetAuth(403)
	failing := b.command(t, "reconcile", "--audit")
	failing.requireExit(t, 3) // a list that fails is no agreement
}

func TestStatus_showsMonthsThatNoRunHasOpened(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	b.add(t, payers(1)...)
	b.run(t, "--period=2026-01").requireExit(t, 0)
	b.run(t, "--period=2026-04").requireExit(t, 0)
	p := b.command(t, "status", "--output=json")
	p.requireExit(t, 0)
	states := map[string]string{}
	for _, s := range decode[[]statusDoc](t, p.out.String()) {
		states[s.Period] = s.State
	}
	for month, state := range map[string]string{
		"2026-01": "settled", "2026-02": "missing", "2026-03": "missing", "2026-04": "settled", "2026-05": "missing",
	} {
		require.Equal(t, state, states[month], month)
	}
	require.Contains(t, states, time.Now().UTC().Format("2006-01"))
}

func TestWithMissing_theCurrentMonthIsDueAndALaterOneNothing(t *testing.T) {
	t.Parallel()
	opened := func(month string) charges.PeriodStatus {
		return charges.PeriodStatus{Period: month, OpenedAt: time.Unix(1, 0)}
	}
	now := charges.Period{Year: 2026, Month: time.March}
	states := []string{}
	for _, s := range withMissing([]charges.PeriodStatus{opened("2026-01"), opened("2026-06")}, now) {
		states = append(states, s.Period+" "+stateAt(s, now))
	}
	require.Equal(t, []string{"2026-01 open", "2026-02 missing", "2026-03 due", "2026-06 open"}, states)
}

func TestRun_refusesAMonthThatHasNotBegun(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	b.add(t, payers(1)...)
	future := time.Now().UTC().AddDate(0, 2, 0).Format("2006-01")
	p := b.run(t, "--period="+future, "--allow-future=false")
	p.requireExit(t, 2)
	require.Contains(t, p.err.String(), "--period "+future+" has not begun, it is ")
	require.Contains(t, p.err.String(), "say --allow-future if that is meant")
	require.Empty(t, b.sim.Bank())
	b.run(t, "--period="+future, "--allow-future").requireExit(t, 0)
	require.Len(t, b.sim.Succeeded(), 1)
}

func decode[T any](t testing.TB, text string) (v T) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(text), &v))
	return v
}
