package spendcap

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/duesday/duesday/internal/promtest"
)

func TestAdmin_ensuringAKeyTwiceBringsNoNewMoney(t *testing.T) {
	t.Parallel()
	b := setup(t, options{caps: map[string]int64{"usd": 1000}})
	caps, in := map[string]int64{"usd": 1000}, time.Now().Add(time.Hour)
	b.requireStatus(t, 200, charge{key: "k1", amount: 600})
	second, err := b.admin.EnsureKey(t.Context(), testPeriod, caps, in)
	require.NoError(t, err)
	require.NotEqual(t, b.key.Secret, second.Secret)
	b.requireStatus(t, 402, charge{key: "k2", amount: 600, secret: second.Secret})
	b.requireStatus(t, 200, charge{key: "k1", amount: 600, secret: second.Secret}) // the same reservation
	b.requireStatus(t, 200, charge{key: "k3", amount: 400, secret: second.Secret})
	require.NoError(t, b.admin.Revoke(t.Context(), second.ID))
	third, err := b.admin.EnsureKey(t.Context(), testPeriod, caps, in)
	require.NoError(t, err)
	b.requireStatus(t, 402, charge{key: "k4", amount: 50, secret: third.Secret})
	require.EqualValues(t, 1000, b.paid())

	keys, err := b.admin.List(t.Context(), testPeriod)
	require.NoError(t, err)
	require.Len(t, keys, 3)
	require.Equal(t, &second.ID, keys[0].SupersededBy)
	require.Nil(t, keys[1].SupersededBy)
	require.NotNil(t, keys[1].RevokedAt)
	require.Nil(t, keys[2].RevokedAt)
}

func TestAdmin_ensuringAtOnceLeavesOneGoodKey(t *testing.T) {
	t.Parallel()
	b := setup(t, options{})
	var g errgroup.Group
	keys := make([]NewKey, 8)
	for i := range keys {
		g.Go(func() (err error) {
			keys[i], err = b.admin.EnsureKey(t.Context(), "2026-11", map[string]int64{"usd": 1000}, time.Now().Add(time.Hour))
			return err
		})
	}
	require.NoError(t, g.Wait())
	good := 0
	for i, k := range keys {
		if got := b.charge(t, charge{key: fmt.Sprint("k", i), amount: 100, secret: k.Secret}); got.status == 200 {
			good++
		}
	}
	require.Equal(t, 1, good)
}

func TestAdmin_limitsChangeOnlyWhenSaid(t *testing.T) {
	t.Parallel()
	b := setup(t, options{caps: map[string]int64{"usd": 1000, "eur": 10}})
	in := time.Now().Add(time.Hour)
	for _, caps := range []map[string]int64{
		{"usd": 1001, "eur": 10}, {"usd": 999, "eur": 10}, {"usd": 1000}, {"usd": 1000, "eur": 10, "jpy": 1},
	} {
		_, err := b.admin.EnsureKey(t.Context(), testPeriod, caps, in)
		require.ErrorIs(t, err, ErrCapsDiffer)
		require.ErrorContains(t, err, "may spend eur=10,usd=1000")
	}
	b.requireStatus(t, 200, charge{key: "k1", amount: 800}) // the refused ones have not ended the key
	require.ErrorIs(t, b.admin.SetCaps(t.Context(), testPeriod, map[string]int64{"usd": 799}), ErrSpent)
	require.ErrorIs(t, b.admin.SetCaps(t.Context(), "2026-12", map[string]int64{"usd": 799}), ErrNotFound)
	require.ErrorIs(t, b.admin.SetCaps(t.Context(), testPeriod, map[string]int64{"usd": -1}), ErrInvalid)
	require.NoError(t, b.admin.SetCaps(t.Context(), testPeriod, map[string]int64{"usd": 800}))
	b.requireStatus(t, 402, charge{key: "k2", amount: 100})
	require.NoError(t, b.admin.SetCaps(t.Context(), testPeriod, map[string]int64{"usd": 900, "jpy": 70}))
	b.requireStatus(t, 200, charge{key: "k2", amount: 100})
	limits, err := b.admin.Limits(t.Context(), testPeriod)
	require.NoError(t, err)
	require.Equal(t, map[string]Limit{"usd": {MaxAmount: 900, Reserved: 900}, "eur": {MaxAmount: 10}, "jpy": {MaxAmount: 70}}, limits)
	_, err = b.admin.EnsureKey(t.Context(), testPeriod, map[string]int64{"usd": 900, "eur": 10, "jpy": 70}, in)
	require.NoError(t, err)
}

func TestAdmin_refusals(t *testing.T) {
	t.Parallel()
	b := setup(t, options{})
	caps, in := map[string]int64{"usd": 100_000}, time.Now().Add(time.Hour)
	for name, r := range map[string]struct {
		req  KeyRequest
		want error
	}{
		"live key":       {KeyRequest{Period: testPeriod, Caps: caps, ExpiresAt: in}, ErrKeyExists},
		"period":         {KeyRequest{Period: "2026-13", Caps: caps, ExpiresAt: in}, ErrInvalid},
		"no caps":        {KeyRequest{Period: "2026-11", ExpiresAt: in}, ErrInvalid},
		"negative cap":   {KeyRequest{Period: "2026-11", Caps: map[string]int64{"usd": -1}, ExpiresAt: in}, ErrInvalid},
		"currency":       {KeyRequest{Period: "2026-11", Caps: map[string]int64{"USD": 1}, ExpiresAt: in}, ErrInvalid},
		"no expiry":      {KeyRequest{Period: "2026-11", Caps: caps}, ErrInvalid},
		"expired before": {KeyRequest{Period: "2026-11", Caps: caps, ExpiresAt: time.Now().Add(-time.Minute)}, ErrInvalid},
		"endpoint":       {KeyRequest{Period: "2026-11", Caps: caps, ExpiresAt: in, Endpoints: []Endpoint{"POST /v1/refunds"}}, ErrInvalid},
	} {
		_, err := b.admin.Create(t.Context(), r.req)
		require.ErrorIs(t, err, r.want, name)
	}
	_, err := b.admin.Limits(t.Context(), "2026-11")
	require.ErrorIs(t, err, ErrNotFound, "a refused key leaves no limits")
	_, err = b.admin.Show(t.Context(), "vk_nobody")
	require.ErrorIs(t, err, ErrNotFound)
	require.ErrorIs(t, b.admin.Revoke(t.Context(), "vk_nobody"), ErrNotFound)
	require.NoError(t, b.admin.Revoke(t.Context(), b.key.ID))
	require.NoError(t, b.admin.Revoke(t.Context(), b.key.ID), "twice")
}

func TestAdmin_needsItsToken(t *testing.T) {
	t.Parallel()
	b := setup(t, options{})
	calls := []string{"POST /keys", "GET /keys", "GET /keys/" + b.key.ID, "DELETE /keys/" + b.key.ID,
		"GET /periods/2026-10", "PUT /periods/2026-10", "GET /reservations?period=2026-10"}
	for _, header := range []string{"", "Bearer", "Bearer ", "Bearer x", "Basic " + adminToken, "Bearer " + b.key.Secret, "Bearer " + realSecret, "Bearer " + adminToken + "x", adminToken} {
		for _, call := range calls {
			method, path, _ := strings.Cut(call, " ")
			req, err := http.NewRequestWithContext(t.Context(), method, b.admin.URL+path, strings.NewReader(`{"max_amount":{"usd":1}}`))
			require.NoError(t, err)
			req.Header.Set("Authorization", header)
			require.Equal(t, 401, b.send(t, req).status, call+" "+header)
		}
	}
	k, err := b.admin.Show(t.Context(), b.key.ID)
	require.NoError(t, err)
	require.Nil(t, k.RevokedAt)
	require.EqualValues(t, 100_000, b.limit(t, "usd").MaxAmount)
	// And no other side opens with it.
	require.Equal(t, 401, b.charge(t, charge{key: "k", amount: 1, secret: adminToken}).status)

	_, err = NewAdminHandler(b.vault, adminToken[:MinToken-1], b.proxy, nil)
	require.ErrorContains(t, err, "at least 32 characters")
}

func TestVault_storesNoSecret(t *testing.T) {
	t.Parallel()
	b := setup(t, options{})
	b.requireStatus(t, 200, charge{key: "k1", amount: 600})
	secret := b.key.Secret[len(b.key.ID)+1:]
	for _, table := range []string{"vault_keys", "vault_limits", "vault_reservations", "vault_calls"} {
		var rows string
		require.NoError(t, b.pool.QueryRow(t.Context(), `SELECT coalesce(string_agg(x::text, ' '), '') FROM duesday.`+table+` AS x`).Scan(&rows))
		require.NotEmpty(t, rows, table)
		for _, hidden := range []string{secret, realSecret, adminToken, "cus_1", "customer="} {
			require.NotContains(t, rows, hidden, table)
		}
	}
	shown, err := b.admin.Show(t.Context(), b.key.ID)
	require.NoError(t, err)
	require.NotContains(t, fmt.Sprint(shown), secret)
	require.Equal(t, Endpoints(), shown.Endpoints)
}

func TestAdmin_listsWhatIsHeldPageByPage(t *testing.T) {
	t.Parallel()
	b := setup(t, options{caps: map[string]int64{"usd": 10_000_000}})
	const n = maxPage + 5
	b.exec(t, `
		INSERT INTO duesday.vault_reservations (billing_period, idempotency_key, generation, fingerprint, amount, currency)
		SELECT $1, 'k' || i, 1, decode(repeat('00', 32), 'hex'), 100, 'usd' FROM generate_series(1, $2::int) AS i`, testPeriod, n)
	held, err := b.admin.Held(t.Context(), testPeriod)
	require.NoError(t, err)
	require.Len(t, held, n)
	seen := map[string]bool{}
	for _, r := range held {
		seen[r.IdempotencyKey] = true
	}
	require.Len(t, seen, n)
}

func (b *testBundle) get(t *testing.T, path string) reply {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, b.admin.URL+path, nil)
	require.NoError(t, err)
	return b.send(t, req)
}

func TestAdmin_probesAndMetrics(t *testing.T) {
	t.Parallel()
	b := setup(t, options{caps: map[string]int64{"usd": 100}})
	b.requireStatus(t, 200, charge{key: "k1", amount: 100})
	b.requireStatus(t, 402, charge{key: "k2", amount: 100})
	require.Equal(t, 200, b.get(t, "/healthz").status)
	require.Equal(t, 200, b.get(t, "/readyz").status)
	metrics := b.get(t, "/metrics").body
	require.Contains(t, metrics, `duesday_proxy_requests_total{endpoint="POST /v1/charges",status="200"} 1`)
	require.Contains(t, metrics, `duesday_proxy_requests_total{endpoint="POST /v1/charges",status="402"} 1`)
	require.Contains(t, metrics, `duesday_proxy_sends_total{outcome="spent"} 1`)
	said, err := promtest.Promtool(t, metrics, "check", "metrics")
	require.NoError(t, err)
	require.Empty(t, said)

	b.exec(t, `ALTER TABLE duesday.vault_keys RENAME TO gone`)
	require.Equal(t, 200, b.get(t, "/healthz").status, "restarting would not help")
	require.Equal(t, 503, b.get(t, "/readyz").status)
	_, err = b.admin.List(t.Context(), "")
	require.ErrorContains(t, err, "503")
	require.NotContains(t, err.Error(), "relation")
	require.False(t, errors.Is(err, io.EOF))
}
