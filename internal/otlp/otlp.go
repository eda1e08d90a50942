// Package otlp sends spans to a collector by OTLP over HTTP, in protobuf, and
// is configured by the environment variables that OpenTelemetry has for it. The
// usual exporter links gRPC, which is half as big as Duesday.
//
// It never fails and never shows an endpoint's path or a header: either may hold
// a token.
package otlp

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/duesday/duesday/internal/outside"
)

// Config is where spans go, and how.
type Config struct {
	URL     string // with its path
	Headers http.Header
	Timeout time.Duration // for one request
	Gzip    bool
}

// FromEnv reads OTEL_EXPORTER_OTLP_TRACES_… and, where such a variable is not
// set, OTEL_EXPORTER_OTLP_…. It returns nil if no endpoint is named, or tracing
// is switched off. Errors name the variable and never its value.
//
// https://opentelemetry.io/docs/specs/otel/protocol/exporter/
func FromEnv(env func(string) (string, bool)) (*Config, error) {
	lookup := func(name string) string {
		value, _ := env(name)
		return strings.TrimSpace(value)
	}
	either := func(name string) (value, from string) {
		from = "OTEL_EXPORTER_OTLP_TRACES_" + name
		if value = lookup(from); value != "" {
			return value, from
		}
		from = "OTEL_EXPORTER_OTLP_" + name
		return lookup(from), from
	}
	endpoint, from := either("ENDPOINT")
	if endpoint == "" || strings.EqualFold(lookup("OTEL_SDK_DISABLED"), "true") || lookup("OTEL_TRACES_EXPORTER") == "none" {
		return nil, nil
	}
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, fmt.Errorf("%s: want a URL like http://collector:4318", from)
	}
	if from == "OTEL_EXPORTER_OTLP_ENDPOINT" {
		u = u.JoinPath("v1/traces")
	}
	c := &Config{URL: u.String(), Headers: http.Header{}, Timeout: 10 * time.Second}
	if protocol, from := either("PROTOCOL"); protocol != "" && protocol != "http/protobuf" {
		return nil, fmt.Errorf("%s: want http/protobuf, there is no other", from)
	}
	switch compression, from := either("COMPRESSION"); compression {
	case "", "none":
	case "gzip":
		c.Gzip = true
	default:
		return nil, fmt.Errorf("%s: want gzip or none", from)
	}
	if timeout, from := either("TIMEOUT"); timeout != "" {
		milliseconds, err := strconv.Atoi(timeout)
		if err != nil || milliseconds <= 0 {
			return nil, fmt.Errorf("%s: want milliseconds", from)
		}
		c.Timeout = time.Duration(milliseconds) * time.Millisecond
	}
	headers, from := either("HEADERS")
	for pair := range strings.SplitSeq(headers, ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		name, value, found := strings.Cut(pair, "=")
		value, err := url.PathUnescape(strings.TrimSpace(value))
		if !found || err != nil {
			return nil, fmt.Errorf("%s: want pairs like name=value, with commas between", from)
		}
		c.Headers.Set(strings.TrimSpace(name), value)
	}
	return c, nil
}

// Client sends spans, each batch once. It is what otlptrace.New wants.
type Client struct {
	config Config
	http   *http.Client
	failed func(error)
	ctx    context.Context
	stop   context.CancelFunc
}

// NewClient makes a client that tells failed of every batch that is lost.
func NewClient(config Config, failed func(error)) *Client {
	c := &Client{config: config, failed: failed, http: outside.Client()}
	c.ctx, c.stop = context.WithCancel(context.Background())
	return c
}

// Start does nothing: the first batch connects.
func (c *Client) Start(context.Context) error { return nil }

// Stop ends what is under way.
func (c *Client) Stop(context.Context) error {
	c.stop()
	c.http.CloseIdleConnections()
	return nil
}

// UploadTraces sends one batch. It returns no error: OpenTelemetry's SDK would
// print it.
func (c *Client) UploadTraces(ctx context.Context, spans []*tracepb.ResourceSpans) error {
	if err := c.upload(ctx, spans); err != nil {
		c.failed(err)
	}
	return nil
}

func (c *Client) upload(ctx context.Context, spans []*tracepb.ResourceSpans) error {
	// As an ExportTraceServiceRequest is, on the wire.
	body, err := proto.Marshal(&tracepb.TracesData{ResourceSpans: spans})
	if err != nil {
		return fmt.Errorf("marshal spans: %w", err)
	}
	if c.config.Gzip {
		var packed bytes.Buffer
		w := gzip.NewWriter(&packed)
		if _, err := w.Write(body); err != nil {
			return err
		}
		if err := w.Close(); err != nil {
			return err
		}
		body = packed.Bytes()
	}
	ctx, cancel := context.WithTimeout(ctx, c.config.Timeout)
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.config.URL, bytes.NewReader(body))
	if err != nil {
		return errors.New("the endpoint makes no request")
	}
	for name, values := range c.config.Headers {
		req.Header[name] = values
	}
	req.Header.Set("Content-Type", "application/x-protobuf")
	if c.config.Gzip {
		req.Header.Set("Content-Encoding", "gzip")
	}
	res, err := c.http.Do(req)
	if err != nil {
		return outside.Error(err)
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, 1<<20)) // for the connection's sake
	if res.StatusCode < 200 || res.StatusCode > 299 {
		return fmt.Errorf("the collector answered %d", res.StatusCode)
	}
	return nil
}
