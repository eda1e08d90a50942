package job

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/internal/exitcode"
	"github.com/duesday/duesday/internal/mutant"
)

// work is the part of a run that sends. Two contexts bound it: ctx, which ends
// when nothing more may be claimed or sent, and inFlight, which ends Drain
// later, when what was sent is no longer waited for.
type work struct {
	*run
	ctx      context.Context
	stop     context.CancelCauseFunc
	inFlight context.Context

	unanswered atomic.Int64          // sends in a row that came to nothing
	rejections atomic.Int64          // sends in a row that Stripe rejected
	inDoubtFor atomic.Pointer[error] // why the last slot left in doubt was
	end        func()
}

func (r *run) startWork(ctx context.Context) *work {
	w := &work{run: r}
	r.Sender.MayCharge = w.mayCharge
	r.Sender.RefreshWindow = w.refreshWindow
	w.ctx, w.stop = context.WithCancelCause(ctx)
	unlead := context.AfterFunc(r.Lead.Context(), func() { w.stop(context.Cause(r.Lead.Context())) })

	inFlight, cut := context.WithCancel(context.WithoutCancel(ctx))
	w.inFlight = inFlight
	drain := time.AfterFunc(time.Hour, cut)
	drain.Stop()
	undrain := context.AfterFunc(w.ctx, func() {
		r.Log.Info("stopping: no new claims, waiting for what is in flight",
			zap.NamedError("reason", context.Cause(w.ctx)), zap.Stringer("at_most", r.Drain))
		drain.Reset(r.Drain)
	})

	var told sync.WaitGroup
	done := make(chan struct{})
	if r.ProgressEvery > 0 {
		told.Go(func() { r.tellProgress(done) })
	}
	w.end = func() {
		close(done)
		told.Wait()
		unlead()
		undrain()
		drain.Stop()
		cut()
		w.stop(nil)
	}
	return w
}

// stopped is why no more may be sent; nil while it may.
func (w *work) stopped() error {
	if w.ctx.Err() == nil {
		return nil
	}
	return context.Cause(w.ctx)
}

func (w *work) mayCharge() error {
	if err := w.stopped(); err != nil {
		return err
	}
	if !w.Lead.Fresh() {
		w.stop(ErrNotFresh)
		return ErrNotFresh
	}
	return nil
}

func (w *work) refreshWindow(ctx context.Context, slot *charges.Slot) error {
	err := w.Lead.Do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return w.Ledger.RefreshWindow(ctx, conn, slot)
	})
	if errors.Is(err, charges.ErrFenced) {
		w.stop(err)
	}
	return err
}

// source hands out pages of slots until there are no more or ctx ends.
type source func(ctx context.Context, emit func([]charges.Slot)) error

// task is a slot that something is to be done with.
type task struct {
	charges.Slot
	page    *page // for the trace
	doubted bool  // it is in doubt, and not only claimed
}

// pass does with all slots of a source what is to be done, and returns when
// their results are on record. An error of the source stops the work once the
// slots that it had handed out are through.
func (w *work) pass(from source, do func(*task, chan<- result)) {
	if w.stopped() != nil {
		return
	}
	tasks := make(chan task, w.PageSize)
	results := make(chan result, settleBatch)

	var senders, settler sync.WaitGroup
	for range w.Workers {
		senders.Go(func() {
			for t := range tasks {
				do(&t, results)
				t.page.done()
			}
		})
	}
	settler.Go(func() { w.settle(results) })

	began := w.Now()
	err := from(w.ctx, func(slots []charges.Slot) {
		p := w.newPage(len(slots), began)
		for _, s := range slots {
			select {
			case tasks <- task{Slot: s, page: p}:
			case <-w.ctx.Done():
				p.done()
			}
		}
		began = w.Now()
	})
	close(tasks)
	senders.Wait()
	close(results)
	settler.Wait()
	if err != nil {
		w.stop(err)
	}
}

// passAgain sends once more what is in doubt since this run sent it. A stopped
// run does not, and keeps the count of what it leaves.
func (w *work) passAgain() {
	if w.stopped() == nil && w.Live.inDoubt() > 0 {
		w.Live.again()
		w.pass(w.inDoubt, w.resend)
	}
}

// look asks Stripe about a slot that it had not decided yet.
func (w *work) look(t *task, results chan<- result) {
	if w.stopped() != nil {
		return
	}
	inFlight, span := w.traceSlot("look", t)
	out := w.Sender.Look(w.ctx, inFlight, &t.Slot)
	endSlot(span, &out)
	switch out.Verdict {
	case charges.Paid, charges.Refused, charges.Impossible:
		results <- resultOf(t, charges.Processing, &out)
	case charges.Pending:
	case charges.Forbidden:
		w.refused(out.Err)
	default:
		w.Log.Debug("cannot look at a processing slot", zap.String("request_id", out.RequestID), zap.Error(out.Err))
	}
}

// resend sends a slot that is in doubt.
func (w *work) resend(t *task, results chan<- result) {
	t.doubted = true
	w.send(t, results)
}

func (w *work) send(t *task, results chan<- result) {
	if w.stopped() != nil {
		return // stays claimed; the next run sends it
	}
	inFlight, span := w.traceSlot("charge", t)
	out := w.Sender.Send(w.ctx, inFlight, &t.Slot)
	endSlot(span, &out)
	if mutant.Is("in-doubt-is-declined") && out.Verdict == charges.Unknown {
		out.Verdict = charges.Refused
	}
	if out.Settles() {
		w.unanswered.Store(0)
		w.countRejection(&out)
		if out.FailureCode == "idempotency_error" {
			w.Log.Error("Stripe saw other parameters under a slot's key: somebody changed a frozen row; the slot is rejected, look at it",
				zap.String("request_id", out.RequestID))
		}
		results <- resultOf(t, charges.Claimed, &out)
		return
	}
	if !t.doubted {
		w.Live.leftInDoubt(&t.Slot)
	}
	w.Log.Debug("slot left in doubt", zap.Stringer("verdict", out.Verdict),
		zap.String("request_id", out.RequestID), zap.Error(out.Err))
	if out.Verdict == charges.Forbidden {
		w.refused(out.Err)
		return
	}
	if out.Err != nil {
		w.inDoubtFor.Store(&out.Err)
	}
	if out.Replayed && !out.Retry {
		return // a stored 500 is an answer, and the trouble of this slot alone
	}
	// With every worker's last few sends unanswered, claiming on would only
	// put the rest of the period in doubt too.
	if w.stopped() == nil && w.unanswered.Add(1) >= int64(3*w.Workers) {
		w.stop(fmt.Errorf("%w: the last %d charges came to nothing: %w", ErrOutage, 3*w.Workers, out.Err))
	}
}

const rightAccount = "is the API key that of the right account and mode? The rejected slots are sent again with --reopen"

// rejectionsFrom is how many rejections in a row say something about the API
// key at the least: a few customers that Stripe no longer has may well follow
// each other.
const rejectionsFrom = 20

// countRejection stops the work when Stripe has rejected nothing but one slot
// after another: as it does when the key is another account's, or a test key
// meets live customers.
func (w *work) countRejection(out *charges.Outcome) {
	if out.Verdict != charges.Impossible {
		w.rejections.Store(0)
		return
	}
	if w.rejections.Add(1) >= int64(max(3*w.Workers, rejectionsFrom)) {
		w.stop(exitcode.With(exitcode.Stopped, fmt.Errorf(
			"%w, the last: %w; %s", ErrAllRejected, out.Err, rightAccount)))
	}
}

// refused stops the work, since the API key is of no use. That of a deposed run
// is no case for a person: another run goes on, and exit code 3 would make the
// Job end it too.
func (w *work) refused(err error) {
	code := exitcode.Stopped
	if errors.Is(err, charges.ErrSuperseded) {
		code = exitcode.Unfinished
	}
	w.stop(exitcode.With(code, fmt.Errorf("%w: %w", ErrRefused, err)))
}
