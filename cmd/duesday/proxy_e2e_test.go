package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/internal/stripesim"
	"github.com/duesday/duesday/spendcap"
)

const testAdminToken = "an-admin-token-of-more-than-32-characters"

// proxyProcess is `duesday proxy` at work.
type proxyProcess struct {
	*process
	url   string
	admin spendcap.Admin
}

func (b *bundle) proxy(t testing.TB, flags ...string) *proxyProcess {
	t.Helper()
	args := append([]string{"proxy", "--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0", "--log-format=json"}, flags...)
	p := &proxyProcess{process: start(t, with(b.env, "DUESDAY_ADMIN_TOKEN", testAdminToken), args...)}
	p.awaitLog(t, "proxy listens")
	event := p.logs(t, "proxy listens")[0]
	p.url = "http://" + event["listen"].(string)
	p.admin = spendcap.Admin{URL: "http://" + event["admin_listen"].(string), Token: testAdminToken,
		HTTP: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	return p
}

// vaultClient charges through whichever proxy it is told to use.
type vaultClient struct {
	http *http.Client
	key  string
}

func newVaultClient(t testing.TB, key string) vaultClient {
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	t.Cleanup(transport.CloseIdleConnections)
	return vaultClient{&http.Client{Transport: transport, Timeout: patience}, key}
}

// charge returns the answer's status, 0 if there was none, and its body.
func (c vaultClient) charge(url, idempotencyKey string, amount int64, customer string) (int, string) {
	body := fmt.Sprintf("amount=%d&currency=usd&customer=%s", amount, customer)
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, url+"/v1/charges", strings.NewReader(body))
	if err != nil {
		return 0, err.Error()
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Authorization", "Bearer "+c.key)
	req.Header.Set("Idempotency-Key", idempotencyKey)
	res, err := c.http.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err.Error()
	}
	return res.StatusCode, string(text)
}

// Many clients with one vault key, random amounts, three proxies of which one
// is killed at random while it works, a Stripe that fails: what the bank took
// never passes the cap, at no moment; and afterwards the books say what the
// bank says, but for what is listed as held.
func TestProxy_hammeredAndKilledNeverPassesTheCap(t *testing.T) {
	t.Parallel()
	const (
		seed    = 20261001
		clients = 64
		each    = 25
		most    = 1_200_000
	)
	var (
		committed atomic.Int64 // by the bank, at any moment
		kill      = make(chan struct{})
		once      sync.Once
		killAt    = int64(100 + rand.New(rand.NewPCG(seed, 0)).IntN(200))
		count     atomic.Int64
	)
	b := setup(t, stripesim.Options{
		Seed: seed, APIKeys: []string{testKey},
		FaultRate: map[stripesim.Kind]float64{
			stripesim.DropBefore: .03, stripesim.DropAfterCommit: .03, stripesim.Error500AfterCommit: .02,
			stripesim.Error500BeforeCommit: .02, stripesim.Error503: .03, stripesim.Error429: .03, stripesim.Conflict409: .02,
			stripesim.Truncated200: .03, stripesim.HTML200: .02,
		},
		Customers: map[string]stripesim.Behaviour{
			"cus_poor": {Decline: &stripesim.Decline{Code: "card_declined", Message: "No."}},
		},
	})
	b.sim.OnCommit(func(c stripesim.Charge) {
		if c.Status == stripesim.StatusSucceeded {
			committed.Add(c.Amount)
		}
		if committed.Load() > most {
			t.Errorf("the bank took %d, the cap is %d", committed.Load(), most)
		}
		if count.Add(1) == killAt { // its answer is on the way, and others are
			once.Do(func() { close(kill) })
		}
	})
	proxies := []*proxyProcess{b.proxy(t), b.proxy(t), b.proxy(t)}
	key, err := proxies[0].admin.EnsureKey(b.ctx, testPeriod, map[string]int64{"usd": most}, time.Now().Add(time.Hour))
	require.NoError(t, err)
	client := newVaultClient(t, key.Secret)

	type tally struct{ capped, paid, foreign int }
	tallies := make([]tally, clients)
	var wg sync.WaitGroup
	for c := range clients {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(c+1)))
			for i := range each {
				amount, customer := int64(50+random.IntN(2500)), fmt.Sprintf("cus_%02d", c)
				if random.IntN(8) == 0 {
					customer = "cus_poor"
				}
				// A transport retry keeps the key, and may meet another proxy.
				for range 4 {
					status, text := client.charge(proxies[random.IntN(3)].url, fmt.Sprintf("key-%d-%d", c, i), amount, customer)
					switch {
					case status == 200 && strings.Contains(text, `"charge"`):
						tallies[c].paid++
					case status == 402 && strings.Contains(text, "spend_cap_exceeded"):
						tallies[c].capped++
					case status == 402 && strings.Contains(text, "card_declined"):
					case status == 400 || status == 401 || status == 403 || status == 404:
						tallies[c].foreign++
					default:
						continue
					}
					break
				}
			}
		})
	}
	killed := make(chan struct{})
	go func() {
		defer close(killed)
		<-kill
		_ = proxies[1].cmd.Process.Signal(syscall.SIGKILL)
	}()
	wg.Wait()
	await(t, "the kill", killed)
	await(t, "the killed proxy", proxies[1].done)

	var sum tally
	for _, one := range tallies {
		sum.capped, sum.paid, sum.foreign = sum.capped+one.capped, sum.paid+one.paid, sum.foreign+one.foreign
	}
	require.Zero(t, sum.foreign)
	require.Positive(t, sum.capped, "the cap was never met")
	require.Positive(t, sum.paid)
	require.Zero(t, b.sim.Stats().IdempotencyErrors)
	b.requireBooksAgree(t, proxies[0].admin, most)

	// Whoever is in doubt is settled by sending the same again, wherever Stripe
	// then says more than that it failed once.
	held, err := proxies[0].admin.Held(b.ctx, testPeriod)
	require.NoError(t, err)
	require.NotEmpty(t, held, "nothing was left in doubt, though a proxy was killed and Stripe failed")
	customers := map[string]string{}
	for _, r := range b.sim.Requests() {
		customers[r.Key] = r.Customer
	}
	for _, r := range held {
		customer := customers[r.IdempotencyKey]
		if customer == "" {
			continue // killed before it was sent: only its client knows what it was
		}
		for range 4 {
			client.charge(proxies[2].url, r.IdempotencyKey, r.Amount, customer)
		}
	}
	b.requireBooksAgree(t, proxies[0].admin, most)
	after, err := proxies[0].admin.Held(b.ctx, testPeriod)
	require.NoError(t, err)
	require.Less(t, len(after), len(held))
	for _, p := range []*proxyProcess{proxies[0], proxies[2]} {
		p.signal(t, syscall.SIGTERM)
		p.requireExit(t, 0)
		p.requireNoSecrets(t, key.Secret)
	}
}

func (p *proxyProcess) requireNoSecrets(t testing.TB, secrets ...string) {
	t.Helper()
	for _, s := range append(secrets, testKey, testAdminToken, "customer=", "cus_0") {
		require.NotContains(t, p.err.String()+p.out.String(), s)
	}
}

// requireBooksAgree compares the proxy's books with the bank's, charge by
// charge: what is spent was taken, what was taken is spent or held, and the
// limit's row is the sum of both.
func (b *bundle) requireBooksAgree(t testing.TB, admin spendcap.Admin, most int64) {
	t.Helper()
	taken := map[string]int64{}
	var total int64
	for _, c := range b.sim.Succeeded() {
		require.NotContains(t, taken, c.IdempotencyKey, "charged twice")
		taken[c.IdempotencyKey] = c.Amount
		total += c.Amount
	}
	require.LessOrEqual(t, total, most)
	rows, err := b.pool.Query(b.ctx, `
		SELECT idempotency_key, status, coalesce(spent_amount, amount) FROM duesday.vault_reservations WHERE status <> 'freed'`)
	require.NoError(t, err)
	var sum, held int64
	for rows.Next() {
		var (
			key, status string
			amount      int64
		)
		require.NoError(t, rows.Scan(&key, &status, &amount))
		sum += amount
		if status == "spent" {
			require.Equal(t, taken[key], amount, key)
		} else {
			held += amount
		}
		delete(taken, key)
	}
	require.NoError(t, rows.Err())
	require.Empty(t, taken, "taken by the bank, and not in the books")
	limits, err := admin.Limits(b.ctx, testPeriod)
	require.NoError(t, err)
	require.Equal(t, spendcap.Limit{MaxAmount: most, Reserved: sum, Held: held}, limits["usd"])
}

// The proxy dies with the charge at Stripe: the amount stays reserved, and the
// same request through another proxy settles it.
func TestProxy_killedWhileStripeCharges(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]stripesim.Kind{
		"before Stripe commits": stripesim.HangUntilReleased,
		"after Stripe commits":  stripesim.HangAfterCommit,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, stripesim.Options{APIKeys: []string{testKey}})
			first, second := b.proxy(t), b.proxy(t)
			key, err := first.admin.EnsureKey(b.ctx, testPeriod, map[string]int64{"usd": 1000}, time.Now().Add(time.Hour))
			require.NoError(t, err)
			client := newVaultClient(t, key.Secret)
			release, hung := make(chan struct{}), make(chan struct{})
			b.sim.FaultNext(nil, stripesim.Fault{Kind: fault, Release: release, Hung: hung})
			gone := make(chan int, 1)
			go func() {
				status, _ := client.charge(first.url, "k1", 1000, "cus_1")
				gone <- status
			}()
			await(t, "the charge at Stripe", hung)
			first.kill(t)
			require.Zero(t, await(t, "the client's end", gone))
			close(release)

			held, err := second.admin.Held(b.ctx, testPeriod)
			require.NoError(t, err)
			require.Len(t, held, 1)
			require.EqualValues(t, 1000, held[0].Amount)
			status, text := client.charge(second.url, "k2", 50, "cus_1")
			require.Equal(t, 402, status, text)
			eventually(t, "the charge to be settled", func() bool { // 409 while Stripe is still at it
				status, _ := client.charge(second.url, "k1", 1000, "cus_1")
				return status == 200
			})
			b.requireBooksAgree(t, second.admin, 1000)
			require.Len(t, b.sim.Succeeded(), 1)
		})
	}
}

func TestProxy_drainsOnSIGTERM(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{APIKeys: []string{testKey}})
	p := b.proxy(t, "--drain-timeout=80s")
	key, err := p.admin.EnsureKey(b.ctx, testPeriod, map[string]int64{"usd": 1000}, time.Now().Add(time.Hour))
	require.NoError(t, err)
	client := newVaultClient(t, key.Secret)
	release, hung := make(chan struct{}), make(chan struct{})
	b.sim.FaultNext(nil, stripesim.Fault{Kind: stripesim.HangUntilReleased, Release: release, Hung: hung})
	got := make(chan int, 1)
	go func() {
		status, _ := client.charge(p.url, "k1", 1000, "cus_1")
		got <- status
	}()
	await(t, "the charge at Stripe", hung)
	p.signal(t, syscall.SIGTERM)
	p.awaitLog(t, "draining")
	close(release)
	require.Equal(t, 200, await(t, "the answer", got))
	p.requireExit(t, 0)
	require.Zero(t, b.count(t, `SELECT count(*) FROM duesday.vault_reservations WHERE status = 'held'`))
}

func TestProxy_misconfigured(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte("short\n"), 0o600))
	for want, env := range map[string][]string{
		"DUESDAY_ADMIN_TOKEN: want a random text":         {},
		"want an admin token of at least 32":              {"DUESDAY_ADMIN_TOKEN", "short"},
		"DUESDAY_ADMIN_TOKEN: want an admin token":        {"DUESDAY_ADMIN_TOKEN_FILE", token},
		"DUESDAY_ADMIN_TOKEN_FILE: open":                  {"DUESDAY_ADMIN_TOKEN_FILE", token + "x"},
		"STRIPE_API_KEY: want a key":                      {"DUESDAY_ADMIN_TOKEN", testAdminToken, "STRIPE_API_KEY", ""},
		"STRIPE_API_KEY: want a secret or restricted key": {"DUESDAY_ADMIN_TOKEN", testAdminToken, "STRIPE_API_KEY", "vk_secret"},
		"a live key goes to https://api.stripe.com only":  {"DUESDAY_ADMIN_TOKEN", testAdminToken, "STRIPE_API_KEY", "rk_live_secret"},
		"DATABASE_URL: want postgres://":                  {"DUESDAY_ADMIN_TOKEN", testAdminToken, "DATABASE_URL", ""},
		"--upstream-timeout 1ms: want at least 1s":        {"DUESDAY_UPSTREAM_TIMEOUT", "1ms"},
		"--database-connections 0: want from 1":           {"DUESDAY_DATABASE_CONNECTIONS", "0"},
	} {
		p := start(t, with(b.env, env...), "proxy", "--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0")
		p.requireExit(t, 2)
		require.Contains(t, p.err.String(), want)
		require.NotContains(t, p.err.String(), "vk_secret")
		require.NotContains(t, p.err.String(), "rk_live_secret")
	}
}
