// Package pgtest gives tests and the demo a throwaway Postgres.
//
// [New] is what most tests need: an empty database of their own on a server
// that the test process shares, dropped when the test ends. [StartServer]
// gives a whole server, for the demo and for tests that restart or crash it.
//
// The shared server is, in this order: the one that TEST_DATABASE_URL names;
// one run from the machine's own binaries (/usr/lib/postgresql/*/bin, newest
// first, then PATH); one run from binaries that embedded-postgres downloads.
//
// The package promises that nothing stays behind: no process and no folder,
// even when the test process is killed. A server's supervisor holds a pipe
// whose other end only the test process has, and ends the server when the pipe
// closes; should the supervisor be killed as well, the next start clears up.
//
// The servers trust every local connection. Keep nothing of value in them.
package pgtest

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
)

// A DB is an empty database that belongs to one test.
type DB struct {
	// Name is unique among all test processes.
	Name string
	// URL connects to the database as a role that may do anything in it.
	URL string
	// Server is the server that the database is on; nil if TEST_DATABASE_URL
	// named it. Only a test that started the server may restart it.
	Server *Server
}

// New creates a database on the server that the test process shares and drops
// it when the test ends. With options it starts a server for this test alone:
// the one way to have other settings, or to restart it. Tests may call it in
// parallel. It fails the test when there is no Postgres to be had.
func New(t testing.TB, opts ...Option) *DB {
	t.Helper()
	if len(opts) > 0 {
		return NewServer(t, opts...).NewDB(t)
	}
	host, err := shared.get()
	require.NoError(t, err)
	return newDB(t, host)
}

// Connect opens a connection that is closed when the test ends.
func (db *DB) Connect(t testing.TB) *pgx.Conn {
	t.Helper()
	ctx, cancel := stepContext()
	defer cancel()
	conn, err := pgx.Connect(ctx, db.URL)
	require.NoError(t, err, "connect to the test database")
	t.Cleanup(func() {
		ctx, cancel := stepContext()
		defer cancel()
		_ = conn.Close(ctx) // the test may have closed or broken it
	})
	return conn
}

// Pool opens a pool that is closed when the test ends.
func (db *DB) Pool(t testing.TB) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), db.URL)
	require.NoError(t, err, "open a pool on the test database")
	t.Cleanup(pool.Close)
	return pool
}

// Exec runs sql on a connection of its own. Without args, sql may hold several
// statements.
func (db *DB) Exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	require.NoError(t, execOn(db.URL, sql, args...))
}

// stepContext bounds a step that normally takes milliseconds, so that a hung
// server fails a test rather than hang it.
func stepContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), 30*time.Second)
}

// execOn runs sql on a fresh connection. The package holds no connection open:
// an idle pool would be a goroutine in every leak check.
func execOn(url, sql string, args ...any) error {
	ctx, cancel := stepContext()
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	_, err = conn.Exec(ctx, sql, args...)
	return err
}
