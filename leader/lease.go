package leader

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/duesday/duesday/internal/exitcode"
)

// ErrLeaseLost is in the cause of Lease.Context once the Lease can no longer be
// proven ours.
var ErrLeaseLost = errors.New("lease lost")

var errLeaseReleased = errors.New("lease released")

// A LeaseHeldError says that another process holds the Lease, for the same task,
// and was seen alive.
type LeaseHeldError struct {
	Holder string // its identity
	Lease  string // namespace/name
}

func (e *LeaseHeldError) Error() string { return fmt.Sprintf("%s leads (lease %s)", e.Holder, e.Lease) }

// LeaseConfig says which Lease to take. The three durations mean what they mean
// to client-go's leader election.
type LeaseConfig struct {
	Cluster         *Cluster
	Namespace, Name string

	// Identity must be no other process's, ever: client-go takes a record that
	// bears it for its own. It has no @.
	Identity string
	// Task is what the leader works on. It stands in the record behind the
	// identity. One Lease serves all periods: who finds it held for another
	// task has not lost, and waits for its turn.
	Task string
	// Wait makes a candidate wait for its own task's end too: it never loses.
	Wait bool

	LeaseDuration time.Duration // rounded up to seconds, for the record has no less
	RenewDeadline time.Duration
	// RetryPeriod is the longest pause between renewals, and between a
	// candidate's tries.
	RetryPeriod time.Duration

	Log *zap.Logger      // nil: none
	Now func() time.Time // nil: time.Now
	// Observe is told of each transition, from any goroutine. Nil: nobody is.
	Observe func(Transition)
}

// Validate returns an error with exit code 2 that names every wrong field. Of the
// durations client-go judges the rest.
func (c LeaseConfig) Validate() error {
	var errs []error
	if c.Identity == "" || strings.Contains(c.Identity, "@") {
		errs = append(errs, fmt.Errorf("identity %q: want some, without @", c.Identity))
	}
	if wrong := validation.IsDNS1123Subdomain(c.Name); len(wrong) > 0 {
		errs = append(errs, fmt.Errorf("lease name %q: %s", c.Name, strings.Join(wrong, "; ")))
	}
	if wrong := validation.IsDNS1123Label(c.Namespace); len(wrong) > 0 {
		errs = append(errs, fmt.Errorf("lease namespace %q: %s", c.Namespace, strings.Join(wrong, "; ")))
	}
	// client-go's own bound, which it would apply to the shorter pauses that the
	// elector is given.
	if c.RenewDeadline <= time.Duration(leaderelection.JitterFactor*float64(c.RetryPeriod)) {
		errs = append(errs, fmt.Errorf("renewDeadline %s: want more than %.1f times the retry period, %s", c.RenewDeadline, leaderelection.JitterFactor, c.RetryPeriod))
	}
	return exitcode.With(exitcode.Misconfigured, errors.Join(errs...))
}

func (c LeaseConfig) withDefaults() LeaseConfig {
	c.LeaseDuration = time.Duration(math.Ceil(c.LeaseDuration.Seconds())) * time.Second
	if c.Log == nil {
		c.Log = zap.NewNop()
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Observe == nil {
		c.Observe = func(Transition) {}
	}
	if c.Task != "" {
		c.Identity += "@" + c.Task
	}
	c.Log = c.Log.With(zap.String("lease", c.lease()))
	return c
}

func (c LeaseConfig) lease() string { return c.Namespace + "/" + c.Name }

// requestTimeout leaves a leader time for a second try. Without one, a request
// that hangs would keep a leader that is not.
func (c LeaseConfig) requestTimeout() time.Duration { return c.RenewDeadline / 2 }

// A Lease is the Kubernetes Lease, held. Whoever acquired it must Release it,
// lost or not, and only after the work has stopped.
type Lease struct {
	cfg  LeaseConfig
	lock resourcelock.Interface
	http *http.Client

	ctx    context.Context
	cancel context.CancelCauseFunc

	stopElector  context.CancelFunc
	electorEnded chan struct{}

	watchdog  *time.Timer
	confirmed atomic.Pointer[time.Time] // when the last write that was granted was sent
	release   sync.Once
	ended     sync.Once // lost or released, and told
	released  error
}

// AcquireLease campaigns for the Lease, once. It returns a *LeaseHeldError only
// after it has seen another holder write the record twice for the same task, and
// otherwise waits: for the end of another task, however long that takes, or
// until the record's own duration is over. An API that does not answer, or refuses, for
// RenewDeadline is an error: with exit code 2 if the Lease is not there or the
// service account may not use it, else 1.
//
// ctx bounds the campaign alone, not the life of the Lease.
func AcquireLease(ctx context.Context, cfg LeaseConfig) (*Lease, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("leader election: %w", err)
	}
	cfg = cfg.withDefaults()
	l := &Lease{cfg: cfg, electorEnded: make(chan struct{})}
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	if err := l.connect(); err != nil {
		return nil, err
	}
	w := &witness{Interface: l.lock, lease: l, won: make(chan struct{})}
	if err := l.startElector(w); err != nil {
		return nil, err
	}
	select {
	case <-w.won:
		cfg.Log.Info("lease acquired", zap.String("identity", cfg.Identity))
		cfg.Observe(Transition{LeaseLock, Acquired})
		return l, nil
	case <-l.electorEnded:
	case <-ctx.Done():
	}
	l.endElector()
	if w.verdict == nil && ctx.Err() == nil {
		return l, nil // won, and lost since: its context says so
	}
	l.cancel(errLeaseReleased)
	if l.watchdog != nil {
		l.watchdog.Stop()
	}
	defer utilnet.CloseIdleConnectionsFor(l.http.Transport)
	if w.wrote {
		// The record may name us without our knowing; nobody should wait for us.
		if err := l.clear(context.WithoutCancel(ctx)); err != nil {
			cfg.Log.Warn("cannot release the lease; it expires by itself", zap.Error(err))
		}
	}
	if w.verdict != nil {
		return nil, w.verdict
	}
	return nil, fmt.Errorf("wait for lease %s: %w", cfg.lease(), context.Cause(ctx))
}

// Context ends when the Lease can no longer be proven ours, with a cause that
// wraps ErrLeaseLost, or when it is released. It derives from no other context.
//
// It ends RenewDeadline after the last renewal was sent: before LeaseDuration
// has passed since then, which is the least that a rival waits.
func (l *Lease) Context() context.Context { return l.ctx }

// Fresh reports whether a renewal was sent, and granted, less than RenewDeadline
// ago. Like Lock.Fresh it has the right answer for a process that just woke up.
func (l *Lease) Fresh() bool {
	return l.ctx.Err() == nil && age(*l.confirmed.Load(), l.cfg.Now()) < l.cfg.RenewDeadline
}

// confirm counts from the moment of sending: the server may have granted at
// once, and a rival counts from there, however long the answer took.
func (l *Lease) confirm(sent time.Time) {
	l.confirmed.Store(&sent)
	left := l.cfg.RenewDeadline - age(sent, l.cfg.Now())
	if l.watchdog == nil {
		l.watchdog = time.AfterFunc(left, l.timeUp)
		return
	}
	l.watchdog.Reset(left)
}

func (l *Lease) timeUp() { l.lose(errors.New("no renewal was granted within the renew deadline")) }

// lose ends the context, and the election with it: what is lost stays lost. The
// first reason stands.
func (l *Lease) lose(why error) {
	l.cancel(fmt.Errorf("%w: %w", ErrLeaseLost, why))
	if errors.Is(context.Cause(l.ctx), ErrLeaseLost) { // and not released
		l.ended.Do(func() { l.cfg.Observe(Transition{LeaseLock, Lost}) })
	}
	l.stopElector()
}

// Release ends Context and gives the Lease back, if it is still ours, so that
// nobody has to wait until it expires. It takes RenewDeadline at most. A second
// call waits for the first, and returns what it returned.
func (l *Lease) Release(ctx context.Context) error {
	l.release.Do(func() {
		l.cancel(errLeaseReleased)
		l.endElector()
		l.watchdog.Stop()
		defer utilnet.CloseIdleConnectionsFor(l.http.Transport)
		l.released = l.clear(ctx)
		l.ended.Do(func() { l.cfg.Observe(Transition{LeaseLock, Released}) })
	})
	return l.released
}

// clear writes what client-go's own release writes. The election must have
// ended: a renewal that is still on its way then fails on the record's version,
// or came in between, and we on it.
func (l *Lease) clear(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.RenewDeadline)
	defer cancel()
	err := l.clearOnce(ctx)
	if apierrors.IsConflict(err) {
		err = l.clearOnce(ctx)
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("release lease %s: %w", l.cfg.lease(), err)
	}
	return nil
}

func (l *Lease) clearOnce(ctx context.Context) error {
	record, _, err := l.lock.Get(ctx)
	if err != nil || record.HolderIdentity != l.cfg.Identity {
		return err
	}
	now := metav1.NewTime(l.cfg.Now())
	return l.lock.Update(ctx, resourcelock.LeaderElectionRecord{
		LeaseDurationSeconds: 1,
		AcquireTime:          now,
		RenewTime:            now,
		LeaderTransitions:    record.LeaderTransitions,
	})
}
