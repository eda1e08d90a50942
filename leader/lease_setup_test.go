package leader

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/duesday/duesday/internal/kubesim"
)

const (
	billing = "billing" // the namespace
	duesday = "duesday" // the Lease
)

// leaseBundle is a cluster with a Lease that nobody holds.
type leaseBundle struct {
	*kubesim.Server
}

// simulated runs f in a synctest bubble: client-go, the API server and the
// election live by a clock that moves when all of them wait. It is the real
// client-go over real HTTP; only the wire and the clock are not.
func simulated(t *testing.T, f func(t *testing.T, b *leaseBundle)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api, end := kubesim.InMemory()
		defer end()
		api.PutLease(billing, duesday, coordinationv1.LeaseSpec{})
		f(t, &leaseBundle{api})
		require.Empty(t, api.Denied(), "asked for what the Role does not allow")
	})
}

// advance moves the bubble's clock.
func advance(d time.Duration) { time.Sleep(d) }

// withinAnHour ends what would otherwise go on for ever, in no time at all.
func withinAnHour(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	t.Cleanup(cancel)
	return ctx
}

// config has the contract's default durations.
func (b *leaseBundle) config(t *testing.T, identity string) LeaseConfig {
	return LeaseConfig{
		Cluster:   &Cluster{Config: b.Config(identity), Namespace: billing},
		Namespace: billing, Name: duesday, Identity: identity,
		LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
		Log: zaptest.NewLogger(t),
	}
}

// lead acquires the Lease at once and releases it when the bubble ends.
func (b *leaseBundle) lead(t *testing.T, identity string) *Lease {
	t.Helper()
	lease, err := AcquireLease(t.Context(), b.config(t, identity))
	require.NoError(t, err)
	t.Cleanup(func() { _ = lease.Release(context.Background()) }) // may fail: the server has gone
	return lease
}

// die makes the Lease's holder fall silent for ever, as kill -9 does: its record
// stays behind.
func die(l *Lease) {
	l.cancel(errors.New("killed"))
	l.endElector()
	l.watchdog.Stop()
	utilnet.CloseIdleConnectionsFor(l.http.Transport)
}

func (b *leaseBundle) holder(t *testing.T) string {
	t.Helper()
	lease := b.Lease(billing, duesday)
	require.NotNil(t, lease)
	if lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

// heldBy is the record that a holder leaves.
func heldBy(identity string, seconds int32) coordinationv1.LeaseSpec {
	now := metav1.NowMicro()
	return coordinationv1.LeaseSpec{
		HolderIdentity: &identity, LeaseDurationSeconds: &seconds, AcquireTime: &now, RenewTime: &now,
	}
}

// befall lets the fault befall every request of the client with the method;
// "" is any.
func (b *leaseBundle) befall(client, method string, fault kubesim.Fault) {
	b.Faults(func(r *http.Request) kubesim.Fault {
		if r.UserAgent() == client && (method == "" || method == r.Method) {
			return fault
		}
		return kubesim.Fault{}
	})
}

// puts notes when each PUT arrives.
func (b *leaseBundle) puts() func() []time.Time {
	var mu sync.Mutex
	var at []time.Time
	b.Faults(func(r *http.Request) kubesim.Fault {
		if r.Method == http.MethodPut {
			mu.Lock()
			defer mu.Unlock()
			at = append(at, time.Now())
		}
		return kubesim.Fault{}
	})
	return func() []time.Time {
		mu.Lock()
		defer mu.Unlock()
		return append([]time.Time(nil), at...)
	}
}

func requireLeaseLost(t *testing.T, l *Lease) {
	t.Helper()
	select {
	case <-l.Context().Done():
	case <-time.After(time.Hour):
	}
	require.ErrorIs(t, context.Cause(l.Context()), ErrLeaseLost)
	require.False(t, l.Fresh())
}

func requireLeads(t *testing.T, l *Lease) {
	t.Helper()
	require.NoError(t, context.Cause(l.Context()))
	require.True(t, l.Fresh())
}
