package charges

import (
	"context"
	"fmt"
	"slices"

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
	return frozen{`(` + o.Customers.selectDues(1) + `)`, []any{o.Description, string(o.Method)}}
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
		GROUP BY currency
		ORDER BY currency`, len(dues.args)+1, dues.sql)
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
	return w, nil
}
