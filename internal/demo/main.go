// Command demo bills the same month twice: once the way the write-ups tell it,
// and once with Duesday. Both meet the same faults, and what is counted is what
// the simulated Stripe has charged, not what the jobs believe.
//
// Run it with `make demo`.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/duesday/duesday/internal/pgtest"
	"github.com/duesday/duesday/internal/stripesim"
)

const (
	customers = 500
	period    = "2026-10"
	apiKey    = "sk_test_demo"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == naiveReplica {
		exit(runNaive(context.Background()))
	}
	seed := flag.Uint64("seed", 2026, "seed of the faults")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	exit(demo(ctx, *seed))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func demo(ctx context.Context, seed uint64) (err error) {
	fmt.Printf("Duesday demo: %d customers in three currencies, billed for %s by three replicas at once.\n", customers, period)
	fmt.Println("The simulated Stripe drops connections, loses answers, fails after charging, and throttles.")
	fmt.Println()

	s, err := setUp(ctx, seed)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.tearDown()) }()

	naive, err := s.naive(ctx)
	if err != nil {
		return err
	}
	ours, err := s.duesday(ctx)
	if err != nil {
		return err
	}
	tell(naive, ours)
	if !ours.perfect() {
		return fmt.Errorf("not every payable customer was charged exactly once: this is a bug, please report it with seed %d", seed)
	}
	return nil
}

// stage is what both months are played on.
type stage struct {
	seed   uint64
	server *pgtest.Server
	dir    string
	binary string
}

func setUp(ctx context.Context, seed uint64) (*stage, error) {
	s := &stage{seed: seed}
	fmt.Println("· building duesday, starting a throwaway Postgres …")
	dir, err := os.MkdirTemp("", "duesday-demo-")
	if err != nil {
		return nil, err
	}
	s.dir, s.binary = dir, filepath.Join(dir, "duesday")
	build := exec.CommandContext(ctx, "go", "build", "-o", s.binary, "./cmd/duesday")
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		return nil, errors.Join(fmt.Errorf("go build: %w", err), s.tearDown())
	}
	if s.server, err = pgtest.StartServer(ctx); err != nil {
		return nil, errors.Join(err, s.tearDown())
	}
	return s, nil
}

func (s *stage) tearDown() error {
	var err error
	if s.server != nil {
		err = s.server.Stop(pgtest.Immediate)
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}

// month is a fresh database with the schema and the customers, and a fresh
// Stripe that knows nobody.
type month struct {
	url    string
	conn   *pgx.Conn
	bank   *stripesim.Sim
	stripe string
	close  func()
}

func (s *stage) month(ctx context.Context, name string) (_ *month, err error) {
	admin, err := pgx.Connect(ctx, s.server.URL("postgres"))
	if err != nil {
		return nil, err
	}
	defer admin.Close(ctx)
	if _, err := admin.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize()); err != nil {
		return nil, err
	}
	m := &month{url: s.server.URL(name)}
	migrate := exec.CommandContext(ctx, s.binary, "migrate")
	migrate.Env = append(os.Environ(), "DATABASE_URL="+m.url)
	if out, err := migrate.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("duesday migrate: %w: %s", err, out)
	}
	if m.conn, err = pgx.Connect(ctx, m.url); err != nil {
		return nil, err
	}
	const fill = `
		INSERT INTO duesday.customers (id, stripe_customer_id, amount, currency)
		SELECT format('acct_%s', lpad(i::text, 4, '0')), format('cus_demo%s', i), 900 + 100 * (i % 40),
			(ARRAY['usd', 'eur', 'jpy'])[1 + i % 3]
		FROM generate_series(1, $1) AS i`
	if _, err := m.conn.Exec(ctx, fill, customers); err != nil {
		return nil, err
	}

	m.bank = stripesim.New(stripesim.Options{
		Seed:    s.seed,
		Latency: 25 * time.Millisecond,
		FaultRate: map[stripesim.Kind]float64{
			stripesim.DropBefore:          0.02,
			stripesim.DropAfterCommit:     0.03,
			stripesim.Truncated200:        0.02,
			stripesim.Error500AfterCommit: 0.02,
			stripesim.Error503:            0.03,
			stripesim.Error429:            0.01,
		},
	})
	for i := 25; i <= customers; i += 50 { // ten cards without money
		m.bank.Decline(fmt.Sprintf("cus_demo%d", i), "card_declined", "insufficient_funds")
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	server := &http.Server{Handler: m.bank}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	m.stripe = "http://" + listener.Addr().String()
	m.close = func() {
		m.bank.Close()
		_ = server.Close() // the month is over; nothing in flight matters
		<-served
		_ = m.conn.Close(context.WithoutCancel(ctx))
	}
	return m, nil
}

func (m *month) env() []string {
	return append(os.Environ(), "DATABASE_URL="+m.url, "STRIPE_API_KEY="+apiKey, "STRIPE_API_BASE="+m.stripe)
}
