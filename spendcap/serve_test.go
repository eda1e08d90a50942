package spendcap

import (
	"context"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest"

	"github.com/duesday/duesday/internal/stripesim"
)

// serving moves the bundle's clients to a [Server], and returns what stops it
// and what it ended with.
func (b *testBundle) serving(t *testing.T, drain time.Duration) (stop context.CancelFunc, ended <-chan error) {
	t.Helper()
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		return l
	}
	stripeSide, adminSide := listen(), listen()
	b.url, b.admin.URL = "http://"+stripeSide.Addr().String(), "http://"+adminSide.Addr().String()
	log := zaptest.NewLogger(t)
	admin, err := NewAdminHandler(b.vault, adminToken, b.proxy, log)
	require.NoError(t, err)
	server := Server{Proxy: b.proxy, Admin: admin, Drain: drain, Log: log}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		defer close(done)
		done <- server.Serve(ctx, stripeSide, adminSide)
	}()
	t.Cleanup(func() {
		cancel()
		await(t, "the server to end", done)
	})
	return cancel, done
}

// hang makes the next charge wait at Stripe.
func (b *testBundle) hang(t *testing.T, c charge) (release chan struct{}, got <-chan reply) {
	t.Helper()
	release, hung := make(chan struct{}), make(chan struct{})
	b.sim.FaultNext(nil, stripesim.Fault{Kind: stripesim.HangUntilReleased, Release: release, Hung: hung})
	answers := make(chan reply, 1)
	req := b.request(t, c)
	go func() { answers <- b.send(t, req) }()
	await(t, "the charge at Stripe", hung)
	return release, answers
}

func TestServer_drainsWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	b := setup(t, options{})
	stop, ended := b.serving(t, patience)
	require.Equal(t, 200, b.get(t, "/readyz").status)
	release, got := b.hang(t, charge{key: "k1", amount: 1000})
	stop()
	require.Eventually(t, func() bool {
		conn, err := net.Dial("tcp", b.url[len("http://"):])
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	}, patience, 10*time.Millisecond, "it still takes new connections")
	select {
	case err := <-ended:
		require.Fail(t, "it did not wait for the charge", "%v", err)
	default:
	}
	close(release)
	answer := await(t, "the answer", got)
	require.Equal(t, http.StatusOK, answer.status, answer.body)
	require.NoError(t, await(t, "the server to end", ended))
	limits, err := b.vault.Limits(t.Context(), testPeriod)
	require.NoError(t, err)
	require.Equal(t, Limit{MaxAmount: 100_000, Reserved: 1000}, limits["usd"])
}

func TestServer_givesUpWhatTakesTooLong(t *testing.T) {
	t.Parallel()
	b := setup(t, options{})
	stop, ended := b.serving(t, 0)
	_, got := b.hang(t, charge{key: "k1", amount: 1000})
	stop()
	require.ErrorIs(t, await(t, "the server to end", ended), ErrNotDrained)
	require.NotEqual(t, 200, await(t, "the end of the client's wait", got).status)
	limits, err := b.vault.Limits(t.Context(), testPeriod)
	require.NoError(t, err)
	require.Equal(t, Limit{MaxAmount: 100_000, Reserved: 1000, Held: 1000}, limits["usd"], "given up, and so in doubt")
	require.Equal(t, []string{"doubt"}, b.outcomes(t))
}

func TestAdminHandler_isNotReadyWhileDraining(t *testing.T) {
	t.Parallel()
	b := setup(t, options{})
	handler, err := NewAdminHandler(b.vault, adminToken, b.proxy, zaptest.NewLogger(t))
	require.NoError(t, err)
	b.admin.URL = serve(t, handler)
	require.Equal(t, 200, b.get(t, "/readyz").status)
	handler.Drain()
	require.Equal(t, 503, b.get(t, "/readyz").status)
	require.Equal(t, 200, b.get(t, "/healthz").status)
}
