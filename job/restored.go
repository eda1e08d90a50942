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
	"github.com/duesday/duesday/internal/mutant"
)

// ErrOlderLedger: Stripe has charges of the period that the ledger never heard
// of. It was restored from an older backup, or is a new one.
var ErrOlderLedger = errors.New("the ledger is older than what Stripe has")

// AfterRestore makes a run look up at Stripe who was charged, before it sends
// anything.
type AfterRestore struct {
	// Since is when the period can have been charged for at the earliest.
	Since time.Time
	// Earlier is the flag with which a run looks further back, for the message
	// of one that did not look back far enough.
	Earlier string
}

// ready takes the key, and makes sure that the ledger knows what was charged.
func (r *run) ready(ctx context.Context) error {
	if err := r.takeKey(ctx); err != nil {
		return err
	}
	if r.AfterRestore != nil {
		return r.lookUp(ctx)
	}
	return r.checkLedger(ctx)
}

// checkLedger stops the run if the ledger is an older one. It is done once: with
// a key of its own before the period is opened, so that nothing at all is
// changed, else as soon as the vault has given one.
func (r *run) checkLedger(ctx context.Context) error {
	if r.checked || r.Vault != nil && !r.keyed || mutant.Is("trust-any-ledger") {
		return nil
	}
	r.checked = true
	if err := r.Ledger.LookUpFinished(ctx, r.Pool); err != nil {
		if errors.Is(err, charges.ErrLookUpUnfinished) {
			return r.older(err)
		}
		return err
	}
	methods, err := r.Ledger.Methods(ctx, r.Pool, r.Opening.Method)
	if err != nil {
		return err
	}
	var customers *charges.Relation
	if !r.state.Opened && !r.summary.Opened {
		found, err := charges.FindRelation(ctx, r.Pool, r.Customers)
		if err != nil {
			return err
		}
		customers = &found
	}
	asking, stop := r.led(ctx)
	defer stop()
	unknown, err := r.askStripe(asking, methods, customers)
	if err != nil {
		return err
	}
	if len(unknown) > 0 {
		return r.older(fmt.Errorf("%w: %s", ErrOlderLedger, unknownWords(unknown)))
	}
	return nil
}

// askStripe returns charges of the period that Stripe has and the ledger does
// not know. What could not be asked is a warning. ctx is one of led.
func (r *run) askStripe(ctx context.Context, methods []charges.Method, customers *charges.Relation) ([]string, error) {
	unknown, blind, err := r.Ledger.UnknownAtStripe(ctx, r.Pool, r.Sender, methods, customers)
	if cause := context.Cause(ctx); cause != nil {
		return nil, cause // told to stop, or deposed: not an answer
	}
	if err != nil || len(unknown) > 0 {
		return unknown, err
	}
	for _, err := range blind {
		r.Log.Warn("cannot ask Stripe whether it has charges of the period that the ledger does not know; if the database was restored, stop and use --after-restore",
			zap.String("billing_period", r.summary.Period), zap.Error(err))
	}
	return nil, nil
}

func unknownWords(ids []string) string {
	if len(ids) == 1 {
		return "at least the charge " + ids[0] + " of the period"
	}
	return fmt.Sprintf("at least %d charges of the period, %s among them", len(ids), ids[0])
}

// led is ctx, but ends with the leadership too.
func (r *run) led(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	unlead := context.AfterFunc(r.Lead.Context(), func() { cancel(context.Cause(r.Lead.Context())) })
	return ctx, func() {
		unlead()
		cancel(nil)
	}
}

func (r *run) older(err error) error {
	flags := append([]string{"--period", r.summary.Period, "--after-restore"}, r.RestoreFlags...)
	if r.Ledger.Shard.Split() {
		flags = append(flags, "--shards 1")
	}
	return exitcode.With(exitcode.Stopped, fmt.Errorf(
		"period %s: %w. Nothing was claimed or sent. After a restore say once: duesday run %s, which first looks up at Stripe who was charged",
		r.summary.Period, err, strings.Join(flags, " ")))
}

// lookUp records what Stripe has of the period, page by page, before anything is
// sent. Only a look-up that comes to its end lets the run go on.
//
// A crash in it leaves some of it recorded, the newest first, and no mark in
// runs that it was finished: without --after-restore no run goes on then, and
// with it the next begins the look-up anew.
func (r *run) lookUp(ctx context.Context) error {
	ctx, stop := r.led(ctx)
	defer stop()
	if r.Vault != nil && !r.keyed {
		return r.finishLookUp(ctx)
	}
	methods, err := r.Ledger.Methods(ctx, r.Pool, r.Opening.Method)
	if err != nil {
		return err
	}
	if err := r.Lead.Do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return r.Ledger.BeginLookUp(ctx, conn, r.Lead.RunID())
	}); err != nil {
		return err
	}
	since := r.AfterRestore.Since
	if r.state.Opened && r.state.OpenedAt.Before(since) {
		since = r.state.OpenedAt
	}
	r.Log.Info("looking up at Stripe who was charged for the period",
		zap.String("billing_period", r.summary.Period), zap.Time("since", since))
	var (
		all   charges.Restored
		other elsewhere
		pages int
		told  = r.Now()
	)
	for _, method := range methods {
		err := r.Ledger.EachFound(ctx, r.Sender, method, since, func(found []charges.Finding) error {
			var page charges.Restored
			err := r.Lead.Do(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
				page, err = r.Ledger.RecordFound(ctx, conn, found)
				return err
			})
			if err != nil {
				return err
			}
			pages++
			all.Slots, all.Paid = all.Slots+page.Slots, all.Paid+page.Paid
			r.tellOdd(page)
			if err := other.add(ctx, r, page.Elsewhere); err != nil {
				return err
			}
			if r.ProgressEvery > 0 && r.Now().Sub(told) >= r.ProgressEvery {
				told = r.Now()
				r.Log.Info("still looking up", zap.Int("pages", pages), zap.Int("restored", all.Slots))
			}
			return nil
		})
		if err != nil {
			if cause := context.Cause(ctx); cause != nil {
				err = fmt.Errorf("%w: %w", cause, err)
			}
			return exitcode.With(exitcode.Of(err), fmt.Errorf("look up who was charged for period %s, nothing was sent: %w", r.summary.Period, err))
		}
	}
	r.Log.Info("looked up at Stripe who was charged for the period", zap.String("billing_period", r.summary.Period),
		zap.Int("pages", pages), zap.Int("restored", all.Slots), zap.Int("paid", all.Paid))
	r.opened = nil // where the period stands has changed
	if err := r.checkFound(ctx, methods, since); err != nil {
		return err
	}
	if err := other.check(ctx, r); err != nil {
		return err
	}
	return r.finishLookUp(ctx)
}

// checkFound refuses to go on if Stripe still shows charges of the period that
// the ledger lacks: the look-up did not go back to them then.
func (r *run) checkFound(ctx context.Context, methods []charges.Method, since time.Time) error {
	unknown, err := r.askStripe(ctx, methods, nil)
	if err != nil || len(unknown) == 0 {
		return err
	}
	return exitcode.With(exitcode.Stopped, fmt.Errorf(
		"period %s: %w still: %s. The look-up began too late, with what was made on %s. Nothing was sent. To look further back, add %s to --after-restore",
		r.summary.Period, ErrOlderLedger, unknownWords(unknown), since.UTC().Format(time.DateOnly), r.AfterRestore.Earlier))
}

func (r *run) finishLookUp(ctx context.Context) error {
	err := r.Lead.Do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return r.Ledger.FinishLookUp(ctx, conn, r.Lead.RunID())
	})
	r.lookedUp = err == nil
	return err
}

// tellOdd tells of charges that a person should look at.
func (r *run) tellOdd(page charges.Restored) {
	if len(page.Twice) > 0 {
		r.Log.Error("customers were charged more than once for the period, look at these charges: they are the ones beside those in the ledger",
			zap.Strings("charge_ids", page.Twice))
	}
	if len(page.NotOwed) > 0 {
		r.Log.Warn("Stripe has charges of customers whom the period does not owe anything for: they are left as they are",
			zap.Strings("charge_ids", page.NotOwed))
	}
}
