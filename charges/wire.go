package charges

import (
	"context"
	"net/http"
)

// wire is what HTTP itself said, kept beside what stripe-go made of it: of an
// answer that it cannot decode stripe-go tells neither status nor headers.
type wire struct {
	status int // 0: no answer
	header http.Header
}

type wireKey struct{}

func withWire(ctx context.Context, w *wire) context.Context {
	return context.WithValue(ctx, wireKey{}, w)
}

type wireTap struct{ next http.RoundTripper }

func (t wireTap) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := t.next.RoundTrip(req)
	if w, ok := req.Context().Value(wireKey{}).(*wire); ok && err == nil {
		w.status, w.header = res.StatusCode, res.Header
	}
	return res, err
}

func (w *wire) replayed() bool { return w.header.Get("Idempotent-Replayed") == "true" }

func (w *wire) requestID() string { return w.header.Get("Request-Id") }
