package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/jackc/pgx/v5"

	"github.com/duesday/duesday/internal/bench/measure"
)

// keepProfile bills a month without Stripe latency, keeps the CPU profile in the
// folder, and prints its top, and Postgres's dearest statements.
func (s *stage) keepProfile(ctx context.Context, folder string) error {
	exe, err := s.build(ctx, ".", "duesday-instrumented", "./cmd/duesday", "-tags=bench")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	file, err := filepath.Abs(filepath.Join(folder, "duesday.prof"))
	if err != nil {
		return err
	}
	url, err := s.database(ctx, s.customers)
	if err != nil {
		return err
	}
	p, err := s.pay(ctx, 0, func(b *bank) (*child, error) {
		return s.runAs(ctx, exe, append(environment(url, b), "DUESDAY_BENCH_PROFILE="+file), "--leader-elect=false")
	})
	if err != nil {
		return err
	}
	var r measure.Report
	check(&r, "duesday", p, s.customers)
	per := 1000 / float64(s.customers)
	r.Show(
		measure.Figure{Name: "duesday, profiled", Unit: "charges/s", Values: []float64{p.rate}},
		measure.Figure{Name: "CPU of duesday", Unit: "s/1,000 charges", Values: []float64{p.cpu * per}},
		measure.Figure{Name: "CPU of its Postgres", Unit: "s/1,000 charges", Values: []float64{p.pg * per}},
		measure.Figure{Name: "CPU of the simulated Stripe", Unit: "s/1,000 charges", Values: []float64{p.bank * per}},
	)
	if err := r.Write(os.Stdout); err != nil {
		return err
	}
	fmt.Printf("\n%d charges; go tool pprof %s shows more\n\n", s.customers, filepath.Join(folder, "duesday.prof"))
	for _, order := range []string{"-flat", "-cum"} {
		top := exec.CommandContext(ctx, "go", "tool", "pprof", "-top", "-nodecount=30", order, file)
		top.Stdout = os.Stdout
		if err := top.Run(); err != nil {
			return fmt.Errorf("go tool pprof: %w", err)
		}
		fmt.Println()
	}
	if err := s.printStatements(ctx, url); err != nil {
		return err
	}
	if len(r.Broken) > 0 {
		return errors.New("a promise was broken; see above")
	}
	return nil
}

// printStatements prints what Postgres was busy with.
func (s *stage) printStatements(ctx context.Context, url string) error {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return err
	}
	// Here, and not in the database that is measured.
	if _, err := s.admin.Exec(ctx, `CREATE EXTENSION IF NOT EXISTS pg_stat_statements`); err != nil {
		fmt.Println("no statements:", err)
		return nil
	}
	const top = `
		SELECT calls, rows, total_exec_time, wal_bytes::bigint, left(regexp_replace(query, '\s+', ' ', 'g'), 100)
		FROM pg_stat_statements JOIN pg_database ON oid = dbid
		WHERE datname = $1 ORDER BY total_exec_time DESC LIMIT 12`
	rows, err := s.admin.Query(ctx, top, config.Database)
	if err != nil {
		return err
	}
	fmt.Printf("%8s %8s %10s %12s  %s\n", "calls", "rows", "ms", "WAL bytes", "statement")
	var (
		calls, returned, wal int64
		ms                   float64
		text                 string
	)
	_, err = pgx.ForEachRow(rows, []any{&calls, &returned, &ms, &wal, &text}, func() error {
		fmt.Printf("%8d %8d %10.1f %12d  %s\n", calls, returned, ms, wal, text)
		return nil
	})
	return err
}
