package charges_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/internal/exitcode"
)

func TestOpen_freezesDuesAndTotals(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.customers(t,
		`'c1', 'cus_1', 'pm_1', 1999, 'usd'`, `'c2', NULL, NULL, 1, 'usd'`, `'c3', NULL, NULL, 500, 'jpy'`,
		`'c4', NULL, NULL, 0, 'usd'`, `'c5', NULL, NULL, 70, 'usd', false`)
	b.open(t)
	require.Equal(t, []string{
		"c1 cus_1 pm_1 1999 usd Billing period 2026-10 charges -",
		"c2 - - 1 usd Billing period 2026-10 charges -",
		"c3 - - 500 jpy Billing period 2026-10 charges -",
		"c4 - - 0 usd Billing period 2026-10 charges amount_not_positive",
	}, b.texts(t, `
		SELECT concat_ws(' ', customer_id, coalesce(stripe_customer_id, '-'), coalesce(payment_method, '-'), amount, currency,
			description, stripe_method, coalesce(reject_code, '-'))
		FROM duesday.dues WHERE billing_period = '2026-10' ORDER BY customer_id`))
	require.Equal(t, []string{"jpy 500 550 0", "usd 2000 2200 0"}, b.texts(t,
		`SELECT concat_ws(' ', currency, expected_total, cap, claimed_total) FROM duesday.totals ORDER BY currency`))

	b.exec(t, `UPDATE duesday.customers SET amount = 1, active = false`)
	require.Equal(t, "2000", b.text(t, `SELECT sum(amount) FROM duesday.dues WHERE currency = 'usd'`), "frozen")
	s, err := b.State(b.ctx, b.conn)
	require.NoError(t, err)
	require.True(t, s.Opened)
	require.WithinDuration(t, time.Now(), s.OpenedAt, time.Minute)
	require.Zero(t, s.SettledAt)
	require.Equal(t, namespace, s.Namespace)
}

func TestOpen_capIsExact(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		sql, factor, want string
	}{
		"rounds down": {`SELECT 'c', 9 `, "1.10", "9 9"},
		"just enough": {`SELECT 'c', 10`, "1.10", "10 11"},
		"factor 1":    {`SELECT 'c', 12345`, "1", "12345 12345"},
		// In binary floating point 3 × 1.1 is above 3.3, and 1.15 × 100 below 115.
		"no binary fractions":   {`SELECT 'c', 100`, "1.15", "100 115"},
		"no binary fractions 2": {`SELECT 'c', 30`, "1.1", "30 33"},
		"above 2^53": {`SELECT 'c' || i, 99999999 FROM generate_series(1, 20) AS i
			UNION ALL SELECT 'd', 1`, "12345678.9", "1999999981 24691357565432100"},
		"big sums": {`SELECT 'c' || i, 99999999 FROM generate_series(1, 20000) AS i`, "1.10", "1999999980000 2199999978000"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.exec(t, `INSERT INTO duesday.customers (id, amount, currency) SELECT id, amount, 'usd' FROM (`+tc.sql+`) AS x (id, amount)`)
			o := b.opening(t)
			o.CapFactor = tc.factor
			require.NoError(t, b.Open(b.ctx, b.conn, o))
			require.Equal(t, tc.want, b.text(t, `SELECT expected_total || ' ' || cap FROM duesday.totals`))
		})
	}
}

// A view waits, within its one statement, until another session has changed
// every customer.
func TestOpen_seesOneSnapshot(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.some(t, 3)
	b.exec(t, `
		CREATE FUNCTION public.gate() RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
		BEGIN
			PERFORM pg_advisory_xact_lock_shared(42);
			RETURN true;
		END $$;
		CREATE VIEW public.slow AS SELECT * FROM duesday.customers WHERE gate()`)
	o := b.opening(t)
	o.Customers = b.relation(t, "public.slow")

	other := b.connect(t)
	_, err := other.Exec(b.ctx, `SELECT pg_advisory_lock(42)`)
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- b.Open(b.ctx, b.conn, o) }()

	watch := b.connect(t)
	require.Eventually(t, func() bool {
		var waiting int
		err := watch.QueryRow(b.ctx, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`).Scan(&waiting)
		return err == nil && waiting == 1
	}, 20*time.Second, 5*time.Millisecond)
	_, err = other.Exec(b.ctx, `
		INSERT INTO duesday.customers (id, amount, currency) VALUES ('c9999', 1, 'usd');
		DELETE FROM duesday.customers WHERE id = 'c0002';
		UPDATE duesday.customers SET amount = 5 WHERE id = 'c0003';
		SELECT pg_advisory_unlock(42)`)
	require.NoError(t, err)
	require.NoError(t, <-done)

	require.Equal(t, []string{"c0001 1000", "c0002 1000", "c0003 1000"},
		b.texts(t, `SELECT customer_id || ' ' || amount FROM duesday.dues ORDER BY customer_id`))
	require.Equal(t, "3000", b.text(t, `SELECT expected_total FROM duesday.totals`))
}

func TestOpen_refusesAndLeavesNothing(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		sql     string
		timeout time.Duration
		want    string
		code    int
		is      error
	}{
		"repeated id": {
			sql:  `CREATE VIEW public.clients AS SELECT * FROM duesday.customers UNION ALL SELECT * FROM duesday.customers WHERE id = 'c0002'`,
			want: "open period 2026-10: --customers public.clients repeats an id, want one active row a customer: duesday plan shows which",
			code: exitcode.Misconfigured,
		},
		"endless recursion of a function": {
			sql: `CREATE FUNCTION public.deep(n int) RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN RETURN deep(n + 1); END $$;
				CREATE VIEW public.clients AS SELECT id, stripe_customer_id, payment_method, deep(1) AS amount, currency, active FROM duesday.customers`,
			want: "open period 2026-10: --customers public.clients: cannot read it: stack depth limit exceeded (SQLSTATE 54001)",
			code: exitcode.Misconfigured,
		},
		"infinite recursion of rules": {
			sql: `CREATE TABLE public.clients (` + goodColumns + `); ALTER TABLE public.clients ENABLE ROW LEVEL SECURITY;
				ALTER TABLE public.clients FORCE ROW LEVEL SECURITY;
				CREATE POLICY own ON public.clients USING (EXISTS (SELECT FROM public.clients));
				CREATE ROLE biller_%[1]s; GRANT ALL ON ALL TABLES IN SCHEMA public TO biller_%[1]s; GRANT USAGE ON SCHEMA duesday TO biller_%[1]s;
				GRANT ALL ON ALL TABLES IN SCHEMA duesday TO biller_%[1]s; SET ROLE biller_%[1]s`,
			want: `open period 2026-10: --customers public.clients: cannot read it: infinite recursion detected in policy for relation "clients" (SQLSTATE 42P17)`,
			code: exitcode.Misconfigured,
		},
		"a view without end": {
			sql: `CREATE VIEW public.clients AS WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT 1 FROM n)
				SELECT 'c'::text AS id, NULL::text AS stripe_customer_id, NULL::text AS payment_method,
					count(*)::bigint AS amount, 'usd'::text AS currency, true AS active FROM n`,
			timeout: 200 * time.Millisecond,
			want:    "open period 2026-10: --customers public.clients: cannot read it: canceling statement due to statement timeout (SQLSTATE 57014)",
			code:    exitcode.Unfinished,
		},
		"an error in the middle": {
			sql: `CREATE VIEW public.clients AS SELECT id, stripe_customer_id, payment_method,
				1000 / (CASE id WHEN 'c0003' THEN 0 ELSE 1 END) AS amount, currency, active FROM duesday.customers`,
			want: "open period 2026-10: --customers public.clients: cannot read it: division by zero (SQLSTATE 22012)",
			code: exitcode.Misconfigured,
		},
		"no right to read": {
			sql: `CREATE TABLE public.clients (` + goodColumns + `); CREATE ROLE biller_%[1]s; GRANT USAGE ON SCHEMA duesday TO biller_%[1]s;
				GRANT ALL ON ALL TABLES IN SCHEMA duesday TO biller_%[1]s; SET ROLE biller_%[1]s`,
			want: "open period 2026-10: --customers public.clients: cannot read it: permission denied for table clients (SQLSTATE 42501)",
			code: exitcode.Misconfigured,
		},
		"nobody": {
			sql:  `CREATE TABLE public.clients (` + goodColumns + `)`,
			want: "open period 2026-10: --customers public.clients: no active customer, nothing was changed; if that is meant, say --allow-empty",
			code: exitcode.Stopped,
			is:   charges.ErrEmpty,
		},
		"nobody active": {
			sql: `CREATE TABLE public.clients (` + goodColumns + `);
				INSERT INTO public.clients VALUES ('a', NULL, NULL, 1, 'usd', false), ('b', NULL, NULL, 1, 'usd', NULL)`,
			want: "open period 2026-10: --customers public.clients: no active customer, nothing was changed; if that is meant, say --allow-empty",
			code: exitcode.Stopped,
			is:   charges.ErrEmpty,
		},
		"a total that the last statement cannot write": {
			sql: `CREATE VIEW public.clients AS SELECT 'c' || i AS id, NULL::text AS stripe_customer_id, NULL::text AS payment_method,
				99999999 AS amount, 'usd'::text AS currency, true AS active FROM generate_series(1, 30) AS i;
				ALTER TABLE duesday.totals ADD CONSTRAINT small CHECK (cap < 1000)`,
			want: `open period 2026-10: total the dues: ERROR: new row for relation "totals" violates check constraint "small" (SQLSTATE 23514)`,
			code: exitcode.Unfinished,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.some(t, 5)
			if tc.timeout == 0 {
				tc.timeout = time.Minute
			}
			b.execAs(t, tc.sql)
			o := b.opening(t)
			o.Customers, o.Timeout = b.relation(t, "public.clients"), tc.timeout
			err := b.Open(b.ctx, b.conn, o)
			require.EqualError(t, err, tc.want)
			require.Equal(t, tc.code, exitcode.Of(err))
			if tc.is != nil {
				require.ErrorIs(t, err, tc.is)
			}
			b.exec(t, `RESET ROLE`)
			require.Empty(t, b.ledgerState(t))
			s, err := b.State(b.ctx, b.conn)
			require.NoError(t, err)
			require.False(t, s.Opened)
			require.Equal(t, "0", b.text(t, `SHOW statement_timeout`), "the bound ends with the opening")
		})
	}
}

func TestOpen_emptyIfThatIsMeant(t *testing.T) {
	t.Parallel()
	b := setup(t)
	o := b.opening(t)
	o.AllowEmpty = true
	require.NoError(t, b.Open(b.ctx, b.conn, o))
	s, err := b.State(b.ctx, b.conn)
	require.NoError(t, err)
	require.True(t, s.Opened)
	page, err := b.Claim(b.ctx, b.conn, charges.ClaimCursor{}, 10)
	require.NoError(t, err)
	require.Zero(t, page.Dues)
}

func TestOpen_refusesWithoutTheLock(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.some(t, 2)
	b.unlock(t)
	for name, conn := range map[string]*pgx.Conn{"nobody holds it": b.conn, "another session holds it": b.connect(t)} {
		if conn != b.conn {
			b.lock(t, b.conn)
		}
		require.ErrorIs(t, b.Open(b.ctx, conn, b.opening(t)), charges.ErrFenced, name)
		require.ErrorIs(t, b.Reopen(b.ctx, conn, b.opening(t)), charges.ErrFenced, name)
		if conn != b.conn {
			b.unlock(t)
		}
	}
	require.Empty(t, b.ledgerState(t))
}

// Locks of the same number that are not the period's lock.
func TestOpen_aLockOfAnotherKindIsNotTheLock(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.some(t, 2)
	b.unlock(t)
	id := charges.LockID(namespace, period)
	b.exec(t, `SELECT pg_advisory_lock($1::int, $2::int)`, int32(id>>32), int32(id))
	b.exec(t, `SELECT pg_advisory_lock($1)`, charges.LockID(namespace, "2026-11"))
	b.exec(t, `SELECT pg_advisory_lock($1)`, charges.LockID("other", period))
	require.ErrorIs(t, b.Open(b.ctx, b.conn, b.opening(t)), charges.ErrFenced)
}

// Lock ids are signed; pg_locks shows them as two unsigned halves.
func TestOpen_holdsUnderLocksOfAllSigns(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.some(t, 1)
	signs := map[[2]bool]bool{}
	for ; len(signs) < 4; b.Period = b.Period.Add(1) {
		id := charges.LockID(namespace, b.Period.String())
		sign := [2]bool{id < 0, int32(id) < 0}
		if signs[sign] {
			continue
		}
		signs[sign] = true
		if b.Period.String() != period {
			b.lock(t, b.conn)
		}
		b.open(t)
	}
}

func TestOpen_twiceIsRefused(t *testing.T) {
	t.Parallel()
	b := opened(t, 2)
	before := b.ledgerState(t)
	b.exec(t, `UPDATE duesday.customers SET amount = 5`)
	require.ErrorContains(t, b.Open(b.ctx, b.conn, b.opening(t)), "insert the period")
	require.Equal(t, before, b.ledgerState(t))
}

func TestOpen_periodsAreSeparate(t *testing.T) {
	t.Parallel()
	b := opened(t, 2)
	b.Period = b.Period.Add(1)
	b.lock(t, b.conn)
	b.customers(t, `'c9', NULL, NULL, 1000, 'usd'`)
	b.open(t)
	require.Equal(t, []string{"2026-10 2", "2026-11 3"},
		b.texts(t, `SELECT billing_period || ' ' || count(*) FROM duesday.dues GROUP BY billing_period ORDER BY 1`))
}

func TestState(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s, err := b.State(b.ctx, b.conn)
	require.NoError(t, err)
	require.Zero(t, s, "not opened")

	b.some(t, 1)
	b.open(t)
	other := charges.Ledger{Period: b.Period, Namespace: "other"}
	_, err = other.State(b.ctx, b.conn)
	require.EqualError(t, err, "--key-namespace other: period 2026-10 was opened with monthly-billing, and is finished with it")
	require.Equal(t, exitcode.Misconfigured, exitcode.Of(err))
}

func TestDurableCommits(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for set, want := range map[string]string{"off": "on", "on": "on", "local": "local", "remote_apply": "remote_apply"} {
		b.exec(t, `SET synchronous_commit = `+set)
		require.NoError(t, charges.DurableCommits(b.ctx, b.conn))
		require.Equal(t, want, b.text(t, `SHOW synchronous_commit`))
	}
}

func TestOpenPool(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pool, err := charges.OpenPool(b.ctx, b.db.URL, 3)
	require.NoError(t, err)
	defer pool.Close()
	require.EqualValues(t, 3, pool.Config().MaxConns)
	for setting, want := range map[string]string{
		"plan_cache_mode": "force_custom_plan", "jit": "off", "statement_timeout": "1min", "application_name": "duesday",
	} {
		var got string
		require.NoError(t, pool.QueryRow(b.ctx, `SHOW `+setting).Scan(&got))
		require.Equal(t, want, got, setting)
	}

	for _, url := range []string{"postgres://user:hunter2@host:port/db", "mysql://user:hunter2@host/db", "hunter2", "postgres://user:hunter2%zz@host/db"} {
		_, err = charges.OpenPool(b.ctx, url, 3)
		require.Error(t, err, url)
		require.NotContains(t, err.Error(), "hunter2")
		require.Equal(t, exitcode.Misconfigured, exitcode.Of(err))
	}
}
