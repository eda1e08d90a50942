package main

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/internal/pgtest"
	"github.com/duesday/duesday/internal/stripesim"
)

const period = "2026-10"

// patience bounds every wait. Nothing relies on its length: what is waited for
// comes, or the schedule has failed.
const patience = 90 * time.Second

// world is where one schedule takes place.
type world struct {
	schedule
	binary string
	env    []string // more for the binary
	server *pgtest.Server
	url    string
	sim    *stripesim.Sim

	// gate is held to start a process, and by whoever wants nobody to start.
	gate     sync.RWMutex
	inFlight atomic.Int64 // requests at Stripe
	trouble  atomic.Bool  // steps happen
	rolling  atomic.Bool  // but not now
	busy     atomic.Int64 // actions under way
	changed  chan struct{}

	mu       sync.Mutex
	replicas []*replica
	requests int // to charge
	commits  int
	lists    int
	fired    []bool
	senders  map[string]*replica // of a key, the last
	refusing bool                // Stripe refuses the API key
	// generation counts the reruns with another number of shards; renewed is the
	// last whose processes were started.
	generation, renewed int
	problems            []string
	figures             figures
}

func newWorld(s schedule, binary string, env []string, server *pgtest.Server) (*world, error) {
	w := &world{
		schedule: s, binary: binary, env: env, server: server,
		fired: make([]bool, len(s.steps)), senders: map[string]*replica{}, changed: make(chan struct{}, 1),
		figures: figures{},
	}
	w.sim = stripesim.New(stripesim.Options{Seed: s.seed, FaultRate: s.faults, Latency: s.latency, LogLimit: 100_000})
	for _, c := range s.customers {
		insufficient := &stripesim.Decline{Code: "card_declined", DeclineCode: "insufficient_funds"}
		switch c.behaves {
		case declines:
			w.sim.Behave(c.atStripe(), stripesim.Behaviour{Decline: insufficient})
		case expired:
			w.sim.Behave(c.atStripe(), stripesim.Behaviour{Decline: &stripesim.Decline{Code: "expired_card"}})
		case declinesOnce:
			w.sim.Behave(c.atStripe(), stripesim.Behaviour{Decline: insufficient, Times: 1})
		case pendingPays, pendingFails:
			w.sim.Pending(c.atStripe())
		case missing:
			w.sim.Missing(c.atStripe())
		}
	}
	w.sim.OnCommit(w.committed)
	if err := w.createDatabase(); err != nil {
		w.sim.Close()
		return nil, err
	}
	return w, nil
}

func (w *world) createDatabase() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	name := fmt.Sprintf("seed_%d", w.seed)
	for _, sql := range []string{"DROP DATABASE IF EXISTS " + name + " WITH (FORCE)", "CREATE DATABASE " + name} {
		if err := execOn(ctx, w.server.URL("postgres"), sql); err != nil {
			return err
		}
	}
	w.url = w.server.URL(name)
	conn, err := pgx.Connect(ctx, w.url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := charges.Migrate(ctx, conn); err != nil {
		return err
	}
	_, err = conn.CopyFrom(ctx, pgx.Identifier{"duesday", "customers"},
		[]string{"id", "stripe_customer_id", "payment_method", "amount", "currency"},
		pgx.CopyFromSlice(len(w.customers), func(i int) ([]any, error) {
			c := w.customers[i]
			return []any{c.id, null(c.stripeID), null(c.paymentMethod), c.amount, c.currency}, nil
		}))
	return err
}

func null(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func execOn(ctx context.Context, url, sql string, args ...any) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	_, err = conn.Exec(ctx, sql, args...)
	return err
}

// exec runs sql, again and again if the database is being restarted.
func (w *world) exec(sql string, args ...any) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		err := execOn(ctx, w.url, sql, args...)
		if err == nil || ctx.Err() != nil {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (w *world) problem(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.problems = append(w.problems, fmt.Sprintf(format, args...))
}

func (w *world) count(what string, n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.figures[what] += n
}

func toCharge(r *http.Request) bool {
	return r.Method == http.MethodPost && (r.URL.Path == "/v1/charges" || r.URL.Path == "/v1/payment_intents")
}

func toLook(r *http.Request) bool {
	return r.Method == http.MethodGet && (r.URL.Path == "/v1/charges" || r.URL.Path == "/v1/payment_intents")
}

// serve is Stripe, for one replica.
func (w *world) serve(p *replica, rw http.ResponseWriter, r *http.Request) {
	w.inFlight.Add(1)
	defer w.inFlight.Add(-1)
	key := r.Header.Get("Idempotency-Key")
	switch {
	case toCharge(r):
		w.mu.Lock()
		w.requests++
		w.senders[key] = p
		due := w.due(onRequest, w.requests)
		w.mu.Unlock()
		for _, st := range due {
			if st.do == nap || st.do == napDrop {
				w.sleeper(p, rw, r, st.do == napDrop)
				return
			}
			w.act(st.do, p, key)
		}
	case toLook(r):
		w.failLook(r)
	}
	w.sim.ServeHTTP(rw, r)
}

// failLook plans a fault for some of the requests that look a charge up.
func (w *world) failLook(r *http.Request) {
	w.mu.Lock()
	w.lists++
	n := w.lists
	w.mu.Unlock()
	h := fnv.New64a()
	fmt.Fprint(h, w.seed, n)
	x := h.Sum64() ^ h.Sum64()>>29
	if float64(x%1000) >= w.listFaults*1000 {
		return
	}
	kinds := []stripesim.Kind{stripesim.Error503, stripesim.Error429, stripesim.Truncated200, stripesim.HTML200, stripesim.DropBefore}
	customer := r.URL.Query().Get("customer")
	w.sim.FaultNext(func(r stripesim.Request) bool { return r.Method == "GET" && r.Customer == customer },
		stripesim.Fault{Kind: kinds[x/1000%uint64(len(kinds))]})
}

// committed is called with everything that the bank has written.
func (w *world) committed(c stripesim.Charge) {
	w.mu.Lock()
	w.commits++
	p := w.senders[c.IdempotencyKey]
	due := w.due(onCommit, w.commits)
	w.mu.Unlock()
	for _, st := range due {
		w.act(st.do, p, c.IdempotencyKey)
	}
}

// due returns the steps whose turn has come, once; the caller holds the mutex.
func (w *world) due(on string, n int) (due []step) {
	if !w.trouble.Load() || w.rolling.Load() {
		return nil
	}
	for i, st := range w.steps {
		if st.on == on && st.n <= n && !w.fired[i] {
			w.fired[i] = true
			due = append(due, st)
		}
	}
	return due
}

// sleeper answers a request whose sender sleeps for 25 hours once Stripe has
// executed it, while others finish the month. The answer, or the end of the
// connection without one, is what it wakes up to.
func (w *world) sleeper(p *replica, rw http.ResponseWriter, r *http.Request, drop bool) {
	answer := httptest.NewRecorder()
	w.sim.ServeHTTP(answer, r)
	w.mu.Lock()
	quiet := !w.refusing
	w.mu.Unlock()
	if quiet && p.alive() {
		w.count("naps of a day", 1)
		w.begin()
		p.stop()
		for range 5 {
			q, err := w.start(w.runArgs()...)
			if err != nil {
				w.problem("%v", err)
				break
			}
			if w.await(q); q.alive() || q.code() == 0 {
				break
			}
		}
		w.gate.Lock()
		w.pass(25*time.Hour, p)
		w.gate.Unlock()
		time.AfterFunc(100*time.Millisecond, func() {
			p.wake()
			w.end()
		})
	}
	if drop {
		panic(http.ErrAbortHandler)
	}
	maps.Copy(rw.Header(), answer.Header())
	rw.WriteHeader(answer.Code)
	_, _ = rw.Write(answer.Body.Bytes()) // its reader sleeps
}

// pass lets time pass, for Stripe and in the ledger. The caller holds the gate;
// all processes but the sleeper have to end first, since their clocks stay.
func (w *world) pass(d time.Duration, sleeper *replica) {
	w.mu.Lock()
	all := slices.Clone(w.replicas)
	w.mu.Unlock()
	for _, p := range all {
		if p != sleeper {
			w.await(p)
		}
	}
	own := int64(0)
	if sleeper != nil {
		own = 1
	}
	settled := func() bool {
		for _, p := range all {
			if p != sleeper && p.conns.Load() > 0 {
				return false
			}
		}
		return w.inFlight.Load() <= own
	}
	for deadline := time.Now().Add(patience); !settled(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			w.problem("torture: requests of dead processes did not end")
			return
		}
	}
	// Stripe completes what it failed within hours, not after it forgot the key.
	// No process sent that, so no step is due for it; one would wait for the gate.
	w.rolling.Store(true)
	w.sim.RollForward()
	w.rolling.Store(false)
	seconds := d.Seconds()
	if err := w.exec(`
		UPDATE duesday.charges SET claimed_at = claimed_at - make_interval(secs => $1),
			key_window_at = key_window_at - make_interval(secs => $1),
			settled_at = settled_at - make_interval(secs => $1)`, seconds); err != nil {
		w.problem("torture: let time pass in the ledger: %v", err)
	}
	w.sim.Advance(d)
	w.count("clock jumps", 1)
}

// await waits for the process to end, which it has to, and kills it if not.
func (w *world) await(p *replica) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
		w.problem("stuck: %v\n%s", p, p.log.Tail(2000))
		p.kill()
	}
}

func (w *world) begin() { w.busy.Add(1) }

func (w *world) end() {
	w.busy.Add(-1)
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

func (w *world) common() []string {
	return []string{"--rate", fmt.Sprint(w.rate), "--workers", fmt.Sprint(w.workers), "--debug",
		"--lease-duration=1500ms", "--renew-deadline=1s", "--retry-period=100ms"}
}

func (w *world) runArgs() []string {
	return append([]string{"run", "--leader-elect=false", "--allow-future", "--period", period, "--stripe-method", w.method}, w.common()...)
}

func (w *world) reconcileArgs(more ...string) []string {
	return append(append([]string{"reconcile"}, w.common()...), more...)
}

// close ends whatever is left.
func (w *world) close() error {
	w.mu.Lock()
	all := slices.Clone(w.replicas)
	w.mu.Unlock()
	for _, p := range all {
		if p.alive() {
			p.kill()
		}
	}
	w.sim.Close()
	for _, p := range all {
		p.stripe.CloseClientConnections()
		p.stripe.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, name, _ := strings.Cut(w.url, "/seed_")
	name, _, _ = strings.Cut(name, "?")
	if name == "" {
		return errors.New("no database to drop")
	}
	return execOn(ctx, w.server.URL("postgres"), "DROP DATABASE seed_"+name+" WITH (FORCE)")
}
