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
	hangups := make(chan os.Signal, 1)
	if !signal.Ignored(syscall.SIGHUP) { // as under nohup
		signal.Notify(hangups, syscall.SIGHUP)
	}
	// Who reads the output may go: a write then fails, and the process lives on.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	go func() {
		select {
		case <-signals:
		case <-hangups: // a closed terminal may send several
		}
		// A second signal means now.
		signal.Stop(signals)
		cancel(job.ErrStopped)
	}()
	p := program{
		out:      &pipe{Writer: os.Stdout},
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
