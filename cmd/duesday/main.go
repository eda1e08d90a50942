// Command duesday charges every active customer exactly once per billing
// period. See `duesday --help`.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"

	"github.com/duesday/duesday/job"
)

// version is set by the linker.
var version = "dev"

func main() {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		<-signals
		// A second signal means now.
		signal.Stop(signals)
		cancel(job.ErrStopped)
	}()
	p := program{
		out:      os.Stdout,
		err:      os.Stderr,
		env:      os.LookupEnv,
		environ:  os.Environ,
		terminal: term.IsTerminal(int(os.Stderr.Fd())),
		screened: term.IsTerminal(int(os.Stdout.Fd())),
	}
	end := p.instrument()
	code := p.run(ctx, os.Args[1:])
	end()
	os.Exit(code)
}
