package spendcap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"
)

// StripeAPI is where Stripe's API is.
const StripeAPI = "https://api.stripe.com"

// databaseTimeout bounds a step in Postgres. It is not the client's to cut
// short: a statement given up is one of which nobody knows.
const databaseTimeout = 5 * time.Second

// ProxyConfig says what to stand in front of.
type ProxyConfig struct {
	// APIKey is Stripe's real key. It goes to BaseURL and nowhere else.
	APIKey  string
	BaseURL string // empty: StripeAPI
	// Timeout bounds one request to Stripe, its answer included.
	Timeout time.Duration
	Vault   *Vault
	Log     *zap.Logger
}

// Proxy is the side that Stripe's clients talk to, an [http.Handler].
type Proxy struct {
	vault     *Vault
	relay     *httputil.ReverseProxy
	transport *http.Transport
	key       string
	base      *url.URL
	timeout   time.Duration
	log       *zap.Logger
	counts    counts
	// stopped ends the requests that are under way, when draining took too long.
	stopped context.Context
	stop    context.CancelFunc
}

var realKey = regexp.MustCompile(`^[sr]k_(test|live)_[A-Za-z0-9_]+$`)

// NewProxy checks the configuration, and sends nothing. Its errors never show
// the key. Close ends it.
func NewProxy(cfg ProxyConfig) (*Proxy, error) {
	if cfg.BaseURL == "" {
		cfg.BaseURL = StripeAPI
	}
	cfg.BaseURL = strings.TrimSuffix(cfg.BaseURL, "/")
	if !realKey.MatchString(cfg.APIKey) {
		return nil, errors.New("STRIPE_API_KEY: want a secret or restricted key (rk_live_…, sk_live_…, rk_test_…, sk_test_…)")
	}
	base, err := url.Parse(cfg.BaseURL)
	if err != nil || base.Host == "" || (base.Scheme != "https" && base.Scheme != "http") ||
		base.User != nil || base.RawQuery != "" || base.Fragment != "" || base.Path != "" {
		return nil, fmt.Errorf("STRIPE_API_BASE: want scheme and host alone, like %s", StripeAPI)
	}
	if strings.Contains(cfg.APIKey, "k_live_") && cfg.BaseURL != StripeAPI {
		return nil, fmt.Errorf("STRIPE_API_BASE: a live key goes to %s only, got %q; use a test key, or leave it out", StripeAPI, cfg.BaseURL)
	}
	p := &Proxy{
		vault: cfg.Vault, key: cfg.APIKey, base: base, timeout: cfg.Timeout, log: cfg.Log,
		transport: newTransport(), counts: newCounts(),
	}
	p.stopped, p.stop = context.WithCancel(context.Background())
	p.relay = p.newRelay()
	return p, nil
}

func newTransport() *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.Proxy = nil // the one that is configured by accident sees the real key
	t.MaxIdleConns = 0
	t.MaxIdleConnsPerHost = 256
	// The client's own Accept-Encoding goes through, or none: an answer that
	// the transport unpacked would not be the one that Stripe sent.
	t.DisableCompression = true
	t.MaxResponseHeaderBytes = 64 << 10
	return t
}

// Close gives up the requests that are under way, and the idle connections.
func (p *Proxy) Close() {
	p.stop()
	p.transport.CloseIdleConnections()
}

// ServeHTTP forwards what a vault key may do, and refuses the rest.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	endpoint, refused := p.serve(w, r)
	if refused != nil {
		p.counts.add(endpoint, fmt.Sprintf("%d", refused.status))
		refused.send(w)
	}
}

// serve either answers the request or returns the refusal to answer it with.
func (p *Proxy) serve(w http.ResponseWriter, r *http.Request) (Endpoint, *refusal) {
	if overridden(r.Header) {
		return "", forbidden("The method or path cannot be overridden.")
	}
	endpoint, query, ok := endpointOf(r.Method, r.RequestURI)
	if !ok {
		return "", forbidden("A vault key cannot make this call.")
	}
	if refused := checkHeaders(r.Header); refused != nil {
		return endpoint, refused
	}
	id, hash, ok := credential(r)
	if !ok {
		return endpoint, badKey("unknown")
	}
	key, ok, err := p.know(r, id, hash)
	switch {
	case err != nil:
		return endpoint, p.unavailable(endpoint, err)
	case !ok:
		return endpoint, badKey("unknown")
	case !key.allows(endpoint):
		return endpoint, forbidden("This vault key cannot make this call.")
	}

	if endpoint.creates() {
		c := creating{vaultKey: id, period: key.period, endpoint: endpoint}
		return endpoint, p.create(w, r, c)
	}
	return endpoint, p.pass(w, r, id, endpoint, query)
}

func (p *Proxy) know(r *http.Request, id string, hash []byte) (knownKey, bool, error) {
	ctx, cancel := context.WithTimeout(r.Context(), databaseTimeout)
	defer cancel()
	return p.vault.know(ctx, id, hash)
}

// pass forwards a call that cannot charge; the client may end it.
func (p *Proxy) pass(w http.ResponseWriter, r *http.Request, id string, endpoint Endpoint, query string) *refusal {
	if refused := checkOther(r, query); refused != nil {
		return refused
	}
	ctx, cancel := context.WithTimeout(r.Context(), p.timeout)
	defer cancel()
	switch refused, err := p.vault.good(ctx, id); {
	case err != nil:
		return p.unavailable(endpoint, err)
	case refused != nil:
		return refused
	}
	p.forward(w, r.WithContext(ctx), &passage{endpoint: endpoint})
	return nil
}

func (k knownKey) allows(e Endpoint) bool {
	return slices.Contains(k.endpoints, e)
}

func (p *Proxy) unavailable(endpoint Endpoint, err error) *refusal {
	p.log.Error("the database does not answer; nothing is forwarded", zap.String("endpoint", string(endpoint)), zap.Error(err))
	return unavailable()
}

// checkHeaders refuses headers that mean something else further on: names that
// CGI would take for others, and hop-by-hop lists that would drop the
// idempotency key on the way.
func checkHeaders(h http.Header) *refusal {
	for name := range h {
		if strings.Contains(name, "_") {
			return badRequest("Header names must not have underscores.")
		}
	}
	for _, value := range h.Values("Connection") {
		for option := range strings.SplitSeq(value, ",") {
			switch strings.ToLower(strings.TrimSpace(option)) {
			case "", "close", "keep-alive":
			default:
				return badRequest("The Connection header must not name other headers.")
			}
		}
	}
	if h["Upgrade"] != nil {
		return badRequest("Connections cannot be upgraded.")
	}
	return nil
}

// checkOther checks a call that cannot charge.
func checkOther(r *http.Request, query string) *refusal {
	if refused := checkQuery(query); refused != nil {
		return refused
	}
	if r.Method == http.MethodGet {
		if r.ContentLength != 0 {
			return badRequest("A GET has no body.")
		}
		return nil
	}
	_, refused := readForm(r)
	return refused
}

// create is a call that may charge. From the reservation on nothing that the
// client does, or fails to do, ends it.
func (p *Proxy) create(w http.ResponseWriter, r *http.Request, c creating) *refusal {
	refused := readCreating(r, &c)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), databaseTimeout)
	defer cancel()
	if refused != nil {
		if err := p.vault.refused(ctx, c, "malformed"); err != nil {
			return p.unavailable(c.endpoint, err)
		}
		return refused
	}
	id, refused, err := p.vault.reserve(ctx, c)
	if err != nil {
		return p.unavailable(c.endpoint, err)
	}
	if refused != nil {
		if refused.code == codeCap {
			p.log.Warn("spend cap reached, a charge was refused", zap.String("billing_period", c.period),
				zap.String("currency", c.currency), zap.Int64("amount", c.amount), zap.String("vault_key_id", c.vaultKey))
		}
		return refused
	}
	ctx, cancel = context.WithTimeout(context.WithoutCancel(r.Context()), p.timeout)
	defer cancel()
	defer context.AfterFunc(p.stopped, cancel)()
	p.forward(w, r.WithContext(ctx), &passage{endpoint: c.endpoint, call: id, creating: c})
	return nil
}

// readCreating reads the body into c, and puts it back.
func readCreating(r *http.Request, c *creating) *refusal {
	keys := r.Header.Values("Idempotency-Key")
	if len(keys) != 1 || !plainKey.MatchString(keys[0]) {
		return &refusal{http.StatusBadRequest, typeInvalid, codeNotPlain, "",
			"A vault key charges only with one Idempotency-Key header, of 1 to 255 printable characters."}
	}
	c.idempotencyKey = keys[0]
	if strings.Contains(r.RequestURI, "?") {
		return badRequest("A call that charges has its parameters in the body.")
	}
	f, refused := readForm(r)
	if refused != nil {
		return refused
	}
	if c.amount, c.currency, refused = f.money(); refused != nil {
		return refused
	}
	c.fingerprint = f.fingerprint(c.endpoint, r.Header)
	return nil
}

var plainKey = regexp.MustCompile(`^[!-~]{1,255}$`)

// readForm reads the body, whole, and puts it back in a form that can be sent
// twice.
func readForm(r *http.Request) (form, *refusal) {
	body, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, maxBody))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return form{}, &refusal{http.StatusRequestEntityTooLarge, typeInvalid, codeNotPlain, "", "The body is too large."}
	case err != nil:
		return form{}, badRequest("The body could not be read.")
	case len(r.Trailer) > 0:
		return form{}, badRequest("The body must not have trailers.")
	}
	if len(body) > 0 || r.Header["Content-Type"] != nil {
		if refused := formEncoded(r.Header); refused != nil {
			return form{}, refused
		}
	}
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	r.Body, _ = r.GetBody()
	r.ContentLength = int64(len(body))
	r.TransferEncoding = nil
	return parseForm(body)
}
