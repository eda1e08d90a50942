package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/job"
)

const (
	// openTimeout bounds the statement that reads the customers relation; ten
	// million dues take minutes.
	openTimeout = 30 * time.Minute
	// drain is how long charges in flight may take after a stop. Pods need a
	// termination grace period of 45 s: to give the lease back may take 10 of it,
	// a last look at the ledger 5, and the telling 6.
	drain = 20 * time.Second
	// stripeTimeout is stripe-go's own.
	stripeTimeout = 80 * time.Second
	progressEvery = 10 * time.Second
)

type runFlags struct {
	periodFlags
	openingFlags
	sendingFlags
	shardFlags
	leaderFlags
	logFlags
	dunningFlags
	vaultFlags
	restoreFlags
	metricsFlags
	tellFlags
	reopen      bool
	raiseCaps   map[string]int64
	allowFuture bool
}

func (p *program) runCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Bill one period: elect, lock, open, recover, claim, charge, settle",
		Long: `Bill one period.

The first run of a period freezes what each active customer owes; then every due
is claimed once and charged under a key that depends on customer and period
alone. A run that was interrupted is finished by the next one: run it again as
often as you like, nobody is charged twice. Of several runs at once one leads;
the others exit with 0.`,
		Example: `  duesday run --leader-elect=false --period 2026-10
  duesday run --leader-elect=false --customers billing.subscribers --period-offset -1`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.watched(cmd.Context(), "run", f.metricsFlags, f.periodFlags, f.logFlags, func(ctx context.Context, w *watch) error {
				return p.bill(ctx, f, w)
			})
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	f.periodFlags.add(flags)
	flags.Lookup("period").Usage = "billing period `YYYY-MM` (default: the month that the owning Job was scheduled for, else the one that it is now, in --time-zone)"
	f.openingFlags.add(flags)
	flags.BoolVar(&f.reopen, "reopen", false, "read the customers again for all who have no slot yet, or a rejected one")
	amountsVar(flags, &f.raiseCaps, "raise-cap-to", "set the period's spend cap to exactly this, like `usd=49500000` in smallest units; recorded in runs")
	flags.BoolVar(&f.allowFuture, "allow-future", false, "let --period name a month that has not begun")
	f.restoreFlags.add(flags)
	f.dunningFlags.add(flags)
	f.sendingFlags.add(flags)
	f.shardFlags.add(flags)
	f.vaultFlags.add(flags)
	f.leaderFlags.add(flags)
	f.metricsFlags.add(flags)
	f.tellFlags.add(flags)
	f.logFlags.add(flags, p.terminal)
	complete(cmd, "stripe-method", "charges", "payment_intents")
	complete(cmd, "log-format", "json", "console")
	return cmd
}

// bill bills the period and tells how that ended.
func (p *program) bill(ctx context.Context, f runFlags, w *watch) error {
	end := &ending{period: f.period}
	notify, err := p.notifier(f.notifyFlags)
	if err == nil {
		err = p.billPeriod(ctx, f, w, end)
	}
	w.elsewhere(err)
	return p.tell(ctx, f.tellFlags, w, notify, end, err)
}

// billPeriod fills in end as it finds out.
func (p *program) billPeriod(ctx context.Context, f runFlags, w *watch, end *ending) error {
	if err := errors.Join(f.sendingFlags.check(), f.leaderFlags.check(), f.logFlags.check()); err != nil {
		return err
	}
	ledger, err := f.ledger(p.clock())
	if err != nil {
		return err
	}
	if !f.allowFuture {
		if err := f.refuseFuture(p.clock()); err != nil {
			return err
		}
	}
	if _, err := f.opening(ledger.Period); err != nil {
		return err
	}
	shard, err := p.split(&f)
	if err != nil {
		return err
	}
	cluster, err := p.cluster(f.leaderFlags)
	if err != nil {
		return err
	}
	dunning, err := f.dunning()
	if err != nil {
		return err
	}
	log := p.logger(f.format, f.debug)
	traces := p.tracing(ctx, log)
	end.traces = traces
	gateway, vault, err := p.stripe(f.vaultFlags, f.workers, traces.observe(w.observers())...)
	if err != nil {
		return err
	}
	defer gateway.Close()
	url, err := p.databaseURL()
	if err != nil {
		return err
	}

	end.log, end.cluster, end.period = log, cluster, ledger.Period.String()
	// Last, since it asks the cluster: all else has been checked.
	if ledger, err = p.scheduled(ctx, f, cluster, ledger, log); err != nil {
		return err
	}
	end.period = ledger.Period.String()
	if err := p.checkIndexes(ctx, f.leaderFlags, cluster, shard); err != nil {
		return err
	}
	ledger.Shard = shard
	w.ofShard(shard)
	opening, err := f.opening(ledger.Period)
	if err != nil {
		return err
	}
	pool, err := p.database(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	defer w.attach(ctx, pool)()
	lock := f.lockConfig(url, f.restoreFlags.command(), ledger, log)
	// It claims no due: to leave the period to it would leave them unpaid.
	lock.WaitFor = "reconcile"
	lock.Observe = w.transition
	task := leadShard(&ledger, &lock, &f.leaderFlags)
	lead, err := p.lead(ctx, f.leaderFlags, cluster, task, lock)
	if err != nil {
		return err
	}
	defer release(ctx, lead, log)
	every := progressEvery
	shown, hide := p.progress(f.logFlags, w.live)
	defer hide()
	if shown {
		every = 0
	}
	end.summary, err = job.Run(ctx, job.Config{
		Ledger: ledger, Customers: f.customers, Opening: opening, Reopen: f.reopen, RaiseCaps: f.raiseCaps, Dunning: dunning,
		Workers: f.workers, PageSize: f.pageSize(), Drain: drain, ProgressEvery: every, Rate: f.rate, Tracer: traces.jobTracer(),
		Vault: vault, Sender: charges.NewSender(gateway, w.pacer(f.rate)),
		Pool: pool, Lead: lead, Log: log, Live: w.live, AfterRestore: f.restored(ledger.Period), RestoreFlags: f.besideRestore(),
	})
	end.terminate(f.tellFlags, err)
	return err
}

func release(ctx context.Context, lead leadership, log *zap.Logger) {
	if err := lead.Release(context.WithoutCancel(ctx)); err != nil {
		log.Warn("cannot give the leadership back; it ends by itself", zap.Error(err))
	}
}

// holder names this process to the others: a pod by its name.
func holder() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s/%d", host, os.Getpid())
}
