package stripesim

import (
	"fmt"
	"net/http"
	"time"
)

const maxKeyLength = 255

// scopedKey is an idempotency key of one API key.
type scopedKey struct{ apiKey, key string }

// storedKey is what Stripe remembers of a key.
type storedKey struct {
	endpoint string // method and path
	params   string // canonical
	first    time.Time
	done     bool
	status   int
	body     []byte
}

// begin asks the idempotency layer about a POST. It returns the answer if there
// is one already; else the endpoint may run, and the caller must call the
// returned function with its answer, which frees the key or stores the answer.
func (s *Sim) begin(r Request) (out *reply, finish func(reply)) {
	if r.Key == "" {
		return nil, func(reply) {}
	}
	if len(r.Key) > maxKeyLength {
		return invalid("", "", fmt.Sprintf("Keys for idempotent requests must be at most %d characters long.", maxKeyLength)), nil
	}
	id := scopedKey{r.APIKey, r.Key}
	k := &storedKey{endpoint: r.Method + " " + r.Path, params: r.Params.Encode()}

	s.mu.Lock()
	defer s.mu.Unlock()
	k.first = s.now()
	if old := s.keys[id]; old != nil && k.first.Sub(old.first) < s.opts.KeyTTL {
		answer := old.answer(k, r.Key)
		return &answer, nil
	}
	s.keys[id] = k
	return nil, func(out reply) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !out.executed {
			if s.keys[id] == k {
				delete(s.keys, id)
			}
			return
		}
		k.done, k.status, k.body = true, out.status, out.body
	}
}

func (old *storedKey) answer(k *storedKey, key string) reply {
	switch {
	case !old.done:
		out := fail(http.StatusConflict, apiError{Type: typeInvalid, Code: "idempotency_key_in_use",
			Message: "There is currently another in-progress request using this Idempotent Key. Please try again later."})
		out.why = keyInUse
		return out
	case old.endpoint != k.endpoint || old.params != k.params:
		same := "with the same parameters"
		if old.endpoint != k.endpoint {
			same = "for the same endpoint"
		}
		out := fail(http.StatusBadRequest, apiError{Type: typeIdempotency,
			Message: fmt.Sprintf("Keys for idempotent requests can only be used %s they were first used with. Try using a key other than '%s' if you meant to execute a different request.", same, key)})
		out.why = otherParameters
		return out
	}
	return reply{status: old.status, body: old.body, replayed: true}
}
