package job

import (
	"context"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/internal/exitcode"
)

// Names of attributes. None holds anything of a customer's: Stripe's request id
// leads to him.
const (
	attrPeriod  = "duesday.billing_period"
	attrAttempt = "duesday.attempt"
	attrOutcome = "duesday.outcome"
	attrRequest = "stripe.request_id"
)

// traceRun begins the run's span. Without a Tracer it does nothing.
func (r *run) traceRun(ctx context.Context, name string) (context.Context, func(error)) {
	if r.Tracer == nil {
		return ctx, func(error) {}
	}
	ctx, r.span = r.Tracer.Start(ctx, name, trace.WithAttributes(
		attribute.String(attrPeriod, r.summary.Period), attribute.Int64("duesday.run_id", r.Lead.RunID())))
	return ctx, func(err error) {
		this := r.summary.This
		r.span.SetAttributes(attribute.Int("duesday.exit_code", exitcode.Of(err)),
			attribute.Int64("duesday.succeeded", this.Succeeded), attribute.Int64("duesday.declined", this.Declined),
			attribute.Int64("duesday.rejected", this.Rejected), attribute.Int64("duesday.in_doubt", this.InDoubt))
		if err != nil {
			r.span.SetStatus(codes.Error, err.Error())
		}
		r.span.End()
	}
}

// page is a page of slots on its way through the workers; nil: nobody traces.
type page struct {
	span trace.Span
	left atomic.Int64
}

// newPage begins the span of a page that took since began to be read. It is a
// trace of its own, linked to the run's: a million charges in one trace are more
// than any backend shows, and so a sampler can choose among pages.
func (r *run) newPage(slots int, began time.Time) *page {
	if r.Tracer == nil || slots == 0 {
		return nil
	}
	p := new(page)
	p.left.Store(int64(slots))
	_, p.span = r.Tracer.Start(context.Background(), "page", trace.WithTimestamp(began),
		trace.WithLinks(trace.Link{SpanContext: r.span.SpanContext()}),
		trace.WithAttributes(attribute.String(attrPeriod, r.summary.Period), attribute.Int("duesday.slots", slots)))
	return p
}

// done is called once for each of the page's slots.
func (p *page) done() {
	if p != nil && p.left.Add(-1) == 0 {
		p.span.End()
	}
}

// traceSlot begins the span of what is done with a slot, in a context for its
// requests. The span is nil if nobody traces.
func (w *work) traceSlot(name string, t *task) (context.Context, trace.Span) {
	if t.page == nil {
		return w.inFlight, nil
	}
	return w.Tracer.Start(trace.ContextWithSpan(w.inFlight, t.page.span), name, trace.WithAttributes(
		attribute.String(attrPeriod, w.summary.Period), attribute.Int(attrAttempt, t.Attempt)))
}

func endSlot(span trace.Span, out *charges.Outcome) {
	if span == nil {
		return
	}
	span.SetAttributes(attribute.String(attrOutcome, out.Verdict.String()))
	if out.RequestID != "" {
		span.SetAttributes(attribute.String(attrRequest, out.RequestID))
	}
	if !out.Settles() {
		span.SetStatus(codes.Error, out.Verdict.String())
	}
	span.End()
}
