package metrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// ends are how the commands ended, as a scrape is told: the ledger's, with this
// process's own in the place of its command's.
type ends struct {
	state *state
	descs endDescs

	mu    sync.Mutex
	own   *end // nil: it has not ended
	whole bool // no other shares its command's work
}

// note notes how this process ended.
func (e *ends) note(code int, took time.Duration, whole bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	cfg := e.state.cfg
	e.own, e.whole = &end{command: cfg.Command, at: cfg.Now(), code: code, durationSec: took.Seconds()}, whole
	if code == 0 {
		e.own.success = e.own.at
	}
}

// Describe is prometheus.Collector's.
func (e *ends) Describe(ch chan<- *prometheus.Desc) { sendAll(ch, e.descs.all()) }

// Collect is prometheus.Collector's.
func (e *ends) Collect(ch chan<- prometheus.Metric) {
	for _, end := range e.all() {
		e.descs.collect(ch, end, end.command)
	}
}

func (e *ends) all() []end {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := e.state.ends()
	// A part that went well says nothing of the whole: the ledger knows its
	// sisters.
	if e.own == nil || !e.whole && e.own.code == 0 {
		return all
	}
	for i := range all {
		if all[i].command == e.own.command {
			success := all[i].success
			all[i] = *e.own
			if all[i].success.IsZero() {
				all[i].success = success
			}
			return all
		}
	}
	return append(all, *e.own)
}

// ownEnd is how this process ended, as it is pushed: nobody else knows it
// better, and the last success of another process is not its to tell.
type ownEnd struct {
	ends  *ends
	descs endDescs
}

// Describe is prometheus.Collector's.
func (o ownEnd) Describe(ch chan<- *prometheus.Desc) { sendAll(ch, o.descs.all()) }

// Collect is prometheus.Collector's.
func (o ownEnd) Collect(ch chan<- prometheus.Metric) {
	o.ends.mu.Lock()
	defer o.ends.mu.Unlock()
	if o.ends.own != nil {
		o.descs.collect(ch, *o.ends.own)
	}
}

type endDescs struct{ exitCode, ended, duration, lastSuccess *prometheus.Desc }

func newEndDescs(labels ...string) endDescs {
	return endDescs{
		exitCode:    desc("last_run_exit_code", "Exit code of the command's last run: 0 settled, 1 worth another try, 2 misconfigured, 3 a person must act.", labels...),
		ended:       desc("last_run_end_timestamp_seconds", "When the command's last run ended, as Unix time.", labels...),
		duration:    desc("last_run_duration_seconds", "How long the command's last run took.", labels...),
		lastSuccess: desc("last_success_timestamp_seconds", "When the command last ended with exit code 0, as Unix time.", labels...),
	}
}

func (d *endDescs) all() []*prometheus.Desc {
	return []*prometheus.Desc{d.exitCode, d.ended, d.duration, d.lastSuccess}
}

func (d *endDescs) collect(ch chan<- prometheus.Metric, e end, labels ...string) {
	gauge := func(d *prometheus.Desc, v float64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(d.exitCode, float64(e.code))
	gauge(d.ended, unix(e.at))
	gauge(d.duration, e.durationSec)
	if !e.success.IsZero() {
		gauge(d.lastSuccess, unix(e.success))
	}
}
