// Package stripesim is a Stripe that can lie: an HTTP server that speaks the
// part of API version 2023-10-16 that Duesday uses, keeps the books of an
// imaginary bank, and fails on demand in the ways that Stripe and the network
// between can fail.
//
// It promises the idempotency rules that Stripe documents, exactly, because
// that is what the tests of Duesday stand on: [Sim.Bank] says what truly
// happened, whatever the client was told. It leaves authenticity of shapes to
// stripe-mock, against which its own tests compare it, and it does not model
// refunds, disputes, capture or 3-D Secure.
package stripesim

import (
	"net/http"
	"sync"
	"time"
)

// Defaults of [Options].
const (
	DefaultKeyTTL         = 24 * time.Hour
	DefaultMaxFaultsByKey = 3
	DefaultLogLimit       = 10_000
)

// Options configure a [Sim]. The zero value is a Stripe that tells the truth.
type Options struct {
	// Now is the clock for creation times and for pruning keys; nil is the
	// wall clock. [Sim.Advance] moves either.
	Now func() time.Time
	// Seed decides the random faults and the identifiers.
	Seed uint64
	// Latency is real time spent in each endpoint before it executes; its
	// key counts as in flight meanwhile.
	Latency time.Duration
	// KeyTTL is how long an idempotency key is remembered from its first
	// receipt. Stripe says at least 24 hours, the default.
	KeyTTL time.Duration
	// APIKeys are the secret keys to accept; empty accepts any that starts
	// with sk_test_ or rk_test_.
	APIKeys []string
	// FaultRate is the probability of each kind of fault for a POST with a
	// key: a function of Seed, the key and how often the key has been seen,
	// so a seed replays whatever the order of requests. Kinds whose rates
	// add up to more than 1 crowd out the last in alphabetical order.
	FaultRate map[Kind]float64
	// FaultDelay is the delay of a random [Latency] fault; 0 is 50 ms.
	FaultDelay time.Duration
	// MaxFaultsByKey bounds the random faults of one key, so that each key
	// is answered in the end; 0 is [DefaultMaxFaultsByKey].
	MaxFaultsByKey int
	// Customers says how named customers behave; see [Behaviour].
	Customers map[string]Behaviour
	// SearchLag hides younger objects from search, as Stripe's does by up
	// to an hour. Lists never lag.
	SearchLag time.Duration
	// LogLimit bounds [Sim.Requests]; 0 is [DefaultLogLimit].
	LogLimit int
}

// Sim is the simulated Stripe, an [http.Handler]. All methods may be called
// concurrently.
type Sim struct {
	opts   Options
	closed chan struct{}
	once   sync.Once
	mux    *http.ServeMux

	mu      sync.Mutex
	offset  time.Duration
	latency time.Duration
	auth    int
	// searchRefused is how Search is not to be had; empty: it is.
	searchRefused string
	seq           uint64
	charges       book
	intents       book
	customers     map[string]Behaviour
	keys          map[scopedKey]*storedKey
	plan          plan
	later         []func() reply
	stats         Stats
	first         time.Time // arrival of the first POST
	last          time.Time // answer to the last
	log           requestLog
	onCommit      []func(Charge)
	onRequest     []func(Request)
}

// New returns a Stripe with empty books.
func New(opts Options) *Sim {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.KeyTTL == 0 {
		opts.KeyTTL = DefaultKeyTTL
	}
	if opts.MaxFaultsByKey == 0 {
		opts.MaxFaultsByKey = DefaultMaxFaultsByKey
	}
	if opts.LogLimit == 0 {
		opts.LogLimit = DefaultLogLimit
	}
	if opts.FaultDelay == 0 {
		opts.FaultDelay = 50 * time.Millisecond
	}
	s := &Sim{
		opts:      opts,
		closed:    make(chan struct{}),
		latency:   opts.Latency,
		charges:   newBook(),
		intents:   newBook(),
		customers: make(map[string]Behaviour, len(opts.Customers)),
		keys:      make(map[scopedKey]*storedKey),
		plan:      newPlan(opts),
		stats:     newStats(),
		log:       requestLog{limit: opts.LogLimit},
	}
	for customer, b := range opts.Customers {
		s.customers[customer] = b
	}
	s.mux = s.controlMux()
	return s
}

// Close releases every request that hangs, unanswered. It is for the server's
// shutdown; the books stay readable.
func (s *Sim) Close() { s.once.Do(func() { close(s.closed) }) }

// Now is the simulator's clock.
func (s *Sim) Now() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now()
}

func (s *Sim) now() time.Time { return s.opts.Now().Add(s.offset) }

// Advance moves the simulator's clock, on top of Options.Now.
func (s *Sim) Advance(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.offset += d
}

// SetLatency replaces Options.Latency.
func (s *Sim) SetLatency(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.latency = d
}

// SetAuth makes every call fail with status 401 or 403; 0 ends that.
func (s *Sim) SetAuth(status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.auth = status
}

// OnCommit registers f to be called with each charge or intent that an
// endpoint has written (paid or not) after it is in the bank and before the
// client is answered, on the request's goroutine. The key is still in flight
// then. It is not called for planted or resolved charges.
func (s *Sim) OnCommit(f func(Charge)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onCommit = append(s.onCommit, f)
}

// OnRequest registers f to be called with each API request as it arrives,
// before anything has been done about it.
func (s *Sim) OnRequest(f func(Request)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onRequest = append(s.onRequest, f)
}

func (s *Sim) committed(c Charge) {
	s.mu.Lock()
	hooks := s.onCommit
	s.mu.Unlock()
	for _, f := range hooks {
		f(c)
	}
}
