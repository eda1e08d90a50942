package spendcap

import (
	"cmp"

	"github.com/prometheus/client_golang/prometheus"
)

// counts are the process's own counters. Their number is bounded: endpoints,
// statuses and outcomes are.
type counts struct {
	requests *prometheus.CounterVec
	outcomes *prometheus.CounterVec
}

func newCounts() counts {
	return counts{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "duesday_proxy_requests_total",
			Help: "Requests to the spend-cap proxy by endpoint and the status that the client was sent.",
		}, []string{"endpoint", "status"}),
		outcomes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "duesday_proxy_sends_total",
			Help: "Creating calls that the spend-cap proxy forwarded to Stripe, by what became of them.",
		}, []string{"outcome"}),
	}
}

func (c *counts) add(e Endpoint, status string) {
	c.requests.WithLabelValues(cmp.Or(string(e), "other"), status).Inc()
}

func (c *counts) outcome(w word) { c.outcomes.WithLabelValues(string(w)).Inc() }

// Describe is prometheus.Collector's.
func (p *Proxy) Describe(ch chan<- *prometheus.Desc) {
	p.counts.requests.Describe(ch)
	p.counts.outcomes.Describe(ch)
}

// Collect is prometheus.Collector's: the proxy's own counters.
func (p *Proxy) Collect(ch chan<- prometheus.Metric) {
	p.counts.requests.Collect(ch)
	p.counts.outcomes.Collect(ch)
}
