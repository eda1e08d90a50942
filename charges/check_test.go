package charges_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/charges"
)

// rejectCases are customers, as SQL expressions for id, stripe_customer_id,
// payment_method, amount and currency, and what opening makes of them.
func rejectCases() []struct{ name, row, want string } {
	return []struct{ name, row, want string }{
		{"plain", `'c1', 'cus_NffrFeUfNV2Hib', 'pm_1MqLiJLkdIwHu7ixUEgbFdYF', 1999, 'usd'`, ""},
		{"nulls where they may be", `'c2', NULL, NULL, 1999, 'usd'`, ""},
		{"email", `'zoe+billing@example.com', 'cus_1', NULL, 1999, 'usd'`, ""},
		{"uuid", `'0190f3c5-7a52-7cc0-8f0e-0d9f7c2a4f11', 'cus_1', NULL, 1999, 'usd'`, ""},
		{"every character that may be", `E'!#$%&()*+,-./0123456789;<=>?@ABCZ[]^_abcz{|}~', 'cus_1', NULL, 1999, 'usd'`, ""},
		{"one character", `'7', 'cus_1', NULL, 1999, 'usd'`, ""},
		{"254 characters", `repeat('x', 254), 'cus_1', NULL, 1999, 'usd'`, ""},
		{"smallest amount", `'c3', NULL, NULL, 1, 'usd'`, ""},
		{"largest amount", `'c4', NULL, NULL, 99999999, 'usd'`, ""},
		{"no cents", `'c5', NULL, NULL, 1999, 'jpy'`, ""},
		{"three decimals", `'c6', NULL, NULL, 1990, 'kwd'`, ""},

		{"empty id", `'', 'cus_1', NULL, 1999, 'usd'`, "customer_id_missing"},
		{"quote", `'o''brien', 'cus_1', NULL, 1999, 'usd'`, "customer_id_invalid"},
		{"double quote", `'say"hi', 'cus_1', NULL, 1999, 'usd'`, "customer_id_invalid"},
		{"backtick", "'a`b'" + `, 'cus_1', NULL, 1999, 'usd'`, "customer_id_invalid"},
		{"colon", `'a:b', 'cus_1', NULL, 1999, 'usd'`, "customer_id_invalid"},
		{"backslash", `E'a\\b', 'cus_1', NULL, 1999, 'usd'`, "customer_id_invalid"},
		{"space", `'a b', 'cus_1', NULL, 1999, 'usd'`, "customer_id_invalid"},
		{"only a space", `' ', 'cus_1', NULL, 1999, 'usd'`, "customer_id_invalid"},
		{"newline at the end", `E'a\n', 'cus_1', NULL, 1999, 'usd'`, "customer_id_invalid"},
		{"newline at the start", `E'\na', 'cus_1', NULL, 1999, 'usd'`, "customer_id_invalid"},
		{"newline between", `E'a\nb', 'cus_1', NULL, 1999, 'usd'`, "customer_id_invalid"},
		{"tab", `E'a\tb', 'cus_1', NULL, 1999, 'usd'`, "customer_id_invalid"},
		{"DEL", `E'a\x7f', 'cus_1', NULL, 1999, 'usd'`, "customer_id_invalid"},
		{"emoji", `'💳', 'cus_1', NULL, 1999, 'usd'`, "customer_id_invalid"},
		{"accent", `'zoë', 'cus_1', NULL, 1999, 'usd'`, "customer_id_invalid"},
		{"full-width", `'ａ', 'cus_1', NULL, 1999, 'usd'`, "customer_id_invalid"},
		{"no-break space", `E'a\u00a0b', 'cus_1', NULL, 1999, 'usd'`, "customer_id_invalid"},
		{"255 characters", `repeat('y', 255), 'cus_1', NULL, 1999, 'usd'`, "customer_id_too_long"},
		{"300 emoji", `repeat('💳', 300), 'cus_1', NULL, 1999, 'usd'`, "customer_id_too_long"},
		{"too long to index", `(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 500) AS i), 'cus_1', NULL, 1999, 'usd'`, "customer_id_too_long"},
		{"too long, and the same so far", `(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 501) AS i), 'cus_1', NULL, 1999, 'usd'`, "customer_id_too_long"},

		{"empty Stripe id", `'s1', '', NULL, 1999, 'usd'`, "stripe_customer_id_invalid"},
		{"Stripe id with a space", `'s2', 'cus_1 ', NULL, 1999, 'usd'`, "stripe_customer_id_invalid"},
		{"Stripe id with a newline", `'s3', E'cus_1\n', NULL, 1999, 'usd'`, "stripe_customer_id_invalid"},
		{"Stripe id too long", `'s4', repeat('z', 255), NULL, 1999, 'usd'`, "stripe_customer_id_invalid"},
		{"empty payment method", `'s5', NULL, '', 1999, 'usd'`, "payment_method_invalid"},
		{"payment method with a quote", `'s6', NULL, 'pm_''', 1999, 'usd'`, "payment_method_invalid"},

		{"octets more than 254, characters not", `repeat('é', 200), 'cus_1', NULL, 1999, 'usd'`, "customer_id_invalid"},
		{"id before amount", `'b a', 'cus_1', NULL, -1, 'usd'`, "customer_id_invalid"},
		{"length before all", `repeat('ü', 255), '', '', NULL, NULL`, "customer_id_too_long"},
		{"id before Stripe id", `'b b', 'cus 1', 'pm 1', 1999, 'USD'`, "customer_id_invalid"},
		{"Stripe id before payment method", `'s7', 'cus 1', 'pm 1', 1999, 'USD'`, "stripe_customer_id_invalid"},
		{"payment method before amount", `'s8', 'cus_1', 'pm 1', NULL, 'USD'`, "payment_method_invalid"},
		{"amount before currency", `'s9', 'cus_1', NULL, 0, 'USD'`, "amount_not_positive"},

		{"no amount", `'a1', NULL, NULL, NULL, 'usd'`, "amount_missing"},
		{"zero", `'a2', NULL, NULL, 0, 'usd'`, "amount_not_positive"},
		{"negative", `'a3', NULL, NULL, -1, 'usd'`, "amount_not_positive"},
		{"smallest number", `'a4', NULL, NULL, -9223372036854775808, 'usd'`, "amount_not_positive"},
		{"above Stripe's maximum", `'a5', NULL, NULL, 100000000, 'usd'`, "amount_too_large"},
		{"largest number", `'a6', NULL, NULL, 9223372036854775807, 'usd'`, "amount_too_large"},
		{"largest number once more", `'a7', NULL, NULL, 9223372036854775807, 'usd'`, "amount_too_large"},

		{"no currency", `'m1', NULL, NULL, 1999, NULL`, "currency_missing"},
		{"empty currency", `'m2', NULL, NULL, 1999, ''`, "currency_missing"},
		{"upper case", `'m3', NULL, NULL, 1999, 'USD'`, "currency_not_lower_case"},
		{"one upper-case letter", `'m4', NULL, NULL, 1999, 'usD'`, "currency_not_lower_case"},
		{"unknown", `'m5', NULL, NULL, 1999, 'xyz'`, "currency_unknown"},
		{"not traded at Stripe", `'m6', NULL, NULL, 1999, 'irr'`, "currency_unknown"},
		{"a space after it", `'m7', NULL, NULL, 1999, 'usd '`, "currency_unknown"},
		{"two of them", `'m8', NULL, NULL, 1999, 'usd,eur'`, "currency_unknown"},
	}
}

// fill makes of the cases a table without constraints, so that everything that
// a view could come up with can be in it.
func (b *testBundle) fill(t *testing.T) {
	t.Helper()
	b.exec(t, `CREATE TABLE public.clients (`+goodColumns+`, want text)`)
	for _, tc := range rejectCases() {
		b.exec(t, fmt.Sprintf(`INSERT INTO public.clients SELECT %s, true, '%s'`, tc.row, tc.want))
	}
	b.exec(t, `INSERT INTO public.clients VALUES ('inactive', 'cus_1', NULL, -1, NULL, false, 'not a due'),
		('of unknown activity', 'cus_1', NULL, 1999, 'usd', NULL, 'not a due')`)
}

func TestOpen_rejectsWhatCanNeverBeCharged(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.fill(t)
	o := b.opening(t)
	o.Customers = b.relation(t, "public.clients")
	require.NoError(t, b.Open(b.ctx, b.conn, o))
	b.requireWanted(t)

	require.Equal(t, b.text(t, `SELECT count(*) FROM public.clients WHERE want = ''`), fmt.Sprint(len(b.claimAll(t))))
	for _, code := range b.texts(t, `SELECT DISTINCT reject_code FROM duesday.dues WHERE reject_code IS NOT NULL`) {
		require.NotEqual(t, code, charges.RejectReason(code), "a code without words")
	}
}

func TestReopen_rejectsAsOpeningDoes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	o := b.opening(t)
	o.AllowEmpty = true
	require.NoError(t, b.Open(b.ctx, b.conn, o))
	b.fill(t)
	o.Customers = b.relation(t, "public.clients")
	require.NoError(t, b.Reopen(b.ctx, b.conn, o))
	b.requireWanted(t)
}

func (b *testBundle) requireWanted(t *testing.T) {
	t.Helper()
	const compare = `
		SELECT coalesce(left(c.id, 20), left(due.customer_id, 20)) || ': want ' || coalesce(want, 'none') || ', got ' || coalesce(reject_code, 'none')
		FROM (SELECT * FROM public.clients WHERE active) AS c
		FULL JOIN duesday.dues AS due ON due.customer_id = CASE WHEN length(c.id) > 254
			THEN left(c.id, 180) || '…' || encode(sha256(convert_to(c.id, 'UTF8')), 'hex') ELSE c.id END
		WHERE coalesce(reject_code, '') IS DISTINCT FROM want`
	require.Empty(t, b.texts(t, compare))
}

// An opening decides about what it froze, plan about the relation.
func TestOpen_decidesAboutEveryMixOfMistakesAsPlanDoes(t *testing.T) {
	t.Parallel()
	for _, method := range []charges.Method{charges.MethodCharges, charges.MethodPaymentIntents} {
		t.Run(string(method), func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.exec(t, `
				CREATE TABLE public.clients AS
				SELECT CASE WHEN id = '' THEN '' ELSE id || row_number() OVER () END AS id,
					stripe_customer_id, payment_method, amount, currency, true AS active
				FROM unnest(ARRAY['x', 'a b', 'ü', repeat('é', 200), repeat('x', 260)]) AS id,
					unnest(ARRAY[NULL, '', 'cus_1', 'cus 1', repeat('c', 255)]) AS stripe_customer_id,
					unnest(ARRAY[NULL, '', 'pm_1', 'pm 1', repeat('p', 255)]) AS payment_method,
					unnest(ARRAY[NULL, -1, 0, 1, 99999999, 100000000]) AS amount,
					unnest(ARRAY[NULL, '', 'usd', 'USD', 'xyz']) AS currency;
				INSERT INTO public.clients
				SELECT '', * FROM (VALUES (NULL, 'pm 1', -1, 'USD', true)) AS nameless`)
			o := b.opening(t)
			o.Method = method
			_, rejects, err := b.plan(t, b.reader(t), "public.clients", o)
			require.NoError(t, err)
			planned := map[string]string{}
			for _, r := range rejects {
				planned[r.CustomerID] = r.Code
			}

			o.Customers = b.relation(t, "public.clients")
			require.NoError(t, b.Open(b.ctx, b.conn, o))
			made := map[string]string{}
			rows, err := b.conn.Query(b.ctx, `SELECT customer_id, reject_code FROM duesday.dues WHERE reject_code IS NOT NULL`)
			require.NoError(t, err)
			var id, code string
			_, err = pgx.ForEachRow(rows, []any{&id, &code}, func() error {
				made[id] = code
				return nil
			})
			require.NoError(t, err)
			require.Equal(t, planned, made)
			require.Greater(t, len(made), 3000)
		})
	}
}

// More than are rejected at once, and of two kinds.
func TestOpen_rejectsHoweverManyThereAre(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const odd, plain = 2*charges.RejectedAtOnce + 10, 100
	b.exec(t, `
		INSERT INTO duesday.customers (id, stripe_customer_id, amount, currency)
		SELECT CASE WHEN i > $1 THEN 'c' WHEN i % 2 = 0 THEN 'c ' ELSE 'd' END || i, CASE WHEN i <= $1 AND i % 2 = 1 THEN 'cus 1' END, 10, 'usd'
		FROM generate_series(1, $2::int) AS i`, odd, odd+plain)
	b.open(t)
	require.Equal(t, []string{
		fmt.Sprintf("- %d", plain), fmt.Sprintf("customer_id_invalid %d", odd/2), fmt.Sprintf("stripe_customer_id_invalid %d", odd/2),
	}, b.texts(t, `SELECT coalesce(reject_code, '-') || ' ' || count(*) FROM duesday.dues GROUP BY reject_code ORDER BY 1`))
	require.Equal(t, fmt.Sprint(10*plain), b.text(t, `SELECT expected_total FROM duesday.totals`))
}

func TestOpen_rejectsANullID(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(t, `CREATE VIEW public.clients AS SELECT NULL::text AS id, 'cus_1'::text AS stripe_customer_id,
		NULL::text AS payment_method, 1999 AS amount, 'usd'::text AS currency, true AS active`)
	o := b.opening(t)
	o.Customers = b.relation(t, "public.clients")
	require.NoError(t, b.Open(b.ctx, b.conn, o))
	require.Equal(t, []string{"=customer_id_missing"}, b.texts(t, `SELECT customer_id || '=' || reject_code FROM duesday.dues`))
}

func TestOpen_paymentIntentsNeedAPaymentMethod(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.customers(t, `'c1', 'cus_1', NULL, 1000, 'usd'`, `'c2', 'cus_2', 'pm_2', 1000, 'usd'`)
	o := b.opening(t)
	o.Method = charges.MethodPaymentIntents
	require.NoError(t, b.Open(b.ctx, b.conn, o))
	require.Equal(t, []string{"c1=payment_method_missing", "c2=ok"},
		b.texts(t, `SELECT customer_id || '=' || coalesce(reject_code, 'ok') FROM duesday.dues ORDER BY customer_id`))
}

// To such a collation 'USD' is 'usd'.
func TestOpen_aCaseInsensitiveCurrencyColumnHidesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(t, `
		CREATE COLLATION caseless (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
		CREATE TABLE public.clients (id text COLLATE caseless, stripe_customer_id text COLLATE caseless,
			payment_method text, amount bigint, currency text COLLATE caseless, active boolean);
		INSERT INTO public.clients VALUES ('a', NULL, NULL, 1000, 'USD', true), ('b', NULL, NULL, 1000, 'usd', true),
			('A', NULL, NULL, 1000, 'usd', true)`)
	o := b.opening(t)
	o.Customers = b.relation(t, "public.clients")
	require.NoError(t, b.Open(b.ctx, b.conn, o))
	require.Equal(t, []string{"A=ok", "a=currency_not_lower_case", "b=ok"},
		b.texts(t, `SELECT customer_id || '=' || coalesce(reject_code, 'ok') FROM duesday.dues ORDER BY customer_id`))
	require.Equal(t, "2000", b.text(t, `SELECT expected_total FROM duesday.totals`))
}

func TestCurrencies_areLowerCaseCodesInOrder(t *testing.T) {
	t.Parallel()
	previous := ""
	for _, c := range strings.Fields(charges.Currencies) {
		require.Regexp(t, `^[a-z]{3}$`, c)
		require.Greater(t, c, previous)
		previous = c
	}
}

func TestRejectReason_ofAnUnknownCodeIsTheCode(t *testing.T) {
	t.Parallel()
	require.Equal(t, "resource_missing", charges.RejectReason("resource_missing"))
	require.Equal(t, "amount is above 99999999, Stripe's maximum", charges.RejectReason("amount_too_large"))
}

// The Go and the SQL of what an id may be are one rule.
func TestCheckCustomerID_decidesAsOpeningDoes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for code := 1; code < 0x180; code++ {
		b.exec(t, `INSERT INTO duesday.customers (id, amount, currency) VALUES ('x' || chr($1::int), 1, 'usd')`, code)
	}
	b.customers(t, `'', NULL, NULL, 1, 'usd'`, `repeat('y', 254), NULL, NULL, 1, 'usd'`, `repeat('y', 255), NULL, NULL, 1, 'usd'`, `repeat('💳', 255), NULL, NULL, 1, 'usd'`)
	ids := map[string]string{}
	rows, err := b.conn.Query(b.ctx, `SELECT id FROM duesday.customers`)
	require.NoError(t, err)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	for _, id := range all {
		if err := charges.CheckCustomerID(id); err != nil {
			ids[id] = err.Error()
		}
	}
	b.open(t)
	rejected := map[string]string{}
	for _, r := range b.report(t) {
		if r.FailureCode != "" {
			id := r.CustomerID
			if r.FailureCode == "customer_id_too_long" { // stored shortened
				id = strings.Repeat(string([]rune(id)[0]), 255)
			}
			rejected[id] = charges.RejectReason(r.FailureCode)
		}
	}
	require.Equal(t, rejected, ids)
	require.Len(t, rejected, 0x17f-(94-5)+3, "all but the printable ASCII without a space, two quotes, backtick, colon and backslash")
}
