package metrics

import (
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/duesday/duesday/charges"
)

// stripeBuckets reach from a fast answer to the timeout of a request.
var stripeBuckets = []float64{.05, .1, .2, .3, .5, .75, 1, 1.5, 2, 3, 5, 10, 30, 80}

// run collects what this process does.
type run struct {
	cfg   Config
	descs runDescs
	began time.Time
	ended atomic.Bool

	requests    *prometheus.HistogramVec
	answers     *prometheus.CounterVec
	retries     *prometheus.CounterVec
	replays     prometheus.Counter
	waits       prometheus.Summary
	transitions *prometheus.CounterVec
}

func newRun(cfg Config) *run {
	counter := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Name: "duesday_" + name, Help: help}
	}
	return &run{
		cfg: cfg, descs: newRunDescs(), began: cfg.Now(),
		requests: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "duesday_stripe_request_duration_seconds", Help: "How long Stripe took to answer, by endpoint.", Buckets: stripeBuckets,
		}, []string{"endpoint"}),
		answers: prometheus.NewCounterVec(counter("stripe_answers_total",
			"Stripe's answers by endpoint and HTTP status; none: no answer came. 402 is a decline, 429 a rate limit."), []string{"endpoint", "code"}),
		retries: prometheus.NewCounterVec(counter("stripe_retries_total",
			"Requests that were made because the one before, for the same slot, came to nothing."), []string{"endpoint"}),
		replays: prometheus.NewCounter(counter("stripe_replays_total", "Answers that Stripe gave again, to a key that it knew.")),
		waits: prometheus.NewSummary(prometheus.SummaryOpts{
			Name: "duesday_pacer_wait_seconds", Help: "How long requests waited for their turn under the rate.",
		}),
		transitions: prometheus.NewCounterVec(counter("leadership_transitions_total",
			"What happened to the lease and the advisory lock: acquired, lost, released, or held by another."), []string{"lock", "event"}),
	}
}

func (r *run) vectors() []prometheus.Collector {
	return []prometheus.Collector{r.requests, r.answers, r.retries, r.replays, r.waits, r.transitions}
}

// Describe is prometheus.Collector's.
func (r *run) Describe(ch chan<- *prometheus.Desc) {
	sendAll(ch, r.descs.all())
	for _, v := range r.vectors() {
		v.Describe(ch)
	}
}

// Collect is prometheus.Collector's.
func (r *run) Collect(ch chan<- prometheus.Metric) {
	for _, v := range r.vectors() {
		v.Collect(ch)
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(r.descs.start, unix(r.began))
	if !r.ended.Load() {
		local := r.began.In(r.cfg.Zone)
		gauge(r.descs.dayEnd, unix(time.Date(local.Year(), local.Month(), local.Day()+1, 0, 0, 0, 0, r.cfg.Zone)))
	}
	p := r.cfg.Progress()
	if p.StartedAt.IsZero() {
		return // it has not got to work, or there was none
	}
	if !r.ended.Load() {
		gauge(r.descs.rate, p.PerSecond)
		if p.Known {
			gauge(r.descs.left, float64(p.Left))
		}
		if !p.End.IsZero() {
			gauge(r.descs.expectedEnd, unix(p.End))
		}
	}
	if !p.Known {
		return
	}
	if r.ended.Load() { // nothing is on its way any more
		p.InFlight, p.InFlightMoney = 0, nil
	}
	p.Tally.InDoubt -= p.InFlight
	gauge(r.descs.slots, float64(p.InFlight), inFlight)
	for i := range p.Money {
		m := &p.Money[i]
		m.InDoubt -= p.InFlightMoney[m.Currency]
		gauge(r.descs.amount, float64(p.InFlightMoney[m.Currency]), inFlight, m.Currency)
	}
	for _, status := range statuses {
		name := statusName(status)
		gauge(r.descs.slots, float64(*p.Tally.Of(status)), name)
		for i := range p.Money {
			gauge(r.descs.amount, float64(*p.Money[i].Of(status)), name, p.Money[i].Currency)
		}
	}
}

// inFlight is claimed and not answered yet, and no reason to worry.
const inFlight = "in_flight"

var statuses = []charges.Status{charges.Succeeded, charges.Declined, charges.Rejected, charges.Processing, charges.Claimed, charges.Unclaimed}

// statusName is what people are told: claimed and not settled is in doubt.
func statusName(s charges.Status) string {
	if s == charges.Claimed {
		return "in_doubt"
	}
	return string(s)
}

func (r *run) exchange(e charges.Exchange) {
	r.requests.WithLabelValues(e.Endpoint).Observe(e.Duration.Seconds())
	r.answers.WithLabelValues(e.Endpoint, code(e.Status)).Inc()
	if e.Retry {
		r.retries.WithLabelValues(e.Endpoint).Inc()
	}
	if e.Replayed {
		r.replays.Inc()
	}
}

// code is a status as a label: those that Stripe documents, and the class of any
// other.
func code(status int) string {
	switch status {
	case 0:
		return "none"
	case 200, 400, 401, 402, 403, 404, 409, 424, 429, 500, 502, 503, 504:
		return strconv.Itoa(status)
	}
	return strconv.Itoa(status/100%10) + "xx"
}
