package charges_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/internal/exitcode"
	"github.com/duesday/duesday/internal/pgtest"
)

func TestMigrations_areEmbeddedAndNumbered(t *testing.T) {
	t.Parallel()
	files, err := os.ReadDir("migrations")
	require.NoError(t, err)
	names, err := charges.MigrationNames()
	require.NoError(t, err)
	require.Len(t, names, len(files))
	require.Equal(t, len(files), charges.SchemaVersion())
	for i, f := range files {
		require.True(t, strings.HasSuffix(f.Name(), "_"+names[i]+".sql"), f.Name())
	}
}

func TestMigrate_fromEmptyThenNothingToDo(t *testing.T) {
	t.Parallel()
	conn := pgtest.New(t).Connect(t)
	applied, err := charges.Migrate(t.Context(), conn)
	require.NoError(t, err)
	require.Len(t, applied, charges.SchemaVersion())
	require.Equal(t, "0001_ledger", applied[0])
	require.NoError(t, charges.CheckSchema(t.Context(), conn))

	applied, err = charges.Migrate(t.Context(), conn)
	require.NoError(t, err)
	require.Empty(t, applied)
}

func TestMigrate_withNothingToDoNeedsNoRightToCreate(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.execAs(t, `CREATE ROLE biller_%[1]s; GRANT ALL ON SCHEMA duesday TO biller_%[1]s;
		GRANT ALL ON ALL TABLES IN SCHEMA duesday TO biller_%[1]s`)
	conn := b.db.Connect(t)
	_, err := conn.Exec(b.ctx, `SET ROLE biller_`+b.db.Name)
	require.NoError(t, err)
	applied, err := charges.Migrate(b.ctx, conn)
	require.NoError(t, err)
	require.Empty(t, applied)
}

// version2 is a database as the second migration left it, owned by a role of its
// own, as its biller.
func version2(t *testing.T) (db *pgtest.DB, owner string) {
	db = pgtest.New(t)
	owner = "owner_" + db.Name
	db.Exec(t, `CREATE ROLE `+owner)
	t.Cleanup(func() { db.Exec(t, `DROP OWNED BY `+owner+` CASCADE; DROP ROLE `+owner) })
	for _, name := range []string{"0001_ledger", "0002_spendcap"} {
		sql, err := os.ReadFile("migrations/" + name + ".sql")
		require.NoError(t, err)
		if name == "0001_ledger" {
			db.Exec(t, `CREATE SCHEMA duesday AUTHORIZATION `+owner+`; SET ROLE `+owner+`;
				CREATE TABLE duesday.schema_migrations (version integer PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())`)
		}
		db.Exec(t, `SET ROLE `+owner+`; `+string(sql)+`; INSERT INTO duesday.schema_migrations VALUES (`+name[3:4]+`, '`+name+`')`)
	}
	return db, owner
}

// The columns are for others to rely on, and they may do so in ways that hold
// them fast.
func TestMigrate_upgradesUnderViewsAndForeignKeysOfOthers(t *testing.T) {
	t.Parallel()
	for name, sql := range map[string]string{
		"nothing": `SELECT 1`,
		"a view":  `CREATE VIEW keys AS SELECT idempotency_key, customer_id FROM duesday.charges`,
		"foreign keys": `CREATE TABLE invoices (key text REFERENCES duesday.charges (idempotency_key), customer_id text, billing_period text,
			FOREIGN KEY (customer_id, billing_period) REFERENCES duesday.charges (customer_id, billing_period))`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, _ := version2(t)
			db.Exec(t, sql)
			b := &testBundle{ctx: t.Context(), db: db, conn: db.Connect(t),
				Ledger: &charges.Ledger{Period: charges.Period{Year: 2026, Month: 10}, Namespace: namespace}}
			_, err := charges.Migrate(b.ctx, b.conn)
			require.NoError(t, err)
			b.lock(t, b.conn)
			b.some(t, 600)
			b.open(t)
			slots := b.claimAll(t)
			require.Len(t, slots, 600)
			require.Equal(t, 1, b.settle(t, charges.Settlement{Key: slots[7].Key, Status: charges.Succeeded}))
			plan := b.texts(t, `EXPLAIN SELECT FROM duesday.charges WHERE billing_period = 'x' AND customer_id > 'y' ORDER BY customer_id LIMIT 1`)
			require.NotContains(t, strings.Join(plan, "\n"), "Sort")
		})
	}
}

func TestMigrate_byAnotherRoleLeavesTheLedgerToItsOwner(t *testing.T) {
	t.Parallel()
	db, owner := version2(t)
	_, err := charges.Migrate(t.Context(), db.Connect(t))
	require.NoError(t, err)
	conn := db.Connect(t)
	_, err = conn.Exec(t.Context(), `SET ROLE `+owner+`; SELECT FROM duesday.shard_cursors; SELECT FROM duesday.charges`)
	require.NoError(t, err)
}

func TestMigrate_atOnceAppliesOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	var (
		g       errgroup.Group
		applied [4]int
	)
	for i := range applied {
		conn := db.Connect(t)
		g.Go(func() error {
			names, err := charges.Migrate(t.Context(), conn)
			applied[i] = len(names)
			return err
		})
	}
	require.NoError(t, g.Wait())
	sum := 0
	for _, n := range applied {
		sum += n
	}
	require.Equal(t, charges.SchemaVersion(), sum)
	require.NoError(t, charges.CheckSchema(t.Context(), db.Connect(t)))
}

// A table in the way makes the first migration fail after it has made others.
func TestMigrate_failingInTheMiddleLeavesNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, `CREATE SCHEMA duesday; CREATE TABLE duesday.charges (theirs int)`)
	conn := db.Connect(t)
	_, err := charges.Migrate(t.Context(), conn)
	require.ErrorContains(t, err, "migration 0001_ledger")

	var tables []string
	require.NoError(t, conn.QueryRow(t.Context(),
		`SELECT array_agg(relname::text) FROM pg_class WHERE relnamespace = 'duesday'::regnamespace`).Scan(&tables))
	require.Equal(t, []string{"charges"}, tables)
	require.EqualError(t, charges.CheckSchema(t.Context(), conn), missingSchema)

	db.Exec(t, `DROP TABLE duesday.charges`)
	_, err = charges.Migrate(t.Context(), conn)
	require.NoError(t, err, "the failure holds no lock")
}

const missingSchema = "schema duesday is not there yet: run `duesday migrate` first"

func TestCheckSchema(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ sql, want string }{
		"no schema":          {`DROP SCHEMA duesday CASCADE`, missingSchema},
		"schema but nothing": {`DROP SCHEMA duesday CASCADE; CREATE SCHEMA duesday`, missingSchema},
		"no version":         {`DELETE FROM duesday.schema_migrations`, missingSchema},
		"newer": {`INSERT INTO duesday.schema_migrations VALUES (1000, 'later')`,
			fmt.Sprintf("schema duesday is at version 1000, newer than the %d of this binary: use a newer duesday", charges.SchemaVersion())},
		"older": {`DELETE FROM duesday.schema_migrations WHERE version > 1`,
			fmt.Sprintf("schema duesday is at version 1, this binary needs %d: run `duesday migrate` first", charges.SchemaVersion())},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.exec(t, tc.sql)
			err := charges.CheckSchema(b.ctx, b.conn)
			require.EqualError(t, err, tc.want)
			require.Equal(t, exitcode.Misconfigured, exitcode.Of(err))
		})
	}
}

func TestMigrate_refusesANewerSchema(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(t, `INSERT INTO duesday.schema_migrations VALUES (1000, 'later')`)
	_, err := charges.Migrate(b.ctx, b.conn)
	require.ErrorContains(t, err, "use a newer duesday")
	require.Equal(t, exitcode.Misconfigured, exitcode.Of(err))
}

func TestCheckSchema_readsOnly(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(t, `SET default_transaction_read_only = on`)
	require.NoError(t, charges.CheckSchema(b.ctx, b.conn))
}

func TestCheckSchema_aLostServerIsWorthAnotherTry(t *testing.T) {
	t.Parallel()
	b := setup(t)
	require.NoError(t, b.conn.Close(b.ctx))
	require.Equal(t, exitcode.Unfinished, exitcode.Of(charges.CheckSchema(b.ctx, b.conn)))
}

// An upgrade that a run of less rights could not work with would stop a month.
func TestMigrate_givesTheShardsCursorsToWhoMayWork(t *testing.T) {
	t.Parallel()
	b := setup(t)
	role := b.text(t, `SELECT 'biller "' || current_database()`)
	quoted := pgx.Identifier{role}.Sanitize()
	b.exec(t, `
		DROP TABLE duesday.shard_cursors;
		ALTER TABLE duesday.runs DROP COLUMN shard, DROP COLUMN shards;
		DELETE FROM duesday.schema_migrations WHERE version > 3;
		CREATE ROLE `+quoted+`;
		GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA duesday TO `+quoted)
	t.Cleanup(func() {
		conn := b.db.Connect(t)
		_, err := conn.Exec(context.Background(), `DROP OWNED BY `+quoted+`; DROP ROLE `+quoted)
		require.NoError(t, err)
	})
	_, err := charges.Migrate(b.ctx, b.conn)
	require.NoError(t, err)
	require.Equal(t, "t", b.text(t, `SELECT bool_and(has_table_privilege($1, 'duesday.shard_cursors', p))
		FROM unnest('{SELECT,INSERT,UPDATE,DELETE}'::text[]) AS p`, role))
	require.Equal(t, "f", b.text(t, `SELECT has_table_privilege($1, 'duesday.shard_cursors', 'TRUNCATE')`, role))
}
