package job

import (
	"context"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/internal/mutant"
)

// inDoubt hands out the slots that are claimed and not settled.
func (r *run) inDoubt(ctx context.Context, emit func([]charges.Slot)) error {
	if mutant.Is("skip-recovery") {
		return nil
	}
	// Beside the lock's connection: there are millions of slots to look at, and
	// the heart must beat.
	return r.pages(ctx, func(ctx context.Context, after string) ([]charges.Slot, error) {
		page, err := r.Ledger.InDoubt(ctx, r.Pool, after, r.PageSize)
		if after == "" && len(page) > 0 {
			r.Log.Info("recovering slots in doubt")
		}
		r.Live.takenUp(len(page))
		return page, err
	}, emit)
}

// processing hands out the slots that Stripe had not decided.
func (r *run) processing(ctx context.Context, emit func([]charges.Slot)) error {
	return r.pages(ctx, func(ctx context.Context, after string) ([]charges.Slot, error) {
		return r.Ledger.Processing(ctx, r.Pool, after, r.PageSize)
	}, emit)
}

// declined opens new attempts for the declined slots that are due, and hands
// them out. The customers relation is read beside the lock's connection, where
// a slow view would cost the leadership.
func (r *run) declined(ctx context.Context, emit func([]charges.Slot)) error {
	for after := ""; ctx.Err() == nil; {
		ids, err := r.Ledger.DueAgain(ctx, r.Pool, *r.Dunning, after, r.PageSize)
		if err != nil {
			return err
		}
		if len(ids) == 0 {
			return nil
		}
		if after == "" {
			r.Log.Info("opening new attempts for declined slots")
		}
		var page []charges.Slot
		err = r.Lead.Do(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
			page, err = r.Ledger.RetryDeclined(ctx, conn, *r.Dunning, ids)
			return err
		})
		if err != nil {
			return err
		}
		r.Live.claimed(page, charges.Declined)
		emit(page)
		after = ids[len(ids)-1]
	}
	return nil
}

// pages hands out what read returns, page after page in the order of customer
// ids, until a page is not full.
func (r *run) pages(ctx context.Context, read func(context.Context, string) ([]charges.Slot, error), emit func([]charges.Slot)) error {
	after := ""
	for ctx.Err() == nil {
		page, err := read(ctx, after)
		if err != nil {
			return err
		}
		emit(page)
		if len(page) < r.PageSize {
			return nil
		}
		after = page[len(page)-1].CustomerID
	}
	return nil
}

// dues claims page after page and hands out what was claimed. The next page is
// claimed while the workers are still on the one before.
func (r *run) dues(ctx context.Context, emit func([]charges.Slot)) error {
	if err := r.Lead.Do(ctx, r.Ledger.GatherCursors); err != nil {
		return err
	}
	cursor, err := r.Ledger.Cursor(ctx, r.Pool)
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		var page charges.Page
		err := r.Lead.Do(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
			page, err = r.Ledger.Claim(ctx, conn, cursor, r.PageSize)
			return err
		})
		if err != nil {
			return err
		}
		r.Live.claimed(page.Slots, charges.Unclaimed)
		r.Live.rejected(page.Rejected)
		emit(page.Slots)
		if page.Dues < r.PageSize {
			return nil
		}
		cursor = page.Next
	}
	return nil
}

const (
	settleBatch = 256                   // results a statement
	settleDelay = 50 * time.Millisecond // how long the first of them waits for others
	settleTries = 10 * time.Second      // how long a batch is tried
)

// result is what became of a slot, and what it was.
type result struct {
	charges.Settlement
	was      charges.Status
	doubted  bool // it was in doubt before it was sent
	amount   int64
	currency string
}

func resultOf(t *task, was charges.Status, out *charges.Outcome) result {
	return result{Settlement: out.Settlement(t.Key), was: was, doubted: t.doubted, amount: t.Amount, currency: t.Currency}
}

// settle records results in batches until the channel is closed. What cannot
// be recorded stays in doubt: the next run's resend is answered by Stripe with
// the same result.
func (w *work) settle(results <-chan result) {
	batch := make([]result, 0, settleBatch)
	timer := time.NewTimer(settleDelay)
	defer timer.Stop()
	for open := true; open; {
		first, ok := <-results
		if !ok {
			return
		}
		batch = append(batch[:0], first)
		timer.Reset(settleDelay)
	gather:
		for len(batch) < settleBatch {
			select {
			case result, ok := <-results:
				if !ok {
					open = false
					break gather
				}
				batch = append(batch, result)
			case <-timer.C:
				break gather
			}
		}
		if err := w.recordBatch(batch); err != nil {
			w.Log.Error("cannot record results; their slots stay in doubt", zap.Int("results", len(batch)), zap.Error(err))
			w.stop(err)
			continue
		}
		w.Live.settled(batch)
	}
}

func (w *work) recordBatch(batch []result) error {
	settlements := make([]charges.Settlement, len(batch))
	for i := range batch {
		settlements[i] = batch[i].Settlement
	}
	// Not bounded by the work's own contexts: results in hand are worth the wait.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.ctx), settleTries)
	defer cancel()
	stray, err := backoff.Retry(ctx, func() ([]string, error) {
		_, stray, err := charges.Settle(ctx, w.Pool, settlements)
		return stray, err
	}, backoff.WithMaxElapsedTime(settleTries))
	if len(stray) > 0 {
		w.Log.Error("charges succeeded under keys that no slot has any more: somebody may have paid twice, look at them",
			zap.Strings("charge_ids", stray))
	}
	return err
}
