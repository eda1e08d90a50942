package charges

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Standing is where the dues of a period stand, by status and by currency.
type Standing struct {
	Tally Tally
	Money []Money // one for each of the period's currencies, in their order
}

// Money is one currency of a period, in its smallest unit, by the status of the
// dues. Dues that can never be sent as they are have no part in it.
type Money struct {
	Currency   string `json:"currency"`
	Expected   int64  `json:"expected"`
	Cap        int64  `json:"cap"`
	Succeeded  int64  `json:"succeeded"`
	Declined   int64  `json:"declined"`
	Rejected   int64  `json:"rejected"`
	Processing int64  `json:"processing"`
	InDoubt    int64  `json:"in_doubt"`
	Unclaimed  int64  `json:"unclaimed"`
}

// Of returns where the amount of a status is kept, nil for no status.
func (m *Money) Of(status Status) *int64 {
	switch status {
	case Succeeded:
		return &m.Succeeded
	case Declined:
		return &m.Declined
	case Rejected:
		return &m.Rejected
	case Processing:
		return &m.Processing
	case Claimed:
		return &m.InDoubt
	case Unclaimed:
		return &m.Unclaimed
	}
	return nil
}

// Of returns where the count of a status is kept, nil for no status.
func (t *Tally) Of(status Status) *int {
	switch status {
	case Succeeded:
		return &t.Succeeded
	case Declined:
		return &t.Declined
	case Rejected:
		return &t.Rejected
	case Processing:
		return &t.Processing
	case Claimed:
		return &t.InDoubt
	case Unclaimed:
		return &t.Unclaimed
	}
	return nil
}

// opened is the standing of a period that was just opened: nothing is claimed.
func (w *weight) opened() Standing {
	s := Standing{Tally: Tally{Unclaimed: w.dues()}}
	for _, t := range w.totals {
		s.Money = append(s.Money, Money{Currency: t.Currency, Expected: t.Expected, Cap: t.Cap, Unclaimed: t.Expected})
	}
	return s
}

// atOnce is for a join of all the dues with all the slots: a planner that knows
// only of the few slots of a run's first seconds would go through them for each
// of a million dues.
const atOnce = `
	SELECT set_config('enable_nestloop', 'off', true)`

func (l *Ledger) standingSQL() string {
	return `
		WITH period AS MATERIALIZED (
			SELECT coalesce(claim_cursor, '') AS claimed_to FROM duesday.periods WHERE billing_period = $1
		)
		SELECT currency, '', 0, expected_total, cap FROM duesday.totals WHERE billing_period = $1
		UNION ALL
		SELECT coalesce(slot.currency, ''), slot.status, count(*), coalesce(sum(slot.amount) FILTER (
			WHERE slot.status <> 'rejected' OR NOT EXISTS (
				SELECT FROM duesday.dues AS due
				WHERE due.billing_period = slot.billing_period AND due.customer_id = slot.customer_id
					AND due.reject_code IS NOT NULL)), 0)::bigint, 0
		FROM duesday.charges AS slot
		WHERE slot.billing_period = $1` + l.mine("slot.customer_id") + `
		GROUP BY 1, 2
		UNION ALL
		SELECT coalesce(due.currency, ''), 'unclaimed', count(*), coalesce(sum(due.amount) FILTER (WHERE due.reject_code IS NULL), 0)::bigint, 0
		FROM duesday.dues AS due
		WHERE due.billing_period = $1
			AND due.customer_id >= (SELECT claimed_to FROM period)` + l.mine("due.customer_id") + `
			AND NOT EXISTS (
				SELECT FROM duesday.charges AS slot
				WHERE slot.customer_id = due.customer_id AND slot.billing_period = $1
					AND slot.customer_id >= (SELECT claimed_to FROM period))
		GROUP BY 1
		ORDER BY 2, 1`
}

// Standing counts where the period stands, or the ledger's shard of it; what is
// expected, and the cap, are always the period's. It goes through all its slots, and
// through those dues alone that have none yet.
func (l *Ledger) Standing(ctx context.Context, db Querier) (Standing, error) {
	var (
		s                Standing
		currency, status string
		n                int
		amount, cap      int64
	)
	at := map[string]int{}
	add := func() error {
		if status == "" { // the totals, which come first
			at[currency] = len(s.Money)
			s.Money = append(s.Money, Money{Currency: currency, Expected: amount, Cap: cap})
			return nil
		}
		*s.Tally.Of(Status(status)) += n
		if i, known := at[currency]; known {
			*s.Money[i].Of(Status(status)) += amount
		}
		return nil
	}
	if err := queryPlanned(ctx, db, atOnce, func(rows pgx.Rows) error {
		_, err := pgx.ForEachRow(rows, []any{&currency, &status, &n, &amount, &cap}, add)
		return err
	}, l.standingSQL(), l.Period.String()); err != nil {
		return Standing{}, fmt.Errorf("count the dues: %w", err)
	}
	return s, nil
}
