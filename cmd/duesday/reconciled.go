package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"go.uber.org/zap"

	"github.com/duesday/duesday/internal/exitcode"
	"github.com/duesday/duesday/job"
)

// errStillOpen ends a reconcile that did all it could for now. Payments that a
// bank takes days for are open that long.
var errStillOpen = errors.New("still open")

// reconciled is how a reconcile ended.
type reconciled struct {
	periods []job.Summary // those that it worked on
	log     *zap.Logger   // nil: it ended before it worked on any
	wanted  int           // periods that were looked at
	left    int           // those of them that are left to another process
	traces  *tracing      // nil: nobody traces

	terminated bool // the termination message was tried
	failed     error
}

// write writes the last line of the log, and returns the error that the process
// ends with.
func (r *reconciled) write(err error) error {
	switch {
	case r.log == nil:
		return err
	case err != nil:
		r.log.Error("reconcile ended", zap.Int("exit_code", exitcode.Of(err)), zap.String("error", oneLine(err.Error())))
		return errSaid{err}
	}
	r.log.Info(r.nothing()+" is in doubt or processing", zap.Int("periods", r.wanted-r.left))
	return nil
}

// nothing is of what is in doubt when all is well.
func (r *reconciled) nothing() string {
	if r.left > 0 {
		return "nothing else"
	}
	return "nothing"
}

// terminate is an ending's.
func (r *reconciled) terminate(f tellFlags, ended error) {
	if r.terminated {
		return
	}
	r.terminated = true
	t, _ := r.told(ended)
	r.failed = f.terminate(t)
}

// tell tells all at once how a reconcile ended. The receiver is told only if
// something changed or failed: a reconcile runs every hour or so, and mostly in
// vain.
func (r *reconciled) tell(ctx context.Context, f tellFlags, w *watch, n *notifier, ended error) {
	r.terminate(f, ended)
	t, changed := r.told(ended)
	var notify error
	var telling sync.WaitGroup
	telling.Go(func() { w.end(ctx, ended) })
	telling.Go(func() { r.traces.end(ctx) })
	if r.log != nil && n != nil && (changed || ended != nil && !errors.Is(ended, errStillOpen)) {
		telling.Go(func() { notify = n.send(context.WithoutCancel(ctx), t) })
	}
	telling.Wait()
	if r.log == nil {
		return
	}
	for _, err := range []error{r.failed, notify} {
		if err != nil {
			r.log.Warn("cannot tell how the reconcile ended", zap.String("error", oneLine(err.Error())))
		}
	}
}

func (r *reconciled) told(ended error) (t told, changed bool) {
	var (
		sum   job.Counts
		parts []string
	)
	for _, s := range r.periods {
		sum.Succeeded += s.This.Succeeded
		sum.Declined += s.This.Declined
		sum.Rejected += s.This.Rejected
		sum.Processing += s.This.Processing
		sum.InDoubt += s.This.InDoubt
		var done []string
		for _, p := range []struct {
			n    int64
			what string
		}{
			{s.This.Succeeded, "charged"}, {s.This.Declined, "declined"}, {s.This.Rejected, "rejected"}, {s.This.Processing, "processing at the bank"},
		} {
			if p.n > 0 {
				done = append(done, count(int(p.n))+" "+p.what)
			}
		}
		if len(done) > 0 {
			parts = append(parts, "period "+s.Period+": "+strings.Join(done, ", "))
		}
	}
	t = told{Outcome: endSettled, ExitCode: exitcode.Of(ended), This: &sum}
	what := "nothing changed"
	if changed = len(parts) > 0; changed {
		what = strings.Join(parts, "; ")
	}
	t.Text = "Duesday reconcile: " + what + ". N" + r.nothing()[1:] + " is in doubt or processing."
	if ended != nil {
		t.Outcome = endOf(ended)
		t.Error = oneLine(ended.Error())
		t.Text = fmt.Sprintf("Duesday reconcile: %s. Exit code %d: %s", what, t.ExitCode, t.Error)
	}
	return t, changed
}
