package stripesim

import (
	"encoding/json"
	"net/http"
	"time"
)

const controlPrefix = "/_sim/"

// What the control endpoints take; [Remote] sends it.
type (
	faultCall struct {
		Customer string        `json:"customer"` // empty: any request
		Kind     Kind          `json:"kind"`
		N        int           `json:"n"` // how many requests; 0 is 1
		Delay    time.Duration `json:"delay"`
	}
	secondsCall struct {
		Seconds float64 `json:"seconds"`
	}
	authCall struct {
		Status int `json:"status"` // 401, 403, or 0
	}
	customerCall struct {
		Customer string    `json:"customer"`
		Behave   Behaviour `json:"behave"`
	}
	resolveCall struct {
		Customer  string `json:"customer"`
		Succeeded bool   `json:"succeeded"`
	}
	refuseCall struct {
		How string `json:"how"`
	}
	countAnswer struct {
		N int `json:"n"`
	}
)

// controlMux serves what a test asks of a simulator in another process. It has
// no authentication: listen on loopback.
func (s *Sim) controlMux() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /_sim/bank", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, s.Bank()) })
	mux.HandleFunc("GET /_sim/tally", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, s.Tally()) })
	mux.HandleFunc("GET /_sim/stats", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, s.Stats()) })
	mux.HandleFunc("GET /_sim/requests", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, s.Requests()) })
	mux.HandleFunc("POST /_sim/fault", handle(func(c faultCall) any {
		n := max(c.N, 1)
		faults := make([]Fault, n)
		for i := range faults {
			faults[i] = Fault{Kind: c.Kind, Delay: c.Delay}
		}
		if c.Customer == "" {
			s.FaultNext(nil, faults...)
		} else {
			s.FaultCustomer(c.Customer, faults...)
		}
		return countAnswer{n}
	}))
	mux.HandleFunc("POST /_sim/advance", handle(func(c secondsCall) any {
		s.Advance(c.duration())
		return struct{}{}
	}))
	mux.HandleFunc("POST /_sim/latency", handle(func(c secondsCall) any {
		s.SetLatency(c.duration())
		return struct{}{}
	}))
	mux.HandleFunc("POST /_sim/auth", handle(func(c authCall) any {
		s.SetAuth(c.Status)
		return struct{}{}
	}))
	mux.HandleFunc("POST /_sim/search-lag", handle(func(c secondsCall) any {
		s.SetSearchLag(c.duration())
		return struct{}{}
	}))
	mux.HandleFunc("POST /_sim/refuse-search", handle(func(c refuseCall) any {
		s.RefuseSearch(c.How)
		return struct{}{}
	}))
	mux.HandleFunc("POST /_sim/customer", handle(func(c customerCall) any {
		s.Behave(c.Customer, c.Behave)
		return struct{}{}
	}))
	mux.HandleFunc("POST /_sim/resolve", handle(func(c resolveCall) any {
		return countAnswer{s.Resolve(c.Customer, c.Succeeded)}
	}))
	mux.HandleFunc("POST /_sim/plant", handle(func(c Charge) any { return s.Plant(c) }))
	mux.HandleFunc("POST /_sim/rollforward", handle(func(struct{}) any { return countAnswer{s.RollForward()} }))
	return mux
}

func (c secondsCall) duration() time.Duration {
	return time.Duration(c.Seconds * float64(time.Second))
}

func handle[T any](f func(T) any) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var call T
		d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
		d.DisallowUnknownFields()
		if err := d.Decode(&call); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		writeJSON(w, f(call))
	}
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // fails only if the client has gone
}
