package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/internal/exitcode"
	"github.com/duesday/duesday/job"
	"github.com/duesday/duesday/leader"
	"github.com/duesday/duesday/metrics"
)

const (
	// pushTimeout is what a dead Pushgateway may cost a run that has ended.
	pushTimeout = 5 * time.Second
	// lastScrape is what a scrape under way may take then.
	lastScrape = time.Second
)

// metricsFlags say who is told what a run does.
type metricsFlags struct {
	addr    string
	pushURL string
	pushJob string
}

func (f *metricsFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.addr, "metrics-addr", "", "`address` to serve Prometheus' metrics on while it runs, like :9464 (default: none)")
	flags.StringVar(&f.pushURL, "pushgateway-url", "", "`url` of a Pushgateway to push the metrics to at the end (default: none)")
	flags.StringVar(&f.pushJob, "pushgateway-job", "duesday", "`job` to push under: another for each installation")
}

func (f *metricsFlags) wanted() bool { return f.addr != "" || f.pushURL != "" }

// check refuses what can never work. A port that is taken is none of it.
func (f *metricsFlags) check() error {
	if f.addr != "" {
		_, port, err := net.SplitHostPort(f.addr)
		if err != nil {
			return usage("--metrics-addr %q: want host:port or :port, like :9464", f.addr)
		}
		if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			return usage("--metrics-addr %q: want a port from 0 to 65535", f.addr)
		}
	}
	if f.pushURL != "" {
		u, err := url.Parse(f.pushURL)
		if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") || u.RawQuery != "" || u.Fragment != "" {
			// It may hold a password, and is not shown.
			return usage("--pushgateway-url: want a URL like http://pushgateway:9091")
		}
	}
	if f.pushJob == "" {
		return usage("--pushgateway-job: want a name, like duesday, got nothing")
	}
	return nil
}

// watch is who looks at one run or reconcile while it works. Whatever goes wrong
// with it is logged and changes nothing: a month that is billed and not measured
// is better than one that is neither.
type watch struct {
	flags   metricsFlags
	log     *zap.Logger
	live    *job.Live
	metrics *metrics.Metrics // nil: nobody looks
	// shared is more of the Pushgateway's grouping key, and group of that of
	// what this process alone can tell.
	shared, group map[string]string

	server *http.Server // nil: none
	served chan struct{}

	standby bool // another did the work, and tells of it
	ending  sync.Once
}

// watched does the work and lets it be watched.
func (p *program) watched(ctx context.Context, command string, f metricsFlags, clock periodFlags, l logFlags, work func(context.Context, *watch) error) error {
	w := &watch{flags: f, live: new(job.Live)}
	if f.wanted() {
		if err := errors.Join(f.check(), l.check()); err != nil {
			return err
		}
		zone, err := clock.location()
		if err != nil {
			return err
		}
		w.log = p.logger(l.format, l.debug)
		w.metrics = metrics.New(metrics.Config{
			Command: command, Version: version, Zone: zone, Offset: clock.offset, Progress: w.live.Snapshot, Log: w.log, Now: p.clock,
		})
		if namespace := p.lookup("POD_NAMESPACE"); namespace != "" {
			w.shared = map[string]string{"namespace": namespace}
		}
		w.serve()
	}
	err := work(ctx, w)
	w.end(ctx, err)
	return err
}

func (w *watch) serve() {
	if w.flags.addr == "" {
		return
	}
	listener, err := net.Listen("tcp", w.flags.addr)
	if err != nil {
		// Another run on this host may have the port.
		w.log.Warn("cannot serve metrics; billing is not affected", zap.Error(err))
		return
	}
	w.log.Info("metrics are served", zap.Stringer("address", listener.Addr()))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", w.metrics.Handler())
	w.server = &http.Server{
		Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 32 << 10, ErrorLog: zap.NewStdLog(zap.NewNop()),
	}
	w.served = make(chan struct{})
	go func() {
		defer close(w.served)
		_ = w.server.Serve(listener) // it ends by being shut down
	}()
}

// end notes how it ended, and tells the Pushgateway, in at most six seconds. Only
// the first call does: it comes before the last line of the log.
func (w *watch) end(ctx context.Context, ended error) {
	if w.metrics == nil {
		return
	}
	w.ending.Do(func() {
		if !w.standby {
			w.metrics.End(exitcode.Of(ended), len(w.group) == 0)
			w.push(ctx)
		}
		if w.server == nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastScrape)
		defer cancel()
		if w.server.Shutdown(ctx) != nil {
			_ = w.server.Close() // a slow scrape is cut
		}
		<-w.served
	})
}

func (w *watch) push(ctx context.Context) {
	if w.flags.pushURL == "" {
		return
	}
	to, err := url.Parse(w.flags.pushURL)
	if err == nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pushTimeout)
		defer cancel()
		err = w.metrics.Push(ctx, metrics.Pushgateway{URL: to, Job: w.flags.pushJob, Grouping: w.shared, Own: w.group})
	}
	if err != nil {
		w.log.Warn("cannot push the metrics; billing is not affected", zap.Error(err))
	}
}

// attach lets the metrics read the ledger until what it returns is called.
func (w *watch) attach(ctx context.Context, pool dbPool) (detach func()) {
	if w.metrics == nil {
		return func() {}
	}
	return w.metrics.Attach(ctx, pool)
}

// elsewhere notes that another process leads: it tells how that ends.
func (w *watch) elsewhere(err error) {
	var (
		held      *leader.HeldError
		leaseHeld *leader.LeaseHeldError
	)
	switch {
	case errors.As(err, &held):
		w.held(leader.AdvisoryLock)
	case errors.As(err, &leaseHeld):
		w.held(leader.LeaseLock)
	default:
		return
	}
	w.standby = true
}

// held notes that a lock is another's.
func (w *watch) held(lock string) { w.transition(leader.Transition{Lock: lock, Event: "held"}) }

func (w *watch) transition(t leader.Transition) {
	if w.metrics != nil {
		w.metrics.Transition(t.Lock, t.Event)
	}
}

// observers are who is told of each exchange with Stripe.
func (w *watch) observers() []func(context.Context, charges.Exchange) {
	if w.metrics == nil {
		return nil
	}
	return []func(context.Context, charges.Exchange){
		func(_ context.Context, e charges.Exchange) { w.metrics.Exchange(e) },
	}
}

// pacer is a pacer whose waits are told.
func (w *watch) pacer(rate float64) *charges.Pacer {
	pacer := charges.NewPacer(rate, time.Now)
	if w.metrics != nil {
		pacer.Observe = w.metrics.Waited
	}
	return pacer
}
