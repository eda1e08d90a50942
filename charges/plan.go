package charges

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/duesday/duesday/internal/exitcode"
)

// Plan is what a run would do with the period, decided by the statements that
// the run uses.
type Plan struct {
	Period string `json:"billing_period"`
	Opened bool   `json:"opened"`
	// Settled: a run would do nothing.
	Settled bool `json:"settled"`
	// Tally of an opened period; of one that is not, what opening would make:
	// unclaimed and rejected.
	Tally  Tally   `json:"counts"`
	Totals []Total `json:"totals"`
	// Shared are Stripe customers that would be charged for more than one row:
	// the first few.
	Shared []SharedCustomer `json:"shared_stripe_customers,omitempty"`
}

// PlannedReject is a due that would never be sent, or was not.
type PlannedReject struct {
	CustomerID string `json:"customer_id"`
	Code       string `json:"code"`
	Reason     string `json:"reason"`
}

// Plan reads what a run would do, in one snapshot, and writes nothing: it runs
// with no right but to select. Every due that would be rejected is handed to
// each, in the order of customer ids.
//
// The error, if any, is the one that opening would end with, under the same
// exit code; the plan is filled in as far as it came.
func (l *Ledger) Plan(ctx context.Context, conn *pgx.Conn, customers string, o Opening, each func(PlannedReject) error) (Plan, error) {
	p := Plan{Period: l.Period.String()}
	err := pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		state, err := l.State(ctx, tx)
		if err != nil {
			return err
		}
		p.Opened, p.Settled = state.Opened, !state.SettledAt.IsZero()
		if state.Opened {
			return l.planOpened(ctx, tx, &p, each)
		}
		if o.Customers, err = FindRelation(ctx, tx, customers); err != nil {
			return err
		}
		if err := o.bound(ctx, tx); err != nil {
			return err
		}
		return l.planOpening(ctx, tx, o, &p, each)
	})
	return p, err
}

func (l *Ledger) planOpened(ctx context.Context, tx pgx.Tx, p *Plan, each func(PlannedReject) error) error {
	all, err := Statuses(ctx, tx, p.Period)
	if err != nil {
		return err
	}
	p.Tally, p.Totals = all[0].Tally, all[0].Totals
	const rejects = `
		SELECT due.customer_id, coalesce(slot.failure_code, due.reject_code, '')
		FROM duesday.dues AS due
		LEFT JOIN duesday.charges AS slot USING (billing_period, customer_id)
		WHERE due.billing_period = $1 AND (due.reject_code IS NOT NULL OR slot.status = 'rejected')
		ORDER BY due.customer_id`
	rows, err := tx.Query(ctx, rejects, p.Period)
	if err != nil {
		return fmt.Errorf("read the rejected dues: %w", err)
	}
	return eachReject(rows, each)
}

func (l *Ledger) planOpening(ctx context.Context, tx pgx.Tx, o Opening, p *Plan, each func(PlannedReject) error) error {
	dues := o.wouldFreeze()
	w, err := o.weigh(ctx, tx, dues)
	if err != nil {
		return err
	}
	p.Tally = Tally{Unclaimed: w.payable, Rejected: w.rejected}
	p.Totals = w.totals

	rows, err := tx.Query(ctx, `
		SELECT customer_id, reject_code FROM `+dues.sql+` AS due
		WHERE reject_code IS NOT NULL ORDER BY customer_id`, dues.args...)
	if err != nil {
		return relationError(o.Customers, err)
	}
	if err := eachReject(rows, each); err != nil {
		return relationError(o.Customers, err)
	}

	rows, err = tx.Query(ctx, `
		SELECT format('%L (%s rows)', customer_id, count(*))
		FROM `+o.Customers.activeIDs()+` AS active
		GROUP BY customer_id HAVING count(*) > 1 ORDER BY customer_id LIMIT 10`)
	if err != nil {
		return relationError(o.Customers, err)
	}
	repeated, err := pgx.CollectRows(rows, pgx.RowTo[string])
	switch {
	case err != nil:
		return relationError(o.Customers, err)
	case len(repeated) > 0:
		return exitcode.With(exitcode.Misconfigured, fmt.Errorf(
			"--customers %s repeats an id, want one active row a customer: %s", o.Customers.name, strings.Join(repeated, ", ")))
	case p.Tally.Dues() == 0 && !o.AllowEmpty:
		return emptyRelation(o.Customers)
	}
	if p.Shared, err = o.sharedStripeCustomers(ctx, tx, dues); err != nil {
		return err
	}
	return l.guard(ctx, tx, &o, dues, w)
}

func eachReject(rows pgx.Rows, each func(PlannedReject) error) error {
	var r PlannedReject
	_, err := pgx.ForEachRow(rows, []any{&r.CustomerID, &r.Code}, func() error {
		r.Reason = RejectReason(r.Code)
		return each(r)
	})
	return err
}
