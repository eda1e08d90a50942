package spendcap

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/stripe/stripe-go/v76"
	"github.com/stripe/stripe-go/v76/client"

	"github.com/duesday/duesday/internal/stripesim"
)

// upstream is a Stripe that shows what it was sent, and answers as told.
type upstream struct {
	mu     sync.Mutex
	seen   []*http.Request
	bodies []string
	answer http.HandlerFunc
}

func (u *upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	u.mu.Lock()
	u.seen, u.bodies = append(u.seen, r), append(u.bodies, string(body))
	u.mu.Unlock()
	u.answer(w, r)
}

func (u *upstream) requests() ([]*http.Request, []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.seen, u.bodies
}

func setupUpstream(t *testing.T, o options, answer http.HandlerFunc) (*testBundle, *upstream) {
	t.Helper()
	u := &upstream{answer: answer}
	srv := httptest.NewServer(u)
	t.Cleanup(srv.Close)
	o.upstream = srv.URL
	return setup(t, o), u
}

const chargeJSON = `{"id":"ch_1","object":"charge","amount":1000,"currency":"usd","status":"succeeded"}`

func TestProxy_headersAndBodyPassBothWays(t *testing.T) {
	t.Parallel()
	b, u := setupUpstream(t, options{}, func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h.Set("Request-Id", "req_1")
		h.Set("Idempotency-Key", "k1")
		h.Set("Idempotent-Replayed", "true")
		h.Set("Stripe-Should-Retry", "false")
		h.Set("Stripe-Version", "2023-10-16")
		h.Set("Connection", "X-Internal")
		h.Set("X-Internal", "hop by hop")
		h.Add("X-Many", "1")
		h.Add("X-Many", "2")
		_, _ = io.WriteString(w, chargeJSON)
	})
	c := charge{key: "k1", amount: 1000, more: "&metadata[a]=%E2%82%AC+1", header: http.Header{
		"Stripe-Version":             {"2023-10-16"},
		"Stripe-Account":             {"acct_1"},
		"User-Agent":                 {"Stripe/v1 GoBindings/76.25.0"},
		"X-Stripe-Client-User-Agent": {`{"lang":"go"}`},
		"X-Forwarded-For":            {"10.0.0.1"},
		"Accept-Encoding":            {"gzip"},
		"Cookie":                     {"a=b"},
	}}
	got := b.requireStatus(t, 200, c)
	require.Equal(t, chargeJSON, got.body)
	for name, want := range map[string]string{
		"Request-Id": "req_1", "Idempotency-Key": "k1", "Idempotent-Replayed": "true", "Stripe-Should-Retry": "false",
		"Stripe-Version": "2023-10-16", "X-Internal": "", "X-Many": "1",
	} {
		require.Equal(t, want, got.header.Get(name), name)
	}
	require.Len(t, got.header.Values("X-Many"), 2)

	seen, bodies := u.requests()
	require.Len(t, seen, 1)
	require.Equal(t, c.body(), bodies[0], "byte for byte")
	require.Equal(t, "/v1/charges", seen[0].RequestURI)
	require.Equal(t, int64(len(c.body())), seen[0].ContentLength)
	require.Equal(t, strings.TrimPrefix(b.proxy.base.String(), "http://"), seen[0].Host)
	for name, want := range map[string]string{
		"Authorization": "Bearer " + realSecret, "Idempotency-Key": "k1", "Stripe-Version": "2023-10-16", "Stripe-Account": "acct_1",
		"User-Agent": "Stripe/v1 GoBindings/76.25.0", "X-Stripe-Client-User-Agent": `{"lang":"go"}`,
		"Content-Type": "application/x-www-form-urlencoded", "X-Forwarded-For": "", "Accept-Encoding": "", "Cookie": "",
	} {
		require.Equal(t, want, seen[0].Header.Get(name), name)
	}
	for name, values := range seen[0].Header {
		require.NotContains(t, strings.Join(values, " "), "vk_", name)
	}
	b.requireReserved(t, 1000, 0)
	b.requireSecretsKept(t, "cus_1", "k1")
}

// A list streams: its first part is there before the last is written, and
// comes as compressed as the client asked for.
func TestProxy_listsStreamAsTheyAre(t *testing.T) {
	t.Parallel()
	const query = "customer=cus_1&created%5Bgte%5D=3&limit=100"
	for name, length := range map[string]string{"length unknown": "", "length known": "10"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			release := make(chan struct{})
			end := sync.OnceFunc(func() { close(release) })
			b, u := setupUpstream(t, options{}, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Encoding", "gzip") // as far as the proxy can tell
				if length != "" {
					w.Header().Set("Content-Length", length)
				}
				_, _ = io.WriteString(w, "first")
				w.(http.Flusher).Flush()
				<-release
				_, _ = io.WriteString(w, "-last")
			})
			t.Cleanup(end)
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, b.url+"/v1/charges?"+query, nil)
			require.NoError(t, err)
			req.Header.Set("Accept-Encoding", "gzip")
			req.SetBasicAuth(b.key.Secret, "")
			res, err := b.client.Do(req)
			require.NoError(t, err)
			defer res.Body.Close()
			part := make([]byte, 5)
			_, err = io.ReadFull(res.Body, part)
			require.NoError(t, err)
			require.Equal(t, "first", string(part))
			end()
			rest, err := io.ReadAll(res.Body)
			require.NoError(t, err)
			require.Equal(t, "-last", string(rest))
			require.Equal(t, "gzip", res.Header.Get("Content-Encoding"))
			seen, _ := u.requests()
			require.Equal(t, "/v1/charges?"+query, seen[0].RequestURI)
			require.Equal(t, "gzip", seen[0].Header.Get("Accept-Encoding"))
			require.Equal(t, "Bearer "+realSecret, seen[0].Header.Get("Authorization"))
		})
	}
}

// The outcome is written before the last bytes are handed on, whether the end
// comes with them, as from HTTP/1.1, or after them, as from HTTP/2.
func TestWatched_endsWithTheLastBytes(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]io.Reader{
		"end with the bytes":  iotest.DataErrReader(strings.NewReader("abc")),
		"end after the bytes": strings.NewReader("abc"),
	} {
		var got []string
		w := &watched{ReadCloser: io.NopCloser(body), want: 3, done: func(body []byte, whole bool) {
			got = append(got, fmt.Sprint(string(body), whole))
		}}
		n, _ := w.Read(make([]byte, 10))
		require.Equal(t, 3, n, name)
		require.Equal(t, []string{"abctrue"}, got, name)
		_, err := io.ReadAll(w)
		require.NoError(t, err)
		require.NoError(t, w.Close())
		require.Len(t, got, 1, name)
	}
}

// What the proxy cannot read it cannot settle.
func TestProxy_answersThatAreNotStripesAreDoubt(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]http.HandlerFunc{
		"compressed all the same": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = io.WriteString(w, chargeJSON)
		},
		"another object": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"object":"refund","id":"re_1","amount":1000,"currency":"usd"}`)
		},
		"another currency": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, strings.Replace(chargeJSON, "usd", "eur", 1))
		},
		"no id": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, strings.Replace(chargeJSON, "ch_1", "", 1))
		},
		"no body": func(http.ResponseWriter, *http.Request) {},
		"a gateway's 403": func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "<html>forbidden</html>", http.StatusForbidden)
		},
		"a gateway's 404": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, `{"error":"not found"}`, 404) },
		"another JSON":    func(w http.ResponseWriter, _ *http.Request) { http.Error(w, `{"message":"not found"}`, 404) },
		"a 408": func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, `{"error":{"type":"x"}}`, http.StatusRequestTimeout)
		},
		"a redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/v1/elsewhere", http.StatusTemporaryRedirect)
		},
		"a 201": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(201); _, _ = io.WriteString(w, chargeJSON) },
		"a huge answer": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, chargeJSON+strings.Repeat(" ", maxAnswer))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, u := setupUpstream(t, options{}, answer)
			b.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
			b.charge(t, charge{key: "k1", amount: 1000})
			b.requireReserved(t, 1000, 1000)
			require.Equal(t, []string{"doubt"}, b.outcomes(t))
			seen, _ := u.requests()
			require.Len(t, seen, 1)
		})
	}
}

func TestProxy_stripeCannotBeReached(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	b := setup(t, options{upstream: "http://" + l.Addr().String()})
	require.NoError(t, l.Close())
	got := b.requireStatus(t, 502, charge{key: "k1", amount: 1000})
	require.Contains(t, got.body, `"api_error"`)
	b.requireReserved(t, 0, 0)
	require.Equal(t, []string{"nothing"}, b.outcomes(t))
}

func TestProxy_stripeTakesTooLong(t *testing.T) {
	t.Parallel()
	b := setup(t, options{timeout: 2 * time.Second})
	b.sim.FaultNext(nil, stripesim.Fault{Kind: stripesim.HangUntilReleased, Release: make(chan struct{})})
	b.requireStatus(t, 504, charge{key: "k1", amount: 1000})
	b.requireReserved(t, 1000, 1000)
	require.Equal(t, []string{"doubt"}, b.outcomes(t))
}

// A client that gives up must not turn its charge into an unknown one.
func TestProxy_theClientsCancellationIsNotPassedOn(t *testing.T) {
	t.Parallel()
	b := setup(t, options{})
	release, hung := make(chan struct{}), make(chan struct{})
	b.sim.FaultNext(nil, stripesim.Fault{Kind: stripesim.HangUntilReleased, Release: release, Hung: hung})
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		res, err := b.client.Do(b.request(t, charge{key: "k1", amount: 1000}).WithContext(ctx))
		if err == nil {
			_ = res.Body.Close()
		}
		gone <- err
	}()
	await(t, "the charge at Stripe", hung)
	cancel()
	require.ErrorIs(t, await(t, "the client to give up", gone), context.Canceled)
	b.requireReserved(t, 1000, 1000)
	close(release)
	require.Eventually(t, func() bool { return b.limit(t, "usd").Held == 0 }, patience, 10*time.Millisecond)
	b.requireReserved(t, 1000, 0)
	require.EqualValues(t, 1000, b.paid())
	require.Equal(t, []string{"spent"}, b.outcomes(t))
	require.Equal(t, 1, b.sim.Stats().Requests)
}

// The client's connection dies while the answer is on its way.
func TestProxy_anAnswerNobodyReadsIsSettled(t *testing.T) {
	t.Parallel()
	headersOut, release := make(chan struct{}), make(chan struct{})
	b, _ := setupUpstream(t, options{}, func(w http.ResponseWriter, _ *http.Request) {
		body := chargeJSON + strings.Repeat(" ", 200<<10)
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		_, _ = io.WriteString(w, body[:10])
		w.(http.Flusher).Flush()
		close(headersOut)
		<-release
		_, _ = io.WriteString(w, body[10:])
	})
	conn, err := net.Dial("tcp", strings.TrimPrefix(b.url, "http://"))
	require.NoError(t, err)
	_, err = io.WriteString(conn, b.wire("POST /v1/charges", "Idempotency-Key: k\r\n", goodBody))
	require.NoError(t, err)
	await(t, "the answer's beginning", headersOut)
	require.NoError(t, conn.(*net.TCPConn).SetLinger(0))
	require.NoError(t, conn.Close())
	close(release)
	require.Eventually(t, func() bool { return b.limit(t, "usd").Held == 0 }, patience, 10*time.Millisecond)
	b.requireReserved(t, 1000, 0)
}

func TestProxy_refusesBadCredentials(t *testing.T) {
	t.Parallel()
	b := setup(t, options{})
	good := b.key.Secret
	flipped := good[:len(good)-2] + map[bool]string{true: "B", false: "A"}[good[len(good)-2] == 'A'] + good[len(good)-1:]
	other, err := b.admin.Create(t.Context(), KeyRequest{Period: "2026-11", Caps: map[string]int64{"usd": 1}, ExpiresAt: time.Now().Add(time.Hour)})
	require.NoError(t, err)
	for name, header := range map[string][]string{
		"none":             nil,
		"empty":            {""},
		"the real key":     {"Bearer " + realSecret},
		"the admin token":  {"Bearer " + adminToken},
		"one bit off":      {"Bearer " + flipped},
		"id alone":         {"Bearer " + b.key.ID},
		"another's secret": {"Bearer " + b.key.ID + other.Secret[len(other.ID):]},
		"too long":         {"Bearer " + good + "A"},
		"unknown id":       {"Bearer vk_0000000000000000" + good[len(b.key.ID):]},
		"another scheme":   {"Digest " + good},
		"two":              {"Bearer " + good, "Bearer " + good},
		"broken basic":     {"Basic !!!"},
	} {
		req := b.request(t, charge{key: "k", amount: 100})
		req.Header.Del("Authorization")
		if header != nil {
			req.Header["Authorization"] = header
		}
		got := b.send(t, req)
		require.Equal(t, 401, got.status, name)
		require.Contains(t, got.body, "invalid_request_error", name)
		require.NotContains(t, got.body, good, name)
	}
	req := b.request(t, charge{key: "k", amount: 100})
	req.SetBasicAuth(good, "password")
	require.Equal(t, 401, b.send(t, req).status)
	require.Zero(t, b.sim.Stats().Requests)
	require.Empty(t, b.outcomes(t))
}

func TestProxy_revokedExpiredAndReplacedKeysAreRefusedAtOnce(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		end  func(t *testing.T, b *testBundle)
		code string
	}{
		"revoked": {func(t *testing.T, b *testBundle) { require.NoError(t, b.admin.Revoke(t.Context(), b.key.ID)) }, codeKeyRevoked},
		"expired": {func(t *testing.T, b *testBundle) {
			b.exec(t, `UPDATE duesday.vault_keys SET expires_at = clock_timestamp()`)
		}, codeKeyExpired},
		"replaced": {func(t *testing.T, b *testBundle) {
			_, err := b.admin.EnsureKey(t.Context(), testPeriod, map[string]int64{"usd": 100_000}, time.Now().Add(time.Hour))
			require.NoError(t, err)
		}, codeKeyReplaced},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, options{})
			b.requireStatus(t, 200, charge{key: "k1", amount: 100})
			tc.end(t, b)
			require.Contains(t, b.requireStatus(t, 401, charge{key: "k2", amount: 100}).body, tc.code)
			require.Contains(t, b.requireStatus(t, 401, charge{key: "k1", amount: 100}).body, tc.code, "a replay, too")
			require.Equal(t, 401, b.raw(t, b.wire("GET /v1/charges", "", "")))
			require.Equal(t, 401, b.raw(t, b.wire("POST /v1/payment_intents/pi_1/cancel", "", "")))
			require.Equal(t, 1, b.sim.Stats().Requests)
			b.requireReserved(t, 100, 0)
		})
	}
}

func TestProxy_aKeyMayMakeItsOwnCallsOnly(t *testing.T) {
	t.Parallel()
	b := setup(t, options{endpoints: []Endpoint{CreateIntent, RetrieveIntent}})
	require.Equal(t, 403, b.raw(t, b.wire("POST /v1/charges", "Idempotency-Key: k\r\n", goodBody)))
	require.Equal(t, 403, b.raw(t, b.wire("GET /v1/payment_intents", "", "")))
	require.Equal(t, 200, b.raw(t, b.wire("POST /v1/payment_intents", "Idempotency-Key: k\r\n", goodBody)))
	require.Equal(t, 404, b.raw(t, b.wire("GET /v1/payment_intents/pi_1", "", "")))
}

// The real client, through all endpoints.
func TestProxy_servesStripesOwnClient(t *testing.T) {
	t.Parallel()
	b := setup(t, options{})
	backend := stripe.GetBackendWithConfig(stripe.APIBackend, &stripe.BackendConfig{
		URL: stripe.String(b.url), HTTPClient: b.client, MaxNetworkRetries: stripe.Int64(0),
		LeveledLogger: &stripe.LeveledLogger{Level: stripe.LevelNull}, EnableTelemetry: stripe.Bool(true),
	})
	api := client.New(b.key.Secret, &stripe.Backends{API: backend, Connect: backend, Uploads: backend})
	params := &stripe.ChargeParams{Amount: stripe.Int64(1000), Currency: stripe.String("usd"), Customer: stripe.String("cus_1"),
		Description: stripe.String("Billing period 2026-10; 50 % & more €")}
	params.SetIdempotencyKey("k1")
	params.AddMetadata("duesday key", "a=b&amount=7")
	charged, err := api.Charges.New(params)
	require.NoError(t, err)
	require.EqualValues(t, 1000, charged.Amount)
	require.Equal(t, "a=b&amount=7", charged.Metadata["duesday key"])
	_, err = api.Charges.Get(charged.ID, nil)
	require.NoError(t, err)
	list := api.Charges.List(&stripe.ChargeListParams{Customer: stripe.String("cus_1"), CreatedRange: &stripe.RangeQueryParams{GreaterThanOrEqual: 1}})
	require.True(t, list.Next(), list.Err())
	found := api.Charges.Search(&stripe.ChargeSearchParams{SearchParams: stripe.SearchParams{Query: "customer:'cus_1'"}})
	require.True(t, found.Next(), found.Err())

	intent := &stripe.PaymentIntentParams{Amount: stripe.Int64(500), Currency: stripe.String("usd"), Customer: stripe.String("cus_1"),
		PaymentMethod: stripe.String("pm_1"), AutomaticPaymentMethods: &stripe.PaymentIntentAutomaticPaymentMethodsParams{
			Enabled: stripe.Bool(true), AllowRedirects: stripe.String("never")}}
	intent.SetIdempotencyKey("k2")
	pi, err := api.PaymentIntents.New(intent)
	require.NoError(t, err)
	_, err = api.PaymentIntents.Get(pi.ID, nil)
	require.NoError(t, err)
	pi, err = api.PaymentIntents.Cancel(pi.ID, &stripe.PaymentIntentCancelParams{CancellationReason: stripe.String("abandoned")})
	require.NoError(t, err)
	require.Equal(t, stripe.PaymentIntentStatusCanceled, pi.Status)
	require.True(t, api.PaymentIntents.List(&stripe.PaymentIntentListParams{Customer: stripe.String("cus_1")}).Next())

	big := &stripe.ChargeParams{Amount: stripe.Int64(99_000), Currency: stripe.String("usd"), Customer: stripe.String("cus_1")}
	big.SetIdempotencyKey("k3")
	_, err = api.Charges.New(big)
	var refused *stripe.Error
	require.ErrorAs(t, err, &refused)
	require.Equal(t, 402, refused.HTTPStatusCode)
	require.Equal(t, stripe.ErrorCode("spend_cap_exceeded"), refused.Code)
	b.requireReserved(t, 1500, 0) // a cancelled intent stays counted: the safe side
}

func TestProxy_withoutItsDatabaseForwardsNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, options{})
	b.requireStatus(t, 200, charge{key: "k1", amount: 100})
	b.exec(t, `ALTER TABLE duesday.vault_reservations RENAME TO gone`)
	got := b.requireStatus(t, 503, charge{key: "k2", amount: 100})
	require.Contains(t, got.body, codeUnavailable)
	require.NotContains(t, got.body, "gone")
	require.Equal(t, 1, b.sim.Stats().Requests)
}

// The books are lost between the forwarding and the settling.
func TestProxy_anOutcomeThatCannotBeWrittenLeavesTheAmountReserved(t *testing.T) {
	t.Parallel()
	b := setup(t, options{})
	b.sim.OnCommit(func(c stripesim.Charge) {
		if c.IdempotencyKey == "k1" {
			_, err := b.pool.Exec(context.Background(), `ALTER TABLE duesday.vault_calls RENAME TO gone`)
			if err != nil {
				panic(err)
			}
		}
	})
	c := charge{key: "k1", amount: 100}
	b.requireStatus(t, 200, c) // the client is told what Stripe said
	b.exec(t, `ALTER TABLE duesday.gone RENAME TO vault_calls`)
	b.requireReserved(t, 100, 100)
	b.requireStatus(t, 200, c)
	b.requireReserved(t, 100, 0)
}

func TestNewProxy_refusesAKeyAndAnAddressThatDoNotBelongTogether(t *testing.T) {
	t.Parallel()
	const live = "rk_live_51ThisIsSecret"
	for _, tc := range []struct{ key, base, want string }{
		{"", "", "STRIPE_API_KEY"},
		{"vk_0000000000000000_x", "", "STRIPE_API_KEY"},
		{live, "http://127.0.0.1:1", "a live key goes to"},
		{live, "https://api.stripe.com.evil.example", "a live key goes to"},
		{live, "http://api.stripe.com", "a live key goes to"},
		{realSecret, "ftp://x", "STRIPE_API_BASE"},
		{realSecret, "http://user@x", "STRIPE_API_BASE"},
		{realSecret, "http://x/v1", "STRIPE_API_BASE"},
	} {
		_, err := NewProxy(ProxyConfig{APIKey: tc.key, BaseURL: tc.base})
		require.ErrorContains(t, err, tc.want, fmt.Sprint(tc))
		require.NotContains(t, err.Error(), live)
	}
	p, err := NewProxy(ProxyConfig{APIKey: live})
	require.NoError(t, err)
	p.Close()
}
