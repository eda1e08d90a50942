package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/duesday/duesday/internal/pgtest"
)

const (
	period    = "2026-10"
	namespace = "monthly-billing"
	apiKey    = "sk_test_bench"
	workers   = 64
)

// stage is what everything runs on.
type stage struct {
	options
	dir       string
	duesday   string // the release build
	stripesim string
	self      string
	server    *pgtest.Server
	admin     *pgx.Conn
	made      int             // databases, so far
	templates map[string]bool // databases with customers in them, to copy
}

// settings are Postgres's own, but for room: a checkpoint that falls into one
// side of a pair and not into the other would be a figure of luck.
var settings = []pgtest.Option{
	pgtest.Set("fsync", "on"),
	pgtest.Set("full_page_writes", "on"),
	pgtest.Set("shared_buffers", "1GB"),
	pgtest.Set("max_wal_size", "16GB"),
	pgtest.Set("checkpoint_timeout", "1h"),
	pgtest.Set("max_connections", "300"),
}

const settingsNote = "Postgres syncs each commit to disk (fsync, full_page_writes and synchronous_commit are on); " +
	"shared_buffers = 1GB, and room for the write-ahead log, so that no checkpoint falls into a round"

func setUp(ctx context.Context, o options, more ...pgtest.Option) (_ *stage, err error) {
	s := &stage{options: o, templates: map[string]bool{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.tearDown())
		}
	}()
	if s.self, err = os.Executable(); err != nil {
		return nil, err
	}
	if s.dir, err = os.MkdirTemp("", "duesday-bench-"); err != nil {
		return nil, err
	}
	s.say("building duesday and the simulated Stripe, starting a throwaway Postgres")
	if s.duesday, err = s.build(ctx, ".", "duesday", "./cmd/duesday"); err != nil {
		return nil, err
	}
	if s.stripesim, err = s.build(ctx, ".", "stripesim", "./internal/stripesim/cmd/stripesim"); err != nil {
		return nil, err
	}
	if s.server, err = pgtest.StartServer(ctx, slices.Concat(settings, more)...); err != nil {
		return nil, err
	}
	s.admin, err = pgx.Connect(ctx, s.server.URL("postgres"))
	return s, err
}

// build builds as the image is built.
func (s *stage) build(ctx context.Context, module, name, pkg string, flags ...string) (string, error) {
	exe := filepath.Join(s.dir, name)
	args := append([]string{"build", "-C", module, "-trimpath", "-ldflags=-s -w", "-o", exe}, flags...)
	cmd := exec.CommandContext(ctx, "go", append(args, pkg)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build %s: %w\n%s", pkg, err, out)
	}
	return exe, nil
}

func (s *stage) tearDown() error {
	var err error
	if s.admin != nil {
		err = s.admin.Close(context.Background())
	}
	if s.server != nil {
		err = errors.Join(err, s.server.Stop(pgtest.Immediate))
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}

func (s *stage) say(format string, args ...any) { fmt.Fprintf(os.Stderr, "  · "+format+"\n", args...) }

// database returns the address of a new database with the schema, and so many
// customers.
func (s *stage) database(ctx context.Context, customers int) (string, error) {
	template := fmt.Sprintf("customers_%d", customers)
	if !s.templates[template] {
		if err := s.fill(ctx, template, customers); err != nil {
			return "", err
		}
		s.templates[template] = true
	}
	s.made++
	name := fmt.Sprintf("month_%d", s.made)
	if _, err := s.admin.Exec(ctx, "CREATE DATABASE "+name+" TEMPLATE "+template); err != nil {
		return "", fmt.Errorf("copy %s: %w", template, err)
	}
	// What setting up wrote must not be flushed while we measure.
	if _, err := s.admin.Exec(ctx, "CHECKPOINT"); err != nil {
		return "", err
	}
	return s.server.URL(name), nil
}

// drop removes a database, so that the disk does not fill.
func (s *stage) drop(ctx context.Context, url string) error {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return err
	}
	_, err = s.admin.Exec(ctx, "DROP DATABASE "+config.Database+" WITH (FORCE)")
	return err
}

func (s *stage) fill(ctx context.Context, name string, customers int) error {
	if _, err := s.admin.Exec(ctx, "CREATE DATABASE "+name); err != nil {
		return err
	}
	migrate := exec.CommandContext(ctx, s.duesday, "migrate")
	migrate.Env = []string{"DATABASE_URL=" + s.server.URL(name)}
	if out, err := migrate.CombinedOutput(); err != nil {
		return fmt.Errorf("duesday migrate: %w: %s", err, out)
	}
	const fill = `
		INSERT INTO duesday.customers (id, stripe_customer_id, amount, currency)
		SELECT format('cust_%s', lpad(i::text, 9, '0')), format('cus_%s', lpad(i::text, 9, '0')),
			900 + 100 * (i % 40), (ARRAY['usd', 'eur', 'jpy'])[1 + i % 3]
		FROM generate_series(1, $1::int) AS i`
	return onDatabase(ctx, s.server.URL(name), func(conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, fill, customers); err != nil {
			return err
		}
		_, err := conn.Exec(ctx, "VACUUM ANALYZE duesday.customers")
		return err
	})
}

func onDatabase(ctx context.Context, url string, f func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	return errors.Join(f(conn), conn.Close(ctx))
}

// machine names the system and the Postgres.
func (s *stage) machine(ctx context.Context) string {
	var version string
	if err := s.admin.QueryRow(ctx, "SHOW server_version").Scan(&version); err != nil {
		version = "of unknown version"
	}
	system := "unknown system"
	if content, err := os.ReadFile("/etc/os-release"); err == nil {
		for line := range strings.Lines(string(content)) {
			if name, ok := strings.CutPrefix(strings.TrimSpace(line), "PRETTY_NAME="); ok {
				system = strings.Trim(name, `"`)
			}
		}
	}
	return system + ", Postgres " + version
}

func commit(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}
