package charges

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
)

// Row is one due and what became of it.
type Row struct {
	CustomerID       string
	StripeCustomerID string
	Amount           *int64 // in the currency's smallest unit; nil where the relation had none
	Currency         string
	Status           string // a Status, or "unclaimed"
	Attempt          int
	ChargeID         string
	FailureCode      string
	FailureMessage   string
	ClaimedAt        time.Time
	SettledAt        time.Time
}

// Unclaimed is the status of a due that has no slot yet.
const Unclaimed = "unclaimed"

// Report calls each with every due of the period in the order of customer ids,
// as it arrives: memory does not grow with their number. An error of each ends
// it.
func (l *Ledger) Report(ctx context.Context, db Querier, each func(Row) error) error {
	return l.rows(ctx, db, `true`, math.MaxInt32, each)
}

// rows calls each with the first dues of the period that where lets through; it
// knows them as due, and their slots as slot.
func (l *Ledger) rows(ctx context.Context, db Querier, where string, limit int, each func(Row) error) error {
	read := `
		SELECT due.customer_id, coalesce(due.stripe_customer_id, due.customer_id),
			coalesce(slot.amount, due.amount), coalesce(slot.currency, due.currency, ''),
			coalesce(slot.status, 'unclaimed'), coalesce(slot.attempt, 0), coalesce(slot.charge_id, ''),
			coalesce(slot.failure_code, due.reject_code, ''), coalesce(slot.failure_message, ''),
			slot.claimed_at, slot.settled_at
		FROM duesday.dues AS due
		LEFT JOIN duesday.charges AS slot USING (billing_period, customer_id)
		WHERE due.billing_period = $1 AND ` + where + `
		ORDER BY due.customer_id
		LIMIT $2`
	rows, err := db.Query(ctx, read, l.Period.String(), limit)
	if err != nil {
		return fmt.Errorf("read period %s: %w", l.Period, err)
	}
	defer rows.Close()
	for rows.Next() {
		var (
			r                Row
			claimed, settled *time.Time
		)
		if err := rows.Scan(&r.CustomerID, &r.StripeCustomerID, &r.Amount, &r.Currency, &r.Status, &r.Attempt,
			&r.ChargeID, &r.FailureCode, &r.FailureMessage, &claimed, &settled); err != nil {
			return fmt.Errorf("read period %s: %w", l.Period, err)
		}
		if claimed != nil {
			r.ClaimedAt = *claimed
		}
		if settled != nil {
			r.SettledAt = *settled
		}
		if err := each(r); err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("read period %s: %w", l.Period, err)
	}
	return nil
}

// Tally is how many dues of a period stand where.
type Tally struct {
	Succeeded  int `json:"succeeded"`
	Declined   int `json:"declined"`
	Rejected   int `json:"rejected"`
	Processing int `json:"processing"`
	InDoubt    int `json:"in_doubt"`
	Unclaimed  int `json:"unclaimed"`
}

// Dues is how many there are in all.
func (t Tally) Dues() int {
	return t.Succeeded + t.Declined + t.Rejected + t.Processing + t.InDoubt + t.Unclaimed
}

// Total is one currency of an opened period, in its smallest unit.
type Total struct {
	Currency  string `json:"currency"`
	Expected  int64  `json:"expected_total"`
	Cap       int64  `json:"cap"`
	Claimed   int64  `json:"claimed_total"`
	Succeeded int64  `json:"succeeded_total"`
}

// PeriodStatus is where a period stands.
type PeriodStatus struct {
	Period    string
	OpenedAt  time.Time
	SettledAt time.Time // zero: not settled
	Tally     Tally
	Totals    []Total
}

// Statuses returns where each opened period stands, the oldest first; only the
// one named if period is not empty. It goes through all their slots.
func Statuses(ctx context.Context, db Querier, period string) ([]PeriodStatus, error) {
	const tallies = `
		SELECT p.billing_period, p.opened_at, p.settled_at,
			count(*) FILTER (WHERE slot.status = 'succeeded'),
			count(*) FILTER (WHERE slot.status = 'declined'),
			count(*) FILTER (WHERE slot.status = 'rejected'),
			count(*) FILTER (WHERE slot.status = 'processing'),
			count(*) FILTER (WHERE slot.status = 'claimed'),
			(SELECT count(*) FROM duesday.dues WHERE billing_period = p.billing_period) - count(slot.status)
		FROM duesday.periods AS p
		LEFT JOIN duesday.charges AS slot USING (billing_period)
		WHERE $1 = '' OR p.billing_period = $1
		GROUP BY p.billing_period
		ORDER BY p.billing_period`
	rows, err := db.Query(ctx, tallies, period)
	if err != nil {
		return nil, fmt.Errorf("read the periods: %w", err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (PeriodStatus, error) {
		var (
			s       PeriodStatus
			settled *time.Time
		)
		err := row.Scan(&s.Period, &s.OpenedAt, &settled, &s.Tally.Succeeded, &s.Tally.Declined,
			&s.Tally.Rejected, &s.Tally.Processing, &s.Tally.InDoubt, &s.Tally.Unclaimed)
		if settled != nil {
			s.SettledAt = *settled
		}
		return s, err
	})
	if err != nil {
		return nil, fmt.Errorf("read the periods: %w", err)
	}
	const totals = `
		SELECT billing_period, currency, expected_total, cap, claimed_total, (
			SELECT coalesce(sum(amount), 0)::bigint FROM duesday.charges AS slot
			WHERE slot.billing_period = t.billing_period AND slot.currency = t.currency AND slot.status = 'succeeded')
		FROM duesday.totals AS t
		WHERE $1 = '' OR billing_period = $1
		ORDER BY billing_period, currency`
	rows, err = db.Query(ctx, totals, period)
	if err != nil {
		return nil, fmt.Errorf("read the totals: %w", err)
	}
	byPeriod := map[string]*PeriodStatus{}
	for i := range all {
		byPeriod[all[i].Period] = &all[i]
	}
	var (
		name string
		t    Total
	)
	if _, err := pgx.ForEachRow(rows, []any{&name, &t.Currency, &t.Expected, &t.Cap, &t.Claimed, &t.Succeeded}, func() error {
		if s := byPeriod[name]; s != nil {
			s.Totals = append(s.Totals, t)
		}
		return nil
	}); err != nil {
		return nil, fmt.Errorf("read the totals: %w", err)
	}
	return all, nil
}
