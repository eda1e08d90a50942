package charges

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// slotColumns are what a Slot is read from, out of the slot and its due.
const slotColumns = `slot.customer_id, coalesce(due.stripe_customer_id, slot.customer_id),
	coalesce(due.payment_method, ''), slot.amount, slot.currency, due.description,
	due.stripe_method, slot.attempt, slot.idempotency_key, slot.claimed_at,
	extract(epoch FROM clock_timestamp() - slot.key_window_at)::float8,
	coalesce(slot.charge_id, ''),
	CASE WHEN slot.attempt > 1 THEN coalesce((
		SELECT prior.charge_id FROM duesday.attempts AS prior
		WHERE prior.customer_id = slot.customer_id AND prior.billing_period = slot.billing_period
			AND prior.attempt < slot.attempt AND prior.status <> 'succeeded' AND prior.charge_id LIKE 'pi\_%'
		ORDER BY prior.id DESC LIMIT 1), '') ELSE '' END,
	CASE WHEN slot.attempt > 1 THEN ARRAY(
		SELECT DISTINCT prior.idempotency_key FROM duesday.attempts AS prior
		WHERE prior.customer_id = slot.customer_id AND prior.billing_period = slot.billing_period
			AND prior.attempt < slot.attempt AND prior.status = 'rejected' AND prior.request_id IS NOT NULL) END,
	CASE WHEN slot.attempt > 1 THEN (
		SELECT opened_at FROM duesday.periods AS p WHERE p.billing_period = slot.billing_period) END`

func (l *Ledger) collectSlots(rows pgx.Rows, readAt time.Time) ([]Slot, error) {
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (Slot, error) {
		s := Slot{Period: l.Period, ReadAt: readAt}
		var (
			age    float64
			opened *time.Time
		)
		err := row.Scan(&s.CustomerID, &s.StripeCustomerID, &s.PaymentMethod, &s.Amount, &s.Currency,
			&s.Description, &s.Method, &s.Attempt, &s.Key, &s.ClaimedAt, &age, &s.ChargeID, &s.PriorIntent, &s.RejectedKeys, &opened)
		if opened != nil {
			s.SearchFrom = *opened
		}
		s.WindowAge = time.Duration(age * float64(time.Second))
		return s, err
	})
}

// InDoubt reads a page of claimed slots, those after the given customer id in
// its order. It is called under the lock, where nobody else is sending them, but
// not on its connection: it goes through the period until the page is full.
func (l *Ledger) InDoubt(ctx context.Context, db Querier, after string, limit int) ([]Slot, error) {
	return l.openSlots(ctx, db, Claimed, after, limit)
}

// Processing is InDoubt for slots that Stripe has not decided yet, by index.
func (l *Ledger) Processing(ctx context.Context, db Querier, after string, limit int) ([]Slot, error) {
	return l.openSlots(ctx, db, Processing, after, limit)
}

// throughAll is byIndex for a statement that may look at all the slots of a
// period, which takes minutes where there are tens of millions on a cold disk.
const throughAll = byIndex + `, set_config('statement_timeout', '30min', true)`

func (l *Ledger) openSlots(ctx context.Context, db Querier, status Status, after string, limit int) ([]Slot, error) {
	column := "status"
	if status == Processing {
		column = "follow_up" // by index
	}
	read := `
		SELECT ` + slotColumns + `
		FROM duesday.charges AS slot
		JOIN duesday.dues AS due USING (billing_period, customer_id)
		WHERE slot.billing_period = $1 AND slot.` + column + ` = $2 AND slot.customer_id > $3` + l.mine("slot.customer_id") + `
		ORDER BY slot.customer_id
		LIMIT $4`
	readAt := l.now()
	var slots []Slot
	err := queryPlanned(ctx, db, throughAll, func(rows pgx.Rows) (err error) {
		slots, err = l.collectSlots(rows, readAt)
		return err
	}, mutated(read), l.Period.String(), string(status), after, limit)
	if err != nil {
		return nil, fmt.Errorf("read the %s slots: %w", status, err)
	}
	return slots, nil
}

// Dunning says when declined slots are tried anew.
type Dunning struct {
	// Schedule is how long after attempt n attempt n+1 is due; after its last
	// entry there is no other. At most MaxAttempts - 1 entries.
	Schedule  []time.Duration
	Customers Relation // only who is still active is tried anew
}

// MaxAttempts of one slot; Stripe advises at most 8.
const MaxAttempts = 8

// dueAgain is true of a declined slot that a new attempt is due for. $1 is the
// period, $2 the schedule in seconds.
const dueAgain = `slot.billing_period = $1 AND slot.follow_up = 'declined' AND NOT slot.needs_customer
	AND slot.attempt <= cardinality($2::float8[])
	AND slot.settled_at + make_interval(secs => ($2::float8[])[slot.attempt]) <= clock_timestamp()`

// DueAgain lists the declined slots that a new attempt is due for and whose
// customers are still active, those after the given customer id in its order.
// It reads the customers relation, which may take long: not a statement for the
// lock's connection.
func (l *Ledger) DueAgain(ctx context.Context, db Querier, d Dunning, after string, limit int) ([]string, error) {
	due := `
		SELECT slot.customer_id FROM duesday.charges AS slot
		WHERE ` + dueAgain + ` AND slot.customer_id > $3` + l.mine("slot.customer_id") + ` AND slot.customer_id IN ` + d.Customers.activeIDs() + `
		ORDER BY slot.customer_id
		LIMIT $4`
	rows, err := db.Query(ctx, due, l.Period.String(), d.seconds(), after, limit)
	if err != nil {
		return nil, fmt.Errorf("read the declined slots: %w", relationError(d.Customers, err))
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("read the declined slots: %w", relationError(d.Customers, err))
	}
	return ids, nil
}

// NothingDue reports whether the period is settled and no declined slot is due
// for a new attempt, whoever is still active. It is cheap: both are by index.
func (l *Ledger) NothingDue(ctx context.Context, db Querier, d Dunning) (nothing bool, err error) {
	const look = `
		SELECT coalesce((SELECT settled_at IS NOT NULL FROM duesday.periods WHERE billing_period = $1), false)
			AND NOT EXISTS (SELECT FROM duesday.charges AS slot WHERE ` + dueAgain + `)`
	if err := db.QueryRow(ctx, look, l.Period.String(), d.seconds()).Scan(&nothing); err != nil {
		return false, fmt.Errorf("look whether a new attempt is due: %w", err)
	}
	return nothing, nil
}

// RetryDeclined opens a new attempt for those of the customers' slots that are
// still due for one, and returns them to be sent. A new attempt has its own key
// and is claimed like any slot: a crash after this statement leaves it in doubt,
// and it is resent under its key. It runs on the lock's connection and returns
// ErrFenced without the lock.
func (l *Ledger) RetryDeclined(ctx context.Context, conn *pgx.Conn, d Dunning, customers []string) ([]Slot, error) {
	if err := l.checkHeld(ctx, conn); err != nil {
		return nil, err
	}
	retry := `
		WITH slot AS (
			UPDATE duesday.charges AS slot SET
				status = 'claimed', attempt = slot.attempt + 1,
				idempotency_key = ` + keySQL("slot.customer_id", "slot.billing_period", "$5::text", "(slot.attempt + 1)") + `,
				claimed_at = clock_timestamp(), key_window_at = clock_timestamp(),
				charge_id = NULL, failure_code = NULL, failure_message = NULL, settled_at = NULL
			WHERE ` + l.held("$4") + ` AND ` + dueAgain + ` AND slot.customer_id = ANY($3)
			RETURNING slot.*
		), unsettled AS (
			UPDATE duesday.periods SET settled_at = NULL
			WHERE billing_period = $1 AND EXISTS (SELECT FROM slot)
		)
		SELECT ` + slotColumns + `
		FROM slot JOIN duesday.dues AS due USING (billing_period, customer_id)
		ORDER BY slot.customer_id`
	readAt := l.now()
	rows, err := conn.Query(ctx, retry, l.Period.String(), d.seconds(), customers, l.lockID(), l.Namespace)
	if err != nil {
		return nil, fmt.Errorf("open new attempts: %w", err)
	}
	slots, err := l.collectSlots(rows, readAt)
	if err != nil {
		return nil, fmt.Errorf("open new attempts: %w", err)
	}
	return slots, nil
}

func (d *Dunning) seconds() []float64 {
	seconds := make([]float64, len(d.Schedule))
	for i, pause := range d.Schedule {
		seconds[i] = pause.Seconds()
	}
	return seconds
}

// AllPeriods lists all opened periods, the oldest first.
func AllPeriods(ctx context.Context, db Querier) ([]Ledger, error) {
	const all = `
		SELECT billing_period, key_namespace FROM duesday.periods ORDER BY billing_period`
	rows, err := db.Query(ctx, all)
	if err != nil {
		return nil, fmt.Errorf("read the periods: %w", err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (Ledger, error) {
		var (
			l    Ledger
			name string
		)
		if err := row.Scan(&name, &l.Namespace); err != nil {
			return l, err
		}
		var err error
		l.Period, err = ParsePeriod(name)
		return l, err
	})
}

// OpenCount is how many slots of a period are open, and since when.
type OpenCount struct {
	InDoubt    int
	Processing int
	// ResendAt is when the last of the slots in doubt may be sent anew after a
	// look that finds nothing; zero if none is in doubt.
	ResendAt time.Time
}

// CountOpen counts the period's slots in doubt and processing. It goes through
// the slots of a period that is not settled.
func (l *Ledger) CountOpen(ctx context.Context, db Querier) (OpenCount, error) {
	const count = `
		SELECT count(*), max(key_window_at), (
			SELECT count(*) FROM duesday.charges WHERE billing_period = $1 AND follow_up = 'processing')
		FROM duesday.charges
		WHERE billing_period = $1 AND status = 'claimed'
			AND (SELECT settled_at IS NULL FROM duesday.periods WHERE billing_period = $1)`
	var (
		c      OpenCount
		window *time.Time
	)
	if err := db.QueryRow(ctx, count, l.Period.String()).Scan(&c.InDoubt, &window, &c.Processing); err != nil {
		return OpenCount{}, fmt.Errorf("count the open slots: %w", err)
	}
	if window != nil {
		c.ResendAt = window.Add(ResendWindow)
	}
	return c, nil
}
