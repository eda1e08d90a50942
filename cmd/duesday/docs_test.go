package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/internal/pgtest"
	"github.com/duesday/duesday/internal/runbook"
	"github.com/duesday/duesday/internal/stripesim"
	"github.com/duesday/duesday/job"
)

// manual is a machine at which somebody works through a document: a folder, and
// the environment that the document asks for.
type manual struct {
	*bundle
	dir string
}

// page is a block of a document: what is there before it is run, and what must
// be there then.
type page struct {
	before func(t *testing.T, m *manual)
	after  func(t *testing.T, m *manual, said string)
}

// run runs the commands as they stand in the document, until one fails.
func (m *manual) sh(t *testing.T, text string) string {
	t.Helper()
	binary, err := built.path()
	require.NoError(t, err)
	cmd := exec.Command("sh", "-eu", "-c", text)
	cmd.Dir = m.dir
	cmd.Env = []string{
		"PATH=" + filepath.Dir(binary) + ":" + os.Getenv("PATH"), "HOME=" + m.dir, "GORACE=atexit_sleep_ms=0",
		"DUESDAY_LEADER_ELECT=false", "DUESDAY_ALLOW_FUTURE=true", "DUESDAY_RATE=1000",
		"DUESDAY_LEASE_DURATION=60s", "DUESDAY_RENEW_DEADLINE=40s", "DUESDAY_RETRY_PERIOD=200ms",
	}
	for name, value := range m.env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s\n%s", text, tail(string(out)))
	require.NotContains(t, string(out), "DATA RACE")
	return string(out)
}

func (m *manual) month(t *testing.T, flags ...string) { m.run(t, flags...).requireExit(t, 0) }

// lost bills two months, and restores the ledger from before them.
func lost(t *testing.T, m *manual) {
	backup := m.backup(t)
	m.month(t, "--period=2026-09")
	m.month(t)
	m.restore(t, backup)
	m.sim.Advance(25 * time.Hour)
}

func contains(text ...string) func(*testing.T, *manual, string) {
	return func(t *testing.T, _ *manual, said string) {
		for _, s := range text {
			require.Contains(t, said, s)
		}
	}
}

func billed(t *testing.T, m *manual, _ string) {
	m.requireBilled(t, payers(6))
	m.requireSettled(t)
}

func nothing(*testing.T, *manual) {}

func settledMonth(t *testing.T, m *manual) { m.month(t) }

func hasFiles(names ...string) func(*testing.T, *manual, string) {
	return func(t *testing.T, m *manual, _ string) {
		for _, name := range names {
			info, err := os.Stat(filepath.Join(m.dir, name))
			require.NoError(t, err)
			require.NotZero(t, info.Size(), name)
		}
	}
}

func operations() map[string]page {
	return map[string]page{
		"plan":     {nothing, contains("A run would open it with 6 dues")},
		"after":    {settledMonth, hasFiles("report-2026-10.html")},
		"daily":    {declinedLongAgo, contains("the ledger and Stripe agree on 1 settled period")},
		"missing":  {nothing, billed},
		"failed":   {refusedMonth, billed},
		"doubt":    {doubtfulMonth, billed},
		"declined": {declinedLongAgo, contains("insufficient_funds")},
		"cap":      {settledMonth, contains("claimed_total", "usd")},
		"slow":     {func(t *testing.T, m *manual) { m.upTo(t, 2) }, billed},
		"catch-up": {nothing, func(t *testing.T, m *manual, _ string) { require.Len(t, m.sim.Succeeded(), 12) }},
		"raise": {func(t *testing.T, m *manual) {
			m.openOnly(t, "charges")
			m.exec(t, `UPDATE duesday.totals SET cap = 1000 WHERE currency = 'usd'`)
			m.run(t).requireExit(t, 3)
		}, billed},
		"restore": {func(t *testing.T, m *manual) {
			require.NoError(t, os.Rename(m.backup(t), filepath.Join(m.dir, "yesterday.dump")))
			m.month(t)
		}, func(t *testing.T, m *manual, _ string) {
			m.pool.Reset()
			require.Zero(t, m.count(t, `SELECT count(*) FROM duesday.periods`))
		}},
		"behind": {lost, contains("A run would open it with 6 dues")},
		"after-restore": {lost, func(t *testing.T, m *manual, _ string) {
			require.Len(t, m.sim.Bank(), 12)
			require.Equal(t, 12, m.count(t, `SELECT count(*) FROM duesday.charges WHERE status = 'succeeded'`))
		}},
		"another-product": {func(t *testing.T, m *manual) {
			m.sim.Plant(stripesim.Charge{Customer: "cus_0001", Amount: 100, Currency: "usd", Created: m.sim.Now(), Metadata: map[string]string{
				"duesday_period": testPeriod, "duesday_customer": "b_17",
				"duesday_key": charges.Key("b_17", charges.Period{Year: 2026, Month: time.October}, testNamespace, 1)}})
			p := m.run(t, "--after-restore")
			p.requireExit(t, 3)
			require.Contains(t, p.lastError(t), job.ErrRenamed.Error())
			require.Zero(t, m.posts())
			m.requireRefused(t)
		}, func(t *testing.T, m *manual, _ string) {
			require.Equal(t, map[string]int{"succeeded": 6}, m.tally(t))
		}},
		"compare": {func(t *testing.T, m *manual) {
			lost(t, m)
			m.month(t, "--period=2026-09", "--after-restore")
			m.month(t, "--after-restore")
		}, contains("the ledger and Stripe agree on 2 settled periods")},
		"vault": {func(t *testing.T, m *manual) {
			lost(t, m)
			m.behindProxy(t)
			m.month(t, "--after-restore")
			require.Zero(t, m.count(t, `SELECT sum(reserved) FROM duesday.vault_limits`))
		}, func(t *testing.T, m *manual, _ string) {
			require.Equal(t, m.count(t, `SELECT sum(claimed_total) FROM duesday.totals WHERE billing_period = '2026-10'`),
				m.count(t, `SELECT sum(reserved) FROM duesday.vault_limits`))
		}},
		"move": {func(t *testing.T, m *manual) {
			m.month(t)
			m.env = with(m.env, "NEW_DATABASE_URL", pgtest.New(t).URL)
		}, contains("2026-10", "settled")},
		"leave": {settledMonth, hasFiles("charges-2026-10.csv", "attempts.csv", "duesday.dump")},
	}
}

func declinedLongAgo(t *testing.T, m *manual) {
	m.sim.DeclineOnce("cus_0002")
	m.sim.Decline("cus_0003", "card_declined", "insufficient_funds")
	m.month(t)
	m.exec(t, `UPDATE duesday.charges SET settled_at = settled_at - interval '73 hours' WHERE status = 'declined'`)
}

func refusedMonth(t *testing.T, m *manual) {
	m.sim.SetAuth(403)
	m.run(t).requireExit(t, 3)
	m.sim.SetAuth(0)
}

func doubtfulMonth(t *testing.T, m *manual) {
	m.sim.FaultCustomer("cus_0002", stripesim.Fault{Kind: stripesim.Error500BeforeCommit})
	m.run(t).requireExit(t, 1)
	m.age(t)
}

const insertTried = `
	INSERT INTO duesday.customers (id, stripe_customer_id, amount, currency) VALUES
		('acct_1', 'cus_1', 1999, 'usd'), ('acct_2', 'cus_declined_insufficient_funds_1', 1999, 'usd'), ('acct_3', 'cus_missing_1', 2500, 'eur')`

func emptySchema(t *testing.T, m *manual) { m.exec(t, `TRUNCATE duesday.customers`) }

func triedMonth(t *testing.T, m *manual) {
	emptySchema(t, m)
	m.exec(t, insertTried)
	m.month(t)
	m.sim.Pays("cus_declined_insufficient_funds_1")
}

func stripePages() map[string]page {
	return map[string]page{
		"stripe-customers": {emptySchema, contains("A run would open it with 3 dues")},
		"stripe-bill": {func(t *testing.T, m *manual) {
			emptySchema(t, m)
			m.exec(t, insertTried)
		}, func(t *testing.T, m *manual, said string) {
			contains("period already settled, nothing to do", "succeeded", "declined", "insufficient_funds", "rejected")(t, m, said)
			require.Len(t, m.sim.Succeeded(), 1)
		}},
		"stripe-again": {triedMonth, func(t *testing.T, m *manual, _ string) { require.Len(t, m.sim.Succeeded(), 2) }},
		"stripe-over": {triedMonth, func(t *testing.T, m *manual, said string) {
			contains("exit code 3", "the ledger is older than what Stripe has")(t, m, said)
			require.Len(t, m.sim.Succeeded(), 1)
		}},
		"stripe-method": {func(t *testing.T, m *manual) {
			m.exec(t, `UPDATE duesday.customers SET payment_method = 'pm_1'`)
		}, func(t *testing.T, m *manual, said string) {
			contains("payment_intents |     6")(t, m, said)
			require.Len(t, m.sim.Succeeded(), 6)
		}},
	}
}

func TestDocs_everyCommandIsRun(t *testing.T) {
	t.Parallel()
	for document, pages := range map[string]map[string]page{"operations.md": operations(), "stripe.md": stripePages()} {
		blocks, err := runbook.Read("../../docs/" + document)
		require.NoError(t, err)
		for name := range pages {
			require.Contains(t, blocks["test"], name, "%s has no such block", document)
		}
		for name, block := range blocks["test"] {
			page, known := pages[name]
			require.True(t, known, "%s:%d: no test runs %s", document, block.Line, name)
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				m := &manual{setup(t, stripesim.Options{}), t.TempDir()}
				m.add(t, payers(6)...)
				page.before(t, m)
				said := m.sh(t, block.Text)
				page.after(t, m, said)
				m.requireCleanBooks(t)
			})
		}
	}
}

// Whoever is paged finds the alert's name as a heading, and under it the first
// three commands.
func TestDocs_eachAlertHasItsFirstThreeCommands(t *testing.T) {
	t.Parallel()
	rules, err := os.ReadFile("../../monitoring/rules.yaml")
	require.NoError(t, err)
	text, err := os.ReadFile("../../docs/operations.md")
	require.NoError(t, err)
	alerts := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^\s+- alert: (\w+)$`).FindAllStringSubmatch(string(rules), -1) {
		alerts[m[1]] = true
	}
	require.NotEmpty(t, alerts)
	for alert := range alerts {
		_, section, found := strings.Cut(string(text), "\n### "+alert+"\n")
		require.True(t, found, "no heading for %s", alert)
		_, block, found := strings.Cut(section, "\n```sh test=")
		require.True(t, found, alert)
		block, _, _ = strings.Cut(block, "\n```\n")
		require.Len(t, strings.Split(block, "\n"), 1+3, "the first three commands of %s", alert)
	}
}

// What needs Stripe itself is at least shell, and goes to Stripe's test mode.
func TestDocs_whatNoTestCanRunGoesToStripe(t *testing.T) {
	t.Parallel()
	for _, document := range []string{"operations.md", "stripe.md"} {
		blocks, err := runbook.Read("../../docs/" + document)
		require.NoError(t, err)
		for name, block := range blocks["stripe"] {
			require.NoError(t, exec.Command("sh", "-n", "-c", block.Text).Run(), name)
			for line := range strings.Lines(block.Text) {
				require.True(t, strings.HasPrefix(line, `curl https://api.stripe.com/v1/customers -u "$STRIPE_TEST_SECRET_KEY:"`), line)
			}
		}
	}
}
