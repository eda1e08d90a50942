package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/duesday/duesday/internal/stripesim"
)

// collector is an OTLP receiver in this process.
type collector struct {
	*httptest.Server
	mu     sync.Mutex
	bodies [][]byte
	auth   []string
}

func newCollector(t testing.TB) *collector {
	t.Helper()
	c := &collector{}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body) // what is cut does not parse
		c.mu.Lock()
		defer c.mu.Unlock()
		if r.URL.Path != "/v1/traces" || r.Header.Get("Content-Type") != "application/x-protobuf" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		c.bodies, c.auth = append(c.bodies, body), append(c.auth, r.Header.Get("Authorization"))
	}))
	t.Cleanup(c.Close)
	return c
}

// spans returns all that came, by name, and the resource of the last.
func (c *collector) spans(t testing.TB) (byName map[string][]*tracepb.Span, resource map[string]string) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	byName = map[string][]*tracepb.Span{}
	for _, body := range c.bodies {
		var data tracepb.TracesData
		require.NoError(t, proto.Unmarshal(body, &data))
		for _, r := range data.ResourceSpans {
			resource = values(r.Resource.Attributes)
			for _, s := range r.ScopeSpans {
				for _, span := range s.Spans {
					byName[span.Name] = append(byName[span.Name], span)
				}
			}
		}
	}
	return byName, resource
}

func values(all []*commonpb.KeyValue) map[string]string {
	found := map[string]string{}
	for _, a := range all {
		found[a.Key] = a.Value.GetStringValue()
	}
	return found
}

func TestTracing_sendsTheRunItsPagesAndChargesToTheCollector(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	customers := payers(40)
	b.add(t, customers...)
	b.sim.FaultCustomer("cus_0001", stripesim.Fault{Kind: stripesim.Error503})
	c := newCollector(t)
	b.env = with(b.env, "OTEL_EXPORTER_OTLP_ENDPOINT", c.URL, "OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20hunter2",
		"OTEL_SERVICE_NAME", "billing", "OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=staging", "POD_NAME", "duesday-0")
	p := b.run(t)
	p.requireExit(t, 0)
	b.requireBilled(t, customers)

	spans, resource := c.spans(t)
	require.Equal(t, "billing/staging/duesday-0", resource["service.name"]+"/"+resource["deployment.environment"]+"/"+resource["k8s.pod.name"])
	for _, auth := range c.auth {
		require.Equal(t, "Bearer hunter2", auth)
	}
	require.Len(t, spans["run"], 1)
	require.Len(t, spans["page"], 1)
	require.Equal(t, spans["run"][0].SpanId, spans["page"][0].Links[0].SpanId)
	require.Len(t, spans["charge"], len(customers))
	requests := map[string]bool{}
	for _, charge := range spans["charge"] {
		require.Equal(t, spans["page"][0].SpanId, charge.ParentSpanId)
		at := values(charge.Attributes)
		require.Equal(t, "paid", at["duesday.outcome"])
		require.Equal(t, testPeriod, at["duesday.billing_period"])
		requests[at["stripe.request_id"]] = true
	}
	require.Len(t, requests, len(customers), "each charge has its request's id")
	require.Len(t, spans["stripe charges.create"], len(customers)+1)
	statuses := map[int64]int{}
	for _, request := range spans["stripe charges.create"] {
		require.Equal(t, tracepb.Span_SPAN_KIND_CLIENT, request.Kind)
		require.Less(t, request.StartTimeUnixNano, request.EndTimeUnixNano)
		require.Regexp(t, "^req_", values(request.Attributes)["stripe.request_id"])
		for _, a := range request.Attributes {
			if a.Key == "http.response.status_code" {
				statuses[a.Value.GetIntValue()]++
			}
		}
	}
	require.Equal(t, map[int64]int{200: len(customers), 503: 1}, statuses)

	// Whoever may read traces need not be told who paid.
	for _, body := range c.bodies {
		for _, who := range customers {
			for _, needle := range []string{who.id, who.stripeID, testKey, "hunter2"} {
				require.NotContains(t, string(body), needle)
			}
		}
	}
	require.NotContains(t, p.err.String(), "hunter2")
}

func TestTracing_ofOtherPeopleNeverHarmsARun(t *testing.T) {
	t.Parallel()
	hung := make(chan struct{})
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		select {
		case <-hung:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(silent.Close)
	t.Cleanup(func() { close(hung) })
	dead := httptest.NewServer(http.NotFoundHandler())
	dead.Close()
	for name, tc := range map[string]struct {
		env  []string
		warn string
	}{
		"dead":         {[]string{"OTEL_EXPORTER_OTLP_ENDPOINT", dead.URL + "/hunter2"}, "cannot send spans"},
		"silent":       {[]string{"OTEL_EXPORTER_OTLP_ENDPOINT", silent.URL + "/hunter2"}, "cannot send spans"},
		"no protobuf":  {[]string{"OTEL_EXPORTER_OTLP_ENDPOINT", dead.URL, "OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"}, "tracing is off"},
		"no endpoint":  {[]string{"OTEL_EXPORTER_OTLP_ENDPOINT", "hunter2"}, "tracing is off"},
		"switched off": {[]string{"OTEL_EXPORTER_OTLP_ENDPOINT", dead.URL, "OTEL_TRACES_EXPORTER", "none"}, ""},
		"no sample":    {[]string{"OTEL_EXPORTER_OTLP_ENDPOINT", dead.URL, "OTEL_TRACES_SAMPLER", "always_off"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, stripesim.Options{})
			customers := payers(3)
			b.add(t, customers...)
			b.env = with(b.env, tc.env...)
			p := b.run(t)
			p.awaitLog(t, "advisory lock released")
			released := time.Now()
			p.requireExit(t, 0)
			require.Less(t, time.Since(released), 5*traceFlush)
			b.requireBilled(t, customers)
			require.NotContains(t, p.err.String(), "hunter2")
			if tc.warn == "" {
				require.NotContains(t, p.err.String(), `"level":"warn"`)
			} else {
				require.Contains(t, p.err.String(), tc.warn)
			}
		})
	}
}
