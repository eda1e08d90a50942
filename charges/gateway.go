package charges

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/stripe/stripe-go/v76"
	"github.com/stripe/stripe-go/v76/client"

	"github.com/duesday/duesday/internal/exitcode"
)

// Metadata that every Stripe object carries: how a lost answer is found again.
const (
	metaCustomer = "duesday_customer"
	metaPeriod   = "duesday_period"
	metaKey      = "duesday_key"
)

// StripeAPI is where Stripe's API is.
const StripeAPI = "https://api.stripe.com"

// GatewayConfig says how to reach Stripe.
type GatewayConfig struct {
	APIKey string // empty with KeyLater
	// KeyLater: the key comes by UseKey, before the first request.
	KeyLater bool
	BaseURL  string // empty: StripeAPI
	Workers  int    // connections kept, and at most opened
	// Timeout bounds one request, and must be positive. A charge may take Stripe
	// long; a request that is given up is a charge in doubt.
	Timeout time.Duration
	// Observe is told of every HTTP exchange, as soon as its status is known,
	// with the request's context; by many goroutines at once. Nil: nobody is.
	Observe func(context.Context, Exchange)
	Now     func() time.Time // by which an exchange's duration is told; nil: time.Now
}

// Gateway sends slots to Stripe, each request once: retrying is Sender's. It
// may be used by many goroutines.
type Gateway struct {
	api      *client.API
	backends *stripe.Backends
	base     string
	http     *http.Transport
}

// NewGateway checks the configuration, and sends nothing. Errors exit with 2.
func NewGateway(cfg GatewayConfig) (*Gateway, error) {
	base := cfg.BaseURL
	if base == "" {
		base = StripeAPI
	}
	if !cfg.KeyLater {
		if err := checkStripe(cfg.APIKey, base); err != nil {
			return nil, exitcode.With(exitcode.Misconfigured, err)
		}
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	// The default keeps two connections a host and opens the others anew each
	// time: 792 for 1,000 requests by 50 workers.
	transport.MaxIdleConns = 0
	transport.MaxIdleConnsPerHost = cfg.Workers
	transport.MaxConnsPerHost = cfg.Workers
	backend := stripe.GetBackendWithConfig(stripe.APIBackend, &stripe.BackendConfig{
		URL: stripe.String(strings.TrimSuffix(base, "/")),
		HTTPClient: &http.Client{
			// With a timeout of the client's, net/http would run a goroutine for
			// each request that a wrapped transport is given.
			Transport: wireTap{transport, cfg.Timeout, cfg.Observe, cfg.Now},
			// A redirected POST is not a charge.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		LeveledLogger:     &stripe.LeveledLogger{Level: stripe.LevelNull}, // it would log bodies
		MaxNetworkRetries: stripe.Int64(0),
		EnableTelemetry:   stripe.Bool(false),
	})
	g := &Gateway{
		backends: &stripe.Backends{API: backend, Connect: backend, Uploads: backend},
		base:     base,
		http:     transport,
	}
	g.api = client.New(cfg.APIKey, g.backends)
	return g, nil
}

// UseKey makes all later requests with this key. It must not be called while
// requests are under way.
func (g *Gateway) UseKey(key string) error {
	if err := checkStripe(key, g.base); err != nil {
		return exitcode.With(exitcode.Misconfigured, err)
	}
	g.api = client.New(key, g.backends)
	return nil
}

// Close ends the idle connections.
func (g *Gateway) Close() { g.http.CloseIdleConnections() }

var apiKey = regexp.MustCompile(`^[sr]k_(test|live)_[A-Za-z0-9_]+$|^vk_[A-Za-z0-9_-]+$`)

// secretLike is what must not be shown, wherever it was put by mistake.
var secretLike = regexp.MustCompile(`(?i)[srv]k[_-]`)

// checkStripe refuses a key and a base URL that cannot be meant together. Its
// errors never show the key.
func checkStripe(key, base string) error {
	if key == "" {
		return errors.New("STRIPE_API_KEY: want a key like rk_live_…, got none (STRIPE_API_KEY_FILE names a file that holds it)")
	}
	if !apiKey.MatchString(key) {
		return errors.New("STRIPE_API_KEY: want a secret or restricted key (sk_live_…, rk_live_…, sk_test_…, rk_test_…)")
	}
	u, err := url.Parse(base)
	shown := fmt.Sprintf("%q", base)
	if err != nil || secretLike.MatchString(base) || strings.ContainsRune(base, '@') {
		shown = "what may hold a secret, and is not shown"
	}
	if err != nil || u.Host == "" || (u.Scheme != "https" && u.Scheme != "http") {
		return fmt.Errorf("STRIPE_API_BASE: want a URL like %s, got %s", StripeAPI, shown)
	}
	if u.User != nil || u.RawQuery != "" || u.Fragment != "" || strings.Trim(u.Path, "/") != "" {
		return fmt.Errorf("STRIPE_API_BASE: want scheme and host alone, like %s", StripeAPI)
	}
	if strings.HasPrefix(key, "vk_") && strings.TrimSuffix(base, "/") == StripeAPI {
		return errors.New("STRIPE_API_BASE: a vault key is for the spend-cap proxy, not for Stripe: name the proxy, like http://duesday-proxy:8080")
	}
	live := strings.Contains(key, "k_live_")
	if live && strings.TrimSuffix(base, "/") != StripeAPI {
		return fmt.Errorf("STRIPE_API_BASE: a live key goes to %s only, got %s; use a test key, or leave it out", StripeAPI, shown)
	}
	return nil
}

// Charge sends the slot once. ctx ends only the waiting: what Stripe received
// it may carry out all the same, and the outcome then is Unknown.
func (g *Gateway) Charge(ctx context.Context, slot *Slot) Outcome {
	if len(slot.Key) != 32 {
		// stripe-go would send an empty key, and Stripe a new charge.
		return Outcome{Verdict: Forbidden, Err: errors.New("a slot has no idempotency key, nothing is sent")}
	}
	w := &wire{}
	ctx = withWire(ctx, w)
	if slot.Method == MethodPaymentIntents {
		return g.confirmIntent(ctx, slot, w)
	}
	params := &stripe.ChargeParams{
		Params:      slot.params(ctx),
		Amount:      stripe.Int64(slot.Amount),
		Currency:    stripe.String(slot.Currency),
		Customer:    stripe.String(slot.StripeCustomerID),
		Description: stripe.String(slot.Description),
	}
	if slot.PaymentMethod != "" {
		params.Source = &stripe.PaymentSourceSourceParams{Token: stripe.String(slot.PaymentMethod)}
	}
	var made newCharge
	if err := g.api.Charges.B.Call(http.MethodPost, "/v1/charges", g.api.Charges.Key, params, &made); err != nil {
		return judgeError(err, w)
	}
	return judgeCharge(made.charge(), slot, w)
}

func (g *Gateway) confirmIntent(ctx context.Context, slot *Slot, w *wire) Outcome {
	params := &stripe.PaymentIntentParams{
		Params:        slot.params(ctx),
		Amount:        stripe.Int64(slot.Amount),
		Currency:      stripe.String(slot.Currency),
		Customer:      stripe.String(slot.StripeCustomerID),
		PaymentMethod: stripe.String(slot.PaymentMethod),
		Description:   stripe.String(slot.Description),
		OffSession:    stripe.Bool(true),
		// Nobody is there to be redirected; without this Stripe asks for a
		// return_url wherever a redirecting method is enabled.
		AutomaticPaymentMethods: &stripe.PaymentIntentAutomaticPaymentMethodsParams{
			Enabled: stripe.Bool(true), AllowRedirects: stripe.String("never"),
		},
		Confirm: stripe.Bool(true),
	}
	var made newIntent
	if err := g.api.PaymentIntents.B.Call(http.MethodPost, "/v1/payment_intents", g.api.PaymentIntents.Key, params, &made); err != nil {
		return judgeError(err, w)
	}
	return judgeIntent(made.intent(), slot, w)
}

func (s *Slot) params(ctx context.Context) stripe.Params {
	p := stripe.Params{Context: ctx}
	p.SetIdempotencyKey(s.Key)
	p.AddMetadata(metaCustomer, s.CustomerID)
	p.AddMetadata(metaPeriod, s.Period.String())
	p.AddMetadata(metaKey, s.Key)
	return p
}
