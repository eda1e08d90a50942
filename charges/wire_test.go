package charges_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/charges"
)

const apiKey = "sk_test_51NotARealOne"

func methods() []charges.Method {
	return []charges.Method{charges.MethodCharges, charges.MethodPaymentIntents}
}

// wireRequest is a request as a server on the wire saw it.
type wireRequest struct {
	method, path, body string
	query, form        url.Values
	header             http.Header
}

// wireServer records what reaches a handler, and the connections opened.
type wireServer struct {
	url string

	mu       sync.Mutex
	requests []wireRequest
	conns    int
}

func serve(t testing.TB, h http.Handler) *wireServer {
	t.Helper()
	s := &wireServer{}
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		form, _ := url.ParseQuery(string(body))
		s.mu.Lock()
		s.requests = append(s.requests, wireRequest{r.Method, r.URL.Path, string(body), r.URL.Query(), form, r.Header.Clone()})
		s.mu.Unlock()
		r.Body = io.NopCloser(strings.NewReader(string(body)))
		h.ServeHTTP(w, r)
	}))
	srv.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			s.mu.Lock()
			s.conns++
			s.mu.Unlock()
		}
	}
	srv.Start()
	s.url = srv.URL
	t.Cleanup(func() {
		srv.CloseClientConnections()
		srv.Close()
	})
	return s
}

func (s *wireServer) seen() []wireRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]wireRequest(nil), s.requests...)
}

func (s *wireServer) connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conns
}

func newGateway(t testing.TB, url string) *charges.Gateway {
	t.Helper()
	return configured(t, charges.GatewayConfig{APIKey: apiKey, BaseURL: url, Workers: 4, Timeout: 10 * time.Second})
}

func configured(t testing.TB, cfg charges.GatewayConfig) *charges.Gateway {
	t.Helper()
	g, err := charges.NewGateway(cfg)
	require.NoError(t, err)
	t.Cleanup(g.Close)
	return g
}

func slotFor(method charges.Method, customer string) *charges.Slot {
	p := charges.Period{Year: 2026, Month: time.October}
	s := &charges.Slot{
		Period: p, CustomerID: "id-of-" + customer, StripeCustomerID: customer, Amount: 1999, Currency: "usd",
		Description: "Billing period 2026-10", Method: method, Attempt: 1, ClaimedAt: time.Now(), ReadAt: time.Now(),
	}
	if method == charges.MethodPaymentIntents {
		s.PaymentMethod = "pm_card_visa"
	}
	s.Key = charges.Key(s.CustomerID, p, namespace, 1)
	return s
}

// object is a charge or intent as Stripe would show it.
func object(s *charges.Slot, id, status, more string) string {
	kind := "charge"
	if s.Method == charges.MethodPaymentIntents {
		kind = "payment_intent"
	}
	return fmt.Sprintf(`{"id":%q,"object":%q,"amount":%d,"currency":%q,"status":%q,"metadata":{"duesday_key":%q}%s}`,
		id, kind, s.Amount, s.Currency, status, s.Key, more)
}

func noPace(context.Context) error { return nil }
