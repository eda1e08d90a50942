package charges

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/duesday/duesday/internal/exitcode"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// migrationLock keeps two migrators apart. Any constant does; it is the lock
// id of the name "duesday:migrate".
var migrationLock = LockID("duesday", "migrate")

type migration struct {
	version int
	name    string
	sql     string
}

// migrations returns the embedded files NNNN_name.sql in order. The numbers
// run from 1 without a gap; a build that breaks this fails its first test.
func migrations() ([]migration, error) {
	names, err := fs.Glob(migrationFiles, "migrations/*.sql")
	if err != nil {
		return nil, err
	}
	var ms []migration
	for i, path := range names {
		base := strings.TrimSuffix(strings.TrimPrefix(path, "migrations/"), ".sql")
		number, name, ok := strings.Cut(base, "_")
		version, err := strconv.Atoi(number)
		if !ok || err != nil || version != i+1 {
			return nil, fmt.Errorf("migration file %s: want number %04d", path, i+1)
		}
		sql, err := migrationFiles.ReadFile(path)
		if err != nil {
			return nil, err
		}
		ms = append(ms, migration{version, name, string(sql)})
	}
	return ms, nil
}

// SchemaVersion is the version that this binary needs, the number of its last
// migration.
func SchemaVersion() int {
	ms, err := migrations()
	if err != nil {
		panic(err) // the embedded files are part of the build
	}
	return len(ms)
}

// Migrate brings schema duesday up to SchemaVersion and returns the names of
// the migrations that it applied, none if there was nothing to do. It is one
// transaction: a crash leaves the schema as it was. Two at once wait for one
// another. A schema newer than the binary is refused.
func Migrate(ctx context.Context, conn *pgx.Conn) ([]string, error) {
	ms, err := migrations()
	if err != nil {
		return nil, err
	}
	var applied []string
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		const prepare = `
			SELECT pg_advisory_xact_lock($1)`
		if _, err := tx.Exec(ctx, prepare, migrationLock); err != nil {
			return fmt.Errorf("lock the schema: %w", err)
		}
		const versions = `
			CREATE TABLE IF NOT EXISTS duesday.schema_migrations (
				version    integer PRIMARY KEY,
				name       text NOT NULL,
				applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
			)`
		// Asking for what is there takes the right to create it all the same.
		const schema = `
			DO $$ BEGIN
				IF to_regnamespace('duesday') IS NULL THEN CREATE SCHEMA duesday; END IF;
			END $$`
		if _, err := tx.Exec(ctx, schema); err != nil {
			return fmt.Errorf("create schema duesday: %w", err)
		}
		if _, err := tx.Exec(ctx, versions); err != nil {
			return fmt.Errorf("create schema duesday: %w", err)
		}
		have, err := schemaVersion(ctx, tx)
		if err != nil {
			return err
		}
		if have > len(ms) {
			return newerSchema(have, len(ms))
		}
		for _, m := range ms[have:] {
			if _, err := tx.Exec(ctx, m.sql); err != nil {
				return fmt.Errorf("migration %04d_%s: %w", m.version, m.name, err)
			}
			const record = `
				INSERT INTO duesday.schema_migrations (version, name) VALUES ($1, $2)`
			if _, err := tx.Exec(ctx, record, m.version, m.name); err != nil {
				return fmt.Errorf("record migration %04d_%s: %w", m.version, m.name, err)
			}
			applied = append(applied, fmt.Sprintf("%04d_%s", m.version, m.name))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return applied, nil
}

// CheckSchema returns an error that exits with 2 if the schema is missing,
// older than the binary, or newer. It only reads.
func CheckSchema(ctx context.Context, db Querier) error {
	have, err := schemaVersion(ctx, db)
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && (pgErr.Code == "42P01" || pgErr.Code == "3F000") {
		have, err = 0, nil
	}
	if err != nil {
		return err
	}
	switch want := SchemaVersion(); {
	case have == 0:
		return exitcode.With(exitcode.Misconfigured,
			errors.New("schema duesday is not there yet: run `duesday migrate` first"))
	case have < want:
		return exitcode.With(exitcode.Misconfigured,
			fmt.Errorf("schema duesday is at version %d, this binary needs %d: run `duesday migrate` first", have, want))
	case have > want:
		return newerSchema(have, want)
	}
	return nil
}

func newerSchema(have, want int) error {
	return exitcode.With(exitcode.Misconfigured,
		fmt.Errorf("schema duesday is at version %d, newer than the %d of this binary: use a newer duesday", have, want))
}

func schemaVersion(ctx context.Context, db Querier) (int, error) {
	const latest = `
		SELECT coalesce(max(version), 0) FROM duesday.schema_migrations`
	var version int
	if err := db.QueryRow(ctx, latest).Scan(&version); err != nil {
		return 0, fmt.Errorf("read the schema's version: %w", err)
	}
	return version, nil
}
