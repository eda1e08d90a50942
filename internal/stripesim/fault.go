package stripesim

import (
	"maps"
	"slices"
	"time"
)

// Kind names a way to fail.
type Kind string

// The kinds of faults. "Stored" means under the idempotency key, so that a
// resend replays it. The 500s after commit and the replies of GETs aside, a
// fault changes what the client sees, not what the books say.
const (
	// DropBefore closes the connection; nothing was executed.
	DropBefore Kind = "drop_before"
	// DropAfterCommit executes, then closes the connection.
	DropAfterCommit Kind = "drop_after_commit"
	// Error500AfterCommit executes and stores a 500: the charge exists.
	Error500AfterCommit Kind = "500_after_commit"
	// Error500BeforeCommit stores a 500: nothing exists.
	Error500BeforeCommit Kind = "500_before_commit"
	// Error500CommitLater stores a 500: nothing exists until
	// [Sim.RollForward], as Stripe may complete a request after failing it.
	Error500CommitLater Kind = "500_commit_later"
	// Error503 executes and stores nothing.
	Error503 Kind = "503"
	// Error429 is the rate limiter; executes and stores nothing.
	Error429 Kind = "429"
	// LockTimeout429 is lock_timeout as a 429; executes and stores nothing.
	LockTimeout429 Kind = "429_lock_timeout"
	// Conflict409 is lock_timeout as a 409; executes and stores nothing.
	Conflict409 Kind = "409_lock_timeout"
	// Truncated200 executes, and cuts the answer (200 or not) in half.
	Truncated200 Kind = "truncated_200"
	// HTML200 executes, and answers 200 with a page of HTML.
	HTML200 Kind = "html_200"
	// Latency waits for Delay before executing, the key being in flight.
	Latency Kind = "latency"
	// Unauthorized401 and Forbidden403 execute and store nothing.
	Unauthorized401 Kind = "401"
	Forbidden403    Kind = "403"
	// HangUntilReleased waits for Release before executing, the key being
	// in flight, even if the client gives up: the charge may come later. A
	// nil Release waits for the client to give up, then executes.
	HangUntilReleased Kind = "hang"
	// HangAfterCommit executes, then waits as HangUntilReleased does.
	HangAfterCommit Kind = "hang_after_commit"
)

// Kinds returns all kinds.
func Kinds() []Kind {
	return []Kind{
		DropBefore, DropAfterCommit, Error500AfterCommit, Error500BeforeCommit, Error500CommitLater,
		Error503, Error429, LockTimeout429, Conflict409, Truncated200, HTML200, Latency,
		Unauthorized401, Forbidden403, HangUntilReleased, HangAfterCommit,
	}
}

// Fault is one failure of one request. A fault that cannot apply (a 500 for a
// replay, or for parameters that do not validate) is used up without effect.
type Fault struct {
	Kind    Kind
	Delay   time.Duration   // of Latency
	Release <-chan struct{} // of HangUntilReleased and HangAfterCommit
	// Hung, if not nil, is sent a value when a request begins to hang, which
	// waits for a receiver.
	Hung chan<- struct{}
	// ShouldRetry is sent as Stripe-Should-Retry, and RetryAfter as
	// Retry-After, if not empty; only on answers that are errors of the fault.
	ShouldRetry string
	RetryAfter  string
}

// FaultNext plans faults for the next requests that match (nil: any), one
// each, in order. Plans by customer come first, then these, oldest first. match
// is called with the simulator locked and must not call it.
func (s *Sim) FaultNext(match func(Request) bool, faults ...Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.plan.queues = append(s.plan.queues, &queue{match: match, faults: slices.Clone(faults)})
}

// FaultCustomer plans faults for the next requests that name the customer,
// be it to charge it or to list its charges, one each, in order.
func (s *Sim) FaultCustomer(customer string, faults ...Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.plan.byCustomer[customer] = append(s.plan.byCustomer[customer], faults...)
}

// RollForward executes what [Error500CommitLater] held back and returns how
// many requests that were. The stored 500s stay.
func (s *Sim) RollForward() int {
	s.mu.Lock()
	later := s.later
	s.later = nil
	s.mu.Unlock()
	for _, run := range later {
		run()
	}
	return len(later)
}

type queue struct {
	match  func(Request) bool
	faults []Fault
}

type rate struct {
	kind  Kind
	upper float64 // the kind is drawn below this, and not below the one before
}

// plan decides which fault a request meets.
type plan struct {
	seed       uint64
	delay      time.Duration
	max        int
	rates      []rate
	byCustomer map[string][]Fault
	queues     []*queue
	seen       map[string]int
}

func newPlan(opts Options) plan {
	p := plan{
		seed: opts.Seed, delay: opts.FaultDelay, max: opts.MaxFaultsByKey,
		byCustomer: make(map[string][]Fault), seen: make(map[string]int),
	}
	sum := 0.0
	for _, kind := range slices.Sorted(maps.Keys(opts.FaultRate)) {
		sum += opts.FaultRate[kind]
		p.rates = append(p.rates, rate{kind, sum})
	}
	return p
}

// next takes the fault of a request off the plan; the caller holds the lock.
func (p *plan) next(r Request) Fault {
	if fs := p.byCustomer[r.Customer]; r.Customer != "" && len(fs) > 0 {
		p.byCustomer[r.Customer] = fs[1:]
		return fs[0]
	}
	for i, q := range p.queues {
		if q.match != nil && !q.match(r) {
			continue
		}
		f := Fault{}
		if len(q.faults) > 0 {
			f, q.faults = q.faults[0], q.faults[1:]
		}
		if len(q.faults) == 0 {
			p.queues = slices.Delete(p.queues, i, i+1)
		}
		return f
	}
	return p.random(r)
}

func (p *plan) random(r Request) Fault {
	if len(p.rates) == 0 || r.Key == "" {
		return Fault{}
	}
	n := p.seen[r.Key]
	if n >= p.max {
		return Fault{}
	}
	p.seen[r.Key] = n + 1
	x := float64(mix(p.seed, r.Key, uint64(n))>>11) / (1 << 53)
	for _, rate := range p.rates {
		if x < rate.upper {
			return Fault{Kind: rate.kind, Delay: p.delay}
		}
	}
	return Fault{}
}
