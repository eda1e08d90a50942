package leader

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
)

// A Leadership is the Lease and the period's lock, both held. Its methods may be
// called from any goroutine. Whoever was elected must Release it, lost or not.
type Leadership struct {
	lease  *Lease
	lock   *Lock
	ctx    context.Context
	cancel context.CancelCauseFunc
}

// Elect acquires the Lease and then the lock. It returns a *LeaseHeldError or a
// *HeldError if another leads. The lock can be another's although the Lease is
// ours: a run from another cluster, or one without a Lease, holds it.
//
// ctx bounds Elect alone, not the life of the Leadership.
func Elect(ctx context.Context, leaseConfig LeaseConfig, lockConfig Config) (*Leadership, error) {
	lease, err := AcquireLease(ctx, leaseConfig)
	if err != nil {
		return nil, err
	}
	// Whoever lost the Lease must not wait on for the lock.
	waiting, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(lease.Context(), func() { cancel(context.Cause(lease.Context())) })
	defer stop()
	lock, err := Acquire(waiting, lockConfig)
	if err != nil {
		if lease.Context().Err() != nil {
			err = context.Cause(lease.Context())
		}
		return nil, errors.Join(err, lease.Release(context.WithoutCancel(ctx)))
	}
	l := &Leadership{lease: lease, lock: lock}
	l.ctx, l.cancel = context.WithCancelCause(lease.Context())
	context.AfterFunc(lock.Context(), func() { l.cancel(context.Cause(lock.Context())) })
	return l, nil
}

// Context ends when the Lease or the lock can no longer be proven ours, with a
// cause that wraps ErrLeaseLost or ErrLost, or when they are released.
func (l *Leadership) Context() context.Context { return l.ctx }

// Fresh reports whether both the Lease and the lock are.
func (l *Leadership) Fresh() bool {
	return l.ctx.Err() == nil && l.lease.Fresh() && l.lock.Fresh()
}

// RunID is the id of this run's row in runs.
func (l *Leadership) RunID() int64 { return l.lock.RunID() }

// Do is Lock.Do, and refuses once the leadership is lost.
func (l *Leadership) Do(ctx context.Context, fn func(ctx context.Context, conn *pgx.Conn) error) error {
	return l.lock.Do(ctx, l.whileLeading(fn))
}

// DoLong is Lock.DoLong, and refuses once the leadership is lost.
func (l *Leadership) DoLong(ctx context.Context, fn func(ctx context.Context, conn *pgx.Conn) error) error {
	return l.lock.DoLong(ctx, l.whileLeading(fn))
}

// whileLeading looks when the turn has come: the wait for it may be long.
func (l *Leadership) whileLeading(fn func(context.Context, *pgx.Conn) error) func(context.Context, *pgx.Conn) error {
	return func(ctx context.Context, conn *pgx.Conn) error {
		if l.ctx.Err() != nil {
			return context.Cause(l.ctx)
		}
		return fn(ctx, conn)
	}
}

// Release ends Context and gives both back, once the work has stopped: the lock
// first, so that whoever gets the Lease finds the lock free.
func (l *Leadership) Release(ctx context.Context) error {
	l.cancel(errReleased)
	return errors.Join(l.lock.Release(ctx), l.lease.Release(ctx))
}
