package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/internal/exitcode"
	"github.com/duesday/duesday/internal/money"
	"github.com/duesday/duesday/job"
	"github.com/duesday/duesday/leader"
)

// dunningFlags say when declined slots are tried anew.
type dunningFlags struct {
	retry    bool
	schedule []time.Duration
}

func (f *dunningFlags) add(flags *pflag.FlagSet) {
	flags.BoolVar(&f.retry, "retry-declined", false, "open a new attempt, under a new key, for declined charges that are due for one")
	f.schedule = []time.Duration{72 * time.Hour, 120 * time.Hour, 168 * time.Hour}
	flags.Var(&pauses{to: &f.schedule}, "retry-schedule", "how long after attempt 1, 2, … the next is due: at most 7 `durations`")
}

// dunning is nil if no new attempts are wanted.
func (f *dunningFlags) dunning() (*charges.Dunning, error) {
	if len(f.schedule) == 0 || len(f.schedule) > charges.MaxAttempts-1 {
		return nil, usage("--retry-schedule: want 1 to %d pauses, got %d: Stripe advises at most %d attempts", charges.MaxAttempts-1, len(f.schedule), charges.MaxAttempts)
	}
	for _, pause := range f.schedule {
		if pause < time.Hour {
			return nil, usage("--retry-schedule: %s is too soon after a decline, want at least 1h", pause)
		}
	}
	if !f.retry {
		return nil, nil
	}
	return &charges.Dunning{Schedule: f.schedule}, nil
}

type reconcileFlags struct {
	period, since string
	customers     string
	audit         bool
	output        string
	dunningFlags
	sendingFlags
	vaultFlags
	clock periodFlags // which month is due, for the metrics
	metricsFlags
	tellFlags
	leaderFlags
	logFlags
}

func (p *program) reconcileCommand() *cobra.Command {
	var f reconcileFlags
	cmd := &cobra.Command{
		Use:   "reconcile",
		Short: "Settle in-doubt and processing slots of all periods; open due new attempts",
		Long: `Settle what is open in any period: slots whose answer was lost, and payments
that Stripe decides later (ACH, SEPA, Bacs). Nothing new is claimed. A period
that another process is at work on is left to it, and not counted. It exits with 0
when no slot is in doubt or processing any more, and with 1 when one still is.

With --audit it changes nothing: it lists what Stripe took for the settled
periods and compares it with the ledger; a difference is a line, and exit code 3.`,
		Example: `  duesday reconcile
  duesday reconcile --retry-declined --customers billing.subscribers
  duesday reconcile --audit --since 2026-08`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.audit { // it only reads, and its exit code means something else
				f.metricsFlags = metricsFlags{}
			}
			return p.watched(cmd.Context(), "reconcile", f.metricsFlags, f.clock, f.logFlags, func(ctx context.Context, w *watch) error {
				var end reconciled
				notify, err := p.notifier(f.notifyFlags)
				if err == nil {
					err = p.reconcile(ctx, f, w, &end)
				}
				if f.audit {
					end.traces.end(ctx)
				} else {
					end.tell(ctx, f.tellFlags, w, notify, err)
				}
				return end.write(err)
			})
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.period, "period", "", "only this billing period, `YYYY-MM`")
	flags.StringVar(&f.since, "since", "", "only billing periods from `YYYY-MM` on")
	flags.BoolVar(&f.audit, "audit", false, "compare the ledger with Stripe instead, and change nothing")
	flags.StringVar(&f.output, "output", "table", "`format` of the audit: table or json")
	complete(cmd, "output", "table", "json")
	f.dunningFlags.add(flags)
	flags.StringVar(&f.customers, "customers", "duesday.customers", "`table` or view that says who is still active")
	f.sendingFlags.add(flags)
	f.vaultFlags.add(flags)
	f.leaderFlags.addTimes(flags)
	f.metricsFlags.add(flags)
	f.tellFlags.add(flags)
	f.clock.addClock(flags)
	for _, name := range []string{"period-offset", "time-zone"} {
		flags.Lookup(name).Usage += "; for the metrics alone"
	}
	f.logFlags.add(flags, p.terminal)
	complete(cmd, "log-format", "json", "console")
	return cmd
}

// reconcile fills in end as it goes.
func (p *program) reconcile(ctx context.Context, f reconcileFlags, w *watch, end *reconciled) error {
	if err := errors.Join(f.sendingFlags.check(), f.leaderFlags.check(), f.logFlags.check(), checkOutput(f.output)); err != nil {
		return err
	}
	for name, value := range map[string]string{"period": f.period, "since": f.since} {
		if _, err := charges.ParsePeriod(value); value != "" && err != nil {
			return usage("--%s: %w", name, err)
		}
	}
	dunning, err := f.dunning()
	if err != nil {
		return err
	}
	if f.audit && f.vaultFlags.url != "" {
		return usage("--vault-url: an audit reads all periods, and so with STRIPE_API_KEY; a key that may only read will do")
	}
	log := p.logger(f.format, f.debug)
	traces := p.tracing(ctx, log)
	end.traces = traces
	gateway, vault, err := p.stripe(f.vaultFlags, f.workers, traces.observe(w.observers())...)
	if err != nil {
		return err
	}
	defer gateway.Close()
	pool, err := p.database(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()

	all, err := charges.AllPeriods(ctx, pool)
	if err != nil {
		return databaseError(err)
	}
	var wanted []charges.Ledger
	for _, l := range all {
		if name := l.Period.String(); (f.period == "" || name == f.period) && name >= f.since {
			wanted = append(wanted, l)
		}
	}
	if f.period != "" && len(wanted) == 0 {
		return usage("--period %s: it has not been opened; see duesday status", f.period)
	}
	pacer := w.pacer(f.rate)
	if f.audit {
		return p.audit(ctx, pool, gateway, pacer, wanted, f.output)
	}
	end.log, end.wanted = log, len(wanted)
	r := reconciler{program: p, watch: w, flags: f, dunning: dunning, pool: pool, gateway: gateway, vault: vault,
		pacer: pacer, log: log, tracer: traces.jobTracer(), end: end}
	detach := w.attach(ctx, pool)
	err = r.all(ctx, wanted)
	end.terminate(f.tellFlags, err)
	detach()
	return err
}

type reconciler struct {
	*program
	watch   *watch
	flags   reconcileFlags
	dunning *charges.Dunning
	pool    dbPool
	gateway *charges.Gateway
	vault   job.Vault
	pacer   *charges.Pacer
	log     *zap.Logger
	tracer  trace.Tracer
	end     *reconciled
}

// all reconciles period after period. One that fails does not keep the next
// from its turn, unless Stripe refuses the key or we were told to stop.
func (r *reconciler) all(ctx context.Context, periods []charges.Ledger) error {
	var (
		failed error
		ours   []charges.Ledger // not left to another process
	)
	for _, l := range periods {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		open, err := l.CountOpen(ctx, r.pool)
		if err != nil {
			return err
		}
		if open.InDoubt+open.Processing == 0 {
			if idle, err := r.nothingDue(ctx, l); err != nil {
				return err
			} else if idle {
				continue
			}
		}
		err = r.one(ctx, l)
		var held *leader.HeldError
		left := errors.As(err, &held)
		if !left {
			ours = append(ours, l)
		}
		switch {
		case left:
			r.end.left++
			r.watch.held(leader.AdvisoryLock)
			r.log.Info("another process is at work on the period, it is left to it",
				zap.String("billing_period", l.Period.String()), zap.String("leader", held.Holder))
		case exitcode.Of(err) > exitcode.Unfinished && !errors.Is(err, job.ErrOlderLedger) && !errors.Is(err, charges.ErrLookUpUnfinished):
			return err
		case err != nil && !errors.Is(err, job.ErrUnfinished):
			failed = errors.Join(failed, err)
		}
	}
	if failed != nil {
		return failed
	}
	return r.stillOpen(ctx, ours)
}

// nothingDue keeps periods that are done with from a lock and from questions to
// Stripe, each hour.
func (r *reconciler) nothingDue(ctx context.Context, l charges.Ledger) (bool, error) {
	if r.dunning == nil {
		return true, nil
	}
	if _, err := charges.FindRelation(ctx, r.pool, r.flags.customers); err != nil {
		return false, err // a slip is told of before a new attempt is due
	}
	return l.NothingDue(ctx, r.pool, *r.dunning)
}

func (r *reconciler) one(ctx context.Context, l charges.Ledger) error {
	url, err := r.databaseURL()
	if err != nil {
		return err
	}
	cfg := r.flags.lockConfig(url, "reconcile", l, r.log)
	cfg.Observe = r.watch.transition
	lock, err := leader.Acquire(ctx, cfg)
	if err != nil {
		return err
	}
	defer release(ctx, lock, r.log)
	summary, err := job.Reconcile(ctx, job.Config{
		Ledger: l, Customers: r.flags.customers, Dunning: r.dunning,
		Workers: r.flags.workers, PageSize: r.flags.pageSize(), Drain: drain, ProgressEvery: progressEvery, Rate: r.flags.rate,
		Vault: r.vault, Sender: charges.NewSender(r.gateway, r.pacer), Pool: r.pool, Lead: lock, Log: r.log, Live: r.watch.live,
		Tracer: r.tracer,
	})
	r.end.periods = append(r.end.periods, summary)
	if err == nil || errors.Is(err, job.ErrUnfinished) {
		r.log.Info("period reconciled", zap.String("billing_period", l.Period.String()), zap.Inline(summary))
	}
	return err
}

// stillOpen is an error if any of the periods has open slots.
func (r *reconciler) stillOpen(ctx context.Context, periods []charges.Ledger) error {
	var inDoubt, processing int
	var last time.Time
	for _, l := range periods {
		open, err := l.CountOpen(ctx, r.pool)
		if err != nil {
			return err
		}
		inDoubt += open.InDoubt
		processing += open.Processing
		if open.ResendAt.After(last) {
			last = open.ResendAt
		}
	}
	if inDoubt+processing == 0 {
		return nil
	}
	when := ""
	if inDoubt > 0 {
		when = "; what Stripe keeps failing can be settled from " + last.UTC().Format(time.RFC3339)
	}
	return fmt.Errorf("%w: %d in doubt, %d processing%s", errStillOpen, inDoubt, processing, when)
}

// asMoney writes an amount of an audit, like 1000 usd, for a person.
func asMoney(s string) string {
	number, currency, _ := strings.Cut(s, " ")
	if amount, err := strconv.ParseInt(number, 10, 64); err == nil {
		return printable(money.Format(amount, currency))
	}
	return s
}

// audit prints how the ledger and Stripe differ.
func (p *program) audit(ctx context.Context, pool dbPool, g *charges.Gateway, pacer *charges.Pacer, periods []charges.Ledger, output string) error {
	var settled []charges.Ledger
	for _, l := range periods {
		state, err := l.State(ctx, pool)
		if err != nil {
			return err
		}
		if !state.SettledAt.IsZero() {
			settled = append(settled, l)
		}
	}
	differences := []charges.Difference{}
	table := p.newTable(p.out, "PERIOD", "CUSTOMER", "DIFFERENCE", "CHARGE", "LEDGER", "STRIPE")
	err := charges.Audit(ctx, pool, g, settled, pacer.Wait, func(d charges.Difference) error {
		differences = append(differences, d)
		return table.row(d.Period, shownID(d.CustomerID), d.Kind, printable0(d.ChargeID), asMoney(d.Ledger), asMoney(d.Stripe))
	})
	if err != nil {
		return databaseError(err)
	}
	if output == "json" {
		err = writeJSON(p.out, differences)
	} else {
		err = table.flush()
	}
	if err != nil {
		return err
	}
	if n := len(differences); n > 0 {
		return exitcode.With(exitcode.Stopped, fmt.Errorf("the ledger and Stripe differ in %d %s", n, plural(n, "charge", "charges")))
	}
	if p.quiet {
		return nil
	}
	switch n := len(settled); n {
	case 0:
		fmt.Fprintln(p.err, "no period is settled yet, and so there was nothing to compare; see duesday status")
	default:
		fmt.Fprintf(p.err, "the ledger and Stripe agree on %d settled %s\n", n, plural(n, "period", "periods"))
	}
	return nil
}
