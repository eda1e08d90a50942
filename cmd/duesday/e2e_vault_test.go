package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/internal/stripesim"
)

// behindProxy starts the spend-cap proxy before the bundle's Stripe, and turns
// the bundle's environment into one that knows the proxy alone.
func (b *bundle) behindProxy(t testing.TB) {
	t.Helper()
	const token = "an-admin-token-of-more-than-32-characters"
	p := start(t, with(b.env, "DUESDAY_ADMIN_TOKEN", token), "proxy", "--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0")
	p.awaitLog(t, "proxy listens")
	listens := p.logs(t, "proxy listens")[0]
	b.env = with(b.env, "STRIPE_API_KEY", "", "DUESDAY_ADMIN_TOKEN", token,
		"STRIPE_API_BASE", "http://"+listens["listen"].(string),
		"DUESDAY_VAULT_URL", "http://"+listens["admin_listen"].(string))
}

func TestVault_aRunBillsThroughTheProxyAndRevokesItsKey(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{Seed: 3, FaultRate: map[stripesim.Kind]float64{
		stripesim.DropAfterCommit: 0.1, stripesim.Error503: 0.1, stripesim.Truncated200: 0.1,
	}})
	all := payers(60)
	b.add(t, all...)
	b.behindProxy(t)
	b.run(t).requireExit(t, 0)
	b.requireBilled(t, all)
	b.requireSettled(t)
	require.Zero(t, b.count(t, `SELECT count(*) FROM duesday.vault_keys WHERE revoked_at IS NULL`))
	require.Equal(t, b.count(t, `SELECT sum(claimed_total) FROM duesday.totals`), b.count(t, `SELECT sum(reserved) FROM duesday.vault_limits`))
	for _, r := range b.sim.Requests() {
		require.False(t, strings.HasPrefix(r.APIKey, "vk_"), "a vault key left the proxy")
	}
}

// Two stops, independent of each other: the ledger's check is taken out here.
func TestVault_amountsThatGrewMeetTheProxyWhereTheLedgerFails(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	b.add(t, payers(30)...)
	b.behindProxy(t)
	b.sim.SetAuth(403)
	b.run(t).requireExit(t, 3) // opens, and charges nobody
	b.sim.SetAuth(0)

	b.exec(t, `ALTER TABLE duesday.totals DROP CONSTRAINT spend_cap`)
	b.exec(t, `UPDATE duesday.dues SET amount = amount * 100`)
	b.exec(t, `UPDATE duesday.charges SET amount = amount * 100`)
	p := b.run(t)
	p.requireExit(t, 3)
	require.Contains(t, p.err.String(), "spend_cap_exceeded")
	taken := map[string]int64{}
	for _, c := range b.sim.Succeeded() {
		taken[c.Currency] += c.Amount
	}
	for currency, sum := range taken {
		require.LessOrEqual(t, sum, int64(b.count(t, `SELECT cap FROM duesday.totals WHERE currency = $1`, currency)))
	}
	require.Zero(t, b.tally(t)["declined"])
}

func TestVault_raisedCapsReachTheProxy(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	all := payers(3)
	b.add(t, all...)
	b.behindProxy(t)
	b.sim.SetAuth(403)
	b.run(t).requireExit(t, 3)
	b.sim.SetAuth(0)
	b.exec(t, `UPDATE duesday.totals SET cap = 100000 WHERE currency = 'usd'`)
	p := b.run(t)
	p.requireExit(t, 3)
	require.Contains(t, p.err.String(), "run with --raise-cap-to, which sets both")
	b.run(t, "--raise-cap-to=usd=100000").requireExit(t, 0)
	b.requireBilled(t, all)
}

func TestVault_badInput(t *testing.T) {
	t.Parallel()
	for want, env := range map[string]map[string]string{
		"--vault-url: want a URL like http://duesday-proxy:8081":                    {"DUESDAY_VAULT_URL": "duesday-proxy:8081"},
		"--vault-url: STRIPE_API_BASE must name the proxy":                          {"DUESDAY_VAULT_URL": "http://127.0.0.1:1"},
		"only it knows vault keys":                                                  {"DUESDAY_VAULT_URL": "http://127.0.0.1:1", "STRIPE_API_BASE": "https://api.stripe.com/"},
		"DUESDAY_ADMIN_TOKEN: want a random text of at least 32 characters, got no": {"DUESDAY_VAULT_URL": "http://127.0.0.1:1", "STRIPE_API_BASE": "http://127.0.0.1:2"},
	} {
		p := start(t, with(env, "DATABASE_URL", "postgres://127.0.0.1:1/x"), "run", "--leader-elect=false", "--period=2026-10")
		p.requireExit(t, 2)
		require.Contains(t, p.err.String(), want)
	}
}

func TestVault_aWrongTokenCanNeverWork(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	b.add(t, payers(1)...)
	b.behindProxy(t)
	b.env = with(b.env, "DUESDAY_ADMIN_TOKEN", "another-token-of-more-than-32-characters")
	p := b.run(t)
	p.requireExit(t, 2)
	require.Contains(t, p.err.String(), "DUESDAY_ADMIN_TOKEN: ")
	require.Contains(t, p.err.String(), "the proxy refuses the admin token")
	require.Empty(t, b.sim.Bank())
}
