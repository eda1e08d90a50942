package charges_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/charges"
)

// net/http would repeat a POST with an idempotency key by itself when a reused
// connection ends without an answer.
func TestCharge_aReusedConnectionThatDiesIsNotReplayed(t *testing.T) {
	t.Parallel()
	var posts, conns atomic.Int64
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if posts.Add(1) > 1 {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	srv.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			conns.Add(1)
		}
	}
	srv.Start()
	t.Cleanup(srv.Close)
	gateway, err := charges.NewGateway(charges.GatewayConfig{APIKey: apiKey, BaseURL: srv.URL, Workers: 1, Timeout: time.Minute})
	require.NoError(t, err)
	t.Cleanup(gateway.Close)

	slot := slotFor(charges.MethodCharges, "cus_1")
	gateway.Charge(context.Background(), slot)
	require.Equal(t, charges.Unknown, gateway.Charge(context.Background(), slot).Verdict)
	require.EqualValues(t, 1, conns.Load(), "the connection was not reused: the test shows nothing")
	require.EqualValues(t, 2, posts.Load())
}
