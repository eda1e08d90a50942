package pgtest

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// databasePrefix begins the name of every test database.
const databasePrefix = "duesday_test_"

// A host is where databases can be created: a server of ours, or, with a nil
// server, the one that TEST_DATABASE_URL names.
type host struct {
	admin  *url.URL // of a role that may create databases
	server *Server
}

// externalHost is the host that TEST_DATABASE_URL names, cleared of the
// databases that killed test processes of this machine left on it.
func externalHost(rawURL string) (*host, error) {
	admin, err := url.Parse(rawURL)
	if err != nil || (admin.Scheme != "postgres" && admin.Scheme != "postgresql") {
		return nil, fmt.Errorf("TEST_DATABASE_URL must be a postgres:// URL")
	}
	h := &host{admin: admin}
	if err := h.sweepDatabases(); err != nil {
		return nil, fmt.Errorf("use the server of TEST_DATABASE_URL: %w", err)
	}
	return h, nil
}

// url is the administrator's URL for another database.
func (h *host) url(database string) string {
	u := *h.admin
	u.Path = "/" + database
	u.RawPath = ""
	return u.String()
}

func newDB(t testing.TB, h *host) *DB {
	t.Helper()
	name := fmt.Sprintf("%s%s_%s_%s", databasePrefix, machine(), self(), randomHex(4))
	quoted := pgx.Identifier{name}.Sanitize()
	// template0 takes no connections, so nobody can be in the way.
	require.NoError(t, execOn(h.admin.String(), "CREATE DATABASE "+quoted+" TEMPLATE template0"),
		"create the test database")
	t.Cleanup(func() {
		if h.server != nil && !h.server.Running() {
			return // it goes with its server
		}
		require.NoError(t, execOn(h.admin.String(), "DROP DATABASE IF EXISTS "+quoted+" WITH (FORCE)"),
			"drop the test database")
	})
	return &DB{Name: name, URL: h.url(name), Server: h.server}
}

// sweepDatabases drops the databases of this machine's dead test processes.
func (h *host) sweepDatabases() error {
	ctx, cancel := stepContext()
	defer cancel()
	conn, err := pgx.Connect(ctx, h.admin.String())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()

	ours := databasePrefix + machine() + "_"
	names, err := databasesWithPrefix(ctx, conn, ours)
	if err != nil {
		return fmt.Errorf("list leftover databases: %w", err)
	}
	for _, name := range names {
		if owner, ok := parseOwner(name[len(ours):], "_"); !ok || owner.alive() {
			continue
		}
		// Another process may be sweeping too, or the database be another
		// role's: what cannot be dropped here is no reason to fail.
		_, _ = conn.Exec(ctx, "DROP DATABASE IF EXISTS "+pgx.Identifier{name}.Sanitize()+" WITH (FORCE)")
	}
	return nil
}

func databasesWithPrefix(ctx context.Context, conn *pgx.Conn, prefix string) ([]string, error) {
	rows, err := conn.Query(ctx, `SELECT datname FROM pg_database WHERE starts_with(datname, $1)`, prefix)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// machine tells apart the machines and containers that share a server: a
// process id means something only inside one of them.
func machine() string {
	name, _ := os.Hostname()
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:3])
}

func randomHex(bytes int) string {
	b := make([]byte, bytes)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
