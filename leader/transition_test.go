package leader

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
)

// transitions keeps what was observed.
type transitions struct {
	mu  sync.Mutex
	all []Transition
}

func (o *transitions) observe(t Transition) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all = append(o.all, t)
}

func (o *transitions) require(t *testing.T, lock string, events ...string) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	var want []Transition
	for _, e := range events {
		want = append(want, Transition{lock, e})
	}
	require.Equal(t, want, o.all)
}

func TestObserve_theLock(t *testing.T) {
	b := setup(t)
	var kept, lost transitions
	c := b.config
	c.Observe = kept.observe
	lock, err := Acquire(t.Context(), c)
	require.NoError(t, err)
	kept.require(t, AdvisoryLock, Acquired)
	require.NoError(t, lock.Release(t.Context()))
	lock.timeUp() // too late to be a loss
	kept.require(t, AdvisoryLock, Acquired, Released)

	c.Observe = lost.observe
	lock, err = Acquire(t.Context(), c)
	require.NoError(t, err)
	b.db.Exec(t, `SELECT pg_terminate_backend($1)`, lock.BackendPID())
	<-lock.Context().Done()
	require.NoError(t, lock.Release(t.Context()))
	lost.require(t, AdvisoryLock, Acquired, Lost)
}

func TestObserve_theLease(t *testing.T) {
	simulated(t, func(t *testing.T, b *leaseBundle) {
		var kept, lost transitions
		c := b.config(t, "a")
		c.Observe = kept.observe
		lease, err := AcquireLease(t.Context(), c)
		require.NoError(t, err)
		advance(time.Minute)
		require.NoError(t, lease.Release(context.Background()))
		kept.require(t, LeaseLock, Acquired, Released)

		b.PutLease(billing, duesday, coordinationv1.LeaseSpec{})
		c.Identity, c.Observe = "b", lost.observe
		lease, err = AcquireLease(t.Context(), c)
		require.NoError(t, err)
		b.PutLease(billing, duesday, heldBy("another", 15))
		requireLeaseLost(t, lease)
		_ = lease.Release(context.Background()) // it is another's
		lost.require(t, LeaseLock, Acquired, Lost)
	})
}
