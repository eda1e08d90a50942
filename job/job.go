package job

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/internal/money"
	"github.com/duesday/duesday/internal/mutant"
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

// Vault gives a run a key to Stripe that can spend no more than the period's
// caps, whatever the run does.
type Vault interface {
	// Key is a new key for the period; those given before end with it. caps are
	// the ledger's, raised says that the operator has just set them.
	Key(ctx context.Context, period charges.Period, caps map[string]int64, raised bool) (string, error)
	// Revoke ends the key of the last call.
	Revoke(ctx context.Context) error
}

// Config is one run.
type Config struct {
	Ledger    charges.Ledger
	Customers string // the relation's name, looked up when the period is opened
	Opening   charges.Opening
	Reopen    bool
	// RaiseCaps are the spend caps that the period shall have, by currency in
	// its smallest unit; empty: as they are.
	RaiseCaps map[string]int64
	// AfterRestore looks up who was charged before anything is sent; nil: the
	// run only checks that the ledger is not an older one.
	AfterRestore *AfterRestore
	// RestoreFlags are those that a run with AfterRestore needs beside it, to
	// name in the message that asks for one; empty: none.
	RestoreFlags []string
	// Dunning opens new attempts for declined slots that are due; nil: none.
	// Its Customers are looked up by Run.
	Dunning *charges.Dunning

	Workers int
	// Drain is how long requests in flight may go on after the run was told to
	// stop or lost its leadership.
	Drain time.Duration
	// PageSize is how many dues are claimed at once. What a crash leaves
	// claimed and unsent is at most two pages.
	PageSize int
	// ProgressEvery is the pause between two lines of progress; 0: none.
	ProgressEvery time.Duration
	// Rate is how many charges a second the first line reckons with; 0: it
	// tells no expected end.
	Rate float64
	// Live is filled while the run goes on; nil: nobody watches.
	Live *Live
	Now  func() time.Time // nil: time.Now

	Vault  Vault           // nil: the gateway has its key
	Sender *charges.Sender // MayCharge and RefreshWindow are set by Run
	Pool   *pgxpool.Pool   // for what needs no lock: settling, reading
	Lead   Leadership
	Log    *zap.Logger
	Tracer trace.Tracer // nil: nobody traces, at no cost
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
	// ErrAllRejected: Stripe rejected slot after slot, and nothing else.
	ErrAllRejected = errors.New("every charge is rejected by Stripe")
	// ErrUnfinished: slots are in doubt, or dues unclaimed.
	ErrUnfinished = errors.New("not everything is settled")
)

// Run bills the period under the leadership it was given, and records in runs
// how it ended. When ctx ends it claims no more, settles what is in flight
// within Config.Drain, and returns an error.
//
// The error carries the process's exit code: nil is 0, the period is settled.
func Run(ctx context.Context, cfg Config) (Summary, error) {
	return begin(ctx, cfg, "run", (*run).bill)
}

func begin(ctx context.Context, cfg Config, name string, work func(*run, context.Context) error) (Summary, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Live == nil {
		cfg.Live = new(Live)
	}
	began := cfg.Now()
	r := &run{Config: cfg, summary: Summary{Period: cfg.Ledger.Period.String()}}
	if cfg.Ledger.Shard.Split() {
		r.summary.Shard = cfg.Ledger.Shard.String()
	}
	r.Live.begin(r.summary.Period, cfg.Now)
	ctx, end := r.traceRun(ctx, name)
	err := work(r, ctx)
	r.summary.Seconds = float64(cfg.Now().Sub(began).Milliseconds()) / 1000
	p := r.Live.Snapshot()
	r.summary.This = p.This
	if p.Known && !r.Ledger.Shard.Split() {
		r.summary.Money = p.Money
	}
	r.summary.This.LookedUp = r.lookedUp
	r.record(ctx, err)
	end(err)
	return r.summary, err
}

type run struct {
	Config
	summary Summary
	state   charges.PeriodState
	// opened is where the period stands if this run opened it.
	opened *charges.Standing
	span   trace.Span // nil without a Tracer
	keyed  bool       // the vault gave a key
	fits   string     // after ErrCap, the caps under which all would fit
	// checked: the ledger was compared with Stripe; lookedUp: it was restored
	// from there.
	checked, lookedUp bool
}

func (r *run) bill(ctx context.Context) error {
	settled, err := r.prepare(ctx)
	if err != nil || settled {
		return err
	}
	if err := r.ready(ctx); err != nil {
		return err
	}
	r.count(ctx, true)
	return r.work(ctx, func(w *work) { w.pass(r.dues, w.send) })
}

// work sends what is in doubt first, since it is the older promise. Then comes
// the command's own pass, and then who declined. Last, once more, what this run
// itself left in doubt, since the trouble may be over by now.
func (r *run) work(ctx context.Context, own func(*work)) error {
	w := r.startWork(ctx)
	defer w.end()
	w.pass(r.inDoubt, w.resend)
	own(w)
	if r.Dunning != nil {
		w.pass(r.declined, w.send)
	}
	w.passAgain()
	return r.conclude(ctx, w)
}

// Reconcile settles what earlier runs left open in a period: slots in doubt,
// and those that Stripe had not decided. It claims no due. With Config.Dunning
// it also opens new attempts. Otherwise it is as Run, also in how it ends: nil
// means that nothing is in doubt.
func Reconcile(ctx context.Context, cfg Config) (Summary, error) {
	return begin(ctx, cfg, "reconcile", (*run).reconcile)
}

func (r *run) reconcile(ctx context.Context) error {
	if err := r.load(ctx); err != nil {
		return err
	}
	if err := r.findCustomers(ctx); err != nil {
		return err
	}
	if err := r.ready(ctx); err != nil {
		return err
	}
	r.count(ctx, false)
	return r.work(ctx, func(w *work) { w.pass(r.processing, w.look) })
}

// load readies the lock's session and reads where the period stands.
func (r *run) load(ctx context.Context) (err error) {
	if err := r.Lead.Do(ctx, charges.DurableCommits); err != nil {
		return fmt.Errorf("make commits durable: %w", err)
	}
	r.state, err = r.Ledger.State(ctx, r.Pool)
	return err
}

// prepare brings the period to where dues can be claimed. settled is true if
// there is nothing to do.
//
// A crash in it leaves the period as it was or opened as a whole.
func (r *run) prepare(ctx context.Context) (settled bool, err error) {
	if err := r.load(ctx); err != nil {
		return false, err
	}
	if mutant.Is("customers-reread") {
		r.Reopen = true
	}
	if r.state.Opened {
		if err := r.raiseCaps(ctx); err != nil {
			return false, err
		}
	}
	if r.state.Opened && !r.state.SettledAt.IsZero() && !r.Reopen && r.Dunning == nil && r.AfterRestore == nil {
		r.summary.AlreadySettled, r.summary.Settled = true, true
		r.Log.Info("period already settled, nothing to do",
			zap.String("billing_period", r.summary.Period), zap.Time("settled_at", r.state.SettledAt))
		return true, nil
	}
	if r.Vault == nil && r.AfterRestore == nil {
		if err := r.checkLedger(ctx); err != nil {
			return false, err
		}
	}
	switch {
	case r.state.Opened && !r.Reopen:
		return false, r.findCustomers(ctx)
	case r.Ledger.Shard.Split():
		return false, r.openInTurn(ctx)
	}
	return false, r.open(ctx)
}

// open opens the period, or reopens it.
func (r *run) open(ctx context.Context) (err error) {
	if r.Opening.Customers, err = charges.FindRelation(ctx, r.Pool, r.Customers); err != nil {
		return err
	}
	if r.Dunning != nil {
		r.Dunning.Customers = r.Opening.Customers
	}
	open, event := r.Ledger.Open, "period opened"
	var opened charges.Standing
	r.Opening.Opened = &opened
	if r.state.Opened {
		open, event = r.Ledger.Reopen, "period reopened"
	}
	if err := r.Lead.DoLong(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return open(ctx, conn, r.Opening)
	}); err != nil {
		return err
	}
	r.summary.Opened = true
	r.Log.Info(event, zap.String("billing_period", r.summary.Period))
	if r.state.Opened {
		return nil
	}
	r.opened = &opened
	return r.raiseCaps(ctx)
}

// raiseCaps comes before a reopening, which must fit under the caps, and after
// an opening, which makes them.
func (r *run) raiseCaps(ctx context.Context) error {
	if len(r.RaiseCaps) == 0 {
		return nil
	}
	err := r.Lead.Do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return r.Ledger.RaiseCaps(ctx, conn, r.Lead.RunID(), r.RaiseCaps)
	})
	if err == nil {
		caps := map[string]string{}
		for currency, amount := range r.RaiseCaps {
			caps[currency] = money.Format(amount, currency)
		}
		r.Log.Warn("spend caps raised", zap.String("billing_period", r.summary.Period), zap.Any("caps", caps))
	}
	return err
}

// takeKey asks the vault for the period's key, once the caps are known.
//
// A crash after it leaves a key that nobody has: the next run's takes its place.
func (r *run) takeKey(ctx context.Context) error {
	if r.Vault == nil {
		return nil
	}
	caps, err := r.Ledger.Caps(ctx, r.Pool)
	if err != nil {
		return err
	}
	if len(caps) == 0 {
		return nil // nothing can be charged, and nothing will be
	}
	key, err := r.Vault.Key(ctx, r.Ledger.Period, caps, len(r.RaiseCaps) > 0)
	if err != nil {
		return fmt.Errorf("vault key: %w", err)
	}
	if err := r.Sender.Gateway.UseKey(key); err != nil {
		return err
	}
	r.keyed = true
	return nil
}

// findCustomers looks the relation up for a period that is open already, which
// needs it only to know who is still active.
func (r *run) findCustomers(ctx context.Context) (err error) {
	if r.Dunning != nil {
		r.Dunning.Customers, err = charges.FindRelation(ctx, r.Pool, r.Customers)
	}
	return err
}
