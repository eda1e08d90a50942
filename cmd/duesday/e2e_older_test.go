package main

import (
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/internal/stripesim"
)

const cannotAsk = "cannot ask Stripe whether it has charges of the period that the ledger does not know; if the database was restored, stop and use --after-restore"

func isSearch(r stripesim.Request) bool { return strings.HasSuffix(r.Path, "/search") }

// isPage is true of the pages of a look-up after a restore, and of the newest.
func isPage(r stripesim.Request) bool {
	return r.Method == http.MethodGet && r.Customer == "" && !isSearch(r)
}

func TestOlder_searchThatIsLateLimitedOrUnavailableBlocksNoMonth(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		break_ func(sim *stripesim.Server)
		warned bool
	}{
		"late":             {func(sim *stripesim.Server) { sim.SetSearchLag(time.Hour) }, false},
		"region":           {func(sim *stripesim.Server) { sim.RefuseSearch(stripesim.SearchNoRegion) }, true},
		"permission":       {func(sim *stripesim.Server) { sim.RefuseSearch(stripesim.SearchNoPermission) }, true},
		"no such endpoint": {func(sim *stripesim.Server) { sim.RefuseSearch(stripesim.SearchNoRoute) }, true},
		"no total_count":   {func(sim *stripesim.Server) { sim.RefuseSearch(stripesim.SearchNoCount) }, false},
		"limited":          {failing(isSearch, stripesim.Error429), true},
		"limited, once":    {func(sim *stripesim.Server) { sim.FaultNext(isSearch, stripesim.Fault{Kind: stripesim.Error429}) }, false},
		"down":             {failing(isSearch, stripesim.Error503), true},
		"cut":              {failing(isSearch, stripesim.Truncated200), true},
		"not JSON":         {failing(isSearch, stripesim.HTML200), true},
		"lists down":       {failing(isPage, stripesim.Error503), true},
	} {
		for _, method := range []string{"charges", "payment_intents"} {
			t.Run(name+"/"+method, func(t *testing.T) {
				t.Parallel()
				b := setup(t, stripesim.Options{})
				all := payers(5)
				for i := range all {
					all[i].paymentMethod = "pm_1"
				}
				b.add(t, all...)
				tc.break_(b.sim)
				p := b.run(t, "--stripe-method="+method)
				p.requireExit(t, 0)
				b.requireBilled(t, all)
				b.requireSettled(t)
				require.Equal(t, tc.warned, len(p.logs(t, cannotAsk)) > 0)
			})
		}
	}
}

// failing lets all requests fail that match.
func failing(match func(stripesim.Request) bool, kind stripesim.Kind) func(*stripesim.Server) {
	return func(sim *stripesim.Server) {
		for range 20 {
			sim.FaultNext(match, stripesim.Fault{Kind: kind})
		}
	}
}

// lostMonth bills a month and puts the ledger from before it in its place.
func lostMonth(t *testing.T, opts stripesim.Options, n int) *bundle {
	b := setup(t, opts)
	b.add(t, payers(n)...)
	backup := b.backup(t)
	b.run(t, "--rate=5000").requireExit(t, 0)
	b.restore(t, backup)
	return b
}

// Either question is enough, where the other one cannot be asked.
func TestOlder_isSeenBySearchAndByTheNewestOfAll(t *testing.T) {
	t.Parallel()
	for name, break_ := range map[string]func(b *bundle){
		"search late":      func(b *bundle) { b.sim.SetSearchLag(time.Hour) },
		"search in India":  func(b *bundle) { b.sim.RefuseSearch(stripesim.SearchNoRegion) },
		"lists down":       func(b *bundle) { failing(isPage, stripesim.Error503)(b.sim) },
		"no total_count":   func(b *bundle) { b.sim.RefuseSearch(stripesim.SearchNoCount) },
		"a day later":      func(b *bundle) { b.sim.Advance(25 * time.Hour) },
		"much other money": func(b *bundle) { b.otherTraffic(150, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := lostMonth(t, stripesim.Options{}, 5)
			break_(b)
			p := b.run(t)
			p.requireExit(t, 3)
			require.Contains(t, p.lastError(t), "the ledger is older than what Stripe has")
			require.Zero(t, b.count(t, `SELECT count(*) FROM duesday.periods`), "nothing was opened")
			require.Len(t, b.paid(), 5)
		})
	}
}

// The message can be followed as it stands.
func TestOlder_namesTheFlagsThatARunAfterARestoreNeeds(t *testing.T) {
	t.Parallel()
	b := lostMonth(t, stripesim.Options{}, 5)
	for said, start := range map[string]func() *process{
		"--period 2026-10 --after-restore --allow-future, which": func() *process { return b.run(t) },
		"--period 2026-10 --after-restore --allow-future --period-offset 2, which": func() *process {
			return b.run(t, "--period-offset=2")
		},
		"--period 2026-10 --after-restore --allow-future --shards 1, which": func() *process { return b.shard(t, 1, 3) },
	} {
		p := start()
		p.requireExit(t, 3)
		require.Contains(t, p.lastError(t), "say once: duesday run "+said)
	}
	b.run(t, "--after-restore").requireExit(t, 0)
	require.Len(t, b.paid(), 5)
}

func (b *bundle) otherTraffic(n int, metadata map[string]string) {
	for i := range n {
		b.sim.Plant(stripesim.Charge{Customer: fmt.Sprintf("cus_other_%d", i), Amount: 100, Currency: "usd", Metadata: metadata, Created: b.sim.Now()})
	}
}

// paid are the succeeded charges of this month.
func (b *bundle) paid() (paid []stripesim.Charge) {
	for _, c := range b.sim.Succeeded() {
		if c.Metadata["duesday_period"] == testPeriod && strings.HasPrefix(c.Metadata["duesday_customer"], "cust_") {
			paid = append(paid, c)
		}
	}
	return paid
}

// What the count is for: Search need not show the newest first.
func TestOlder_isSeenOnALaterPageIfTheCountSaysSo(t *testing.T) {
	t.Parallel()
	b := lostMonth(t, stripesim.Options{}, 5)
	month := map[string]string{"duesday_period": testPeriod, "duesday_customer": "other", "duesday_key": strings.Repeat("a", 32)}
	b.otherTraffic(250, month)
	p := b.run(t)
	p.requireExit(t, 3)
	require.Len(t, b.paid(), 5)
}

// New attempts make more charges than there are slots: no reason to read on.
func TestOlder_dunningCostsNoFurtherPagesOfSearch(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	all := payers(250)
	b.add(t, all...)
	for _, c := range all[:3] {
		b.sim.DeclineOnce(c.stripeID)
	}
	b.run(t, "--workers=32").requireExit(t, 0)
	b.exec(t, `UPDATE duesday.charges SET settled_at = settled_at - interval '73 hours' WHERE status = 'declined'`)
	b.reconcile(t, "--retry-declined").requireExit(t, 0)
	require.Equal(t, map[string]int{"succeeded": 250}, b.tally(t))
	require.Equal(t, 253, b.posts())

	asked := len(b.sim.Requests())
	b.run(t, "--retry-declined").requireExit(t, 0)
	for _, r := range b.sim.Requests()[asked:] {
		require.Empty(t, r.Params.Get("page"), "it read on")
	}
	require.Greater(t, len(b.sim.Requests()), asked, "it asked")

	asked = len(b.sim.Requests())
	b.reconcile(t, "--retry-declined").requireExit(t, 0)
	require.Len(t, b.sim.Requests(), asked, "nothing is due, and nothing to ask")
	b.reconcile(t, "--retry-declined", "--customers=nowhere").requireExit(t, 2)
}

func TestOlder_othersInTheSameAccountRaiseNoAlarm(t *testing.T) {
	t.Parallel()
	period, err := charges.ParsePeriod(testPeriod)
	require.NoError(t, err)
	b := setup(t, stripesim.Options{})
	b.add(t, payers(5)...)
	b.sim.Decline("cus_0003", "card_declined", "insufficient_funds")
	for i, meta := range []map[string]string{
		// Another namespace, the same customers.
		{"duesday_period": testPeriod, "duesday_customer": "cust_0001", "duesday_key": charges.Key("cust_0001", period, "setup-fees", 1)},
		// Another product with this one's namespace, and customers of its own.
		{"duesday_period": testPeriod, "duesday_customer": "b_17", "duesday_key": charges.Key("b_17", period, testNamespace, 1)},
		// Another month.
		{"duesday_period": "2026-09", "duesday_customer": "cust_0001", "duesday_key": charges.Key("cust_0001", period.Add(-1), testNamespace, 1)},
		// Somebody's own idea of our metadata.
		{"duesday_period": testPeriod, "duesday_customer": "cust_0002"},
		{"duesday_period": testPeriod},
	} {
		b.otherTraffic(30+i, meta)
	}
	for range 2 {
		p := b.run(t, "--retry-declined")
		p.requireExit(t, 0)
		require.Empty(t, p.logs(t, cannotAsk))
	}
	require.Equal(t, map[string]int{"succeeded": 4, "declined": 1}, b.tally(t))
	b.exec(t, `UPDATE duesday.charges SET settled_at = settled_at - interval '73 hours'`)
	b.reconcile(t, "--retry-declined").requireExit(t, 0)
	require.Equal(t, 2, b.count(t, `SELECT max(attempt) FROM duesday.charges`))

	// After a restore they are left alone, too; but for the product that uses
	// our namespace they are told of.
	p := b.run(t, "--after-restore")
	p.requireExit(t, 0)
	require.Len(t, p.logs(t, "Stripe has charges of customers whom the period does not owe anything for: they are left as they are"), 1)
	require.Equal(t, map[string]int{"succeeded": 4, "declined": 1}, b.tally(t))
}

// A run that was killed, or that declined, reopened and retried, is no older
// ledger.
func TestOlder_aResumedMonthRaisesNoAlarm(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{Seed: 3, FaultRate: map[stripesim.Kind]float64{
		stripesim.DropAfterCommit: 0.2, stripesim.Error500AfterCommit: 0.1, stripesim.Truncated200: 0.1,
	}})
	b.restorers(t)
	b.upTo(t, 5)
	b.upTo(t, 6, "--reopen")
	b.run(t, "--reopen").exit(t)
	b.dun(t)
	p := b.run(t, "--reopen", "--retry-declined")
	require.Less(t, p.exit(t), 3, tail(p.err.String()))
	require.NotContains(t, p.err.String(), "older")
}

func TestAfterRestore_aListThatFailsIsNotNothingFound(t *testing.T) {
	t.Parallel()
	b := lostMonth(t, stripesim.Options{}, 150)
	secondPage := func(r stripesim.Request) bool { return isPage(r) && r.Params.Get("starting_after") != "" }
	for range 7 {
		b.sim.FaultNext(secondPage, stripesim.Fault{Kind: stripesim.Error503})
	}
	p := b.run(t, "--after-restore")
	p.requireExit(t, 1)
	require.Contains(t, p.lastError(t), "look up who was charged for period 2026-10, nothing was sent: list the charges: stripe: HTTP 503")
	require.Equal(t, map[string]int{"succeeded": 100}, b.tally(t), "the first page is on record")

	b.sim.SetAuth(403)
	b.run(t, "--after-restore").requireExit(t, 3)
	b.sim.SetAuth(0)
	b.requireRefused(t)
	b.run(t, "--after-restore").requireExit(t, 0)
	b.requireBilled(t, payers(150))
	b.requireSettled(t)
}

// requireRefused: a run that was not told of the restore goes no further, also
// where all that is new at Stripe is on record already.
func (b *bundle) requireRefused(t testing.TB) {
	t.Helper()
	p := b.run(t)
	p.requireExit(t, 3)
	require.Contains(t, p.lastError(t), "a look-up after a restore was begun and not finished. Nothing was claimed or sent.")
	if r := b.reconcile(t, "--retry-declined"); r.exit(t) != 3 {
		require.Fail(t, "reconcile went on", tail(r.err.String()))
	}
}

func TestAfterRestore_killedHalfWayNobodyGoesOnWithoutIt(t *testing.T) {
	t.Parallel()
	b := lostMonth(t, stripesim.Options{}, 250)
	b.sim.Advance(25 * time.Hour)
	hung := make(chan struct{})
	b.sim.FaultNext(func(r stripesim.Request) bool { return isPage(r) && r.Params.Get("starting_after") != "" },
		stripesim.Fault{Kind: stripesim.HangUntilReleased, Hung: hung})
	p := b.run(t, "--after-restore")
	await(t, "the second page", hung)
	p.kill(t)
	require.Equal(t, map[string]int{"succeeded": 100}, b.tally(t))
	b.requireRefused(t)
	require.Len(t, b.sim.Succeeded(), 250)

	b.run(t, "--after-restore").requireExit(t, 0)
	b.requireBilled(t, payers(250))
	b.requireSettled(t)
}

// A slip in its flags is no look-up that was begun.
func TestAfterRestore_thatNeverBeganToLookUpBlocksNoMonth(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	b.add(t, payers(5)...)
	b.run(t, "--after-restore", "--customers=nowhere").requireExit(t, 2)
	b.run(t).requireExit(t, 0)
	b.requireBilled(t, payers(5))
	b.requireSettled(t)
}

// Nor does it unsay that one before it was begun and not finished.
func TestAfterRestore_thatNeverBeganToLookUpLeavesTheOneBeforeUnfinished(t *testing.T) {
	t.Parallel()
	b := lostMonth(t, stripesim.Options{}, 150)
	secondPage := func(r stripesim.Request) bool { return isPage(r) && r.Params.Get("starting_after") != "" }
	for range 7 {
		b.sim.FaultNext(secondPage, stripesim.Fault{Kind: stripesim.Error503})
	}
	b.run(t, "--after-restore").requireExit(t, 1)
	b.run(t, "--after-restore", "--reopen", "--customers=nowhere").requireExit(t, 2)
	b.requireRefused(t)
	b.run(t, "--after-restore").requireExit(t, 0)
	b.requireBilled(t, payers(150))
}

func TestAfterRestore_killedWhileSendingTheNextRunNeedsNoFlag(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	b.add(t, payers(30)...)
	backup := b.backup(t)
	b.upTo(t, 10)
	b.restore(t, backup)
	b.sim.Advance(25 * time.Hour)
	b.upTo(t, 5, "--after-restore")
	b.finish(t)
	b.requireBilled(t, payers(30))
}

// The run that charged needed a flag that today's does not: the month has begun.
func TestAfterRestore_ofAMonthThatWasBilledInAdvance(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		months int
		late   bool // more than a year in advance
	}{
		"by three months":    {3, false},
		"by fourteen months": {14, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, stripesim.Options{})
			b.add(t, payers(10)...)
			backup := b.backup(t)
			now := time.Now().UTC()
			month := time.Date(now.Year(), now.Month()+time.Month(tc.months), 1, 0, 0, 0, 0, time.UTC)
			period := month.Format("2006-01")
			b.run(t, "--period="+period).requireExit(t, 0)
			require.Len(t, b.sim.Succeeded(), 10)
			b.restore(t, backup)
			b.sim.Advance(month.Sub(now))

			begun := func(flags ...string) (int, string) {
				pod := newPod(t, b.env)
				pod.now = month.Add(12 * time.Hour)
				code := pod.run(append([]string{"--leader-elect=false", "--period=" + period}, flags...)...)
				return code, pod.log.String()
			}
			code, said := begun()
			require.Equal(t, 3, code, said)
			if tc.late {
				for range 2 {
					code, said = begun("--after-restore")
					require.Equal(t, 3, code, said)
					require.Contains(t, said, "The look-up began too late")
					require.Contains(t, said, "add --allow-future to --after-restore")
					require.Len(t, b.sim.Succeeded(), 10, "somebody was charged again")
					b.exec(t, `UPDATE duesday.periods SET opened_at = $1`, month) // as its clock would
				}
				code, said = begun()
				require.Equal(t, 3, code, said)
				code, said = begun("--after-restore", "--allow-future")
				require.Zero(t, code, said)
			} else {
				code, said = begun("--after-restore")
				require.Zero(t, code, said)
			}
			require.Len(t, b.sim.Succeeded(), 10, "somebody was charged again")
			require.Equal(t, 10, b.count(t, `SELECT count(*) FROM duesday.charges WHERE status = 'succeeded'`))
		})
	}
}

// Whoever was charged is known by an id that the relation has no more.
func TestAfterRestore_aRenamedCustomerIsNotChargedAgain(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		opened bool // in the backup
		flags  []string
	}{
		"before the opening":  {false, nil},
		"opened, then anew":   {true, []string{"--reopen"}},
		"through the intents": {false, []string{"--stripe-method=payment_intents"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, stripesim.Options{})
			all := payers(10)
			for i := range all {
				all[i].paymentMethod = "pm_1"
			}
			b.add(t, all...)
			b.exec(t, `CREATE TABLE public.subs AS SELECT * FROM duesday.customers`)
			if tc.opened {
				b.openOnly(t, "charges")
			}
			backup := b.backup(t)
			flags := append([]string{"--customers=public.subs"}, tc.flags...)
			b.run(t, flags...).requireExit(t, 0)
			require.Len(t, b.sim.Succeeded(), 10)
			b.restore(t, backup)
			b.exec(t, `UPDATE public.subs SET id = 'renamed', amount = 777 WHERE id = 'cust_0004'`)

			b.run(t, flags...).requireExit(t, 3)
			for range 2 {
				p := b.run(t, append(flags, "--after-restore")...)
				p.requireExit(t, 3)
				require.Contains(t, p.lastError(t), "customers of Stripe's whom the period owes were charged for it under other ids: "+b.chargeOf("cus_0004"))
				require.Len(t, b.sim.Succeeded(), 10, "somebody was charged again")
			}
			b.requireRefused(t)

			b.exec(t, `UPDATE public.subs SET id = 'cust_0004' WHERE id = 'renamed'`)
			b.run(t, append(flags, "--after-restore", "--reopen")...).requireExit(t, 0)
			b.requireBilled(t, all)
			require.Equal(t, map[string]int{"succeeded": 10}, b.tally(t))
		})
	}
}

// chargeOf is the charge or intent of a Stripe customer.
func (b *bundle) chargeOf(customer string) string {
	for _, c := range b.sim.Succeeded() {
		if c.Customer == customer {
			return c.ID
		}
	}
	return "none"
}

// Two rows of one Stripe customer are two dues: the one that is paid itself says
// nothing of the other, who has left.
func TestAfterRestore_twoRowsOfOneStripeCustomerRaiseNoAlarm(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	all := payers(4)
	all[1].stripeID = all[0].stripeID
	b.add(t, all...)
	b.exec(t, `CREATE TABLE public.subs AS SELECT * FROM duesday.customers`)
	backup := b.backup(t)
	b.run(t, "--customers=public.subs").requireExit(t, 0)
	b.restore(t, backup)
	b.exec(t, `UPDATE public.subs SET active = false WHERE id = 'cust_0001'`)
	p := b.run(t, "--customers=public.subs", "--after-restore")
	p.requireExit(t, 0)
	require.Len(t, p.logs(t, "Stripe has charges of customers whom the period does not owe anything for: they are left as they are"), 1)
	require.Len(t, b.sim.Succeeded(), 4)
	require.Equal(t, map[string]int{"succeeded": 3}, b.tally(t))
}

// Money that was taken counts, also above what is expected now.
func TestAfterRestore_countsAgainstTheSpendCap(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	all := payers(6)
	for i := range all {
		all[i].currency, all[i].amount = "usd", 1000
	}
	b.add(t, all...)
	backup := b.backup(t)
	b.upTo(t, 4)
	taken := len(b.sim.Succeeded())
	b.restore(t, backup)
	b.exec(t, `UPDATE duesday.customers SET amount = 500`)
	p := b.run(t, "--after-restore", "--spend-cap-factor=1.01")
	p.requireExit(t, 3)
	require.Contains(t, p.lastError(t), "the spend cap is reached")
	require.Len(t, b.sim.Succeeded(), taken)
	require.Equal(t, taken*1000, b.count(t, `SELECT claimed_total FROM duesday.totals`))
	require.Equal(t, max(taken*1000, 3030), b.count(t, `SELECT cap FROM duesday.totals`))
	b.run(t, "--raise-cap-to=usd=7000").requireExit(t, 0)
	b.requireSettled(t)
	require.Len(t, b.sim.Succeeded(), 6)
	require.Equal(t, taken*1000+(6-taken)*500, b.count(t, `SELECT claimed_total FROM duesday.totals`))
}

func TestAfterRestore_tellsOfTwoChargesOfOneCustomer(t *testing.T) {
	t.Parallel()
	b := lostMonth(t, stripesim.Options{}, 3)
	twice := b.sim.Succeeded()[1]
	twice.ID = "ch_second"
	twice.Metadata["duesday_key"] = charges.Key(twice.Metadata["duesday_customer"], charges.Period{Year: 2026, Month: time.October}, testNamespace, 2)
	b.sim.Plant(twice)
	p := b.run(t, "--after-restore")
	p.requireExit(t, 0)
	told := p.logs(t, "customers were charged more than once for the period, look at these charges: they are the ones beside those in the ledger")
	require.Len(t, told, 1)
	require.Equal(t, map[string]int{"succeeded": 3}, b.tally(t))
	b.run(t, "--retry-declined").requireExit(t, 0) // and it is no older ledger for ever
}

// The hooks of the mutants are not in the binary of the tests; the look is. With
// it off the same story must end in second charges.
func TestOlder_withoutTheCheckTheSameStoryChargesTwice(t *testing.T) {
	t.Parallel()
	mutant := filepath.Join(t.TempDir(), "mutant")
	out, err := exec.Command("go", "build", "-tags", "mutant", "-o", mutant, ".").CombinedOutput()
	require.NoError(t, err, string(out))
	b := lostMonth(t, stripesim.Options{}, 3)
	b.sim.Advance(25 * time.Hour)
	cmd := exec.Command(mutant, append([]string{"run", "--leader-elect=false", "--period=" + testPeriod}, longLease...)...)
	cmd.Env = append(cmd.Env, "DUESDAY_MUTANT=trust-any-ledger")
	for name, value := range b.env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	out, err = cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Len(t, b.sim.Succeeded(), 6)
}

// Through the vault a period must be open before there is a key to ask with.
func TestOlder_isSeenThroughTheVault(t *testing.T) {
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
			backup, direct := b.backup(t), b.env
			b.behindProxy(t)
			first := b.run(t, "--stripe-method="+method)
			first.requireExit(t, 0)
			require.Empty(t, first.logs(t, cannotAsk), "the proxy lets the questions through")
			b.restore(t, backup)
			b.sim.Advance(25 * time.Hour)
			b.env = direct
			b.behindProxy(t)

			p := b.run(t, "--stripe-method="+method)
			p.requireExit(t, 3)
			require.Contains(t, p.lastError(t), "the ledger is older than what Stripe has")
			require.Empty(t, b.statuses(t))
			b.run(t, "--after-restore", "--stripe-method="+method).requireExit(t, 0)
			b.requireBilled(t, all)
			b.requireSettled(t)
		})
	}
}
