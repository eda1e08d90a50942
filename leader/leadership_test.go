package leader

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/duesday/duesday/internal/kubesim"
)

// electBundle is a database and a cluster, in real time.
type electBundle struct {
	*testBundle
	leaseBundle
}

func setupElection(t *testing.T) *electBundle {
	t.Helper()
	b := &electBundle{setup(t), leaseBundle{kubesim.Start(t)}}
	b.PutLease(billing, duesday, coordinationv1.LeaseSpec{})
	return b
}

// leaseConfig has durations like the lock's.
func (b *electBundle) leaseConfig(t *testing.T, identity string) LeaseConfig {
	c := b.leaseBundle.config(t, identity)
	like := b.testBundle.config
	c.LeaseDuration, c.RenewDeadline, c.RetryPeriod = like.LeaseDuration, like.RenewDeadline, like.RetryPeriod
	return c
}

func (b *electBundle) elect(t *testing.T) *Leadership {
	t.Helper()
	lead, err := Elect(t.Context(), b.leaseConfig(t, "first"), b.testBundle.config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, lead.Release(context.Background())) })
	return lead
}

func (b *electBundle) locks(t *testing.T) (n int) {
	t.Helper()
	b.scan(t, &n, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
	return n
}

func TestElect_holdsTheLeaseAndTheLock(t *testing.T) {
	b := setupElection(t)
	lead := b.elect(t)
	require.NoError(t, context.Cause(lead.Context()))
	require.True(t, lead.Fresh())
	require.Equal(t, "first", b.holder(t))
	require.Equal(t, 1, b.locks(t))
	require.NotZero(t, lead.RunID())
	require.NoError(t, lead.Do(t.Context(), selectOne))
	require.NoError(t, lead.DoLong(t.Context(), selectOne))
	require.Empty(t, b.Denied())
}

func TestLeadership_endsWithTheLease(t *testing.T) {
	b := setupElection(t)
	lead := b.elect(t)
	b.PutLease(billing, duesday, heldBy("rival", 15))
	await(t, "the context to end", lead.Context().Done())
	require.ErrorIs(t, context.Cause(lead.Context()), ErrLeaseLost)
	require.False(t, lead.Fresh())
	require.ErrorIs(t, lead.Do(t.Context(), selectOne), ErrLeaseLost)
	require.ErrorIs(t, lead.DoLong(t.Context(), selectOne), ErrLeaseLost)
	require.Equal(t, 1, b.locks(t), "the lock is kept until the work has stopped")
}

func TestLeadership_endsWithTheLock(t *testing.T) {
	b := setupElection(t)
	lead := b.elect(t)
	_, err := b.db.Connect(t).Exec(t.Context(), `SELECT pg_terminate_backend($1)`, lead.lock.BackendPID())
	require.NoError(t, err)
	await(t, "the context to end", lead.Context().Done())
	require.ErrorIs(t, context.Cause(lead.Context()), ErrLost)
	require.False(t, lead.Fresh())
	require.ErrorIs(t, lead.Do(t.Context(), selectOne), ErrLost)
	require.Equal(t, "first", b.holder(t), "the lease is kept until the work has stopped")
}

func TestLeadershipFresh_isFalseOnceEitherIsStale(t *testing.T) {
	for _, stale := range []string{"lease", "lock"} {
		t.Run(stale, func(t *testing.T) {
			b := setupElection(t)
			slept := make(chan struct{})
			clock := func() time.Time {
				select {
				case <-slept:
					return time.Now().Add(time.Hour)
				default:
					return time.Now()
				}
			}
			lease, lock := b.leaseConfig(t, "first"), b.testBundle.config
			lease.RetryPeriod, lock.RetryPeriod = 10*time.Second, 10*time.Second // no renewal meanwhile
			if stale == "lease" {
				lease.Now = clock
			} else {
				lock.Now = clock
			}
			lead, err := Elect(t.Context(), lease, lock)
			require.NoError(t, err)
			require.True(t, lead.Fresh())
			close(slept)
			require.False(t, lead.Fresh())
			require.NoError(t, lead.Release(context.Background()))
		})
	}
}

func TestElect_isLostToTheLeasesHolderWithoutTouchingTheLock(t *testing.T) {
	b := setupElection(t)
	b.elect(t)
	elsewhere := rivalOf(b.testBundle.config)
	elsewhere.DatabaseURL = "postgres://nowhere.invalid/"
	_, err := Elect(t.Context(), b.leaseConfig(t, "rival"), elsewhere)
	var held *LeaseHeldError
	require.ErrorAs(t, err, &held)
	require.Equal(t, "first", held.Holder)
}

// A run from another cluster, or with --leader-elect=false.
func TestElect_isLostToALivingHolderOfTheLockAndGivesTheLeaseBack(t *testing.T) {
	b := setupElection(t)
	acquireFor(t, b.testBundle.config)
	_, err := Elect(t.Context(), b.leaseConfig(t, "rival"), rivalOf(b.testBundle.config))
	require.Equal(t, "first", asHeld(t, err).Holder)
	require.Empty(t, b.holder(t))
}

func TestElect_takesTheLockFromASilentHolder(t *testing.T) {
	b := setupElection(t)
	conn := b.db.Connect(t)
	_, err := conn.Exec(t.Context(), `SELECT pg_advisory_lock($1)`, b.testBundle.config.LockID)
	require.NoError(t, err)
	lead, err := Elect(t.Context(), b.leaseConfig(t, "first"), b.hasty())
	require.NoError(t, err)
	require.NoError(t, lead.Release(context.Background()))
}

func TestElect_waitsForTheLockOnlyWhileItHasTheLease(t *testing.T) {
	b := setupElection(t)
	conn := b.db.Connect(t)
	_, err := conn.Exec(t.Context(), `SELECT pg_advisory_lock($1)`, b.testBundle.config.LockID)
	require.NoError(t, err)
	ended := make(chan error)
	go func() {
		lock := rivalOf(b.testBundle.config)
		lock.Patience = time.Hour
		_, err := Elect(context.Background(), b.leaseConfig(t, "first"), lock)
		ended <- err
	}()
	eventually(t, "the candidate for the lock", func() bool {
		var waits bool
		b.scan(t, &waits, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'duesday run%')`)
		return waits
	})
	b.PutLease(billing, duesday, heldBy("rival", 15))
	require.ErrorIs(t, await(t, "the end", ended), ErrLeaseLost)
	require.Equal(t, "rival", b.holder(t))
}

func TestLeadershipRelease_givesBackTheLockAndThenTheLease(t *testing.T) {
	b := setupElection(t)
	config := b.leaseConfig(t, "first")
	config.RetryPeriod = 10 * time.Second // the next PUT is the release
	lead, err := Elect(t.Context(), config, b.testBundle.config)
	require.NoError(t, err)
	ended, locks := make(chan bool, 1), make(chan int, 1)
	b.Faults(func(r *http.Request) kubesim.Fault {
		if r.Method == http.MethodPut {
			ended <- lead.Context().Err() != nil
			locks <- b.locks(t)
		}
		return kubesim.Fault{}
	})
	require.NoError(t, lead.Release(context.Background()))
	require.True(t, await(t, "the lease's release", ended))
	require.Zero(t, await(t, "the lock's release", locks))
	require.Empty(t, b.holder(t))
	require.NotErrorIs(t, context.Cause(lead.Context()), ErrLeaseLost)
	require.NotErrorIs(t, context.Cause(lead.Context()), ErrLost)
	require.NoError(t, lead.Release(context.Background()), "a second time")
}
