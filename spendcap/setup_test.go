package spendcap

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/internal/pgtest"
	"github.com/duesday/duesday/internal/stripesim"
)

func TestMain(m *testing.M) { pgtest.Main(m, pgtest.CheckLeaks()) }

const (
	realSecret = "rk_test_51RealKeyThatNobodySees"
	adminToken = "an-admin-token-of-more-than-32-characters"
	testPeriod = "2026-10"
	// patience bounds what is awaited; a test that waits so long fails.
	patience = 60 * time.Second
)

// testBundle is a proxy between a client and a simulated Stripe, its Postgres,
// and a live vault key.
type testBundle struct {
	db     *pgtest.DB
	pool   *pgxpool.Pool
	vault  *Vault
	sim    *stripesim.Server
	proxy  *Proxy
	url    string // of the Stripe side
	admin  Admin
	key    NewKey
	client *http.Client
	logs   *observer.ObservedLogs
}

type options struct {
	sim       stripesim.Options
	upstream  string // empty: the simulator
	timeout   time.Duration
	caps      map[string]int64
	endpoints []Endpoint
}

func setup(t testing.TB, o options) *testBundle {
	t.Helper()
	o.sim.APIKeys = []string{realSecret}
	b := &testBundle{db: pgtest.New(t), sim: stripesim.Start(t, o.sim)}
	_, err := charges.Migrate(context.Background(), b.db.Connect(t))
	require.NoError(t, err)
	b.pool = newPool(t, b.db, 8)
	b.vault = NewVault(b.pool)
	if o.upstream == "" {
		o.upstream = b.sim.URL
	}
	if o.timeout == 0 {
		o.timeout = patience
	}
	if o.caps == nil {
		o.caps = map[string]int64{"usd": 100_000}
	}
	core, logs := observer.New(zap.DebugLevel)
	b.logs = logs
	b.proxy, err = NewProxy(ProxyConfig{APIKey: realSecret, BaseURL: o.upstream, Timeout: o.timeout, Vault: b.vault, Log: zap.New(core)})
	require.NoError(t, err)
	t.Cleanup(b.proxy.Close)
	b.url = serve(t, b.proxy)

	handler, err := NewAdminHandler(b.vault, adminToken, b.proxy, zap.New(core))
	require.NoError(t, err)
	transport := &http.Transport{MaxIdleConnsPerHost: 100, DisableCompression: true}
	t.Cleanup(transport.CloseIdleConnections)
	b.client = &http.Client{Transport: transport, Timeout: patience}
	b.admin = Admin{URL: serve(t, handler), Token: adminToken, HTTP: b.client}
	b.key, err = b.admin.Create(t.Context(), KeyRequest{
		Period: testPeriod, Caps: o.caps, ExpiresAt: time.Now().Add(time.Hour), Endpoints: o.endpoints,
	})
	require.NoError(t, err)
	return b
}

func newPool(t testing.TB, db *pgtest.DB, conns int32) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(db.URL)
	require.NoError(t, err)
	cfg.MaxConns = conns
	pool, err := OpenPool(context.Background(), cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

func serve(t testing.TB, h http.Handler) string {
	t.Helper()
	srv := httptest.NewUnstartedServer(h)
	srv.Config = newServer(h, patience, zap.NewNop())
	srv.Start()
	t.Cleanup(srv.Close)
	return srv.URL
}

// charge is a request that should be forwarded.
type charge struct {
	key      string // idempotency key
	amount   int64
	currency string // empty: usd
	customer string // empty: cus_1
	more     string // of the body
	endpoint string // empty: /v1/charges
	secret   string // empty: the bundle's
	header   http.Header
}

func (c charge) body() string {
	currency, customer := c.currency, c.customer
	if currency == "" {
		currency = "usd"
	}
	if customer == "" {
		customer = "cus_1"
	}
	return "amount=" + strconv.FormatInt(c.amount, 10) + "&currency=" + currency + "&customer=" + customer + c.more
}

func (b *testBundle) request(t testing.TB, c charge) *http.Request {
	t.Helper()
	if c.endpoint == "" {
		c.endpoint = "/v1/charges"
	}
	if c.secret == "" {
		c.secret = b.key.Secret
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, b.url+c.endpoint, strings.NewReader(c.body()))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Authorization", "Bearer "+c.secret)
	req.Header.Set("Idempotency-Key", c.key)
	maps.Copy(req.Header, c.header)
	return req
}

// reply is an answer as a client sees it.
type reply struct {
	status int
	header http.Header
	body   string
}

// send returns what the client is told; status 0 is a cut connection.
func (b *testBundle) send(t testing.TB, req *http.Request) reply {
	t.Helper()
	res, err := b.client.Do(req)
	if err != nil {
		return reply{body: err.Error()}
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return reply{body: err.Error()}
	}
	return reply{res.StatusCode, res.Header, string(body)}
}

func (b *testBundle) charge(t testing.TB, c charge) reply {
	t.Helper()
	return b.send(t, b.request(t, c))
}

func (b *testBundle) requireStatus(t testing.TB, want int, c charge) reply {
	t.Helper()
	got := b.charge(t, c)
	require.Equal(t, want, got.status, got.body)
	return got
}

func (b *testBundle) limit(t testing.TB, currency string) Limit {
	t.Helper()
	all, err := b.admin.Limits(context.Background(), testPeriod)
	require.NoError(t, err)
	return all[currency]
}

// requireReserved checks what is counted, and the part of it that is held.
func (b *testBundle) requireReserved(t testing.TB, reserved, held int64) {
	t.Helper()
	l := b.limit(t, "usd")
	require.Equal(t, []int64{reserved, held}, []int64{l.Reserved, l.Held}, "reserved, held")
}

func (b *testBundle) exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	_, err := b.pool.Exec(context.Background(), sql, args...)
	require.NoError(t, err)
}

// age shifts the reservations and Stripe's clock.
func (b *testBundle) age(t testing.TB, d time.Duration) {
	t.Helper()
	b.exec(t, `UPDATE duesday.vault_reservations SET reserved_at = reserved_at - $1::interval, sent_at = sent_at - $1::interval`, d)
	b.sim.Advance(d)
}

// outcomes are the words of the audit trail, in the order of the calls.
func (b *testBundle) outcomes(t testing.TB) []string {
	t.Helper()
	rows, err := b.pool.Query(context.Background(), `SELECT coalesce(outcome, '') FROM duesday.vault_calls ORDER BY id`)
	require.NoError(t, err)
	defer rows.Close()
	var all []string
	for rows.Next() {
		var word string
		require.NoError(t, rows.Scan(&word))
		all = append(all, word)
	}
	require.NoError(t, rows.Err())
	return all
}

// paid is the sum that the bank took in usd.
func (b *testBundle) paid() (sum int64) {
	for _, c := range b.sim.Succeeded() {
		if c.Currency == "usd" {
			sum += c.Amount
		}
	}
	return sum
}

// requireSecretsKept looks for what must not be in the logs or the database.
func (b *testBundle) requireSecretsKept(t testing.TB, secrets ...string) {
	t.Helper()
	var text strings.Builder
	for _, e := range b.logs.All() {
		text.WriteString(e.Message)
		for _, f := range slices.Sorted(maps.Keys(e.ContextMap())) {
			fmt.Fprintf(&text, " %s=%v", f, e.ContextMap()[f])
		}
		text.WriteString("\n")
	}
	for _, s := range append(secrets, realSecret, adminToken, b.key.Secret) {
		require.NotContains(t, text.String(), s)
	}
}

func await[T any](t testing.TB, what string, c <-chan T) T {
	t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case v := <-c:
		return v
	case <-timer.C:
		require.Fail(t, "waited in vain for "+what)
		panic("unreachable")
	}
}
