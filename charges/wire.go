package charges

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/duesday/duesday/internal/mutant"
)

// wire is what HTTP itself said, kept beside what stripe-go made of it: of an
// answer that it cannot decode stripe-go tells neither status nor headers.
type wire struct {
	status   int // 0: no answer
	header   http.Header
	vaultKey bool // the request was made with one
}

type wireKey struct{}

func withWire(ctx context.Context, w *wire) context.Context {
	return context.WithValue(ctx, wireKey{}, w)
}

type wireTap struct {
	next    http.RoundTripper
	timeout time.Duration                   // of a request and its answer, to the body's end
	observe func(context.Context, Exchange) // nil: nobody watches
	now     func() time.Time
}

// RoundTrip sends a POST once. net/http would send one with an idempotency key
// again by itself when a reused connection ends without an answer: hours later,
// in a process that was frozen, Stripe may have forgotten the key by then.
// Without GetBody it cannot, and Sender asks first whether it still may.
func (t wireTap) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method == http.MethodPost && req.Body != nil && !mutant.Is("http-replay") {
		var err error
		if req, err = once(req); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(req.Context(), t.timeout)
	began := t.now()
	res, err := t.next.RoundTrip(req.WithContext(ctx))
	if err != nil {
		cancel()
	} else {
		res.Body = timedBody{res.Body, cancel}
	}
	if t.observe != nil {
		exchanged(t.observe, req, res, t.now().Sub(began))
	}
	if w, ok := req.Context().Value(wireKey{}).(*wire); ok && err == nil {
		w.status, w.header = res.StatusCode, res.Header
		w.vaultKey = strings.HasPrefix(req.Header.Get("Authorization"), "Bearer vk_")
	}
	return res, err
}

// timedBody is a body to whose end the timeout runs.
type timedBody struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (b timedBody) Close() error {
	defer b.cancel()
	return b.ReadCloser.Close()
}

// once is the request without the means to be sent again, and with its length:
// stripe-go leaves that out, and net/http then sends it in chunks.
func once(req *http.Request) (*http.Request, error) {
	body, err := io.ReadAll(req.Body)
	if err = errors.Join(err, req.Body.Close()); err != nil {
		return nil, err
	}
	send := *req
	send.GetBody = nil
	send.Body = io.NopCloser(bytes.NewReader(body))
	send.ContentLength = int64(len(body))
	return &send, nil
}

func (w *wire) replayed() bool { return w.header.Get("Idempotent-Replayed") == "true" }

func (w *wire) requestID() string { return w.header.Get("Request-Id") }
