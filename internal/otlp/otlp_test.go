package otlp_test

import (
	"compress/gzip"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/duesday/duesday/internal/otlp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func env(pairs ...string) func(string) (string, bool) {
	all := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		all["OTEL_EXPORTER_OTLP_"+pairs[i]] = pairs[i+1]
	}
	return func(name string) (string, bool) {
		value, ok := all[name]
		if !ok {
			value, ok = all["OTEL_EXPORTER_OTLP_!"+name]
		}
		return value, ok
	}
}

func TestFromEnv_followsTheSpecification(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		env  []string
		url  string
		err  string
		want func(*otlp.Config)
	}{
		"nothing":         {},
		"base":            {env: []string{"ENDPOINT", "http://c:4318"}, url: "http://c:4318/v1/traces"},
		"base, slash":     {env: []string{"ENDPOINT", "http://c:4318/"}, url: "http://c:4318/v1/traces"},
		"base, path":      {env: []string{"ENDPOINT", "https://c/otlp"}, url: "https://c/otlp/v1/traces"},
		"as it is":        {env: []string{"TRACES_ENDPOINT", "http://c:4318/x", "ENDPOINT", "http://d"}, url: "http://c:4318/x"},
		"off":             {env: []string{"ENDPOINT", "http://c", "!OTEL_SDK_DISABLED", "True"}},
		"no exporter":     {env: []string{"ENDPOINT", "http://c", "!OTEL_TRACES_EXPORTER", "none"}},
		"no scheme":       {env: []string{"ENDPOINT", "hunter2:4318"}, err: "OTEL_EXPORTER_OTLP_ENDPOINT: want a URL like http://collector:4318"},
		"grpc":            {env: []string{"ENDPOINT", "http://c", "PROTOCOL", "grpc"}, err: "OTEL_EXPORTER_OTLP_PROTOCOL: want http/protobuf, there is no other"},
		"traces by http":  {env: []string{"ENDPOINT", "http://c", "PROTOCOL", "grpc", "TRACES_PROTOCOL", "http/protobuf"}, url: "http://c/v1/traces"},
		"bad compression": {env: []string{"ENDPOINT", "http://c", "COMPRESSION", "zstd"}, err: "OTEL_EXPORTER_OTLP_COMPRESSION: want gzip or none"},
		"gzip":            {env: []string{"ENDPOINT", "http://c", "COMPRESSION", "gzip"}, url: "http://c/v1/traces", want: func(c *otlp.Config) { c.Gzip = true }},
		"bad timeout":     {env: []string{"ENDPOINT", "http://c", "TIMEOUT", "10s"}, err: "OTEL_EXPORTER_OTLP_TIMEOUT: want milliseconds"},
		"timeout":         {env: []string{"ENDPOINT", "http://c", "TIMEOUT", "1500"}, url: "http://c/v1/traces", want: func(c *otlp.Config) { c.Timeout = 1500 * time.Millisecond }},
		"bad headers":     {env: []string{"ENDPOINT", "http://c", "HEADERS", "hunter2"}, err: "OTEL_EXPORTER_OTLP_HEADERS: want pairs like name=value, with commas between"},
		"headers, of one too": {env: []string{"ENDPOINT", "http://c", "HEADERS", "authorization=Bearer%20hunter2, x-a = 1,"}, url: "http://c/v1/traces",
			want: func(c *otlp.Config) { c.Headers.Set("Authorization", "Bearer hunter2"); c.Headers.Set("X-A", "1") }},
	} {
		got, err := otlp.FromEnv(env(tc.env...))
		if tc.err != "" {
			require.EqualError(t, err, tc.err, name)
			continue
		}
		require.NoError(t, err, name)
		if tc.url == "" {
			require.Nil(t, got, name)
			continue
		}
		want := &otlp.Config{URL: tc.url, Headers: http.Header{}, Timeout: 10 * time.Second}
		if tc.want != nil {
			tc.want(want)
		}
		require.Equal(t, want, got, name)
	}
}

func spans() []*tracepb.ResourceSpans {
	return []*tracepb.ResourceSpans{{ScopeSpans: []*tracepb.ScopeSpans{{Spans: []*tracepb.Span{{
		Name: "charge", Attributes: []*commonpb.KeyValue{{Key: "k"}},
	}}}}}}
}

func TestClient_postsProtobuf(t *testing.T) {
	t.Parallel()
	for _, packed := range []bool{false, true} {
		var got tracepb.TracesData
		var header http.Header
		server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			body := io.Reader(r.Body)
			if packed {
				body, _ = gzip.NewReader(r.Body)
			}
			content, _ := io.ReadAll(body)
			_ = proto.Unmarshal(content, &got) // the comparison tells
			header = r.Header
		}))
		client := otlp.NewClient(otlp.Config{URL: server.URL + "/v1/traces", Headers: http.Header{"X-Token": {"hunter2"}}, Timeout: time.Minute, Gzip: packed},
			func(err error) { t.Error(err) })
		require.NoError(t, client.UploadTraces(t.Context(), spans()))
		require.NoError(t, client.Stop(t.Context()))
		server.Close()
		require.True(t, proto.Equal(&tracepb.TracesData{ResourceSpans: spans()}, &got))
		require.Equal(t, "application/x-protobuf", header.Get("Content-Type"))
		require.Equal(t, "hunter2", header.Get("X-Token"))
	}
}

func TestClient_losesWhatNobodyTakes(t *testing.T) {
	t.Parallel()
	dead := httptest.NewServer(http.NotFoundHandler())
	dead.Close()
	hung := make(chan struct{})
	asked := make(chan struct{}, 1)
	answering := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/hangs/hunter2":
			_, _ = io.Copy(io.Discard, r.Body)
			asked <- struct{}{}
			select {
			case <-hung:
			case <-r.Context().Done():
			}
		case "/redirects/hunter2":
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		default:
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(answering.Close)
	t.Cleanup(func() { close(hung) })
	for url, want := range map[string]string{
		dead.URL + "/hunter2":                "connection refused",
		answering.URL + "/full/hunter2":      "the collector answered 503",
		answering.URL + "/redirects/hunter2": "the collector answered 307",
		answering.URL + "/hangs/hunter2":     "context canceled",
	} {
		var lost []error
		client := otlp.NewClient(otlp.Config{URL: url, Timeout: time.Minute}, func(err error) { lost = append(lost, err) })
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = client.UploadTraces(context.Background(), spans())
		}()
		if want == "context canceled" {
			<-asked
		} else {
			<-done
		}
		require.NoError(t, client.Stop(t.Context()))
		<-done
		require.Len(t, lost, 1, want)
		require.ErrorContains(t, lost[0], want)
		require.NotContains(t, lost[0].Error(), "hunter2")
	}
}
