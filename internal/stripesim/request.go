package stripesim

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"time"
)

// Request is one API call as it reached the simulator.
type Request struct {
	ID     string    `json:"id"` // the Request-Id of the answer
	Time   time.Time `json:"time"`
	Method string    `json:"method"`
	Path   string    `json:"path"`
	// Key is the Idempotency-Key, which only POSTs need.
	Key string `json:"key"`
	// APIKey is the credential as sent, valid or not.
	APIKey string `json:"-"`
	// Customer is the parameter of that name.
	Customer string     `json:"customer"`
	Params   url.Values `json:"params"` // shared: not to be written to

	// What became of it; not yet known to [Sim.OnRequest] and to matchers.

	Status   int  `json:"status"` // what the client was sent; 0 is nothing or a cut answer
	Replayed bool `json:"replayed"`
	Fault    Kind `json:"fault,omitempty"`
}

// Stats counts API requests since the start. One answered with nothing counts
// under status 0.
type Stats struct {
	Requests int `json:"requests"`
	// ByEndpoint is keyed "POST /v1/charges 200"; identifiers are {id}.
	ByEndpoint map[string]int `json:"by_endpoint"`
	// IdempotencyErrors counts keys that came with other parameters.
	IdempotencyErrors int `json:"idempotency_errors"`
	// InFlight counts 409s for keys still in flight.
	InFlight int `json:"in_flight"`
	Replays  int `json:"replays"`
	// Keyless counts POSTs without an idempotency key, or with a blank one.
	Keyless int          `json:"keyless"`
	Faults  map[Kind]int `json:"faults"`
}

func newStats() Stats {
	return Stats{ByEndpoint: make(map[string]int), Faults: make(map[Kind]int)}
}

// Stats returns the counters.
func (s *Sim) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.stats
	out.ByEndpoint = maps.Clone(out.ByEndpoint)
	out.Faults = maps.Clone(out.Faults)
	return out
}

// Requests returns the last Options.LogLimit finished requests, oldest first.
func (s *Sim) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.all()
}

// Keyless returns the first POSTs that came without an idempotency key, at
// most Options.LogLimit. Stripe accepts them; a biller must never send one.
func (s *Sim) Keyless() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.log.keyless)
}

// requestLog is a ring of the last requests.
type requestLog struct {
	limit   int
	ring    []Request
	next    int
	keyless []Request
}

func (l *requestLog) add(r Request) {
	if len(l.ring) < l.limit {
		l.ring = append(l.ring, r)
	} else {
		l.ring[l.next] = r
		l.next = (l.next + 1) % l.limit
	}
	if r.keyless() && len(l.keyless) < l.limit {
		l.keyless = append(l.keyless, r)
	}
}

func (l *requestLog) all() []Request {
	return append(slices.Clone(l.ring[l.next:]), l.ring[:l.next]...)
}

func (r Request) keyless() bool { return r.Method == "POST" && r.Key == "" }

// record books a finished request.
func (s *Sim) record(r Request, endpoint string, out reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log.add(r)
	if r.Method == "POST" {
		s.last = s.now()
	}
	st := &s.stats
	st.Requests++
	st.ByEndpoint[fmt.Sprintf("%s %d", endpoint, r.Status)]++
	if r.keyless() {
		st.Keyless++
	}
	if r.Replayed {
		st.Replays++
	}
	if r.Fault != "" {
		st.Faults[r.Fault]++
	}
	switch out.why {
	case otherParameters:
		st.IdempotencyErrors++
	case keyInUse:
		st.InFlight++
	}
}
