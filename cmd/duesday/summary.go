package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/internal/exitcode"
	"github.com/duesday/duesday/internal/money"
	"github.com/duesday/duesday/internal/mutant"
	"github.com/duesday/duesday/internal/outside"
	"github.com/duesday/duesday/job"
	"github.com/duesday/duesday/leader"
)

// The ways in which a run ends.
const (
	endSettled        = "settled"
	endAlreadySettled = "already_settled"
	endShardDone      = "shard_done"
	endNotLeader      = "not_leader"
	endUnfinished     = "unfinished"
	endMisconfigured  = "misconfigured"
	endStopped        = "stopped"
)

// ending is how a run ended, for everybody who is told: the log, the pod's
// termination message, the Job's events and --notify-url.
type ending struct {
	outcome string
	period  string
	summary job.Summary
	err     error  // nil where the exit code is 0
	leader  string // who leads instead
	lease   string // by which; empty: by the lock alone

	log     *zap.Logger     // nil: it ended before it had one
	cluster *leader.Cluster // nil: none
	traces  *tracing        // nil: nobody traces

	terminated bool // the termination message was tried
	failed     error
}

// judge finds out what the run's end means.
func (e *ending) judge(err error) {
	var (
		held      *leader.HeldError
		leaseHeld *leader.LeaseHeldError
	)
	switch {
	case errors.As(err, &held):
		e.outcome, e.leader = endNotLeader, held.Holder
	case errors.As(err, &leaseHeld):
		e.outcome, e.leader, e.lease = endNotLeader, leaseHeld.Holder, leaseHeld.Lease
	case err != nil:
		if errors.Is(err, context.Canceled) {
			err = fmt.Errorf("period %s unfinished: %w", e.period, job.ErrStopped)
		}
		e.err, e.outcome = err, endOf(err)
	case e.summary.AlreadySettled:
		e.outcome = endAlreadySettled
	case e.summary.ShardDone:
		e.outcome = endShardDone
	default:
		e.outcome = endSettled
	}
}

// endOf is the end that an error's exit code stands for.
func endOf(err error) string {
	switch exitcode.Of(err) {
	case exitcode.Misconfigured:
		return endMisconfigured
	case exitcode.Stopped:
		return endStopped
	}
	return endUnfinished
}

// told is what machines are told of an ending, beside a text for people.
type told struct {
	Text     string          `json:"text,omitempty"`
	Outcome  string          `json:"outcome"`
	Period   string          `json:"billing_period,omitempty"`
	ExitCode int             `json:"exit_code"`
	Error    string          `json:"error,omitempty"`
	Leader   string          `json:"leader,omitempty"`
	This     *job.Counts     `json:"this_run,omitempty"`
	All      *charges.Tally  `json:"all_runs,omitempty"`
	Amounts  []charges.Money `json:"amounts,omitempty"`
	// LeftOut are currencies that there was no room for.
	LeftOut  int       `json:"amounts_left_out,omitempty"`
	ResendAt time.Time `json:"resend_at,omitzero"`
	Seconds  float64   `json:"seconds,omitempty"`
}

func (e *ending) told() told {
	t := told{
		Text: e.text(), Outcome: e.outcome, Period: outside.Cut(e.period, 32), ExitCode: exitcode.Of(e.err), Leader: outside.Cut(e.leader, 253),
		All: e.summary.All, Amounts: e.summary.Money, ResendAt: e.summary.ResendAt, Seconds: e.summary.Seconds,
	}
	if e.err != nil {
		t.Error = oneLine(e.err.Error())
	}
	if e.summary.Period != "" {
		t.This = &e.summary.This
	}
	return t
}

// text is the ending in a sentence or two.
func (e *ending) text() string {
	counts := e.counts()
	switch e.outcome {
	case endSettled:
		return fmt.Sprintf("Duesday: period %s is settled: %s.", e.period, cmp.Or(counts, "done"))
	case endAlreadySettled:
		return fmt.Sprintf("Duesday: period %s was settled before, there was nothing to do.", e.period)
	case endShardDone:
		return fmt.Sprintf("Duesday: shard %s of period %s is done, the others go on: %s.", e.summary.Shard, e.period, cmp.Or(counts, "done"))
	case endNotLeader:
		return fmt.Sprintf("Duesday: %s leads and bills period %s, there was nothing to do here.", e.leader, e.period)
	}
	what := map[string]string{
		endUnfinished:    "is not finished, run it again",
		endStopped:       "was stopped, a person must act",
		endMisconfigured: "cannot be billed as configured, a person must act",
	}[e.outcome]
	about := "a period"
	if e.period != "" {
		about = "period " + outside.Cut(e.period, 32)
	}
	if counts != "" {
		counts = ": " + counts
	}
	return fmt.Sprintf("Duesday: %s %s%s. Exit code %d: %s", about, what, counts, exitcode.Of(e.err), oneLine(e.err.Error()))
}

// counts is where the period stands, in words; empty if nobody knows.
func (e *ending) counts() string {
	all := e.summary.All
	if all == nil {
		return ""
	}
	charged := count(all.Succeeded) + " charged"
	if amounts := amountsOf(e.summary.Money); amounts != "" {
		charged += " (" + amounts + ")"
	}
	customers := "customers"
	if all.Dues() == 1 {
		customers = "customer"
	}
	parts := []string{count(all.Dues()) + " " + customers, charged}
	for _, p := range []struct {
		n    int
		what string
	}{
		{all.Declined, "declined"}, {all.Rejected, "rejected"}, {all.Processing, "still processing at the bank"},
		{all.InDoubt, "in doubt"}, {all.Unclaimed, "not yet charged"},
	} {
		if p.n > 0 {
			parts = append(parts, count(p.n)+" "+p.what)
		}
	}
	return strings.Join(parts, ", ")
}

// amountsOf is what was charged, in at most four currencies.
func amountsOf(all []charges.Money) string {
	var parts []string
	more := 0
	for _, m := range all {
		switch {
		case m.Succeeded == 0:
		case len(parts) == 4:
			more++
		default:
			parts = append(parts, money.Format(m.Succeeded, m.Currency))
		}
	}
	text := strings.Join(parts, ", ")
	switch {
	case more == 1:
		text += " and 1 more currency"
	case more > 1:
		text += fmt.Sprintf(" and %d more currencies", more)
	}
	return text
}

// within is the ending as JSON of fewer bytes than limit, at least 3000.
func (t told) within(limit int) ([]byte, error) {
	for {
		content, err := json.Marshal(t)
		if err != nil || len(content) < limit {
			return content, err
		}
		switch n := len(t.Amounts); {
		case n > 0:
			t.LeftOut += n - n/2
			t.Amounts = t.Amounts[:n/2]
		case len(t.Error) > len(t.Text):
			t.Error = outside.Cut(t.Error, len(t.Error)/2)
		default:
			t.Text = outside.Cut(t.Text, len(t.Text)/2)
		}
	}
}

// tellFlags say who is told how a run ended.
type tellFlags struct {
	termination string
	notifyFlags
}

func (f *tellFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.termination, "termination-log", "/dev/termination-log", "`file` that gets the end of the run as JSON, if it exists: Kubernetes' termination message")
	f.notifyFlags.add(flags)
}

const (
	// terminationLimit is Kubernetes'.
	terminationLimit = 4096
	// terminationTimeout is for a pipe, like /dev/stderr may be, that nobody empties.
	terminationTimeout = time.Second
)

// terminate writes the termination message, where Kubernetes has made a file
// for it.
func (f *tellFlags) terminate(t told) error {
	// A FIFO that nobody reads is not waited for.
	file, err := os.OpenFile(f.termination, os.O_WRONLY|os.O_TRUNC|syscall.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) || f.termination == "" {
		return nil
	}
	if err != nil {
		return fmt.Errorf("write the termination message: %w", err)
	}
	content, err := t.within(terminationLimit)
	if err == nil {
		_ = file.SetWriteDeadline(time.Now().Add(terminationTimeout)) // a regular file has none
		_, err = file.Write(content)
	}
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("write the termination message: %w", err)
	}
	return nil
}

// tellTimeout bounds all that others are told; nothing depends on it.
const tellTimeout = 6 * time.Second

// terminate writes the termination message, once: as soon as the billing has
// ended, since whatever comes then may be cut off.
func (e *ending) terminate(f tellFlags, err error) {
	if e.terminated {
		return
	}
	e.terminated = true
	e.judge(err)
	e.failed = f.terminate(e.told())
}

// tell tells everybody how the run ended, all at once and the log last, and
// returns the error that the process ends with. Whom it cannot tell changes
// nothing.
func (p *program) tell(ctx context.Context, f tellFlags, w *watch, n *notifier, e *ending, err error) error {
	e.terminate(f, err)
	t := e.told()
	var event, notify error
	var telling sync.WaitGroup
	telling.Go(func() { w.end(ctx, err) })
	telling.Go(func() { e.traces.end(ctx) })
	if e.log == nil {
		telling.Wait()
		return err
	}
	others, cancel := context.WithTimeout(context.WithoutCancel(ctx), tellTimeout)
	defer cancel()
	telling.Go(func() { event = p.recordEvent(others, e, t) })
	if n != nil && e.outcome != endAlreadySettled && e.outcome != endNotLeader && e.outcome != endShardDone {
		telling.Go(func() { notify = n.send(others, t) })
	}
	telling.Wait()
	for _, err := range []error{e.failed, event, notify} {
		if err != nil {
			e.log.Warn("cannot tell how the run ended", zap.String("error", oneLine(err.Error())))
		}
	}
	return e.write()
}

// recordEvent shows the end in `kubectl describe job`.
func (p *program) recordEvent(ctx context.Context, e *ending, t told) error {
	name := p.lookup("JOB_NAME")
	if e.cluster == nil || name == "" {
		return nil
	}
	event := leader.Event{Job: name, Pod: p.lookup("POD_NAME"), Message: outside.Cut(t.Text, 1024), At: metav1.NewTime(p.clock())}
	switch e.outcome {
	case endSettled, endAlreadySettled:
		event.Reason = "BillingSettled"
	case endShardDone:
		event.Reason = "BillingShardDone"
	case endNotLeader:
		event.Reason = "NotLeader"
	case endUnfinished:
		event.Reason, event.Warning = "BillingUnfinished", true
	default:
		event.Reason, event.Warning = "BillingStopped", true
	}
	return e.cluster.Tell(ctx, event)
}

// write writes the run's last log line.
func (e *ending) write() error {
	period := zap.String("billing_period", e.period)
	switch e.outcome {
	case endNotLeader:
		fields := []zap.Field{period, zap.String("leader", e.leader)}
		if e.lease != "" {
			fields = append(fields, zap.String("lease", e.lease))
		}
		e.log.Info("another replica leads, nothing to do here", fields...)
	case endAlreadySettled: // the job has said so
	case endShardDone:
		e.log.Info("shard done, the others go on", period, zap.Int("exit_code", exitcode.OK), zap.Inline(e.summary))
	case endSettled:
		e.log.Info("period settled", period, zap.Int("exit_code", exitcode.OK), zap.Inline(e.summary))
	default:
		if mutant.Is("exit-0-on-sigterm") && errors.Is(e.err, job.ErrStopped) {
			return nil
		}
		e.log.Error("run ended", period, zap.Int("exit_code", exitcode.Of(e.err)), zap.String("error", oneLine(e.err.Error())),
			zap.Inline(e.summary))
		return errSaid{e.err}
	}
	return nil
}
