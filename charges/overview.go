package charges

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Overview is one period for a person to read: counted and summed by the
// database, so that it is as small for a million dues as for ten.
type Overview struct {
	Standing
	OpenedAt  time.Time
	SettledAt time.Time // zero: not settled
	Reasons   []Reason  // why charges were declined or rejected, the most frequent first
	Timeline  Timeline
	Look      []Look // whom a person must look at, by kind
}

// Reason is why charges came to nothing.
type Reason struct {
	Status        Status // Declined or Rejected
	Code          string
	NeedsCustomer bool
	Dues          int
}

// maxReasons is how many reasons are told apart.
const maxReasons = 20

// Timeline is how many slots were settled in each stretch of time.
type Timeline struct {
	First   time.Time // when the first slot was; zero: none yet
	Last    time.Time
	Step    time.Duration
	Buckets []Bucket // in the order of time; those without a slot are left out
}

// Bucket is one stretch of time and status.
type Bucket struct {
	At     time.Time
	Status Status
	Slots  int
}

// Kind is why a person must look at a due.
type Kind string

// The kinds, in the order in which they are urgent.
const (
	KindInDoubt       Kind = "in_doubt"
	KindRejected      Kind = "rejected"
	KindNeedsCustomer Kind = "needs_customer"
	KindUnclaimed     Kind = "unclaimed"
)

// Look is the dues of one kind: all counted, and the first of them.
type Look struct {
	Kind  Kind
	Dues  int
	First []Row
}

// Overview reads the period in one snapshot; it only reads. Of each kind to
// look at it returns at most limit rows, in the order of customer ids. A period
// that has not been opened is pgx.ErrNoRows.
func (l *Ledger) Overview(ctx context.Context, conn *pgx.Conn, limit int) (Overview, error) {
	var o Overview
	err := pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		const period = `SELECT opened_at, settled_at FROM duesday.periods WHERE billing_period = $1`
		var settled *time.Time
		err := tx.QueryRow(ctx, period, l.Period.String()).Scan(&o.OpenedAt, &settled)
		if err != nil {
			return fmt.Errorf("read period %s: %w", l.Period, err)
		}
		if settled != nil {
			o.SettledAt = *settled
		}
		// In a part of the transaction that is undone: how it is planned is for
		// its own join alone.
		part, err := tx.Begin(ctx)
		if err != nil {
			return fmt.Errorf("set a savepoint: %w", err)
		}
		o.Standing, err = l.Standing(ctx, part)
		if err := errors.Join(err, part.Rollback(ctx)); err != nil {
			return err
		}
		for _, read := range []func(context.Context, pgx.Tx, *Overview) error{l.reasons, l.timeline} {
			if err := read(ctx, tx, &o); err != nil {
				return err
			}
		}
		return l.looks(ctx, tx, &o, limit)
	})
	return o, err
}

func (l *Ledger) reasons(ctx context.Context, tx pgx.Tx, o *Overview) error {
	const read = `
		SELECT status, coalesce(failure_code, ''), needs_customer, count(*)
		FROM duesday.charges
		WHERE billing_period = $1 AND status IN ('declined', 'rejected')
		GROUP BY 1, 2, 3
		ORDER BY 4 DESC, 1, 2, 3
		LIMIT $2`
	rows, err := tx.Query(ctx, read, l.Period.String(), maxReasons)
	if err != nil {
		return fmt.Errorf("count the declines of period %s: %w", l.Period, err)
	}
	if o.Reasons, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Reason]); err != nil {
		return fmt.Errorf("count the declines of period %s: %w", l.Period, err)
	}
	return nil
}

// timelineSteps are those that a clock face makes easy to read. The longest
// serves any longer stretch too.
var timelineSteps = []time.Duration{
	time.Second, 5 * time.Second, 15 * time.Second, time.Minute, 5 * time.Minute, 15 * time.Minute,
	time.Hour, 3 * time.Hour, 12 * time.Hour, 24 * time.Hour, 7 * 24 * time.Hour, 30 * 24 * time.Hour, 365 * 24 * time.Hour,
}

// maxBuckets is about as many as can be told apart on a page.
const maxBuckets = 60

func (l *Ledger) timeline(ctx context.Context, tx pgx.Tx, o *Overview) error {
	const ends = `
		SELECT min(settled_at), max(settled_at) FROM duesday.charges
		WHERE billing_period = $1 AND status IN ('succeeded', 'declined', 'rejected', 'processing')`
	var first, last *time.Time
	if err := tx.QueryRow(ctx, ends, l.Period.String()).Scan(&first, &last); err != nil {
		return fmt.Errorf("read when period %s was settled: %w", l.Period, err)
	}
	if first == nil {
		return nil
	}
	t := Timeline{First: *first, Last: *last}
	for _, t.Step = range timelineSteps {
		if last.Sub(*first) < maxBuckets*t.Step {
			break
		}
	}
	const read = `
		SELECT to_timestamp(floor(extract(epoch FROM settled_at) / $2::float8) * $2::float8), status, count(*)
		FROM duesday.charges
		WHERE billing_period = $1 AND settled_at IS NOT NULL
		GROUP BY 1, 2
		ORDER BY 1, 2`
	rows, err := tx.Query(ctx, read, l.Period.String(), t.Step.Seconds())
	if err != nil {
		return fmt.Errorf("read when period %s was settled: %w", l.Period, err)
	}
	if t.Buckets, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Bucket]); err != nil {
		return fmt.Errorf("read when period %s was settled: %w", l.Period, err)
	}
	o.Timeline = t
	return nil
}

func (l *Ledger) looks(ctx context.Context, tx pgx.Tx, o *Overview, limit int) error {
	var needsCustomer int
	const count = `
		SELECT count(*) FROM duesday.charges
		WHERE billing_period = $1 AND status = 'declined' AND needs_customer`
	if err := tx.QueryRow(ctx, count, l.Period.String()).Scan(&needsCustomer); err != nil {
		return fmt.Errorf("count who must act in period %s: %w", l.Period, err)
	}
	for _, kind := range []struct {
		Look
		where string
	}{
		{Look{KindInDoubt, o.Tally.InDoubt, nil}, `slot.status = 'claimed'`},
		{Look{KindRejected, o.Tally.Rejected, nil}, `slot.status = 'rejected'`},
		{Look{KindNeedsCustomer, needsCustomer, nil}, `slot.status = 'declined' AND slot.needs_customer`},
		{Look{KindUnclaimed, o.Tally.Unclaimed, nil}, `slot.status IS NULL`},
	} {
		if kind.Dues == 0 {
			continue
		}
		look := kind.Look
		if err := l.rows(ctx, tx, kind.where, limit, func(r Row) error {
			look.First = append(look.First, r)
			return nil
		}); err != nil {
			return err
		}
		o.Look = append(o.Look, look)
	}
	return nil
}
