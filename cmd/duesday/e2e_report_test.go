package main

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/internal/pgtest"
	"github.com/duesday/duesday/internal/stripesim"
)

// planned is what plan --output json says.
type planned struct {
	Opened   bool           `json:"opened"`
	Settled  bool           `json:"settled"`
	Counts   map[string]int `json:"counts"`
	Totals   []planTotal    `json:"totals"`
	Rejected []struct {
		CustomerID string `json:"customer_id"`
		Code       string `json:"code"`
	} `json:"rejected"`
	Problem string `json:"problem"`
}

type planTotal struct {
	Currency  string `json:"currency"`
	Expected  int64  `json:"expected_total"`
	Cap       int64  `json:"cap"`
	Claimed   int64  `json:"claimed_total"`
	Succeeded int64  `json:"succeeded_total"`
}

func (b *bundle) plan(t testing.TB, env map[string]string) planned {
	t.Helper()
	p := start(t, env, "plan", "--period="+testPeriod, "--output=json")
	p.requireExit(t, 0)
	return decode[planned](t, p.out.String())
}

func bankTotals(b *bundle) map[string]int64 {
	totals := map[string]int64{}
	for _, c := range b.sim.Succeeded() {
		totals[c.Currency] += c.Amount
	}
	return totals
}

func TestPlan_foretellsTheRunAndNeedsOnlyToRead(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	customers := payers(45)
	b.add(t, customers...)
	b.add(t, customer{id: "bad", amount: 0, currency: "usd"})
	reader := map[string]string{"DATABASE_URL": pgtest.ReadOnlyRole(t, b.db)}

	first := b.plan(t, reader)
	require.False(t, first.Opened)
	require.Equal(t, 45, first.Counts["unclaimed"])
	require.Equal(t, 1, first.Counts["rejected"])
	require.Len(t, first.Rejected, 1)
	require.Equal(t, "bad", first.Rejected[0].CustomerID)
	require.Equal(t, "amount_not_positive", first.Rejected[0].Code)
	require.Zero(t, b.count(t, `SELECT count(*) FROM duesday.periods`), "plan opened the period")
	table := start(t, reader, "plan", "--period="+testPeriod)
	table.requireExit(t, 0)
	require.Contains(t, table.out.String(), "Period 2026-10 is not open. A run would open it with 46 dues, charge 45 and reject 1.")
	require.Contains(t, table.out.String(), "amount is zero or negative")

	// Interrupted on the first page: what is left is planned.
	b.sim.SetAuth(http.StatusUnauthorized)
	b.run(t, slowPages...).requireExit(t, 3)
	b.sim.SetAuth(0)
	second, tally := b.plan(t, reader), b.tally(t)
	require.True(t, second.Opened)
	require.Equal(t, tally["claimed"], second.Counts["in_doubt"])
	require.Equal(t, 46-tally["claimed"]-tally["rejected"], second.Counts["unclaimed"])
	for i := range second.Totals {
		require.Equal(t, first.Totals[i].Expected, second.Totals[i].Expected)
		require.Equal(t, first.Totals[i].Cap, second.Totals[i].Cap)
	}
	table = start(t, reader, "plan", "--period="+testPeriod)
	table.requireExit(t, 0)
	require.Contains(t, table.out.String(), fmt.Sprintf("A run would recover %d in doubt and charge %d more.",
		second.Counts["in_doubt"], second.Counts["unclaimed"]))

	b.finish(t)
	b.requireBilled(t, customers)
	foretold := map[string]int64{}
	for _, total := range first.Totals {
		foretold[total.Currency] = total.Expected
	}
	require.Equal(t, foretold, bankTotals(b), "the run did not do what was planned")

	last := b.plan(t, reader)
	require.True(t, last.Settled)
	require.Equal(t, 45, last.Counts["succeeded"])
	table = start(t, reader, "plan", "--period="+testPeriod)
	table.requireExit(t, 0)
	require.Contains(t, table.out.String(), "Period 2026-10 is settled: a run would do nothing.")
}

func TestPlan_exitsAsOpeningWould(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	for _, output := range []string{"table", "json"} {
		empty := b.command(t, "plan", "--period="+testPeriod, "--output="+output)
		empty.requireExit(t, 3)
		require.Contains(t, empty.err.String(), "no active customer")
		missing := b.command(t, "plan", "--period="+testPeriod, "--customers=nowhere", "--output="+output)
		missing.requireExit(t, 2)
		require.Contains(t, missing.err.String(), "duesday plan: --customers nowhere: there is no such table or view\n")
	}
	b.add(t, payers(2)...)
	b.exec(t, `CREATE VIEW v AS SELECT * FROM duesday.customers UNION ALL SELECT * FROM duesday.customers WHERE id = 'cust_0002'`)
	repeated := b.command(t, "plan", "--period="+testPeriod, "--customers=v")
	repeated.requireExit(t, 2)
	require.Contains(t, repeated.err.String(), "'cust_0002' (2 rows)")
}

// mixed is a settled period with every outcome, and texts that a spreadsheet
// would take for formulas.
func mixed(t *testing.T) (*bundle, []customer) {
	t.Helper()
	b := setup(t, stripesim.Options{})
	customers := append(payers(12),
		customer{id: "=1+1", stripeID: "cus_formula", amount: 300, currency: "usd"},
		customer{id: "+1", stripeID: "cus_plus", amount: 300, currency: "usd"},
		customer{id: "-1", stripeID: "cus_minus", amount: 300, currency: "usd"},
		customer{id: "@SUM(A1)", stripeID: "cus_at", amount: 300, currency: "usd"})
	b.add(t, customers...)
	b.add(t, customer{id: "declined", stripeID: "cus_d", amount: 700, currency: "usd"},
		customer{id: "pending", stripeID: "cus_pending_1", amount: 700, currency: "usd"},
		customer{id: "missing", stripeID: "cus_missing_1", amount: 700, currency: "usd"},
		customer{id: "bad\n\x1b[31mrow", amount: -5, currency: "=usd"})
	b.exec(t, `UPDATE duesday.customers SET amount = NULL WHERE amount < 0`)
	b.sim.Behave("cus_d", stripesim.Behaviour{Decline: &stripesim.Decline{
		Code: "card_declined", DeclineCode: "do_not_honor", Message: "=HYPERLINK(\"http://evil\",\"x\"), \"quoted\"\nnext line"}})
	b.finish(t)
	b.requireBilled(t, customers)
	return b, customers
}

func TestReport_agreesWithTheBankInEveryFormat(t *testing.T) {
	t.Parallel()
	b, customers := mixed(t)
	bank := map[string]stripesim.Charge{}
	for _, c := range b.sim.Bank() {
		bank[c.ID] = c
	}
	env := map[string]string{"DATABASE_URL": pgtest.ReadOnlyRole(t, b.db)}
	report := func(format string) string {
		p := start(t, env, "report", "--period="+testPeriod, "--format="+format)
		p.requireExit(t, 0)
		return p.out.String()
	}

	t.Run("json", func(t *testing.T) {
		type row struct {
			CustomerID       string `json:"customer_id"`
			StripeCustomerID string `json:"stripe_customer_id"`
			Amount           *int64 `json:"amount"`
			Currency, Status string
			ChargeID         string `json:"charge_id"`
			FailureCode      string `json:"failure_code"`
			FailureMessage   string `json:"failure_message"`
		}
		doc := decode[struct {
			State   string         `json:"state"`
			Counts  map[string]int `json:"counts"`
			Totals  []planTotal    `json:"totals"`
			Charges []row          `json:"charges"`
		}](t, report("json"))
		require.Equal(t, "settled", doc.State)
		require.Len(t, doc.Charges, len(customers)+4)
		succeeded := map[string]int64{}
		for _, r := range doc.Charges {
			switch r.Status {
			case "succeeded":
				c := bank[r.ChargeID]
				require.Equal(t, stripesim.StatusSucceeded, c.Status)
				require.Equal(t, []any{c.Customer, c.Amount, c.Currency}, []any{r.StripeCustomerID, *r.Amount, r.Currency})
				succeeded[r.Currency] += *r.Amount
			case "declined":
				require.Equal(t, "do_not_honor", r.FailureCode)
				require.True(t, strings.HasPrefix(r.FailureMessage, "=HYPERLINK"), "json is not for spreadsheets")
				require.Equal(t, stripesim.StatusFailed, bank[r.ChargeID].Status)
			case "processing":
				require.Equal(t, stripesim.StatusPending, bank[r.ChargeID].Status)
			case "rejected":
				require.Empty(t, r.ChargeID)
				require.NotEmpty(t, r.FailureCode)
			default:
				require.Fail(t, "unexpected status", r.Status)
			}
		}
		require.Equal(t, bankTotals(b), succeeded)
		for _, total := range doc.Totals {
			require.Equal(t, succeeded[total.Currency], total.Succeeded, total.Currency)
		}
		require.Equal(t, len(b.sim.Succeeded()), doc.Counts["succeeded"])
	})

	t.Run("csv", func(t *testing.T) {
		records, err := csv.NewReader(strings.NewReader(report("csv"))).ReadAll()
		require.NoError(t, err)
		column := map[string]int{}
		for i, name := range records[0] {
			column[name] = i
		}
		records = records[1:]
		require.Len(t, records, len(customers)+4)
		succeeded := map[string]int64{}
		for _, r := range records {
			for i, text := range r {
				if text != "" && i != column["amount"] && i != column["amount_decimal"] {
					require.NotContains(t, "=+-@\t\r\n", text[:1], "a spreadsheet would run %q", text)
				}
			}
			if r[column["status"]] != "succeeded" {
				continue
			}
			c := bank[r[column["charge_id"]]]
			amount, err := strconv.ParseInt(r[column["amount"]], 10, 64)
			require.NoError(t, err)
			require.Equal(t, c.Amount, amount)
			require.Equal(t, c.Customer, r[column["stripe_customer_id"]])
			succeeded[c.Currency] += amount
		}
		require.Equal(t, bankTotals(b), succeeded)
	})

	t.Run("table", func(t *testing.T) {
		text := report("table")
		require.NotContains(t, text, "\x1b", "a terminal would obey it")
		require.Equal(t, len(b.sim.Succeeded()), strings.Count(text, "  succeeded  "))
		for _, c := range b.sim.Succeeded() {
			require.Contains(t, text, c.ID)
		}
		require.Contains(t, text, "2026-10: settled; 16 succeeded, 1 declined, 2 rejected, 1 processing")
		require.Contains(t, text, "$10.00")
		require.Contains(t, text, "¥1,002")
		require.Regexp(t, `do_not_honor +=HYPERLINK\("http://evil","x"\), "quoted" next line\n`, text)
		require.Regexp(t, `customer_id_invalid +id has a character other than printable ASCII, or a space, quote, colon or backslash\n`, text)
	})

	t.Run("html", func(t *testing.T) {
		page := report("html")
		for _, want := range []string{
			"<title>Billing period 2026-10</title>", "16 of 20 customers have paid.", "¥4,026",
			`<code><bdi>do_not_honor</bdi></code>`, `<bdi>&#34;bad\n\x1b[31mrow&#34;</bdi>`, "resource_missing",
		} {
			require.Contains(t, page, want)
		}
		require.NotContains(t, page, "\x1b")
		alias := start(t, env, "report", "--period="+testPeriod, "--output=html")
		alias.requireExit(t, 0)
		read := regexp.MustCompile(`Read from the ledger on [^.]*`)
		require.Equal(t, read.ReplaceAllString(page, ""), read.ReplaceAllString(alias.out.String(), ""))
	})
}

func TestReport_ofAPeriodThatIsNotOpenIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	p := b.command(t, "report", "--period=2026-10")
	p.requireExit(t, 2)
	require.Contains(t, p.err.String(), "period 2026-10 has not been opened")
	p = b.command(t, "report", "--period=2026-10", "--format=pdf")
	p.requireExit(t, 2)
	require.Contains(t, p.err.String(), `--format "pdf": want `)
	p = b.command(t, "report", "--period=2026-10", "--format=csv", "--output=json")
	p.requireExit(t, 2)
	require.Contains(t, p.err.String(), `--output json: --format csv says otherwise`)
}

func TestStatus_tellsWhereEachPeriodStands(t *testing.T) {
	t.Parallel()
	b, _ := mixed(t)
	b.sim.SetAuth(http.StatusForbidden)
	b.run(t, "--period=2026-11", "--max-rejected=100%").requireExit(t, 3)
	p := start(t, map[string]string{"DATABASE_URL": pgtest.ReadOnlyRole(t, b.db)}, "status", "--output=json")
	p.requireExit(t, 0)
	var periods []struct {
		Period string         `json:"billing_period"`
		State  string         `json:"state"`
		Counts map[string]int `json:"counts"`
	}
	require.NoError(t, json.Unmarshal([]byte(p.out.String()), &periods))
	states := map[string]string{}
	for _, s := range periods {
		states[s.Period] = s.State
		if s.Period == testPeriod {
			require.Equal(t, len(b.sim.Succeeded()), s.Counts["succeeded"])
		}
		if s.Period == "2026-11" {
			require.Equal(t, 19, s.Counts["in_doubt"])
		}
	}
	require.Equal(t, "settled", states["2026-10"])
	require.Equal(t, "open", states["2026-11"])
	table := b.command(t, "status")
	table.requireExit(t, 0)
	require.Contains(t, table.out.String(), "2026-10")
}
