package charges

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// frozen is the SQL of a relation with the columns of dues, and its arguments,
// $1 onwards: what opening has frozen, or what it would.
type frozen struct {
	sql  string
	args []any
}

func (l *Ledger) frozenDues() frozen {
	return frozen{`(SELECT * FROM duesday.dues WHERE billing_period = $1)`, []any{l.Period.String()}}
}

func (o *Opening) wouldFreeze() frozen {
	return frozen{`(` + o.Customers.selectDues(1, rejectSQL) + `)`, []any{o.Description, string(o.Method)}}
}

func (f frozen) and(args ...any) []any { return append(slices.Clone(f.args), args...) }

// weight is what dues come to.
type weight struct {
	payable, rejected int
	totals            []Total
}

func (w *weight) dues() int { return w.payable + w.rejected }

// weigh counts and totals the dues, and computes the caps.
func (o *Opening) weigh(ctx context.Context, tx pgx.Tx, dues frozen) (weight, error) {
	sql := fmt.Sprintf(`
		SELECT coalesce(currency, ''), count(*), count(reject_code),
			coalesce(sum(amount) FILTER (WHERE reject_code IS NULL), 0)::bigint,
			floor(coalesce(sum(amount) FILTER (WHERE reject_code IS NULL), 0) * $%d::numeric)::bigint
		FROM %s AS due
		GROUP BY currency`, len(dues.args)+1, dues.sql)
	rows, err := tx.Query(ctx, sql, dues.and(o.CapFactor)...)
	if err != nil {
		return weight{}, relationError(o.Customers, err)
	}
	var (
		w             weight
		t             Total
		all, rejected int
	)
	if _, err := pgx.ForEachRow(rows, []any{&t.Currency, &all, &rejected, &t.Expected, &t.Cap}, func() error {
		w.payable, w.rejected = w.payable+all-rejected, w.rejected+rejected
		if all > rejected {
			w.totals = append(w.totals, t)
		}
		return nil
	}); err != nil {
		return weight{}, relationError(o.Customers, err)
	}
	// Not by Postgres, which would sort the dues for that where it knows little.
	slices.SortFunc(w.totals, func(a, b Total) int { return strings.Compare(a.Currency, b.Currency) })
	return w, nil
}

// rejectedAtOnce bounds the memory that rejectFrozen takes.
const rejectedAtOnce = 20_000

// rejectFrozen rejects those of the dues that were just frozen that can never be
// sent. The checks cost a third of what freezing does, most of them the regular
// expression over the ids. Workers share them in a scan of what was written; in an
// INSERT they cannot.
func (l *Ledger) rejectFrozen(ctx context.Context, tx pgx.Tx) error {
	const due = `
		SELECT customer_id AS id, stripe_customer_id, payment_method, amount, currency, stripe_method`
	find := fmt.Sprintf(`
		SELECT at::text
		FROM (%s, ctid AS at FROM duesday.dues WHERE billing_period = $1 AND reject_code IS NULL) AS due
		WHERE (%s) IS NOT TRUE
		LIMIT %d`, due, fineSQL, rejectedAtOnce)
	// By where they stand, since no plan can go wrong then. Nobody else sees them
	// before the commit, so they stand there still.
	reject := `
		UPDATE duesday.dues SET reject_code = (SELECT ` + rejectSQL + ` FROM (` + due + `) AS due)
		WHERE ctid = ANY ($1::text[]::tid[])`
	for {
		rows, err := tx.Query(ctx, find, l.Period.String())
		if err != nil {
			return fmt.Errorf("check the dues: %w", err)
		}
		rejected, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return fmt.Errorf("check the dues: %w", err)
		}
		if len(rejected) > 0 {
			if _, err := tx.Exec(ctx, reject, rejected); err != nil {
				return fmt.Errorf("reject what cannot be sent: %w", err)
			}
		}
		if len(rejected) < rejectedAtOnce {
			return nil
		}
	}
}
