package charges

import (
	"context"
	"net/http"
	"strings"
	"time"
)

// Exchange is one HTTP request to Stripe, and what came back.
type Exchange struct {
	// Endpoint is the object and what was done with it, like charges.create or
	// payment_intents.list: one of a dozen, "other" for what is none of them.
	Endpoint string
	Status   int // HTTP's; 0: no answer
	// Duration is the time to the answer's headers, or until none was waited for
	// any more.
	Duration  time.Duration
	RequestID string // Stripe's, for its support and its dashboard
	Replayed  bool   // Stripe has answered this key before, and said the same
	// Retry: this step of the slot was tried before, and came to nothing.
	Retry bool
}

type retryKey struct{}

// retrying marks what is sent under ctx as a retry if n requests came before it.
func retrying(ctx context.Context, n int) context.Context {
	if n == 0 {
		return ctx
	}
	return context.WithValue(ctx, retryKey{}, true)
}

// exchanged tells observe what became of a request.
func exchanged(observe func(context.Context, Exchange), req *http.Request, res *http.Response, took time.Duration) {
	e := Exchange{Endpoint: endpointOf(req.Method, req.URL.Path), Duration: took}
	e.Retry, _ = req.Context().Value(retryKey{}).(bool)
	if res != nil {
		w := wire{status: res.StatusCode, header: res.Header}
		e.Status, e.RequestID, e.Replayed = w.status, w.requestID(), w.replayed()
	}
	observe(req.Context(), e)
}

// endpointOf names an endpoint without the ids in its path.
func endpointOf(method, path string) string {
	object, rest, _ := strings.Cut(strings.TrimPrefix(path, "/v1/"), "/")
	if object != "charges" && object != "payment_intents" {
		return "other"
	}
	_, action, _ := strings.Cut(rest, "/")
	switch {
	case method == http.MethodPost && rest == "":
		return object + ".create"
	case method == http.MethodPost && action == "cancel":
		return object + ".cancel"
	case method == http.MethodGet && rest == "":
		return object + ".list"
	case method == http.MethodGet && rest == "search":
		return object + ".search"
	case method == http.MethodGet && action == "":
		return object + ".retrieve"
	}
	return "other"
}
