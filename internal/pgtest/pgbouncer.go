package pgtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// PgBouncer puts a PgBouncer in front of the database until the test ends and
// returns its URL. mode is "transaction" or "session". It uses the installed
// pgbouncer, which as root on Debian or Ubuntu it installs first; without one
// it returns an error that says what to do.
func PgBouncer(t testing.TB, db *DB, mode string) (string, error) {
	t.Helper()
	bin, err := pgbouncerBinary()
	if err != nil {
		return "", err
	}
	acct, err := serverAccount()
	if err != nil {
		return "", err
	}
	sweep(acct)

	const attempts = 3 // another process may take the port first
	var failures []error
	for range attempts {
		f, err := newFolder(acct)
		if err != nil {
			return "", err
		}
		p, pooled, err := startPgBouncer(acct, f, bin, db, mode)
		stop := func() error {
			var err error
			if p != nil {
				err = p.end(syscall.SIGKILL) // it has nothing to save
				p.release()
			}
			return errors.Join(err, f.remove())
		}
		if err == nil {
			t.Cleanup(func() { require.NoError(t, stop()) })
			return pooled, nil
		}
		failures = append(failures, err, stop())
	}
	return "", fmt.Errorf("start pgbouncer: %w", errors.Join(failures...))
}

// pgbouncerConfig is what a user would write: of the parameters that PgBouncer
// does not know it lets through only extra_float_digits, as its manual advises
// for JDBC. auth_type any takes every client as the user given here.
const pgbouncerConfig = `[databases]
%[1]s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %[2]d
unix_socket_dir =
auth_type = any
pool_mode = %[3]s
ignore_startup_parameters = extra_float_digits
pidfile = %[4]s
`

// startPgBouncer returns the process even with an error, once there is one.
func startPgBouncer(acct account, f *folder, bin string, db *DB, mode string) (*process, string, error) {
	target, err := pgx.ParseConfig(db.URL)
	if err != nil {
		return nil, "", fmt.Errorf("read the database's URL: %w", err)
	}
	port, err := freePort()
	if err != nil {
		return nil, "", err
	}
	database := fmt.Sprintf("%s = host=%s port=%d user=%s", db.Name, target.Host, target.Port, target.User)
	if target.Password != "" {
		database += " password=" + target.Password
	}
	config := f.join("pgbouncer.ini")
	content := fmt.Sprintf(pgbouncerConfig, database, port, mode, f.join("pgbouncer.pid"))
	if err := os.WriteFile(config, []byte(content), 0o600); err != nil {
		return nil, "", fmt.Errorf("write the configuration: %w", err)
	}
	if err := acct.give(config); err != nil {
		return nil, "", fmt.Errorf("hand over the configuration: %w", err)
	}

	p, err := startProcess(acct, f, "KILL", bin, config)
	if err != nil {
		return nil, "", err
	}
	ctx, cancel := stepContext()
	defer cancel()
	pooled := &url.URL{
		Scheme:   "postgres",
		User:     url.User(target.User),
		Host:     net.JoinHostPort("127.0.0.1", strconv.Itoa(port)),
		Path:     "/" + db.Name,
		RawQuery: "sslmode=disable",
	}
	if err := p.awaitReady(ctx, func() bool { return answers(ctx, pooled.String()) }); err != nil {
		return p, "", fmt.Errorf("%w\n%s", err, f.logTail())
	}
	return p, pooled.String(), nil
}

// answers reports whether a session can be opened.
func answers(ctx context.Context, url string) bool {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return false
	}
	return conn.Close(ctx) == nil
}

func findPgBouncer() (string, bool) {
	for _, dir := range append([]string{"/usr/sbin"}, filepath.SplitList(os.Getenv("PATH"))...) {
		bin := filepath.Join(dir, "pgbouncer")
		if info, err := os.Stat(bin); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 {
			return bin, true
		}
	}
	return "", false
}
