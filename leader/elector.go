package leader

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"

	"github.com/duesday/duesday/internal/exitcode"
)

func (l *Lease) connect() error {
	config, client, err := l.cfg.Cluster.client(l.cfg.requestTimeout())
	if err != nil {
		return err
	}
	coordination, err := coordinationclient.NewForConfigAndClient(config, client)
	if err != nil {
		return exitcode.With(exitcode.Misconfigured, fmt.Errorf("make a Kubernetes client: %w", err))
	}
	l.http = client
	l.lock = &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: l.cfg.Namespace, Name: l.cfg.Name},
		Client:     coordination,
		LockConfig: resourcelock.ResourceLockConfig{Identity: l.cfg.Identity},
	}
	return nil
}

// startElector sets client-go's LeaderElector to work. It decides when to try,
// what to write, and whether a rival's record has expired. Its idea of who leads
// goes unused: it counts from the answer, so that with slow answers it leads on
// after its lease was taken; it retries for ever without saying why; and
// IsLeader compares nothing but names.
func (l *Lease) startElector(w *witness) error {
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:          w,
		Name:          l.cfg.Name,
		LeaseDuration: l.cfg.LeaseDuration,
		RenewDeadline: l.cfg.RenewDeadline,
		// client-go waits this long or up to 2.2 times as long. So a candidate
		// looks once a retry period at least: it sees a dead leader's last renewal
		// within one, and the lease's end within another.
		RetryPeriod: time.Duration(float64(l.cfg.RetryPeriod) / (1 + leaderelection.JitterFactor)),
		// Not ReleaseOnCancel, which would release while the work still runs.
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) {}, // the witness told us
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return exitcode.With(exitcode.Misconfigured, fmt.Errorf("leader election: %w", err))
	}
	// An empty logger: what matters of client-go's log, the witness says.
	ctx, stop := context.WithCancel(klog.NewContext(context.Background(), klog.Logger{}))
	l.stopElector = stop
	go func() {
		defer close(l.electorEnded)
		elector.Run(ctx)
	}()
	return nil
}

func (l *Lease) endElector() {
	l.stopElector()
	<-l.electorEnded
}

// A witness stands between LeaderElector and its lock, and learns what the
// elector does not tell: that a rival lives, since when nothing was granted, and
// which error there was. All calls come from the elector's goroutine.
type witness struct {
	resourcelock.Interface
	lease *Lease
	won   chan struct{}

	leading       bool
	wrote         bool // or tried to
	rival         rival
	waitsFor      string // the holder of another task, once told
	reads, writes streak
	verdict       error // why the campaign ended
}

// A streak is of failed calls.
type streak struct{ since time.Time }

var errElectionOver = errors.New("the election is over")

func (w *witness) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := w.Interface.Get(ctx)
	if err != nil {
		w.failed(ctx, &w.reads, "read", err)
		return nil, nil, err
	}
	w.reads = streak{}
	// The elector takes records for the same that are the same as JSON, which
	// has whole seconds: of two renewals within one it would miss the second,
	// and take the lease up to a second early.
	raw = strconv.AppendInt(raw, record.RenewTime.UnixMicro(), 10)
	holder := record.HolderIdentity
	switch {
	case w.leading && holder != w.Identity():
		w.lease.lose(fmt.Errorf("taken by %q", holder))
		return nil, nil, errElectionOver
	case !w.leading && w.rival.provesLife(holder, raw) && holder != "" && holder != w.Identity():
		if task(holder) == task(w.Identity()) && !w.lease.cfg.Wait {
			w.end(&LeaseHeldError{Holder: holder, Lease: w.Describe()})
			return nil, nil, errElectionOver
		}
		if w.waitsFor != holder {
			w.waitsFor = holder
			w.lease.cfg.Log.Info("the lease is held, waiting for its holder's end", zap.String("leader", holder))
		}
	}
	return record, raw, nil
}

// task is what stands behind the identity in a record.
func task(holder string) string {
	_, task, _ := strings.Cut(holder, "@")
	return task
}

// A rival is whoever holds the Lease, as a candidate sees it.
type rival struct {
	record []byte // when it was last seen
	holder string
	writes int // by this holder, since the first look
}

// provesLife takes what was seen, and reports whether its holder wrote while
// we looked. That there is a record proves nothing, for its holder may be dead.
// Nor does one write: it may have been on its way for long. The next one can
// only have been sent after that.
func (r *rival) provesLife(holder string, record []byte) bool {
	switch {
	case r.record == nil || bytes.Equal(r.record, record):
	case holder == r.holder:
		r.writes++
	default:
		r.writes = 1
	}
	r.record, r.holder = record, holder
	return r.writes >= 2
}

// Create is what the elector does about a missing Lease. No Role can limit that
// right to one name, so there is none.
func (w *witness) Create(context.Context, resourcelock.LeaderElectionRecord) error {
	return errors.New("the Lease is not there")
}

func (w *witness) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if w.leading && !w.lease.Fresh() {
		// Just woken: the elector would take an expired lease up again.
		w.lease.timeUp()
		return errElectionOver
	}
	w.wrote = true
	sent := w.lease.cfg.Now()
	err := w.Interface.Update(ctx, record)
	switch {
	case apierrors.IsConflict(err): // somebody was faster; the next Get shows who
		w.writes = streak{}
		return err
	case err != nil:
		w.failed(ctx, &w.writes, "update", err)
		return err
	}
	w.writes = streak{}
	w.lease.confirm(sent)
	if !w.leading {
		w.leading = true
		close(w.won)
	}
	return nil
}

// failed ends the campaign when calls have failed for too long. A leader's end
// is the watchdog's to decide.
func (w *witness) failed(ctx context.Context, s *streak, step string, err error) {
	cfg := w.lease.cfg
	now := cfg.Now()
	if s.since.IsZero() {
		s.since = now
		if ctx.Err() == nil {
			cfg.Log.Warn("cannot "+step+" the lease", zap.Error(err))
		}
	}
	if !w.leading && age(s.since, now) >= cfg.RenewDeadline {
		w.end(fmt.Errorf("%s lease %s: %w", step, w.Describe(), withHint(err,
			"apply the Lease and the Role that allows get and update on it (manifests/lease.yaml, manifests/role.yaml)")))
	}
}

func (w *witness) end(verdict error) {
	w.verdict = verdict
	w.lease.stopElector()
}
