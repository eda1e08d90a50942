package main

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/internal/stripesim"
)

// Nothing that was logged in a month full of trouble, at any level, tells a
// secret, or anything about a customer.
func TestLogs_holdNoSecretAndNoCustomersData(t *testing.T) {
	t.Parallel()
	faults := curable(0.05)
	faults[stripesim.Error500BeforeCommit] = 0.1
	b := setup(t, stripesim.Options{Seed: 5, FaultRate: faults})
	u, err := url.Parse(b.db.URL)
	require.NoError(t, err)
	u.User = url.UserPassword(u.User.Username(), "hunter2-of-the-database")
	b.env["DATABASE_URL"] = u.String()

	customers := payers(60)
	for i := range customers {
		customers[i].paymentMethod = fmt.Sprintf("card_%04d", i+1)
	}
	b.add(t, customers...)
	decline := stripesim.Decline{Code: "card_declined", DeclineCode: "insufficient_funds", Message: "Mr. Poe is broke."}
	b.add(t, customer{id: "cust_poe", stripeID: "cus_poe", amount: 1234567, currency: "usd"},
		customer{id: "cust_missing", stripeID: "cus_missing_1", amount: 1234567, currency: "usd"},
		customer{id: "cust_bad", stripeID: "cus_bad", amount: -1234567, currency: "usd"},
		// Totals are told; they must not be one customer's.
		customer{id: "cust_roe", stripeID: "cus_roe", amount: 3000, currency: "usd"},
		customer{id: "cust_missing_2", stripeID: "cus_missing_2", amount: 3000, currency: "usd"})
	b.sim.Behave("cus_poe", stripesim.Behaviour{Decline: &decline})
	b.sim.Behave("cus_roe", stripesim.Behaviour{Decline: &decline})

	// Who is told of the ends has secrets of its own, and is told none either.
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte("hunter2-of-the-signature"), 0o600))
	to, termination := newReceiver(t, 500, 302, 404, 500, 500, 500, 500), terminationLog(t)

	var logs strings.Builder
	run := func(flags ...string) {
		p := b.run(t, append([]string{"--debug", "--description=Mr. Poe owes this", to.flag(), "--notify-secret-file=" + secret,
			"--termination-log=" + termination}, flags...)...)
		p.exit(t)
		logs.WriteString(p.err.String())
		logs.WriteString(p.out.String())
		content, err := os.ReadFile(termination)
		require.NoError(t, err)
		logs.Write(content)
		logs.WriteString("\n")
	}
	b.sim.SetAuth(http.StatusUnauthorized)
	run()
	closed := newReceiver(t)
	closed.Close()
	run(closed.flag())
	b.sim.SetAuth(0)
	run()
	// Look-ups fail in every way, too.
	b.age(t)
	get := func(r stripesim.Request) bool { return r.Method == http.MethodGet && r.Customer != "" }
	for range 3 {
		b.sim.FaultNext(get, stripesim.Fault{Kind: stripesim.DropBefore}, stripesim.Fault{Kind: stripesim.HTML200},
			stripesim.Fault{Kind: stripesim.Truncated200}, stripesim.Fault{Kind: stripesim.Error503},
			stripesim.Fault{Kind: stripesim.Error500AfterCommit, ShouldRetry: "false"})
	}
	b.sim.FaultNext(isPost, stripesim.Fault{Kind: stripesim.Unauthorized401})
	run()
	run("--log-format=console")
	b.exec(t, `UPDATE duesday.totals SET cap = claimed_total`)
	run("--reopen")
	b.exec(t, `CREATE VIEW v AS SELECT * FROM duesday.customers UNION ALL SELECT * FROM duesday.customers`)
	run("--reopen", "--customers=v")
	run("--period=2026-09", "--customers=v")
	run("--notify-url=http://chat.example.com" + notifyPath)
	for _, m := range to.got() {
		logs.Write(m.body)
		logs.WriteString("\n")
	}

	period, err := charges.ParsePeriod(testPeriod)
	require.NoError(t, err)
	needles := []string{"hunter2-of-the-chat", "T0000", "hunter2-of-the-signature", testKey, testKey[len(testKey)-8:], "hunter2", "Mr. Poe", "1234567", "cust_poe", "cus_poe", "cust_bad", "cus_bad", "cus_missing"}
	for _, c := range customers {
		needles = append(needles, c.id, c.stripeID, c.paymentMethod, charges.Key(c.id, period, testNamespace, 1))
	}
	for _, c := range b.sim.Bank() {
		needles = append(needles, c.ID)
	}
	for line := range strings.Lines(logs.String()) {
		for _, needle := range needles {
			require.False(t, strings.Contains(line, needle), "%q is in the log: %s", needle, line)
		}
	}
	require.Contains(t, logs.String(), `"level":"debug"`)
	require.Contains(t, logs.String(), "cannot tell how the run ended")
	require.NotEmpty(t, to.got())
	require.NotEmpty(t, b.sim.Succeeded())
}
