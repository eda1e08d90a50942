package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/duesday/duesday/internal/pgtest"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ok, err := torture(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "torture:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

// settings come from the environment.
type settings struct {
	first, schedules uint64
	parallel         int
	verbose          bool
	binary           string // empty: built
	firstOnly        bool   // end at the first schedule that fails
}

func read() (s settings, err error) {
	number := func(name string, usual uint64) uint64 {
		text := os.Getenv(name)
		if text == "" {
			return usual
		}
		n, bad := strconv.ParseUint(text, 10, 32)
		if bad != nil {
			err = errors.Join(err, fmt.Errorf("%s=%q: want a number", name, text))
		}
		return n
	}
	s.first, s.schedules = 1, number("TORTURE_SCHEDULES", 25)
	if os.Getenv("TORTURE_SEED") != "" {
		s.first, s.verbose = number("TORTURE_SEED", 1), os.Getenv("TORTURE_SCHEDULES") == ""
		if s.verbose {
			s.schedules = 1
		}
	}
	// They wait more than they work.
	s.parallel = int(number("TORTURE_PARALLEL", uint64(2*runtime.NumCPU())))
	s.binary, s.firstOnly = os.Getenv("TORTURE_BINARY"), os.Getenv("TORTURE_FIRST") != ""
	return s, err
}

func torture(ctx context.Context) (ok bool, err error) {
	s, err := read()
	if err != nil {
		return false, err
	}
	if s.binary == "" {
		folder, err := os.MkdirTemp("", "duesday-torture-")
		if err != nil {
			return false, err
		}
		defer func() { _ = os.RemoveAll(folder) }()
		s.binary = filepath.Join(folder, "duesday")
		build := exec.CommandContext(ctx, "go", "build", "-o", s.binary, "./cmd/duesday")
		if out, err := build.CombinedOutput(); err != nil {
			return false, fmt.Errorf("build the command: %w\n%s", err, out)
		}
	}
	began := time.Now()
	var (
		all     = figures{}
		failed  []uint64
		mu      sync.Mutex
		workers sync.WaitGroup
		seeds   = make(chan uint64)
		errs    = make(chan error, s.parallel)
	)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for range min(s.parallel, int(s.schedules)) {
		workers.Go(func() {
			if err := work(ctx, s, seeds, func(seed uint64, r result) {
				mu.Lock()
				defer mu.Unlock()
				all.add(r.figures)
				all["schedules"]++
				fmt.Printf("seed %-6d %5.1f s  %v\n", seed, r.seconds, r.verdict())
				if len(r.problems) > 0 {
					failed = append(failed, seed)
					r.explain(os.Stdout)
					if s.firstOnly { // what still runs ends with this process
						again(seed)
						os.Exit(1)
					}
				}
				if s.verbose {
					r.show(os.Stdout)
				}
			}); err != nil {
				errs <- err
				cancel()
			}
		})
	}
feed:
	for i := range s.schedules {
		select {
		case seeds <- s.first + i:
		case <-ctx.Done():
			break feed
		}
	}
	close(seeds)
	workers.Wait()
	close(errs)
	for e := range errs {
		err = errors.Join(err, e)
	}
	all.print(os.Stdout, time.Since(began))
	for _, seed := range failed {
		again(seed)
	}
	return len(failed) == 0 && all["schedules"] == int(s.schedules), err
}

func again(seed uint64) {
	fmt.Printf("FAILED: replay it with  make torture TORTURE_SEED=%d\n", seed)
}

// work plays schedule after schedule on a Postgres of its own.
func work(ctx context.Context, s settings, seeds <-chan uint64, tell func(uint64, result)) (err error) {
	server, err := pgtest.StartServer(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Stop(pgtest.Immediate)) }()
	for seed := range seeds {
		r, err := play(draw(seed), s.binary, server)
		if err != nil { // with what went wrong before, which may be why
			r.problems = append(r.problems, fmt.Sprintf("torture: %v", err))
		}
		if tell(seed, r); err != nil { // the server may be in no state to go on with
			if err := server.Restart(pgtest.Immediate); err != nil {
				return fmt.Errorf("seed %d: %w", seed, err)
			}
		}
	}
	return nil
}

func play(s schedule, binary string, server *pgtest.Server) (result, error) {
	began := time.Now()
	var env []string
	if name := os.Getenv("DUESDAY_MUTANT"); name != "" {
		env = append(env, "DUESDAY_MUTANT="+name)
	}
	w, err := newWorld(s, binary, env, server)
	if err != nil {
		return result{schedule: s}, err
	}
	w.bill()
	if len(w.problems) == 0 {
		w.finish()
	}
	w.verify()
	r := result{schedule: s, figures: w.figures, problems: w.problems, replicas: w.all(), seconds: time.Since(began).Seconds()}
	return r, w.close()
}
