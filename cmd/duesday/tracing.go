package main

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/internal/otlp"
)

// traceFlush bounds what a collector that does not answer costs a run that has
// ended.
const traceFlush = 3 * time.Second

// tracing sends spans to a collector; nil: nobody traces.
type tracing struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
	client   *otlp.Client
	log      *zap.Logger
	once     sync.Once
}

// tracing is as OpenTelemetry's environment variables say. What is wrong with
// them switches tracing off, and is no reason not to bill: they are often set
// for a whole cluster.
func (p *program) tracing(ctx context.Context, log *zap.Logger) *tracing {
	config, err := otlp.FromEnv(p.env)
	if err != nil {
		log.Warn("tracing is off", zap.Error(err))
		return nil
	}
	if config == nil {
		return nil
	}
	t := &tracing{log: log}
	t.client = otlp.NewClient(*config, t.lost)
	exporter, err := otlptrace.New(ctx, t.client)
	if err != nil {
		log.Warn("tracing is off", zap.Error(err))
		return nil
	}
	attrs := []attribute.KeyValue{attribute.String("service.name", "duesday"), attribute.String("service.version", version)}
	for name, key := range map[string]string{"POD_NAME": "k8s.pod.name", "POD_NAMESPACE": "k8s.namespace.name", "JOB_NAME": "k8s.job.name"} {
		if value := p.lookup(name); value != "" {
			attrs = append(attrs, attribute.String(key, value))
		}
	}
	// Later ones win: OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME.
	about, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithAttributes(attrs...), resource.WithFromEnv())
	if err != nil {
		log.Warn("OTEL_RESOURCE_ATTRIBUTES is not read as a whole", zap.Error(err))
	}
	t.provider = sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(about))
	t.tracer = t.provider.Tracer("github.com/duesday/duesday")
	return t
}

// lost tells of the first batch that did not get there; the others mostly fail
// alike.
func (t *tracing) lost(err error) {
	t.once.Do(func() {
		t.log.Warn("cannot send spans to the collector; billing is not affected", zap.Error(err))
	})
}

// end sends what is left.
func (t *tracing) end(ctx context.Context) {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), traceFlush)
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil {
		t.lost(err)
	}
	_ = t.client.Stop(ctx) // whatever is still under way
}

// jobTracer is what a job wants: nil for none.
func (t *tracing) jobTracer() trace.Tracer {
	if t == nil {
		return nil
	}
	return t.tracer
}

// exchange is the span of a request to Stripe, below that of its slot, which
// gets the last answer's status.
func (t *tracing) exchange(ctx context.Context, e charges.Exchange) {
	slot := trace.SpanFromContext(ctx)
	if !slot.IsRecording() {
		return
	}
	attrs := []attribute.KeyValue{
		attribute.Int("http.response.status_code", e.Status),
		attribute.String("stripe.request_id", e.RequestID),
	}
	if e.Status != 0 {
		slot.SetAttributes(attrs...)
	}
	end := time.Now()
	_, span := t.tracer.Start(ctx, "stripe "+e.Endpoint, trace.WithSpanKind(trace.SpanKindClient),
		trace.WithTimestamp(end.Add(-e.Duration)),
		trace.WithAttributes(append(attrs, attribute.Bool("stripe.replayed", e.Replayed), attribute.Bool("duesday.retry", e.Retry))...))
	if e.Status == 0 || e.Status >= 500 {
		span.SetStatus(codes.Error, "")
	}
	span.End(trace.WithTimestamp(end))
}

// observe adds the tracing to who is told of exchanges.
func (t *tracing) observe(others []func(context.Context, charges.Exchange)) []func(context.Context, charges.Exchange) {
	if t == nil {
		return others
	}
	return append(others, t.exchange)
}
