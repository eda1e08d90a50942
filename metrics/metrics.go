package metrics

import (
	"context"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/job"
)

// Config is whose metrics they are.
type Config struct {
	Command string // run or reconcile
	Version string
	// Zone and Offset say which month is the current one, as they do for the run.
	Zone   *time.Location
	Offset int
	// Progress is asked where the run stands, once a scrape and a push.
	Progress func() job.Progress
	Log      *zap.Logger
	Now      func() time.Time
}

// Metrics are one process's. All methods may be called from any goroutine.
type Metrics struct {
	state    *state
	ends     *ends
	run      *run
	registry *prometheus.Registry
}

// New returns the metrics of a process that begins now. They are in a registry
// of their own.
func New(cfg Config) *Metrics {
	s := &state{cfg: cfg, descs: newStateDescs()}
	m := &Metrics{
		state:    s,
		ends:     &ends{state: s, descs: newEndDescs("command")},
		run:      newRun(cfg),
		registry: prometheus.NewRegistry(),
	}
	m.registry.MustRegister(m.state, m.ends)
	// A push has the command in its grouping key, and so not in the metrics.
	prometheus.WrapRegistererWith(prometheus.Labels{"command": cfg.Command}, m.registry).MustRegister(m.run)
	return m
}

// Attach reads the state, and again when what it returns is called, which must
// be before db is closed. In between a scrape reads at most every ten
// seconds, and only what is small.
func (m *Metrics) Attach(ctx context.Context, db charges.Querier) (detach func()) {
	m.state.attach(ctx, db)
	return func() { m.state.detach(ctx) }
}

// Exchange counts an exchange with Stripe.
func (m *Metrics) Exchange(e charges.Exchange) { m.run.exchange(e) }

// Waited counts a wait for leave to send.
func (m *Metrics) Waited(d time.Duration) { m.run.waits.Observe(d.Seconds()) }

// Transition counts what happened to a lock: both are names out of a few.
func (m *Metrics) Transition(lock, event string) {
	m.run.transitions.WithLabelValues(lock, event).Inc()
}

// End notes the exit code, and that what holds only while it runs is over. whole
// is false if others share the command's work: then a scrape is told what the
// ledger knows of them all, and a push of this one.
func (m *Metrics) End(exitCode int, whole bool) {
	m.run.ended.Store(true)
	m.ends.note(exitCode, m.state.cfg.Now().Sub(m.run.began), whole)
}

// Handler serves the metrics to a scrape.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4, Timeout: 10 * time.Second})
}

// Describe is prometheus.Collector's, as a scrape sees the metrics.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) { m.registry.Describe(ch) }

// Collect is prometheus.Collector's.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) { m.registry.Collect(ch) }
