package charges_test

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/internal/stripesim"
)

// exchanges keeps what a gateway observed.
type exchanges struct {
	mu  sync.Mutex
	all []charges.Exchange
}

func (e *exchanges) observe(_ context.Context, x charges.Exchange) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, x)
}

// watched makes a sender whose gateway is observed, on a clock that takes a
// second for each look at it.
func watched(t testing.TB) (*senderBundle, *exchanges) {
	t.Helper()
	b, seen := newSender(t), &exchanges{}
	var (
		mu  sync.Mutex
		now time.Time
	)
	b.Gateway = configured(t, charges.GatewayConfig{
		APIKey: apiKey, BaseURL: b.server.url, Workers: 4, Timeout: 10 * time.Second, Observe: seen.observe,
		Now: func() time.Time {
			mu.Lock()
			defer mu.Unlock()
			now = now.Add(time.Second)
			return now
		},
	})
	return b, seen
}

func (e *exchanges) requireAll(t testing.TB, want ...charges.Exchange) {
	t.Helper()
	require.Len(t, e.all, len(want), "%+v", e.all)
	for i := range want {
		got := e.all[i]
		if want[i].Status != 0 {
			require.NotEmpty(t, got.RequestID)
		}
		require.Equal(t, time.Second, got.Duration)
		got.RequestID, got.Duration = "", 0
		require.Equal(t, want[i], got, "%d", i)
	}
}

func TestGateway_observesEachExchange(t *testing.T) {
	t.Parallel()
	for _, method := range methods() {
		b, seen := watched(t)
		b.sim.FaultCustomer("cus_1", faults(stripesim.Error429, stripesim.DropAfterCommit)...)
		slot := b.slot(method, 0)
		out := b.Send(t.Context(), t.Context(), slot)
		require.Equal(t, charges.Paid, out.Verdict)
		slot.ChargeID = out.ChargeID
		b.Look(t.Context(), t.Context(), slot)
		slot.ChargeID = ""
		b.Look(t.Context(), t.Context(), slot)
		name := string(method)
		seen.requireAll(t,
			charges.Exchange{Endpoint: name + ".create", Status: 429},
			charges.Exchange{Endpoint: name + ".create", Retry: true},
			charges.Exchange{Endpoint: name + ".create", Status: 200, Replayed: true, Retry: true},
			charges.Exchange{Endpoint: name + ".retrieve", Status: 200},
			charges.Exchange{Endpoint: name + ".list", Status: 200},
		)
	}
}

func TestGateway_observesTheCancellingOfAnIntent(t *testing.T) {
	t.Parallel()
	b, seen := watched(t)
	slot := prior(b, stripesim.StatusRequiresPaymentMethod)
	require.Equal(t, charges.Paid, b.Send(t.Context(), t.Context(), slot).Verdict)
	seen.requireAll(t,
		charges.Exchange{Endpoint: "payment_intents.retrieve", Status: 200},
		charges.Exchange{Endpoint: "payment_intents.cancel", Status: 200},
		charges.Exchange{Endpoint: "payment_intents.create", Status: 200},
	)
}

// Their names are labels of metrics: no id may get into one.
func TestEndpointOf_isOneOfFew(t *testing.T) {
	for _, tc := range []struct{ method, path, want string }{
		{http.MethodPost, "/v1/charges", "charges.create"},
		{http.MethodGet, "/v1/charges", "charges.list"},
		{http.MethodGet, "/v1/charges/search", "charges.search"},
		{http.MethodGet, "/v1/charges/ch_1", "charges.retrieve"},
		{http.MethodGet, "/v1/payment_intents/pi_1", "payment_intents.retrieve"},
		{http.MethodPost, "/v1/payment_intents/pi_1/cancel", "payment_intents.cancel"},
		{http.MethodPost, "/v1/payment_intents/pi_1/confirm", "other"},
		{http.MethodGet, "/v1/charges/ch_1/dispute", "other"},
		{http.MethodDelete, "/v1/charges/ch_1", "other"},
		{http.MethodGet, "/v1/customers/cus_1", "other"},
		{http.MethodGet, "/", "other"},
	} {
		require.Equal(t, tc.want, charges.EndpointOf(tc.method, tc.path), "%s %s", tc.method, tc.path)
	}
}

func TestPacer_observesItsWaits(t *testing.T) {
	t.Parallel()
	c := newClock()
	p := charges.NewPacer(1000, func() time.Time { c.Advance(time.Second); return c.Now() })
	var waits []time.Duration
	p.Observe = func(d time.Duration) { waits = append(waits, d) }
	require.NoError(t, p.Wait(t.Context()))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.Error(t, p.Wait(ended))
	require.Equal(t, []time.Duration{time.Second}, waits)
}
