package spendcap

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httputil"
	"strconv"
	"sync"

	"go.uber.org/zap"
)

// passage is one request on its way to Stripe.
type passage struct {
	endpoint Endpoint
	call     callID // 0: it cannot charge
	creating creating
}

type passageKey struct{}

func (p *Proxy) forward(w http.ResponseWriter, r *http.Request, via *passage) {
	p.relay.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), passageKey{}, via)))
}

func passageOf(r *http.Request) *passage { return r.Context().Value(passageKey{}).(*passage) }

func (p *Proxy) newRelay() *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Rewrite:        p.rewrite,
		Transport:      p.transport,
		ModifyResponse: p.answered,
		ErrorHandler:   p.unanswered,
		FlushInterval:  -1,
		BufferPool:     &buffers{},
		ErrorLog:       zap.NewStdLog(zap.NewNop()), // an answer that is cut is settled as doubt, and logged then
	}
}

// rewrite exchanges the vault key for the real one.
func (p *Proxy) rewrite(r *httputil.ProxyRequest) {
	r.SetURL(p.base)
	r.Out.URL.RawQuery = r.In.URL.RawQuery
	r.Out.Trailer = nil
	r.Out.Header.Set("Authorization", "Bearer "+p.key)
	for _, name := range []string{"Expect", "Te", "Cookie"} {
		r.Out.Header.Del(name)
	}
	via := passageOf(r.In)
	if via.call == 0 {
		return
	}
	// With this the transport may send again what a dead connection ate; the
	// idempotency key makes it the same request.
	r.Out.GetBody = r.In.GetBody
	// The answer must be readable here.
	r.Out.Header.Del("Accept-Encoding")
}

// answered looks on while an answer is relayed.
func (p *Proxy) answered(res *http.Response) error {
	via := passageOf(res.Request)
	p.counts.add(via.endpoint, strconv.Itoa(res.StatusCode))
	if via.call == 0 {
		return nil
	}
	body := &watched{
		ReadCloser: res.Body,
		want:       res.ContentLength,
		done: func(body []byte, whole bool) {
			whole = whole && res.Header.Get("Content-Encoding") == ""
			p.settle(via, judge(via.creating, res.StatusCode, res.Header, body, whole))
		},
	}
	if body.want == 0 { // the client has heard all with the headers
		body.end(true)
	}
	res.Body = body
	return nil
}

// unanswered answers for Stripe when it did not.
func (p *Proxy) unanswered(w http.ResponseWriter, r *http.Request, err error) {
	via := passageOf(r)
	answer := &refusal{http.StatusBadGateway, typeAPI, "upstream_unreachable", "", "The spend-cap proxy got no answer from Stripe."}
	if errors.Is(err, context.DeadlineExceeded) {
		answer.status, answer.code = http.StatusGatewayTimeout, "upstream_timeout"
	}
	p.counts.add(via.endpoint, strconv.Itoa(answer.status))
	if via.call != 0 {
		p.settle(via, judgeError(err))
	}
	if r.Context().Err() == nil || via.call != 0 {
		p.log.Warn("no answer from Stripe", zap.String("endpoint", string(via.endpoint)), zap.Int64("call", int64(via.call)), zap.Error(err))
	}
	answer.send(w)
}

// settle writes an outcome down, before the client has heard all of it. If
// that fails the amount stays reserved.
func (p *Proxy) settle(via *passage, o outcome) {
	ctx, cancel := context.WithTimeout(context.Background(), databaseTimeout)
	defer cancel()
	fields := []zap.Field{
		zap.Int64("call", int64(via.call)), zap.String("billing_period", via.creating.period),
		zap.Int64("amount", via.creating.amount), zap.String("currency", via.creating.currency),
		zap.Int("http_status", o.status), zap.String("request_id", o.requestID),
	}
	p.counts.outcome(o.word)
	odd, err := p.vault.settle(ctx, via.creating, via.call, o)
	switch {
	case err != nil:
		p.log.Error("a charge's outcome was not written down; its amount stays reserved", append(fields, zap.Error(err))...)
	case odd:
		p.log.Error("Stripe charged what it was known not to charge", append(fields, zap.Int64("charged", o.amount), zap.String("charge_id", o.chargeID))...)
	case o.word == doubt:
		p.log.Warn("a charge is in doubt; its amount stays reserved", fields...)
	}
}

// maxAnswer is far more than a charge object.
const maxAnswer = 1 << 20

// watched keeps what is read through it, and calls done once: with the whole
// body before its last bytes are handed on, or with what there was. A reader
// that leaves early does not keep it from reading on.
type watched struct {
	io.ReadCloser
	want  int64 // -1: not known
	done  func(body []byte, whole bool)
	kept  []byte
	total int64
	ended bool
}

func (w *watched) Read(b []byte) (int, error) {
	n, err := w.ReadCloser.Read(b)
	w.total += int64(n)
	if w.total <= maxAnswer {
		w.kept = append(w.kept, b[:n]...)
	}
	if err != nil || w.total == w.want {
		w.end(err == nil || errors.Is(err, io.EOF))
	}
	return n, err
}

func (w *watched) end(whole bool) {
	if !w.ended {
		w.ended = true
		w.done(w.kept, whole && w.total <= maxAnswer)
	}
}

func (w *watched) Close() error {
	if !w.ended {
		_, _ = io.Copy(io.Discard, readerOnly{w}) // Read tells done how it went
		w.end(false)
	}
	return w.ReadCloser.Close()
}

type readerOnly struct{ io.Reader }

// buffers lends ReverseProxy its copying buffers.
type buffers struct{ pool sync.Pool }

func (b *buffers) Get() []byte {
	if buf, ok := b.pool.Get().(*[]byte); ok {
		return *buf
	}
	return make([]byte, 32<<10)
}

func (b *buffers) Put(buf []byte) { b.pool.Put(&buf) }
