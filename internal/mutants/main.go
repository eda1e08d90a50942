// Command mutants switches on one mistake after another and reports which test
// notices it. A mistake that none notices is a test that is missing.
//
// Each is tried twice: by the tests of its package that are there for it, and
// by torture, which knows nothing of it. It is enough that one of them notices,
// and all of them must pass without a mistake.
//
//	make mutants
//	make mutants MUTANTS=no-lookup,random-key
//	make mutants MUTANTS_SCHEDULES=0               only the named tests
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	survived, err := run(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
	}
	if err != nil || survived > 0 {
		os.Exit(1)
	}
}

func run(ctx context.Context) (survived int, err error) {
	folder, err := os.MkdirTemp("", "duesday-mutants-")
	if err != nil {
		return 0, err
	}
	defer func() { _ = os.RemoveAll(folder) }()
	l := lab{folder: folder, schedules: "16"}
	if n, ok := os.LookupEnv("MUTANTS_SCHEDULES"); ok && n != "" {
		l.schedules = n
	}
	if err := l.build(ctx); err != nil {
		return 0, err
	}
	wanted := map[string]bool{}
	for name := range strings.SplitSeq(os.Getenv("MUTANTS"), ",") {
		if name != "" {
			wanted[name] = true
		}
	}
	if len(wanted) == 0 {
		if err := l.control(ctx); err != nil {
			return 0, err
		}
	}
	fmt.Printf("%-24s %-60s %8s\n", "mutant", "caught by", "seconds")
	for _, m := range all() {
		if len(wanted) > 0 && !wanted[m.name] {
			continue
		}
		began := time.Now()
		caught := l.try(ctx, m)
		if ctx.Err() != nil {
			return survived, ctx.Err()
		}
		if len(caught) == 0 {
			survived++
			caught = []string{"NOTHING: a test is missing"}
		}
		fmt.Printf("%-24s %-60s %8.1f\n", m.name, strings.Join(caught, ", "), time.Since(began).Seconds())
	}
	fmt.Printf("%d survived\n", survived)
	return survived, nil
}

// lab holds what is built once for all mistakes.
type lab struct {
	folder    string
	schedules string
}

func (l *lab) path(name string) string { return filepath.Join(l.folder, name) }

func (l *lab) build(ctx context.Context) error {
	builds := [][]string{
		{"build", "-tags", "mutant", "-o", l.path("duesday"), "./cmd/duesday"},
		{"build", "-o", l.path("torture"), "./internal/torture"},
	}
	for _, p := range packages() {
		builds = append(builds, []string{"test", "-tags", "mutant", "-c", "-o", l.path(p), "./" + p})
	}
	for _, args := range builds {
		cmd := exec.CommandContext(ctx, "go", args...)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
		}
	}
	return nil
}

func packages() []string { return []string{"charges", "job"} }

// control makes sure that it is the mistakes which are noticed.
func (l *lab) control(ctx context.Context) error {
	for _, m := range all() {
		if out, failed := l.test(ctx, m, ""); failed {
			return fmt.Errorf("%s fails without a mistake:\n%s", m.test, out)
		}
	}
	return nil
}

func (l *lab) try(ctx context.Context, m mistake) (caught []string) {
	if _, failed := l.test(ctx, m, m.name); failed {
		caught = append(caught, m.test)
	}
	if seed := l.torture(ctx, m); seed != "" {
		caught = append(caught, seed)
	}
	return caught
}

// test runs the tests that are there for the mistake.
func (l *lab) test(ctx context.Context, m mistake, mutant string) (out []byte, failed bool) {
	if m.test == "" {
		return nil, false
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, l.path(m.pkg), "-test.run", "^("+m.test+")$", "-test.timeout", "100s")
	cmd.Dir = m.pkg
	cmd.Env = append(os.Environ(), "DUESDAY_MUTANT="+mutant)
	out, err := cmd.CombinedOutput()
	if err == nil && bytes.Contains(out, []byte("no tests to run")) {
		return fmt.Appendf(nil, "package %s has no such test", m.pkg), true
	}
	var exit *exec.ExitError
	return out, errors.As(err, &exit)
}

var failedSeed = regexp.MustCompile(`TORTURE_SEED=(\d+)`)

// torture returns the seed that noticed.
func (l *lab) torture(ctx context.Context, m mistake) string {
	if l.schedules == "0" {
		return ""
	}
	cmd := exec.CommandContext(ctx, l.path("torture"))
	cmd.Env = append(os.Environ(), "DUESDAY_MUTANT="+m.name, "TORTURE_BINARY="+l.path("duesday"),
		"TORTURE_SCHEDULES="+l.schedules, "TORTURE_SEED=1", "TORTURE_FIRST=1")
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // it has a Postgres to stop
	out, _ := cmd.CombinedOutput()                                        // what it says is in its output
	if seed := failedSeed.FindSubmatch(out); seed != nil {
		return "torture (seed " + string(seed[1]) + ")"
	}
	return ""
}
