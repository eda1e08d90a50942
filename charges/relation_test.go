package charges_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/internal/exitcode"
)

const goodColumns = `id text, stripe_customer_id text, payment_method text, amount bigint, currency text, active boolean`

func TestFindRelation_refuses(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(t, `
		CREATE SEQUENCE public.numbers;
		CREATE TYPE public.pair AS (`+goodColumns+`);
		CREATE DOMAIN public.money_amount AS bigint;
		CREATE TABLE public.wrong (id integer, stripe_customer_id uuid, amount numeric(10,2), currency text[], active text);
		CREATE TABLE public.dropped (`+goodColumns+`);
		ALTER TABLE public.dropped DROP COLUMN currency;
		CREATE TABLE public.cased ("ID" text, stripe_customer_id text, payment_method text, amount bigint, currency text, active boolean);
		CREATE TABLE public.domained (id text, stripe_customer_id text, payment_method text, amount money_amount, currency text, active boolean);
		CREATE TABLE public.good (`+goodColumns+`);
		CREATE INDEX good_id ON public.good (id)`)
	for name, tc := range map[string]struct{ relation, want string }{
		"missing":             {"duesday.clients", "there is no such table or view"},
		"missing schema":      {"nowhere.customers", "there is no such table or view"},
		"not on the path":     {"customers", "there is no such table or view"},
		"case of a name":      {`duesday."Customers"`, "there is no such table or view"},
		"sequence":            {"numbers", "it is neither a table nor a view"},
		"index":               {"good_id", "it is neither a table nor a view"},
		"composite type":      {"pair", "it is neither a table nor a view"},
		"empty":               {"", "not a table's name, want schema.table"},
		"blank":               {" ", "not a table's name, want schema.table"},
		"three dots":          {"a.b.c.d", "not a table's name, want schema.table"},
		"another database":    {"elsewhere.duesday.customers", "not a table's name, want schema.table"},
		"subquery":            {"(SELECT * FROM duesday.customers) x", "not a table's name, want schema.table"},
		"statement":           {"duesday.customers; DROP TABLE duesday.customers", "not a table's name, want schema.table"},
		"comment":             {"duesday.customers--", "there is no such table or view"},
		"condition":           {"duesday.customers WHERE false", "not a table's name, want schema.table"},
		"open quote":          {`"customers`, "not a table's name, want schema.table"},
		"quoted statement":    {`"customers; DROP TABLE duesday.customers"`, "there is no such table or view"},
		"quotes out of place": {`duesday.customers" WHERE "1"="1`, "not a table's name, want schema.table"},
		"wrong types": {"public.wrong", "column id is integer, want text; column stripe_customer_id is uuid, want text; " +
			"column payment_method is missing, want text; " +
			"column amount is numeric, want bigint, in the currency's smallest unit; " +
			"column currency is text[], want text; column active is text, want boolean"},
		"dropped column": {"public.dropped", "column currency is missing, want text"},
		"quoted column":  {"public.cased", "column id is missing, want text"},
		"domain":         {"public.domained", "column amount is money_amount, want bigint, in the currency's smallest unit"},
		"system table": {"pg_class", "column id is missing, want text; column stripe_customer_id is missing, want text; " +
			"column payment_method is missing, want text; column amount is missing, want bigint, in the currency's smallest unit; " +
			"column currency is missing, want text; column active is missing, want boolean"},
	} {
		_, err := charges.FindRelation(b.ctx, b.conn, tc.relation)
		require.EqualError(t, err, "--customers "+tc.relation+": "+tc.want, name)
		require.Equal(t, exitcode.Misconfigured, exitcode.Of(err), name)
	}
	require.Equal(t, "0", b.text(t, `SELECT count(*) FROM duesday.customers`), "the table is still there")
}

// What FindRelation accepts, Open must be able to read.
func TestFindRelation_findsWhatCanBeSelectedFrom(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ sql, relation, fill string }{
		"table": {`CREATE TABLE public.clients (` + goodColumns + `)`, "public.clients", ""},
		"view":  {`CREATE TABLE base (` + goodColumns + `); CREATE VIEW public.clients AS SELECT * FROM base`, "public.clients", ""},
		"materialized view": {`CREATE TABLE base (` + goodColumns + `);
			CREATE MATERIALIZED VIEW public.clients AS SELECT * FROM base`, "public.clients", ""},
		"partitioned": {`CREATE TABLE public.clients (` + goodColumns + `) PARTITION BY HASH (id);
			CREATE TABLE part PARTITION OF clients FOR VALUES WITH (MODULUS 1, REMAINDER 0)`, "public.clients", ""},
		"on the search path": {`CREATE SCHEMA crm; CREATE TABLE crm.clients (` + goodColumns + `); SET search_path = crm`, "clients", ""},
		"odd names": {`CREATE SCHEMA "Weird Schema"; CREATE TABLE "Weird Schema"."x; DROP ""all"" --" (` + goodColumns + `)`,
			`"Weird Schema"."x; DROP ""all"" --"`, ""},
		"a dot in the name": {`CREATE TABLE "a.b" (` + goodColumns + `)`, `"a.b"`, ""},
		"key words":         {`CREATE SCHEMA "select"; CREATE TABLE "select"."user" (` + goodColumns + `)`, `"select"."user"`, ""},
		"upper case folds":  {`CREATE TABLE public.clients (` + goodColumns + `)`, "PUBLIC.Clients", ""},
		"narrow types": {`CREATE TABLE public.clients (id varchar(40), stripe_customer_id char(20), payment_method varchar,
			amount integer, currency char(3), active boolean)`, "public.clients", ""},
		"smallint": {`CREATE TABLE public.clients (id text, stripe_customer_id text, payment_method text,
			amount smallint, currency text, active boolean)`, "public.clients", ""},
		"more columns, named as ours": {`CREATE TABLE public.clients (` + goodColumns + `, description int, stripe_method int,
			billing_period int, reject_code int, customer_id int)`, "public.clients", ""},
		// Comparing texts of two collations is an error unless one is chosen.
		"columns of several collations": {`CREATE TABLE public.clients (id text COLLATE "POSIX", stripe_customer_id text COLLATE "ucs_basic",
			payment_method text, amount bigint, currency text COLLATE "POSIX", active boolean)`, "public.clients",
			`INSERT INTO public.clients SELECT 'c' || i, 'cus_' || i, NULL, 1000, 'usd', true FROM generate_series(1, 9) AS i`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.exec(t, tc.sql)
			o := b.opening(t)
			o.Customers, o.AllowEmpty = b.relation(t, tc.relation), true
			if tc.fill != "" {
				b.exec(t, tc.fill)
			}
			require.NoError(t, b.Open(b.ctx, b.conn, o))
			require.NoError(t, b.Reopen(b.ctx, b.conn, o))
			other := *b.Ledger
			other.Period = other.Period.Add(1)
			_, err := other.Plan(b.ctx, b.conn, tc.relation, o, nil)
			require.NoError(t, err)
		})
	}
}

func TestFindRelation_withoutTheRightToLookIsMisconfigured(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(t, `CREATE SCHEMA crm; CREATE TABLE crm.clients (`+goodColumns+`)`)
	b.exec(t, `SET ROLE pg_monitor`)
	_, err := charges.FindRelation(b.ctx, b.conn, "crm.clients")
	require.EqualError(t, err, "--customers crm.clients: permission denied for schema crm")
	require.Equal(t, exitcode.Misconfigured, exitcode.Of(err))
}
