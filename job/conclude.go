package job

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/internal/exitcode"
)

// refuseAllRejected stops a run that would settle a month in which Stripe has
// taken nothing at all, however few a single run has seen.
func (r *run) refuseAllRejected(ctx context.Context, w *work) error {
	if w.stopped() != nil {
		return nil
	}
	n, err := r.Ledger.AllRejected(ctx, r.Pool)
	if n > 0 {
		w.stop(exitcode.With(exitcode.Stopped, fmt.Errorf("%w, all %d of them; %s", ErrAllRejected, n, rightAccount)))
	}
	return err
}

// conclude settles the period if it can, and says how the run ended.
func (r *run) conclude(ctx context.Context, w *work) error {
	if err := r.refuseAllRejected(ctx, w); err != nil {
		return err
	}
	stopped := w.stopped()
	if stopped == nil {
		err := r.Lead.DoLong(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
			r.summary.Settled, err = r.Ledger.SettlePeriod(ctx, conn)
			return err
		})
		if err != nil {
			return err
		}
		if err := r.settleShare(ctx); err != nil {
			return err
		}
	}
	// Counting is for people; it must not make an ended run fail.
	read, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if err := r.tally(read); err != nil {
		r.Log.Warn("cannot count the period's slots", zap.Error(err))
	}
	if r.summary.ShardDone {
		return nil
	}
	if stopped == nil && r.summary.Settled {
		if r.Vault != nil {
			// In time of its own: the counting may have used that up.
			revoke, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
			defer cancel()
			if err := r.Vault.Revoke(revoke); err != nil {
				r.Log.Warn("cannot revoke the vault key; it expires by itself", zap.Error(err))
			}
		}
		return nil
	}
	if c, err := r.Ledger.CountOpen(read, r.Pool); err == nil {
		r.summary.ResendAt = c.ResendAt
	}
	if errors.Is(stopped, charges.ErrCap) {
		r.fits = r.capsThatFit(read)
	}
	if stopped != nil {
		return r.explain(stopped)
	}
	err := ErrUnfinished
	if last := w.inDoubtFor.Load(); last != nil {
		// As text: what it wraps ended a send, not the run.
		err = fmt.Errorf("%w, the last in doubt because of: %v", err, *last)
	}
	return r.explain(err)
}

// explain adds what is left to why the run ended.
func (r *run) explain(err error) error {
	left := ""
	if t := r.summary.All; t != nil {
		left = fmt.Sprintf(" (%d in doubt, %d not yet claimed)", t.InDoubt, t.Unclaimed)
		if r.Ledger.Shard.Split() {
			left = fmt.Sprintf(" (in all the period %d in doubt, %d not yet claimed)", t.InDoubt, t.Unclaimed)
		}
	}
	// What was told to stop, or was refused, says nothing about Stripe.
	if at := r.summary.ResendAt; !at.IsZero() && (errors.Is(err, ErrUnfinished) || errors.Is(err, ErrOutage)) {
		left += "; run again, what Stripe keeps failing can be settled from " + at.UTC().Format(time.RFC3339)
	}
	code := exitcode.Of(err)
	if errors.Is(err, charges.ErrCap) {
		code = exitcode.Stopped
		left += strings.TrimSuffix("; if the growth is meant, raise the cap with --raise-cap-to "+r.fits, " ")
	}
	return exitcode.With(code, fmt.Errorf("%s unfinished: %w%s", r.name(), err, left))
}

// record writes the run's end into its row. A crash before it leaves a row
// without an end, whose heart has stopped: that is what a crash looks like.
func (r *run) record(ctx context.Context, ended error) {
	outcome := "settled"
	switch {
	case ended != nil:
		outcome = ended.Error()
	case r.summary.AlreadySettled:
		outcome = "already settled"
	case r.summary.ShardDone:
		outcome = "shard done"
	}
	const finish = `
		UPDATE duesday.runs SET finished_at = clock_timestamp(), exit_code = $2, outcome = $3,
			counts = coalesce(counts, '{}') || $4 -- the mark of a look-up stays
		WHERE id = $1`
	write, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if _, err := r.Pool.Exec(write, finish, r.Lead.RunID(), exitcode.Of(ended), outcome, r.summary.This); err != nil {
		r.Log.Warn("cannot record the end of the run", zap.Error(err))
	}
}
