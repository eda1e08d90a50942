package stripesim_test

import (
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/stripe/stripe-go/v76"
	"github.com/stripe/stripe-go/v76/client"
	"go.uber.org/goleak"

	"github.com/duesday/duesday/internal/stripesim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testKey = "sk_test_123"

// newClient is the real client as Duesday uses it: no retries, no telemetry.
func newClient(t testing.TB, url string) *client.API {
	t.Helper()
	transport := &http.Transport{MaxIdleConnsPerHost: 16}
	t.Cleanup(transport.CloseIdleConnections)
	return client.New(testKey, &stripe.Backends{API: stripe.GetBackendWithConfig(stripe.APIBackend, &stripe.BackendConfig{
		URL:               stripe.String(url),
		HTTPClient:        &http.Client{Transport: transport, Timeout: 20 * time.Second},
		LeveledLogger:     &stripe.LeveledLogger{},
		MaxNetworkRetries: stripe.Int64(0),
		EnableTelemetry:   stripe.Bool(false),
	})})
}

func chargeParams(customer, key string) *stripe.ChargeParams {
	p := &stripe.ChargeParams{
		Amount:      stripe.Int64(1200),
		Currency:    stripe.String("usd"),
		Customer:    stripe.String(customer),
		Description: stripe.String("Billing period 2026-10"),
	}
	p.AddMetadata("duesday_customer", customer)
	p.AddMetadata("duesday_period", "2026-10")
	p.AddMetadata("duesday_key", key)
	p.SetIdempotencyKey(key)
	return p
}

func intentParams(customer, key string) *stripe.PaymentIntentParams {
	p := &stripe.PaymentIntentParams{
		Amount:        stripe.Int64(1200),
		Currency:      stripe.String("usd"),
		Customer:      stripe.String(customer),
		PaymentMethod: stripe.String("pm_card_visa"),
		OffSession:    stripe.Bool(true),
		Confirm:       stripe.Bool(true),
		Description:   stripe.String("Billing period 2026-10"),
	}
	p.AddMetadata("duesday_key", key)
	p.SetIdempotencyKey(key)
	return p
}

// stripeError is the client's typed error, which err must be.
func stripeError(t testing.TB, err error) *stripe.Error {
	t.Helper()
	var out *stripe.Error
	require.ErrorAs(t, err, &out)
	return out
}

// clock is set by hand.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Date(2026, 10, 1, 6, 0, 0, 0, time.UTC)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

type setup struct {
	sim    *stripesim.Server
	stripe *client.API
	clock  *clock
}

func start(t testing.TB, opts stripesim.Options) setup {
	t.Helper()
	c := newClock()
	opts.Now = c.Now
	sim := stripesim.Start(t, opts)
	return setup{sim, newClient(t, sim.URL), c}
}
