package stripesim

import (
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

const maxBody = 1 << 20

// ServeHTTP answers API v1 under /v1/ and the test's own questions under
// /_sim/. A fault that cuts the connection panics with
// [http.ErrAbortHandler], as net/http wants it.
func (s *Sim) ServeHTTP(w http.ResponseWriter, hr *http.Request) {
	if strings.HasPrefix(hr.URL.Path, controlPrefix) {
		s.mux.ServeHTTP(w, hr)
		return
	}
	r, bad := read(hr)
	f, auth, latency := s.arrive(&r)
	endpoint, name := route(r)
	if f.Kind == DropBefore {
		s.drop(r, name, reply{})
	}
	out := func() reply {
		if bad != nil {
			return *bad
		}
		if !s.accepts(r.APIKey) || auth == http.StatusUnauthorized {
			return unauthorized(r.APIKey)
		}
		if auth == http.StatusForbidden {
			return forbidden(r)
		}
		if out, stop := atTheDoor(f, r); stop {
			return out
		}
		return s.execute(r, endpoint, f, latency, hr)
	}()
	s.send(w, hr, r, name, f, out)
}

// read parses a request; bad is the answer if that is impossible.
func read(hr *http.Request) (r Request, bad *reply) {
	r = Request{
		Method: hr.Method, Path: hr.URL.Path,
		Key: hr.Header.Get("Idempotency-Key"), APIKey: apiKey(hr),
	}
	raw := hr.URL.RawQuery
	if hr.Method == http.MethodPost {
		body, err := io.ReadAll(io.LimitReader(hr.Body, maxBody+1))
		if err != nil || len(body) > maxBody {
			return r, invalid("", "", "The request body could not be read.")
		}
		kind, _, _ := strings.Cut(hr.Header.Get("Content-Type"), ";")
		if len(body) > 0 && strings.TrimSpace(kind) != "application/x-www-form-urlencoded" {
			return r, invalid("", "", "Invalid request: the content type of API v1 is application/x-www-form-urlencoded.")
		}
		raw = string(body)
	}
	params, err := url.ParseQuery(raw)
	if err != nil {
		return r, invalid("", "", "Invalid request: the parameters are not form-encoded.")
	}
	r.Params, r.Customer = params, params.Get("customer")
	return r, nil
}

func apiKey(hr *http.Request) string {
	if user, _, ok := hr.BasicAuth(); ok {
		return user
	}
	kind, key, _ := strings.Cut(hr.Header.Get("Authorization"), " ")
	if !strings.EqualFold(kind, "bearer") {
		return ""
	}
	return strings.TrimSpace(key)
}

func (s *Sim) accepts(key string) bool {
	if len(s.opts.APIKeys) > 0 {
		return slices.Contains(s.opts.APIKeys, key)
	}
	return strings.HasPrefix(key, "sk_test_") || strings.HasPrefix(key, "rk_test_")
}

// arrive numbers a request, takes its fault off the plan and tells the hooks.
func (s *Sim) arrive(r *Request) (f Fault, auth int, latency time.Duration) {
	s.mu.Lock()
	s.seq++
	r.ID = "req_" + s.newID(s.seq)[10:]
	r.Time = s.now()
	if s.first.IsZero() && r.Method == http.MethodPost {
		s.first = r.Time
	}
	f, auth, latency = s.plan.next(*r), s.auth, s.latency
	hooks := s.onRequest
	s.mu.Unlock()
	for _, hook := range hooks {
		hook(*r)
	}
	r.Fault = f.Kind
	return f, auth, latency
}

// execute runs an endpoint (unless the simulator is closed first: the empty
// reply) under the rules of idempotency and of the faults
// that strike inside Stripe.
func (s *Sim) execute(r Request, prepare endpoint, f Fault, latency time.Duration, hr *http.Request) reply {
	finish := func(reply) {}
	if r.Method == http.MethodPost {
		var known *reply
		if known, finish = s.begin(r); known != nil {
			s.wait(f, latency, hr)
			return *known
		}
	}
	if !s.wait(f, latency, hr) {
		finish(reply{})
		return reply{}
	}
	run, bad := prepare(s, r)
	if bad != nil {
		finish(*bad)
		return *bad
	}
	var out reply
	switch f.Kind {
	case Error500BeforeCommit:
		out = executed(serverError())
	case Error500CommitLater:
		if r.Method == http.MethodPost {
			s.mu.Lock()
			s.later = append(s.later, run)
			s.mu.Unlock()
		}
		out = executed(serverError())
	case Error500AfterCommit:
		run()
		out = executed(serverError())
	default:
		out = run()
	}
	if out.status == http.StatusInternalServerError {
		out.fault = f
	}
	finish(out)
	return out
}

// wait spends the latency before execution. It does not end when the client
// gives up, since Stripe would not notice either. It is false if the simulator
// was closed first.
func (s *Sim) wait(f Fault, latency time.Duration, hr *http.Request) bool {
	if f.Kind == Latency {
		latency += f.Delay
	}
	if latency > 0 {
		t := time.NewTimer(latency)
		defer t.Stop()
		select {
		case <-t.C:
		case <-s.closed:
			return false
		}
	}
	return f.Kind != HangUntilReleased || s.hang(f, hr)
}

func (s *Sim) hang(f Fault, hr *http.Request) bool {
	if f.Hung != nil {
		select {
		case f.Hung <- struct{}{}:
		case <-s.closed:
			return false
		}
	}
	var gone <-chan struct{}
	if f.Release == nil {
		gone = hr.Context().Done()
	}
	select {
	case <-f.Release:
	case <-gone:
	case <-s.closed:
		return false
	}
	return true
}

// send gives the answer to the network, which may lose it.
func (s *Sim) send(w http.ResponseWriter, hr *http.Request, r Request, name string, f Fault, out reply) {
	closing := out.status == 0
	if f.Kind == HangAfterCommit {
		closing = !s.hang(f, hr)
	}
	if closing || f.Kind == DropAfterCommit {
		s.drop(r, name, out)
	}
	h := w.Header()
	h.Set("Request-Id", r.ID)
	h.Set("Stripe-Version", "2023-10-16")
	h.Set("Content-Type", "application/json")
	if r.Method == http.MethodPost && r.Key != "" {
		h.Set("Idempotency-Key", r.Key)
	}
	if out.replayed {
		h.Set("Idempotent-Replayed", "true")
		r.Replayed = true
	}
	if out.fault.ShouldRetry != "" {
		h.Set("Stripe-Should-Retry", out.fault.ShouldRetry)
	}
	if out.fault.RetryAfter != "" {
		h.Set("Retry-After", out.fault.RetryAfter)
	}
	if f.Kind == HTML200 {
		h.Set("Content-Type", "text/html")
		out.status, out.body = http.StatusOK, []byte("<html><body><h1>It works!</h1></body></html>")
	}
	h.Set("Content-Length", strconv.Itoa(len(out.body)))
	if f.Kind == Truncated200 {
		s.record(r, name, out)
		w.WriteHeader(out.status)
		_, _ = w.Write(out.body[:len(out.body)/2])
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	r.Status = out.status
	s.record(r, name, out)
	w.WriteHeader(out.status)
	_, _ = w.Write(out.body) // a client that has gone is its own affair
}

// drop closes the connection without a word.
func (s *Sim) drop(r Request, name string, out reply) {
	r.Replayed = out.replayed
	s.record(r, name, out)
	panic(http.ErrAbortHandler)
}
