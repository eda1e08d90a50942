package job_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/duesday/duesday/internal/stripesim"
	"github.com/duesday/duesday/job"
)

// traced makes the run traced, and returns its spans by name once it has ended.
func (b *testBundle) traced(t *testing.T) func() map[string]tracetest.SpanStubs {
	t.Helper()
	spans := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	t.Cleanup(func() { require.NoError(t, provider.Shutdown(context.Background())) })
	b.Tracer = provider.Tracer("test")
	return func() map[string]tracetest.SpanStubs {
		all := map[string]tracetest.SpanStubs{}
		for _, s := range spans.GetSpans() {
			all[s.Name] = append(all[s.Name], s)
		}
		return all
	}
}

func attrs(s tracetest.SpanStub) map[attribute.Key]string {
	all := map[attribute.Key]string{}
	for _, a := range s.Attributes {
		all[a.Key] = a.Value.String()
	}
	return all
}

func TestTrace_hasTheRunItsPagesAndTheirCharges(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Lead = b.lead(t)
	b.sim.Decline("cus_10", "card_declined", "insufficient_funds")
	b.sim.FaultCustomer("cus_11", stripesim.Fault{Kind: stripesim.Error500BeforeCommit})
	spans := b.traced(t)
	_, err := job.Run(context.Background(), b.Config)
	require.ErrorIs(t, err, job.ErrUnfinished)
	all := spans()
	require.Len(t, all, 3)

	require.Len(t, all["run"], 1)
	run := all["run"][0]
	require.False(t, run.Parent.IsValid())
	require.Equal(t, codes.Error, run.Status.Code)
	require.Equal(t, "2026-10/1/48/1/1", attrs(run)["duesday.billing_period"]+"/"+attrs(run)["duesday.exit_code"]+"/"+
		attrs(run)["duesday.succeeded"]+"/"+attrs(run)["duesday.declined"]+"/"+attrs(run)["duesday.in_doubt"])

	// Five of ten dues, and one of what was left in doubt.
	require.Len(t, all["page"], 6)
	pages := map[string]int{}
	for _, p := range all["page"] {
		require.False(t, p.Parent.IsValid(), "a page is a trace of its own")
		require.Len(t, p.Links, 1)
		require.Equal(t, run.SpanContext.SpanID(), p.Links[0].SpanContext.SpanID())
		pages[p.SpanContext.SpanID().String()] = 0
	}
	outcomes := map[string]int{}
	require.Len(t, all["charge"], 51)
	for _, c := range all["charge"] {
		at := attrs(c)
		outcomes[at["duesday.outcome"]]++
		require.Equal(t, "2026-10", at["duesday.billing_period"])
		require.Equal(t, "1", at["duesday.attempt"])
		require.Regexp(t, "^req_", at["stripe.request_id"])
		require.Len(t, at, 4, "what else?")
		require.Contains(t, pages, c.Parent.SpanID().String())
		pages[c.Parent.SpanID().String()]++
	}
	require.Equal(t, map[string]int{"paid": 48, "refused": 1, "unknown": 2}, outcomes)
	for _, p := range all["page"] {
		require.EqualValues(t, attrs(p)["duesday.slots"], attribute.IntValue(pages[p.SpanContext.SpanID().String()]).String())
	}
}

func TestTrace_endsEveryPageOfAStoppedRun(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Lead = b.lead(t)
	ctx, stop := context.WithCancelCause(context.Background())
	b.sim.OnCommit(func(stripesim.Charge) { stop(job.ErrStopped) })
	started := &countingProcessor{}
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(started))
	b.Tracer = provider.Tracer("test")
	_, err := job.Run(ctx, b.Config)
	require.ErrorIs(t, err, job.ErrStopped)
	require.NotZero(t, started.started.Load())
	require.Equal(t, started.started.Load(), started.ended.Load())
}

type countingProcessor struct{ started, ended atomic.Int64 }

func (p *countingProcessor) OnStart(context.Context, sdktrace.ReadWriteSpan) { p.started.Add(1) }
func (p *countingProcessor) OnEnd(sdktrace.ReadOnlySpan)                     { p.ended.Add(1) }
func (p *countingProcessor) Shutdown(context.Context) error                  { return nil }
func (p *countingProcessor) ForceFlush(context.Context) error                { return nil }
