package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/duesday/duesday/internal/stripesim"
)

// What a customer does when it is charged.
const (
	pays         = "pays"
	declines     = "declines"      // for want of money, whenever it is asked
	expired      = "expired"       // only the customer can mend it
	declinesOnce = "declines once" // and pays at the next attempt
	pendingPays  = "pending, then pays"
	pendingFails = "pending, then fails"
	unpayable    = "unpayable" // its row can never be sent
	missing      = "missing"   // at Stripe
)

type customer struct {
	id, stripeID, paymentMethod string
	amount                      int64
	currency, behaves           string
}

// atStripe is the Stripe customer that is to be charged.
func (c customer) atStripe() string {
	if c.stripeID == "" {
		return c.id
	}
	return c.stripeID
}

// What can happen. The victim is the process that sent the request, or whose
// request was committed, at which it happens.
const (
	kill       = "SIGKILL"
	killAll    = "SIGKILL to all, and 25 hours pass"
	term       = "SIGTERM"
	freeze     = "freeze beyond the lease" // and the answer waits for the waking
	freezeBit  = "freeze for a moment"
	nap        = "freeze for 25 hours" // while others finish the month
	napDrop    = nap + ", connection lost"
	terminate  = "pg_terminate_backend of the lock's session"
	sever      = "pg_terminate_backend of all sessions"
	restart    = "Postgres restart -m immediate"
	outage503  = "outage: 503"
	outageDrop = "outage: connections dropped"
	outage429  = "outage: 429"
	refuse401  = "API key refused: 401"
	refuse403  = "API key refused: 403"
	hang       = "request hangs"
	hangDone   = "answer hangs"
	change     = "customers change"
	reconcile  = "reconcile starts"
)

// A step is something that happens at the n-th request to charge, or after the
// n-th commit of one, before it is answered; or n milliseconds after the start.
type step struct {
	on string
	n  int
	do string
}

const (
	onRequest = "request"
	onCommit  = "commit"
	onClock   = "ms"
)

type schedule struct {
	seed          uint64
	method        string
	customers     []customer
	rate, workers int
	latency       time.Duration
	faults        map[stripesim.Kind]float64
	listFaults    float64 // of the requests that look a charge up
	steps         []step
	// shards are how many have the period between them, from one rerun to the
	// next; empty: replicas, of which one leads.
	shards []int
}

// draw makes the schedule of a seed.
func draw(seed uint64) schedule {
	r := rand.New(rand.NewPCG(seed, 20261001))
	s := schedule{
		seed:    seed,
		method:  pick(r, "charges", "payment_intents"),
		rate:    pick(r, 10, 20, 50, 200),
		workers: pick(r, 1, 4, 8),
		latency: time.Duration(r.IntN(15)) * time.Millisecond,
	}
	s.customers = drawCustomers(r, 20+r.IntN(41), s.method)
	s.faults = drawFaults(r)
	s.listFaults = pick(r, 0, 0.1, 0.4)

	// A sleeper of a day is told apart from one whose request was already on
	// its way by having nothing else to send: it has one worker.
	naps := s.workers == 1 && r.IntN(3) > 0
	for range 2 + r.IntN(5) {
		st := step{on: pick(r, onRequest, onCommit, onCommit), n: 1 + r.IntN(len(s.customers)), do: pick(r,
			kill, kill, kill, killAll, killAll, killAll, term, term, freeze, freeze, freezeBit, terminate, terminate, sever,
			restart, restart, outage503, outageDrop, outage429, refuse401, refuse403, hang, hangDone, change, change,
			reconcile, reconcile)}
		switch {
		case naps && st.do == killAll:
			st.do = kill
		case st.do == hang, st.do == hangDone:
			st.on = onRequest
		}
		if st.do == kill && r.IntN(4) == 0 {
			st.on, st.n = onClock, r.IntN(500)
		}
		s.steps = append(s.steps, st)
	}
	if r.IntN(2) == 0 { // early, so that what is sent again could be wrong
		s.steps = append(s.steps, step{on: onCommit, n: 1 + r.IntN(10), do: change})
	}
	if naps {
		s.steps = append(s.steps, step{on: onRequest, n: 2 + r.IntN(len(s.customers)/2), do: pick(r, nap, napDrop)})
	}
	s.shards = drawShards(seed)
	slices.SortStableFunc(s.steps, func(a, b step) int { return a.n - b.n })
	return s
}

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

func drawCustomers(r *rand.Rand, n int, method string) []customer {
	all := make([]customer, n)
	odd := []string{declines, expired, declinesOnce, declinesOnce, pendingPays, pendingFails, missing}
	unpaid := 0
	for i := range all {
		c := customer{
			id: fmt.Sprintf("cust_%03d", i+1), stripeID: fmt.Sprintf("cus_%03d", i+1),
			amount: int64(1000 + r.IntN(9000)), currency: pick(r, "usd", "eur", "jpy"), behaves: pays,
		}
		if r.IntN(8) == 0 {
			c.stripeID = ""
		}
		if r.IntN(2) == 0 || method == "payment_intents" { // which need one
			c.paymentMethod = "pm_card"
		}
		switch x := r.IntN(20); {
		case x < 4:
			c.behaves = pick(r, odd...)
		case x == 4 && unpaid < 3: // more would trip a guard
			unpaid++
			c.behaves, c.amount = unpayable, 0
		}
		all[i] = c
	}
	return all
}

func drawFaults(r *rand.Rand) map[stripesim.Kind]float64 {
	faults := map[stripesim.Kind]float64{}
	rate := pick(r, 0, 0.01, 0.03)
	for _, kind := range []stripesim.Kind{
		stripesim.DropBefore, stripesim.DropAfterCommit, stripesim.Error500AfterCommit, stripesim.Error503,
		stripesim.Error429, stripesim.LockTimeout429, stripesim.Conflict409, stripesim.Truncated200,
		stripesim.HTML200, stripesim.Latency, stripesim.Error500BeforeCommit, stripesim.Error500CommitLater,
	} {
		if rate > 0 && r.IntN(3) > 0 {
			faults[kind] = rate
		}
	}
	return faults
}

func (s schedule) String() string {
	var b strings.Builder
	behave := map[string]int{}
	for _, c := range s.customers {
		behave[c.behaves]++
	}
	fmt.Fprintf(&b, "seed %d: %d customers %v, %s, rate %d, %d workers, latency %s\n", s.seed, len(s.customers), behave, s.method, s.rate, s.workers, s.latency)
	if len(s.shards) > 0 {
		fmt.Fprintf(&b, "  shards %v, from one rerun to the next\n", s.shards)
	}
	fmt.Fprintf(&b, "  faults %v, of look-ups %v\n", s.faults, s.listFaults)
	for _, st := range s.steps {
		fmt.Fprintf(&b, "  at %s %d: %s\n", st.on, st.n, st.do)
	}
	return b.String()
}
