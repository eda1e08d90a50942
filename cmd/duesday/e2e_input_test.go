package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/internal/pgtest"
	"github.com/duesday/duesday/internal/stripesim"
)

// complaint is the one thing that a refused run says: on a line of its own, or
// as the error of its last event.
func (p *process) complaint(t testing.TB) string {
	t.Helper()
	if said, ok := strings.CutPrefix(p.err.String(), "duesday run: "); ok {
		require.Equal(t, 1, strings.Count(said, "\n"), said)
		return strings.TrimSuffix(said, "\n")
	}
	return p.lastError(t)
}

func TestRun_refusesBadInputBeforeAnyClaim(t *testing.T) {
	t.Parallel()
	const columns = `id text, stripe_customer_id text, payment_method text, amount bigint, currency text, active boolean`
	type env = map[string]string
	for _, test := range []struct {
		name  string
		flags []string
		env   env
		sql   string
		want  string
	}{
		{name: "period", flags: []string{"--period=2026-13"},
			want: `--period: billing period "2026-13": want YYYY-MM, like 2026-10`},
		{name: "period of a day", flags: []string{"--period=2026-10-01"},
			want: `--period: billing period "2026-10-01": want YYYY-MM, like 2026-10`},
		{name: "period offset", flags: []string{"--period-offset=9999"},
			want: `--period-offset 9999: want months, from -1200 to 1200`},
		{name: "zone", flags: []string{"--time-zone=Mars/Phobos"},
			want: `--time-zone "Mars/Phobos": want an IANA name, like Europe/Berlin`},
		{name: "zone of the machine", flags: []string{"--time-zone=Local"},
			want: `--time-zone "Local": want an IANA name, like Europe/Berlin`},
		{name: "namespace with a colon", flags: []string{"--key-namespace=a:b"},
			want: `--key-namespace: "a:b" contains a colon, which separates the parts of a key`},
		{name: "namespace like an attempt", flags: []string{"--key-namespace=attempt-2"},
			want: `--key-namespace: "attempt-2" is how a later attempt is marked in a key; choose another literal`},
		{name: "rate 0", flags: []string{"--rate=0"},
			want: `--rate 0: want more than 0 and at most 1000000 requests a second`},
		{name: "rate NaN", flags: []string{"--rate=NaN"},
			want: `--rate NaN: want more than 0 and at most 1000000 requests a second`},
		{name: "workers 0", flags: []string{"--workers=0"}, want: `--workers 0: want from 1 to 1000`},
		{name: "cap factor below 1", flags: []string{"--spend-cap-factor=0.99"},
			want: `--spend-cap-factor 0.99: want at least 1 and at most 1000; below 1 not even the expected total could be charged`},
		{name: "cap factor in words", flags: []string{"--spend-cap-factor=1e3"},
			want: `--spend-cap-factor "1e3": want a decimal, like 1.10`},
		{name: "method", flags: []string{"--stripe-method=cash"},
			want: `--stripe-method "cash": want charges or payment_intents`},
		{name: "description", flags: []string{"--description= "},
			want: `--description: want 1 to 500 bytes of text, got 1`},
		{name: "log format", flags: []string{"--log-format=xml"}, want: `--log-format "xml": want json or console`},
		{name: "unknown flag", flags: []string{"--dry-run"}, want: `unknown flag: --dry-run`},
		{name: "argument", flags: []string{"now"}, want: `unexpected argument "now": want flags only`},
		{name: "flag of another type", flags: []string{"--workers=many"},
			want: `invalid argument "many" for "--workers" flag: must be an integer`},
		{name: "variable of another type", env: env{"DUESDAY_MAX_REJECTED": "some"},
			want: `--max-rejected "some": want a number of dues, or a percentage like 1%`},
		{name: "variable that is no boolean", env: env{"DUESDAY_REOPEN": "maybe"},
			want: `DUESDAY_REOPEN="maybe": must be true or false`},
		{name: "renew deadline above the lease", flags: []string{"--lease-duration=10s", "--renew-deadline=10s"},
			want: `--lease-duration 10s: want more than --renew-deadline, 10s`},
		{name: "retry period above the deadline", flags: []string{"--renew-deadline=1s", "--retry-period=2s"},
			want: `--renew-deadline 1s: want more than --retry-period, 2s`},
		{name: "lease too short", flags: []string{"--lease-duration=900ms", "--renew-deadline=500ms", "--retry-period=100ms"},
			want: `--lease-duration 900ms: want at least 1s`},
		{name: "no Stripe key", env: env{"STRIPE_API_KEY": ""},
			want: `STRIPE_API_KEY: want a key like rk_live_…, got none (STRIPE_API_KEY_FILE names a file that holds it)`},
		{name: "unreadable key file", env: env{"STRIPE_API_KEY": "", "STRIPE_API_KEY_FILE": "/nowhere/key"},
			want: `STRIPE_API_KEY_FILE: open /nowhere/key: no such file or directory`},
		{name: "publishable key", env: env{"STRIPE_API_KEY": "pk_live_51Secret"},
			want: `STRIPE_API_KEY: want a secret or restricted key (sk_live_…, rk_live_…, sk_test_…, rk_test_…)`},
		{name: "live key and another base", env: env{"STRIPE_API_KEY": "sk_live_51Secret", "STRIPE_API_BASE": "https://api.stripe.co"},
			want: `STRIPE_API_BASE: a live key goes to https://api.stripe.com only, got "https://api.stripe.co"; use a test key, or leave it out`},
		{name: "base without a scheme", env: env{"STRIPE_API_BASE": "localhost:12111"},
			want: `STRIPE_API_BASE: want a URL like https://api.stripe.com, got "localhost:12111"`},
		{name: "no database", env: env{"DATABASE_URL": ""},
			want: `DATABASE_URL: want postgres://user:password@host:5432/database, got nothing`},
		{name: "malformed database URL", env: env{"DATABASE_URL": "postgres://duesday:hunter2@db:port/billing"},
			want: `DATABASE_URL: want postgres://user:password@host:5432/database, or keywords as in host=… dbname=…`},
		{name: "database URL with a slip", env: env{"DATABASE_URL": "postgres//duesday:hunter2@db/billing"},
			want: `DATABASE_URL: want postgres://user:password@host:5432/database, or keywords as in host=… dbname=…`},
		{name: "missing table", flags: []string{"--customers=billing.subscribers"},
			want: `--customers billing.subscribers: there is no such table or view`},
		{name: "no table's name", flags: []string{"--customers=customers; DROP TABLE customers"},
			want: `--customers customers; DROP TABLE customers: not a table's name, want schema.table`},
		{name: "missing columns", sql: `CREATE TABLE c (id text, active boolean, currency text)`, flags: []string{"--customers=c"},
			want: `--customers c: column stripe_customer_id is missing, want text; column payment_method is missing, want text; ` +
				`column amount is missing, want bigint, in the currency's smallest unit`},
		{name: "amount with a fraction", flags: []string{"--customers=c"},
			sql:  `CREATE TABLE c (` + strings.Replace(columns, "bigint", "numeric", 1) + `)`,
			want: `--customers c: column amount is numeric, want bigint, in the currency's smallest unit`},
		{name: "active as text", flags: []string{"--customers=c"},
			sql:  `CREATE TABLE c (` + strings.Replace(columns, "boolean", "text", 1) + `)`,
			want: `--customers c: column active is text, want boolean`},
		{name: "schema not migrated", sql: `DROP SCHEMA duesday CASCADE`,
			want: "schema duesday is not there yet: run `duesday migrate` first"},
		{name: "schema newer", sql: `INSERT INTO duesday.schema_migrations (version, name) VALUES (99, 'future')`,
			want: fmt.Sprintf("schema duesday is at version 99, newer than the %d of this binary: use a newer duesday", charges.SchemaVersion())},
		{name: "schema older", sql: `DELETE FROM duesday.schema_migrations WHERE version > 0; INSERT INTO duesday.schema_migrations VALUES (0, 'x')`,
			want: "schema duesday is not there yet: run `duesday migrate` first"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, stripesim.Options{})
			b.add(t, payers(3)...)
			if test.sql != "" {
				b.exec(t, test.sql)
			}
			for name, value := range test.env {
				b.env[name] = value
			}
			p := b.run(t, test.flags...)
			p.requireExit(t, 2)
			require.Equal(t, test.want, p.complaint(t))
			require.Empty(t, p.out.String())
			for _, secret := range []string{"hunter2", "51Secret", testKey} {
				require.NotContains(t, p.err.String(), secret)
			}
			require.Empty(t, b.sim.Requests())
			if !strings.HasPrefix(test.sql, "DROP SCHEMA") {
				require.Zero(t, b.count(t, `SELECT count(*) FROM duesday.periods`))
			}
		})
	}
}

func TestRun_electsNobodyOutsideACluster(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	b.add(t, payers(3)...)
	for _, flags := range [][]string{{"--leader-elect=true"}, {"--leader-elect"}} {
		p := b.run(t, flags...)
		p.requireExit(t, 2)
		require.Contains(t, p.err.String(), "--leader-elect")
		require.Contains(t, p.err.String(), "--leader-elect=false")
	}
	require.Empty(t, b.statuses(t))
}

func TestRun_refusedByPostgresExitsTwoAndKeepsThePassword(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	b.env["DATABASE_URL"] = strings.Replace(b.db.URL, b.db.Name, "no_such_database", 1)
	p := b.run(t)
	p.requireExit(t, 2)
	require.Equal(t, `DATABASE_URL: database "no_such_database" does not exist (SQLSTATE 3D000)`, p.complaint(t))

	// Who may only read can plan, and not bill.
	b.add(t, payers(3)...)
	b.env["DATABASE_URL"] = pgtest.ReadOnlyRole(t, b.db)
	p = b.run(t)
	p.requireExit(t, 2)
	require.Contains(t, p.complaint(t), "permission denied")
	require.Empty(t, b.statuses(t))

	b.env["DATABASE_URL"] = "postgres://duesday:hunter2@127.0.0.1:1/billing"
	p = b.run(t)
	p.requireExit(t, 1)
	require.NotContains(t, p.err.String(), "hunter2")
}

func TestKeyFile_isReadAndTrimmed(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{APIKeys: []string{testKey}})
	customers := payers(3)
	b.add(t, customers...)
	file := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(file, []byte(testKey+"\n"), 0o600))
	b.env["STRIPE_API_KEY"], b.env["STRIPE_API_KEY_FILE"] = "", file
	b.finish(t)
	b.requireBilled(t, customers)
}

// What users script against: the flags of run, and their defaults.
func contractFlags() map[string]string {
	return map[string]string{
		"period": "", "period-offset": "0", "time-zone": "UTC", "customers": "duesday.customers",
		"key-namespace": "monthly-billing", "stripe-method": "charges", "description": "Billing period {period}",
		"rate": "20", "workers": "16", "spend-cap-factor": "1.10", "reopen": "false", "allow-empty": "false",
		"leader-elect": "true", "lease-name": "duesday", "lease-namespace": "",
		"lease-duration": "15s", "renew-deadline": "10s", "retry-period": "2s", "log-format": "json",
	}
}

func runFlagsOf(t testing.TB, p *program) *pflag.FlagSet {
	t.Helper()
	run, _, err := p.command().Find([]string{"run"})
	require.NoError(t, err)
	return run.Flags()
}

func TestFlags_ofTheContractHaveItsDefaults(t *testing.T) {
	t.Parallel()
	flags := runFlagsOf(t, &program{})
	for name, want := range contractFlags() {
		flag := flags.Lookup(name)
		require.NotNil(t, flag, name)
		require.Equal(t, want, flag.DefValue, name)
		require.NotEmpty(t, flag.Usage, name)
	}
	require.Equal(t, "console", runFlagsOf(t, &program{terminal: true}).Lookup("log-format").DefValue)
}

func TestFlags_comeFromTheEnvironmentAndAFlagWins(t *testing.T) {
	t.Parallel()
	samples := map[string]string{
		"string": "given", "int": "7", "float64": "7.5", "bool": "true", "duration": "7s", "pauses": "7s", "amounts": "usd=7",
	}
	for _, cmd := range (&program{}).command().Commands() {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Name == "help" {
				return
			}
			sample, ok := samples[f.Value.Type()]
			require.True(t, ok, f.Value.Type())
			variable := "DUESDAY_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
			p := &program{env: func(name string) (string, bool) { return sample, name == variable }}
			require.NoError(t, p.fromEnvironment(cmd.Flags()), f.Name)
			require.Equal(t, sample, strings.Trim(f.Value.String(), "[]"), "%s of %s", variable, cmd.Name())
		})
	}
	for name := range contractFlags() {
		flags := runFlagsOf(t, &program{})
		flag := flags.Lookup(name)
		require.NoError(t, flags.Set(name, flag.DefValue))
		p := &program{env: func(string) (string, bool) { return samples[flag.Value.Type()], true }}
		other := pflag.NewFlagSet("one", pflag.ContinueOnError)
		other.AddFlag(flag)
		require.NoError(t, p.fromEnvironment(other))
		require.Equal(t, flag.DefValue, flag.Value.String(), "the environment won over --%s", name)
	}
}

func TestFlags_fromTheRealEnvironment(t *testing.T) {
	t.Parallel()
	env := map[string]string{"DUESDAY_PERIOD": "2026-10", "DUESDAY_CUSTOMER": "cust_123", "DUESDAY_KEY_NAMESPACE": "nonsense"}
	p := start(t, env, "key", "--key-namespace=monthly-billing")
	p.requireExit(t, 0)
	require.Contains(t, p.out.String(), "90d385dacce954d9262d71a98c4bf72d")
}

func TestKey_printsTheGoldenVectors(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ period, namespace, key, lock string }{
		{"2026-08", "quarkus-billing", "43e4cdac97f8e2d5fdc7796b0c7c4af9", ""},
		{"2026-10", "monthly-billing", "90d385dacce954d9262d71a98c4bf72d", lockID},
	} {
		p := start(t, nil, "key", "--customer=cust_123", "--period="+test.period, "--key-namespace="+test.namespace)
		p.requireExit(t, 0)
		require.Contains(t, p.out.String(), "idempotency_key "+test.key+"\n")
		require.Contains(t, p.out.String(), "lock_id         "+test.lock)
	}
}

func TestHelp_namesCommandsVariablesAndExitCodes(t *testing.T) {
	t.Parallel()
	p := start(t, nil, "--help")
	p.requireExit(t, 0)
	for _, want := range []string{
		"run ", "plan ", "status ", "report ", "reconcile ", "migrate ", "key ", "version ",
		"DATABASE_URL", "STRIPE_API_KEY", "STRIPE_API_KEY_FILE", "STRIPE_API_BASE", "DUESDAY_SOME_FLAG",
		"Exit codes:", "  0  ", "  1  ", "  2  ", "  3  ",
	} {
		require.Contains(t, p.out.String(), want)
	}
	for name := range contractFlags() {
		p := (&program{})
		require.Contains(t, runFlagsOf(t, p).FlagUsages(), "--"+name)
	}
	p = start(t, nil, "bill")
	p.requireExit(t, 2)
	require.Equal(t, "duesday: unknown command \"bill\": see duesday --help\n", p.err.String())
}

func TestMigrate_twiceDoesNothingMore(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	env := map[string]string{"DATABASE_URL": db.URL}
	first := start(t, env, "migrate")
	first.requireExit(t, 0)
	require.Contains(t, first.out.String(), "applied 0001_ledger\n")
	second := start(t, env, "migrate")
	second.requireExit(t, 0)
	require.Equal(t, fmt.Sprintf("schema duesday is at version %d\n", charges.SchemaVersion()), second.out.String())
	require.NotContains(t, second.out.String(), "applied")
}
