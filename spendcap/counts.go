package spendcap

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
)

// counts are the process's own counters. Their number is bounded: endpoints,
// statuses and outcomes are.
type counts struct {
	mu       sync.Mutex
	requests map[counted]int
	outcomes map[word]int
}

type counted struct{ endpoint, status string }

func (c *counts) add(e Endpoint, status string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.requests == nil {
		c.requests = make(map[counted]int)
	}
	c.requests[counted{cmp.Or(string(e), "other"), status}]++
}

func (c *counts) outcome(w word) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.outcomes == nil {
		c.outcomes = make(map[word]int)
	}
	c.outcomes[w]++
}

// write writes the counters in the text format that Prometheus scrapes.
func (c *counts) write(w io.Writer) {
	c.mu.Lock()
	requests, outcomes := maps.Clone(c.requests), maps.Clone(c.outcomes)
	c.mu.Unlock()
	fmt.Fprint(w, "# HELP duesday_proxy_requests_total Requests by endpoint and the status that the client was sent.\n"+
		"# TYPE duesday_proxy_requests_total counter\n")
	for _, k := range slices.SortedFunc(maps.Keys(requests), func(a, b counted) int {
		return cmp.Or(cmp.Compare(a.endpoint, b.endpoint), cmp.Compare(a.status, b.status))
	}) {
		fmt.Fprintf(w, "duesday_proxy_requests_total{endpoint=%q,status=%q} %d\n", k.endpoint, k.status, requests[k])
	}
	fmt.Fprint(w, "# HELP duesday_proxy_sends_total Creating calls forwarded to Stripe, by what became of them.\n"+
		"# TYPE duesday_proxy_sends_total counter\n")
	for _, k := range slices.Sorted(maps.Keys(outcomes)) {
		fmt.Fprintf(w, "duesday_proxy_sends_total{outcome=%q} %d\n", string(k), outcomes[k])
	}
}
