package job

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/internal/exitcode"
)

// Leadership is the right to bill the period, as long as its context lives. The
// advisory lock is one; with a Lease before it, the two together are.
type Leadership interface {
	// Context ends, with a cause, when leading can no longer be proven.
	Context() context.Context
	// Fresh is asked before every send: false to a process that just woke up.
	Fresh() bool
	// Do runs statements on the session that holds the lock, DoLong those that
	// take minutes.
	Do(ctx context.Context, f func(context.Context, *pgx.Conn) error) error
	DoLong(ctx context.Context, f func(context.Context, *pgx.Conn) error) error
	// RunID is the row in runs.
	RunID() int64
}

// Config is one run.
type Config struct {
	Ledger    charges.Ledger
	Customers string // the relation's name, looked up when the period is opened
	Opening   charges.Opening
	Reopen    bool

	Workers int
	// Drain is how long requests in flight may go on after the run was told to
	// stop or lost its leadership.
	Drain time.Duration
	// PageSize is how many dues are claimed at once. What a crash leaves
	// claimed and unsent is at most two pages.
	PageSize int
	// ProgressEvery is the pause between two lines of progress.
	ProgressEvery time.Duration

	Sender *charges.Sender // MayCharge and RefreshWindow are set by Run
	Pool   *pgxpool.Pool   // for what needs no lock: settling, reading
	Lead   Leadership
	Log    *zap.Logger
}

// The reasons why a run ends before its work does.
var (
	// ErrStopped is the cause of a context that was told to stop (SIGTERM).
	ErrStopped = errors.New("told to stop")
	// ErrNotFresh: the leadership's last proof is too old to send on.
	ErrNotFresh = errors.New("leadership not confirmed in time")
	// ErrOutage: send after send went unanswered.
	ErrOutage = errors.New("no answer from Stripe")
	// ErrRefused: Stripe or the spend-cap proxy refuses the API key.
	ErrRefused = errors.New("the API key was refused")
	// ErrUnfinished: slots are in doubt.
	ErrUnfinished = errors.New("slots left in doubt")
)

// Summary is how a run ended.
type Summary struct {
	Period         string         `json:"billing_period"`
	AlreadySettled bool           `json:"already_settled,omitempty"`
	Opened         bool           `json:"opened,omitempty"` // by this run
	Settled        bool           `json:"settled"`
	This           Counts         `json:"this_run"`
	All            *charges.Tally `json:"all_runs,omitempty"` // nil if it could not be read
	Seconds        float64        `json:"seconds"`
}

// Run bills the period under the leadership it was given, and records in runs
// how it ended. When ctx ends it claims no more, settles what is in flight
// within Config.Drain, and returns an error.
//
// The error carries the process's exit code: nil is 0, the period is settled.
func Run(ctx context.Context, cfg Config) (Summary, error) {
	began := time.Now()
	r := &run{Config: cfg, summary: Summary{Period: cfg.Ledger.Period.String()}}
	err := r.bill(ctx)
	r.summary.Seconds = time.Since(began).Seconds()
	r.summary.This = r.counts.snapshot()
	r.record(ctx, err)
	return r.summary, err
}

type run struct {
	Config
	counts  counter
	summary Summary
	state   charges.PeriodState
}

func (r *run) bill(ctx context.Context) error {
	settled, err := r.prepare(ctx)
	if err != nil || settled {
		return err
	}
	w := r.startWork(ctx)
	defer w.end()
	r.Sender.MayCharge = w.mayCharge
	r.Sender.RefreshWindow = w.refreshWindow

	// What is in doubt first: it is the older promise. Then what is due. Then
	// once more what this run itself left in doubt, since the trouble may be
	// over by now.
	w.pass(r.inDoubt)
	w.pass(r.dues)
	if r.counts.inDoubt() > 0 {
		r.counts.again()
		w.pass(r.inDoubt)
	}
	return r.conclude(ctx, w)
}

// prepare brings the period to where dues can be claimed. settled is true if
// there is nothing to do.
//
// A crash in it leaves the period as it was or opened as a whole.
func (r *run) prepare(ctx context.Context) (settled bool, err error) {
	if err := r.Lead.Do(ctx, charges.DurableCommits); err != nil {
		return false, fmt.Errorf("make commits durable: %w", err)
	}
	if r.state, err = r.Ledger.State(ctx, r.Pool); err != nil {
		return false, err
	}
	switch {
	case r.state.Opened && !r.state.SettledAt.IsZero() && !r.Reopen:
		r.summary.AlreadySettled, r.summary.Settled = true, true
		r.Log.Info("period already settled, nothing to do",
			zap.String("billing_period", r.summary.Period), zap.Time("settled_at", r.state.SettledAt))
		return true, nil
	case r.state.Opened && !r.Reopen:
		return false, nil
	}
	if r.Opening.Customers, err = charges.FindRelation(ctx, r.Pool, r.Customers); err != nil {
		return false, err
	}
	open, event := r.Ledger.Open, "period opened"
	if r.state.Opened {
		open, event = r.Ledger.Reopen, "period reopened"
	}
	if err := r.Lead.DoLong(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return open(ctx, conn, r.Opening)
	}); err != nil {
		return false, err
	}
	r.summary.Opened = true
	r.Log.Info(event, zap.String("billing_period", r.summary.Period))
	return false, nil
}

// conclude settles the period if it can, and says how the run ended.
func (r *run) conclude(ctx context.Context, w *work) error {
	stopped := w.stopped()
	if stopped == nil {
		err := r.Lead.Do(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
			r.summary.Settled, err = r.Ledger.SettlePeriod(ctx, conn)
			return err
		})
		if err != nil {
			return err
		}
	}
	// Counting is for people; it must not make an ended run fail.
	read, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if all, err := charges.Statuses(read, r.Pool, r.summary.Period); err != nil {
		r.Log.Warn("cannot count the period's slots", zap.Error(err))
	} else if len(all) == 1 {
		r.summary.All = &all[0].Tally
	}
	if stopped != nil {
		return r.explain(stopped)
	}
	if !r.summary.Settled {
		return r.explain(ErrUnfinished)
	}
	return nil
}

// explain adds what is left to why the run ended.
func (r *run) explain(err error) error {
	left := ""
	if t := r.summary.All; t != nil {
		left = fmt.Sprintf(" (%d in doubt, %d not yet claimed)", t.InDoubt, t.Unclaimed)
	}
	code := exitcode.Of(err)
	if errors.Is(err, charges.ErrCap) {
		code = exitcode.Stopped
	}
	return exitcode.With(code, fmt.Errorf("period %s unfinished: %w%s", r.summary.Period, err, left))
}

// record writes the run's end into its row. A crash before it leaves a row
// without an end, whose heart has stopped: that is what a crash looks like.
func (r *run) record(ctx context.Context, ended error) {
	outcome := "settled"
	switch {
	case ended != nil:
		outcome = ended.Error()
	case r.summary.AlreadySettled:
		outcome = "already settled"
	}
	const finish = `
		UPDATE duesday.runs SET finished_at = clock_timestamp(), exit_code = $2, outcome = $3, counts = $4
		WHERE id = $1`
	write, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if _, err := r.Pool.Exec(write, finish, r.Lead.RunID(), exitcode.Of(ended), outcome, r.summary.This); err != nil {
		r.Log.Warn("cannot record the end of the run", zap.Error(err))
	}
}

// MarshalLogObject writes the summary as fields.
func (s Summary) MarshalLogObject(enc zapcore.ObjectEncoder) error {
	enc.AddBool("settled", s.Settled)
	if err := enc.AddObject("this_run", s.This); err != nil {
		return err
	}
	if s.All != nil {
		if err := enc.AddReflected("all_runs", s.All); err != nil {
			return err
		}
	}
	enc.AddFloat64("seconds", s.Seconds)
	return nil
}
