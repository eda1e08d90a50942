package main

import (
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/internal/stripesim"
)

// mutate does to the customers what a living product does to them in a month.
func (b *bundle) mutate(t testing.TB) {
	t.Helper()
	b.exec(t, `DELETE FROM duesday.customers WHERE id IN ('cust_0003', 'cust_0055')`)
	b.exec(t, `UPDATE duesday.customers SET active = false WHERE id IN ('cust_0004', 'cust_0056')`)
	b.exec(t, `UPDATE duesday.customers SET id = 'renamed_' || id WHERE id IN ('cust_0005', 'cust_0057')`)
	b.exec(t, `UPDATE duesday.customers SET stripe_customer_id = 'cus_other' WHERE id IN ('cust_0006', 'cust_0058')`)
	b.exec(t, `UPDATE duesday.customers SET amount = 99999, currency = 'gbp', payment_method = 'card_other'
		WHERE id IN ('cust_0007', 'cust_0059')`)
	b.exec(t, `INSERT INTO duesday.customers (id, amount, currency) VALUES ('aaa_first', 500, 'usd'), ('zzz_last', 500, 'usd')`)
}

func TestRun_billsWhatWasOpenedWhateverBecomesOfTheCustomersMeanwhile(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	customers := payers(60)
	b.add(t, customers...)
	arrived, release := b.onTheWire(2, stripesim.HangUntilReleased)
	p := b.run(t, slowPages...)
	arrived(t)
	eventually(t, "both pages to be claimed", func() bool { return b.tally(t)["claimed"] == 40 })
	b.mutate(t)
	release()
	p.requireExit(t, 0)
	b.requireBilled(t, customers)
	b.requireSettled(t)
}

func TestRun_billsWhatWasOpenedWhateverBecomesOfTheCustomersBeforeTheRerun(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	customers := payers(60)
	b.add(t, customers...)
	arrived, release := b.onTheWire(2, stripesim.HangAfterCommit)
	p := b.run(t, slowPages...)
	arrived(t)
	eventually(t, "both pages to be claimed", func() bool { return b.tally(t)["claimed"] == 40 })
	p.kill(t)
	release()
	b.mutate(t)

	// The flags of the rerun do not matter either, nor does the relation.
	b.exec(t, `ALTER TABLE duesday.customers RENAME COLUMN amount TO price`)
	b.finish(t, "--description=Something else", "--stripe-method=payment_intents", "--spend-cap-factor=1")
	b.requireBilled(t, customers)
}

func TestRun_ofASettledPeriodBillsNoNewCustomer(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	customers := payers(10)
	b.add(t, customers...)
	b.finish(t)
	b.add(t, customer{id: "signed_up_on_the_10th", amount: 700, currency: "usd"})
	p := b.run(t)
	p.requireExit(t, 0)
	require.Len(t, p.logs(t, "period already settled, nothing to do"), 1)
	b.requireBilled(t, customers)
}

func TestRun_reopenBillsTheNewAndTheRepairedOnce(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	customers := payers(30)
	broken := customer{id: "broken", stripeID: "cus_broken", amount: 0, currency: "usd"}
	b.add(t, customers...)
	b.add(t, broken)
	b.run(t, "--spend-cap-factor=10").requireExit(t, 0)
	b.requireBilled(t, customers)
	require.Equal(t, "rejected", b.statuses(t)["broken"])

	b.mutate(t) // of those with a slot nothing changes
	b.exec(t, `DELETE FROM duesday.customers WHERE id LIKE 'renamed%'`)
	b.exec(t, `UPDATE duesday.customers SET amount = 800 WHERE id = 'broken'`)
	for range 2 { // once, however often
		b.finish(t, "--reopen")
	}
	b.requireCleanBooks(t)

	want := map[string]int64{"aaa_first": 500, "zzz_last": 500, "cus_broken": 800}
	for _, c := range customers {
		want[c.stripeID] = c.amount
	}
	got := map[string]int64{}
	for _, c := range b.sim.Succeeded() {
		require.NotContains(t, got, c.Customer, "charged twice")
		got[c.Customer] = c.Amount
		if c.Customer == "cus_broken" {
			period, err := charges.ParsePeriod(testPeriod)
			require.NoError(t, err)
			require.Equal(t, charges.Key("broken", period, testNamespace, 2), c.IdempotencyKey)
		}
	}
	require.Equal(t, want, got)
}

func TestRun_reopenThatWouldPassTheCapChangesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	customers := payers(3)
	b.add(t, customers...)
	b.finish(t)
	b.add(t, customer{id: "new", amount: 5000, currency: "usd"})
	p := b.run(t, "--reopen")
	p.requireExit(t, 3)
	require.Contains(t, p.lastError(t), "the spend cap would be passed, nothing was changed")
	b.requireBilled(t, customers)
	require.Equal(t, 3, b.count(t, `SELECT count(*) FROM duesday.dues`))
}

// A customers relation that cannot be read as a whole opens nothing.
func TestRun_aViewThatFailsOpensNothing(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, view string
		code       int
		want       string
	}{
		{
			name: "repeats an id",
			view: `CREATE VIEW v AS SELECT * FROM duesday.customers UNION ALL SELECT * FROM duesday.customers WHERE id = 'cust_0009'`,
			code: 2, want: "repeats an id",
		},
		{
			name: "raises an error in the middle",
			view: `CREATE VIEW v AS SELECT id, stripe_customer_id, payment_method, 1000 / (amount - 1015) AS amount, currency, active FROM duesday.customers`,
			code: 2, want: "division by zero",
		},
		{
			name: "recurses",
			view: `CREATE VIEW v AS SELECT * FROM duesday.customers; CREATE OR REPLACE VIEW v AS SELECT * FROM v`,
			code: 2, want: "infinite recursion",
		},
		{
			name: "joins for ever under a lost right",
			view: `CREATE FUNCTION secret() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE insufficient_privilege USING MESSAGE = 'not for you'; END $$;
				CREATE VIEW v AS SELECT * FROM duesday.customers WHERE id < 'cust_0010' OR secret()`,
			code: 2, want: "not for you",
		},
		{
			name: "is empty", view: `CREATE VIEW v AS SELECT * FROM duesday.customers WHERE false`,
			code: 3, want: "no active customer, nothing was changed; if that is meant, say --allow-empty",
		},
		{
			name: "has no active customer",
			view: `CREATE VIEW v AS SELECT id, stripe_customer_id, payment_method, amount, currency, NULL::boolean AS active FROM duesday.customers`,
			code: 3, want: "no active customer",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, stripesim.Options{})
			b.add(t, payers(20)...)
			b.exec(t, test.view)
			p := b.run(t, "--customers=public.v")
			p.requireExit(t, test.code)
			require.Contains(t, p.lastError(t), test.want)
			require.Contains(t, p.lastError(t), "--customers ")
			for _, table := range []string{"periods", "dues", "totals", "charges"} {
				require.Zero(t, b.count(t, `SELECT count(*) FROM duesday.`+table), table)
			}
			require.Zero(t, b.posts())
		})
	}
}

func TestRun_allowEmptySettlesAPeriodWithoutCustomers(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	b.finish(t, "--allow-empty")
	require.Zero(t, b.posts())
	p := b.run(t)
	p.requireExit(t, 0)
	require.Len(t, p.logs(t, "period already settled, nothing to do"), 1)
}

func TestRun_rejectsBadRowsAndChargesTheOthers(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	good := payers(10)
	long := strings.Repeat("x", 254)
	good = append(good, customer{id: long, stripeID: "cus_long", amount: 1, currency: "eur"},
		customer{id: "most", stripeID: "cus_most", amount: 99_999_999, currency: "eur"},
		customer{id: "own-id_at.example@x", amount: 100, currency: "jpy"})
	b.add(t, good...)

	bad := map[string]string{ // id: code
		"":                        "customer_id_missing",
		"o'brien":                 "customer_id_invalid",
		`say "hi"`:                "customer_id_invalid",
		"a:b":                     "customer_id_invalid",
		"two\nlines":              "customer_id_invalid",
		"tab\there":               "customer_id_invalid",
		"emoji 🎉":                 "customer_id_invalid",
		"émile":                   "customer_id_invalid",
		" ":                       "customer_id_invalid",
		`back\slash`:              "customer_id_invalid",
		"'); DROP TABLE dues; --": "customer_id_invalid",
		long + "x":                "customer_id_too_long",
		strings.Repeat("é", 300):  "customer_id_too_long",
	}
	for id := range bad {
		b.exec(t, `INSERT INTO duesday.customers (id, stripe_customer_id, amount, currency) VALUES ($1, 'cus_bad', 1000, 'usd')`, id)
	}
	for id, row := range map[string]string{
		"amount_missing":             `'cus_bad', NULL, NULL, 'usd'`,
		"amount_not_positive":        `'cus_bad', NULL, 0, 'usd'`,
		"amount_too_large":           `'cus_bad', NULL, 100000000, 'usd'`,
		"currency_missing":           `'cus_bad', NULL, 1000, NULL`,
		"currency_not_lower_case":    `'cus_bad', NULL, 1000, 'USD'`,
		"currency_unknown":           `'cus_bad', NULL, 1000, 'xyz'`,
		"stripe_customer_id_invalid": `'cus bad', NULL, 1000, 'usd'`,
		"payment_method_invalid":     `'cus_bad', 'a:b', 1000, 'usd'`,
	} {
		bad[id] = id
		b.exec(t, `INSERT INTO duesday.customers (id, stripe_customer_id, payment_method, amount, currency) VALUES ($1, `+row+`)`, id)
	}
	for id, row := range map[string]string{
		"negative": `-5, 'usd'`, "min": `-9223372036854775808, 'usd'`, "max": `9223372036854775807, 'usd'`, "blank": `1000, ' '`, "dollar": `1000, 'us$'`,
	} {
		bad[id] = map[string]string{"negative": "amount_not_positive", "min": "amount_not_positive", "max": "amount_too_large",
			"blank": "currency_unknown", "dollar": "currency_unknown"}[id]
		b.exec(t, `INSERT INTO duesday.customers (id, amount, currency) VALUES ($1, `+row+`)`, id)
	}

	refused := b.run(t)
	refused.requireExit(t, 3)
	require.Contains(t, refused.lastError(t), "--max-rejected")
	require.Empty(t, b.statuses(t))

	b.finish(t, "--max-rejected=100%")
	b.requireBilled(t, good)
	require.Equal(t, len(good), b.posts(), "a bad row was sent")
	got := map[string]string{}
	for id, status := range b.statuses(t) {
		if status == "rejected" {
			var code string
			b.scan(t, &code, `SELECT failure_code FROM duesday.charges WHERE customer_id = $1`, id)
			for original := range bad { // too long for an index, an id is kept shortened
				if len(original) > 254 && strings.HasPrefix(id, original[:100]) {
					id = original
				}
			}
			got[id] = code
		}
	}
	require.Equal(t, bad, got)
}

// An id that stands twice in a table without a key, once inactive, is no
// repetition.
func TestRun_inactiveRowsDoNotCount(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	customers := payers(2)
	b.exec(t, `
		CREATE TABLE subscribers (id varchar, stripe_customer_id varchar, payment_method varchar, amount int, currency char(3), active boolean);
		INSERT INTO subscribers VALUES
			('cust_0001', 'cus_0001', NULL, 1000, 'usd', true),
			('cust_0001', 'cus_old', NULL, 1, 'usd', false),
			('cust_0001', 'cus_older', NULL, 1, 'usd', NULL),
			('cust_0002', 'cus_0002', NULL, 1001, 'eur', true)`)
	b.finish(t, "--customers=subscribers")
	b.requireBilled(t, customers)
}

func TestRun_stoppedWhileOpeningIsFinishedByTheNext(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	customers := payers(5)
	b.add(t, customers...)
	b.exec(t, `
		CREATE FUNCTION wait_for_test() RETURNS boolean LANGUAGE plpgsql AS $$
		BEGIN
			PERFORM pg_advisory_xact_lock_shared(42);
			RETURN true;
		END $$;
		CREATE VIEW slow AS SELECT * FROM duesday.customers WHERE wait_for_test()`)
	conn := b.db.Connect(t)
	_, err := conn.Exec(b.ctx, `SELECT pg_advisory_lock(42)`)
	require.NoError(t, err)
	p := b.run(t, "--customers=slow")
	b.awaitBlocked(t)
	p.signal(t, syscall.SIGTERM)
	_, err = conn.Exec(b.ctx, `SELECT pg_advisory_unlock(42)`)
	require.NoError(t, err)
	p.requireExit(t, 1)
	require.Zero(t, b.posts())
	b.finish(t, "--customers=slow")
	b.requireBilled(t, customers)
}
