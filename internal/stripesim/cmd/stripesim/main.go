// Command stripesim serves a simulated Stripe on loopback until it is told to
// stop or the process that started it has died. Its first line on stdout is
// "listening on http://HOST:PORT".
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/duesday/duesday/internal/stripesim"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout, os.Getppid)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "stripesim:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout io.Writer, parent func() int) error {
	starter := parent()
	opts := stripesim.Options{FaultRate: make(map[stripesim.Kind]float64)}
	fs := flag.NewFlagSet("stripesim", flag.ContinueOnError)
	addr := fs.String("addr", "127.0.0.1:0", "`address` to listen on")
	fs.Uint64Var(&opts.Seed, "seed", 0, "seed of the random faults and of identifiers")
	fs.DurationVar(&opts.Latency, "latency", 0, "time spent in each endpoint")
	fs.DurationVar(&opts.KeyTTL, "key-ttl", stripesim.DefaultKeyTTL, "how long idempotency keys are remembered")
	fs.DurationVar(&opts.SearchLag, "search-lag", 0, "hide younger charges from search")
	fs.DurationVar(&opts.FaultDelay, "fault-delay", 0, "delay of random latency faults (0: 50ms)")
	fs.IntVar(&opts.MaxFaultsByKey, "max-faults-by-key", stripesim.DefaultMaxFaultsByKey, "random faults of one key at most")
	fs.Func("fault", "random fault as `kind=probability`; may be given again; kinds: "+kinds(), func(v string) error {
		name, p, _ := strings.Cut(v, "=")
		kind := stripesim.Kind(name)
		rate, err := strconv.ParseFloat(p, 64)
		if err != nil || rate < 0 || rate > 1 || !slices.Contains(stripesim.Kinds(), kind) {
			return errors.New("want kind=probability")
		}
		opts.FaultRate[kind] = rate
		return nil
	})
	fs.Func("api-key", "secret `key` to accept; may be given again (none: any sk_test_ or rk_test_ key)", func(v string) error {
		opts.APIKeys = append(opts.APIKeys, v)
		return nil
	})
	if err := fs.Parse(args); err != nil {
		return err
	}

	sim := stripesim.New(opts)
	listener, err := net.Listen("tcp", *addr)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	srv := &http.Server{Handler: sim, ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(listener) }()
	fmt.Fprintf(stdout, "listening on http://%s\n", listener.Addr())

	alive := time.NewTicker(100 * time.Millisecond)
	defer alive.Stop()
	for {
		select {
		case err := <-served:
			return fmt.Errorf("serve: %w", err)
		case <-alive.C:
			if parent() == starter {
				continue
			}
		case <-ctx.Done():
		}
		sim.Close()
		err := srv.Close()
		<-served
		return err
	}
}

func kinds() string {
	names := make([]string, 0, len(stripesim.Kinds()))
	for _, k := range stripesim.Kinds() {
		names = append(names, string(k))
	}
	return strings.Join(names, ", ")
}
