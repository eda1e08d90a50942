package charges_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/charges"
)

// Errors get into logs. What a broken answer says about a customer must not.
func TestGateway_errorsShowNeitherBodyNorURL(t *testing.T) {
	t.Parallel()
	broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte(`{"id":"ch_1","description":"SECRET of cus_private", oops`))
	}))
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	for _, url := range []string{broken.URL, gone.URL} {
		g, err := charges.NewGateway(charges.GatewayConfig{APIKey: "sk_test_1", BaseURL: url, Workers: 1, Timeout: 10 * time.Second})
		require.NoError(t, err)
		slot := charges.Slot{CustomerID: "private", StripeCustomerID: "cus_private", Amount: 1, Currency: "usd",
			Description: "SECRET", Method: charges.MethodCharges, Key: "0123456789abcdef0123456789abcdef", ChargeID: "ch_private"}
		_, _, listed := g.Find(t.Context(), &slot, func(context.Context) error { return nil })
		for _, err := range []error{g.Charge(t.Context(), &slot).Err, g.Look(t.Context(), &slot).Err, listed} {
			require.Error(t, err)
			require.NotContains(t, err.Error(), "SECRET")
			require.NotContains(t, err.Error(), "private")
		}
		g.Close()
	}
	broken.Close()
}
