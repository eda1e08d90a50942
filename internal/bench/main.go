// Command bench measures Duesday beside what one would use instead, in turns
// within one run, and prints the ratios first. Nothing in it is mocked: the
// real binary, a throwaway Postgres that syncs to its disk, and the simulated
// Stripe in a process of its own, all on this machine's cores. What was charged
// is counted at the simulated bank.
//
// A ratio that misses its target is printed as missed and does not fail the
// run, since a time is not a test. Somebody charged twice, or not at all, does.
//
// Run it with `make bench`, or one figure with `BENCH=bare make bench`.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/duesday/duesday/internal/bench/measure"
	"github.com/duesday/duesday/internal/pgtest"
)

// options are the sizes.
type options struct {
	only      string
	rounds    int
	customers int
	million   int
	profile   string
}

// figure is one thing to measure.
type figure struct {
	name string
	what string
	// takes is what it took on two cores, to say beforehand how long it will be.
	takes time.Duration
	run   func(context.Context, *stage) (measure.Report, error)
}

var figures = []figure{
	{"bare", "charges a second beside a bare stripe-go loop, and CPU seconds", 2 * time.Minute, bare},
	{"paced", "how well --rate is kept, by the bank's clock", 2 * time.Minute, paced},
	{"latency", "charges a second when Stripe takes 50 ms, beside the write-ups' loop", 3 * time.Minute, latency},
	{"river", "a month beside the same as jobs of riverqueue/river, also after kill -9", 4 * time.Minute, river},
	{"claims", "claims a second beside one INSERT … SELECT of the same rows", 3 * time.Minute, claims},
	{"opening", "dues opened a second beside one INSERT … SELECT, and the leader's heart", 2 * time.Minute, opening},
	{"month", "memory of a month of a million beside one of 10,000, and its rerun", 6 * time.Minute, month},
	{"takeover", "how long nobody bills when the leader is killed or told to stop", time.Minute, takeover},
}

func main() {
	if len(os.Args) > 1 {
		if baseline := baselines[os.Args[1]]; baseline != nil {
			exit(baseline(context.Background(), os.Args[2:]))
		}
	}
	var o options
	flag.StringVar(&o.only, "only", os.Getenv("BENCH"), "`figures` to measure, with commas between; none: all")
	flag.IntVar(&o.rounds, "rounds", 5, "rounds of the quick figures")
	flag.IntVar(&o.customers, "customers", 40_000, "customers of the quick figures")
	flag.IntVar(&o.million, "million", 1_000_000, "customers of the figures that are about a million")
	flag.StringVar(&o.profile, "profile", "", "keep a CPU profile of a run without Stripe latency in this `folder`, and measure nothing else")
	flag.Usage = usage
	flag.Parse()
	if small := os.Getenv("BENCH_CUSTOMERS"); small != "" {
		if _, err := fmt.Sscan(small, &o.million); err != nil || o.million < 1000 {
			exit(fmt.Errorf("BENCH_CUSTOMERS=%q: want a number from 1000", small))
		}
		o.customers = min(o.customers, o.million)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	do := bench
	if o.profile != "" {
		do = profile
	}
	exit(do(ctx, o))
}

func usage() {
	fmt.Fprintln(os.Stderr, "usage: go run ./internal/bench [flags]")
	flag.PrintDefaults()
	fmt.Fprintln(os.Stderr, "figures:")
	for _, f := range figures {
		fmt.Fprintf(os.Stderr, "  %-9s %s (about %s)\n", f.name, f.what, f.takes)
	}
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func bench(ctx context.Context, o options) (err error) {
	chosen, err := choose(o.only)
	if err != nil {
		return err
	}
	var takes time.Duration
	for _, f := range chosen {
		takes += f.takes
	}
	fmt.Fprintf(os.Stderr, "%d figures, about %s with a million customers on two cores\n", len(chosen), takes)
	began := time.Now()
	s, err := setUp(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.tearDown()) }()

	var all measure.Report
	for _, f := range chosen {
		fmt.Fprintf(os.Stderr, "%s: %s (about %s)\n", f.name, f.what, f.takes)
		begun := time.Now()
		report, err := f.run(ctx, s)
		all.Add(report)
		if err != nil {
			return errors.Join(fmt.Errorf("%s: %w", f.name, err), all.Write(os.Stdout))
		}
		s.say("%s took %s", f.name, time.Since(begun).Round(time.Second))
	}
	fmt.Printf("commit %s, %s, %d cores, %d rounds, %s\n", commit(ctx), s.machine(ctx), runtime.NumCPU(), o.rounds,
		time.Since(began).Round(time.Second))
	if err := all.Write(os.Stdout); err != nil {
		return err
	}
	if len(all.Broken) > 0 {
		return errors.New("a promise was broken; see above")
	}
	return nil
}

func profile(ctx context.Context, o options) (err error) {
	s, err := setUp(ctx, o, pgtest.Set("shared_preload_libraries", "pg_stat_statements"))
	if err != nil && ctx.Err() == nil { // a Postgres without its contrib modules
		s, err = setUp(ctx, o)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.tearDown()) }()
	return s.keepProfile(ctx, o.profile)
}

func choose(only string) ([]figure, error) {
	if only == "" {
		return figures, nil
	}
	var chosen []figure
	for name := range strings.SplitSeq(only, ",") {
		n := len(chosen)
		for _, f := range figures {
			if f.name == strings.TrimSpace(name) {
				chosen = append(chosen, f)
			}
		}
		if len(chosen) == n {
			return nil, fmt.Errorf("no figure %q; try -help", name)
		}
	}
	return chosen, nil
}
