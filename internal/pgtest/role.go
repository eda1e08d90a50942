package pgtest

import (
	"context"
	"fmt"
	"net/url"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// ReadOnlyRole creates a role that may connect to the database and read what
// is in the schemas duesday and public, now and later, and nothing else: not
// even a temporary table. It returns the role's URL; the role goes when the
// test ends. Create the schemas first.
func ReadOnlyRole(t testing.TB, db *DB) string {
	t.Helper()
	role, password := "duesday_reader_"+randomHex(6), randomHex(12)
	require.NoError(t, createReader(db, role, password), "create a read-only role")
	t.Cleanup(func() {
		if db.Server != nil && !db.Server.Running() {
			return
		}
		quoted := pgx.Identifier{role}.Sanitize()
		require.NoError(t, execOn(db.URL, "DROP OWNED BY "+quoted+"; DROP ROLE "+quoted), "drop the read-only role")
	})

	u, err := url.Parse(db.URL)
	require.NoError(t, err)
	u.User = url.UserPassword(role, password)
	return u.String()
}

func createReader(db *DB, role, password string) error {
	ctx, cancel := stepContext()
	defer cancel()
	conn, err := pgx.Connect(ctx, db.URL)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()

	quoted, database := pgx.Identifier{role}.Sanitize(), pgx.Identifier{db.Name}.Sanitize()
	// Everyone may make temporary tables, and before Postgres 15 tables in
	// public: that would let a writer pass for a reader.
	const create = `
		CREATE ROLE %[1]s LOGIN PASSWORD '%[2]s';
		REVOKE ALL ON DATABASE %[3]s FROM PUBLIC;
		GRANT CONNECT ON DATABASE %[3]s TO %[1]s;
		REVOKE CREATE ON SCHEMA public FROM PUBLIC`
	if _, err := conn.Exec(ctx, fmt.Sprintf(create, quoted, password, database)); err != nil {
		return err
	}
	schemas, err := readableSchemas(ctx, conn)
	if err != nil {
		return err
	}
	const grant = `
		GRANT USAGE ON SCHEMA %[2]s TO %[1]s;
		GRANT SELECT ON ALL TABLES IN SCHEMA %[2]s TO %[1]s;
		GRANT SELECT ON ALL SEQUENCES IN SCHEMA %[2]s TO %[1]s;
		ALTER DEFAULT PRIVILEGES IN SCHEMA %[2]s GRANT SELECT ON TABLES TO %[1]s;
		ALTER DEFAULT PRIVILEGES IN SCHEMA %[2]s GRANT SELECT ON SEQUENCES TO %[1]s`
	for _, schema := range schemas {
		if _, err := conn.Exec(ctx, fmt.Sprintf(grant, quoted, pgx.Identifier{schema}.Sanitize())); err != nil {
			return fmt.Errorf("grant on schema %s: %w", schema, err)
		}
	}
	return nil
}

func readableSchemas(ctx context.Context, conn *pgx.Conn) ([]string, error) {
	rows, err := conn.Query(ctx, `SELECT nspname FROM pg_namespace WHERE nspname IN ('duesday', 'public')`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}
