package charges

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/duesday/duesday/internal/exitcode"
	"github.com/duesday/duesday/internal/money"
)

// Guards are looked at when a period is opened, after all else, on what was
// frozen. If one trips nothing is opened; each names the flag that lets the
// period through once. The zero value guards nothing.
type Guards struct {
	// MaxGrowth is a decimal: a currency's expected total may be at most this
	// many times that of the last settled period, if that had GrowthFrom dues.
	// Empty or 0: any.
	MaxGrowth string
	// MaxAmount is the largest single amount by currency, in its smallest unit.
	MaxAmount map[string]int64
	// MaxRejected is how many dues may be rejected: a number, or a percentage
	// like 1%, which always lets RejectedFrom through. A reopening may drop as
	// many. Empty: any.
	MaxRejected string
	// AllowPast lets a period before the ledger's first be opened: most likely
	// a slip, by which everybody would be billed once more.
	AllowPast bool
	// UniqueStripeCustomers refuses two dues for one Stripe customer.
	UniqueStripeCustomers bool
}

const (
	// GrowthFrom is how many dues the last settled period must have had: the
	// growth of a handful says nothing.
	GrowthFrom = 20
	// RejectedFrom is how many rejected dues a percentage always lets through.
	RejectedFrom = 3
)

// ErrGuard is returned if a guard trips; it exits with 3.
var ErrGuard = errors.New("a guard tripped, nothing was opened")

// Check returns what is wrong with the guards themselves.
func (g *Guards) Check() error {
	if g.MaxGrowth != "" {
		if f, ok := new(big.Rat).SetString(g.MaxGrowth); !ok || f.Sign() < 0 || strings.ContainsAny(g.MaxGrowth, "eE/+_") || len(g.MaxGrowth) > 12 {
			return fmt.Errorf("--max-growth %q: want a decimal, like 2 or 1.5; 0 for any", g.MaxGrowth)
		}
	}
	for _, currency := range slices.Sorted(maps.Keys(g.MaxAmount)) {
		if len(currency) != 3 || currency != strings.ToLower(currency) || g.MaxAmount[currency] < 1 {
			return fmt.Errorf("--max-amount %s=%d: want a lower-case currency and a positive amount in its smallest unit, like usd=50000", currency, g.MaxAmount[currency])
		}
	}
	if g.MaxRejected != "" {
		if _, err := g.rejectedLimit(0); err != nil {
			return err
		}
	}
	return nil
}

// rejectedLimit is how many of the dues may be rejected.
func (g *Guards) rejectedLimit(dues int) (int, error) {
	bad := fmt.Errorf("--max-rejected %q: want a number of dues, or a percentage like 1%%", g.MaxRejected)
	digits, percent := strings.CutSuffix(g.MaxRejected, "%")
	n, err := strconv.ParseFloat(digits, 64)
	switch {
	case err != nil || !(n >= 0 && n <= 1e9):
		return 0, bad
	case percent && n > 100:
		return 0, bad
	case percent:
		return max(int(n*float64(dues)/100), RejectedFrom), nil
	case n != float64(int(n)):
		return 0, bad
	}
	return int(n), nil
}

// guard returns an error that wraps ErrGuard and says everything that tripped.
func (l *Ledger) guard(ctx context.Context, tx pgx.Tx, o *Opening, dues frozen, w weight) error {
	var tripped []string
	for _, look := range []func(context.Context, pgx.Tx, *Opening, frozen, weight) (string, error){
		l.guardPast, l.guardGrowth, guardAmounts, guardRejected, guardUnique,
	} {
		what, err := look(ctx, tx, o, dues, w)
		if err != nil {
			return err
		}
		tripped = append(tripped, what)
	}
	return guardError(tripped)
}

// guardReopening is guard for a reopening: before is what the dues came to, and
// again are those that can still change.
func (l *Ledger) guardReopening(ctx context.Context, tx pgx.Tx, o *Opening, before weight, dropped int, again frozen) error {
	amounts, err := guardAmounts(ctx, tx, o, again, weight{})
	if err != nil {
		return err
	}
	shared, err := guardUnique(ctx, tx, o, l.frozenDues(), weight{})
	if err != nil {
		return err
	}
	w, err := o.weigh(ctx, tx, l.frozenDues())
	if err != nil {
		return err
	}
	rejected := ""
	if w.rejected > before.rejected { // else it repairs
		if rejected, err = guardRejected(ctx, tx, o, again, w); err != nil {
			return err
		}
	}
	gone, err := guardDropped(o, before, dropped)
	if err != nil {
		return err
	}
	return guardError([]string{amounts, rejected, gone, shared})
}

func guardDropped(o *Opening, before weight, dropped int) (string, error) {
	if o.Guards.MaxRejected == "" {
		return "", nil
	}
	limit, err := o.Guards.rejectedLimit(before.dues())
	if err != nil || dropped <= limit {
		return "", err
	}
	return fmt.Sprintf("%d of %d dues would be dropped, whose customers are no longer active, more than %d: --max-rejected %d lets them go",
		dropped, before.dues(), limit, dropped), nil
}

func guardError(tripped []string) error {
	tripped = slices.DeleteFunc(tripped, func(what string) bool { return what == "" })
	if len(tripped) == 0 {
		return nil
	}
	return exitcode.With(exitcode.Stopped, fmt.Errorf("%w: %s", ErrGuard, strings.Join(tripped, "; ")))
}

func (l *Ledger) guardPast(ctx context.Context, tx pgx.Tx, o *Opening, _ frozen, _ weight) (string, error) {
	if o.Guards.AllowPast {
		return "", nil
	}
	const earliest = `
		SELECT coalesce(min(billing_period), '') FROM duesday.periods WHERE billing_period <> $1`
	var first string
	if err := tx.QueryRow(ctx, earliest, l.Period.String()).Scan(&first); err != nil {
		return "", fmt.Errorf("read the first period: %w", err)
	}
	if l.Period.String() > first {
		return "", nil
	}
	return fmt.Sprintf("period %s is before the first that was ever billed, %s, and would bill everybody for it: --allow-past lets it through",
		l.Period, first), nil
}

func (l *Ledger) guardGrowth(ctx context.Context, tx pgx.Tx, o *Opening, _ frozen, w weight) (string, error) {
	factor, ok := new(big.Rat).SetString(o.Guards.MaxGrowth)
	if !ok || factor.Sign() == 0 {
		return "", nil
	}
	const last = `
		SELECT t.billing_period, t.currency, t.expected_total
		FROM duesday.totals AS t
		WHERE t.billing_period = (
				SELECT max(billing_period) FROM duesday.periods
				WHERE billing_period < $1 AND settled_at IS NOT NULL)
			AND (SELECT count(*) FROM (
				SELECT FROM duesday.dues AS due WHERE due.billing_period = t.billing_period LIMIT $2) AS enough) = $2`
	rows, err := tx.Query(ctx, last, l.Period.String(), GrowthFrom)
	if err != nil {
		return "", fmt.Errorf("read the last settled period: %w", err)
	}
	var (
		period, currency string
		before           int64
		expected         = map[string]int64{}
		grown            []string
		most             = new(big.Rat)
	)
	for _, t := range w.totals {
		expected[t.Currency] = t.Expected
	}
	if _, err := pgx.ForEachRow(rows, []any{&period, &currency, &before}, func() error {
		limit := new(big.Rat).Mul(factor, new(big.Rat).SetInt64(before))
		if new(big.Rat).SetInt64(expected[currency]).Cmp(limit) > 0 {
			grown = append(grown, fmt.Sprintf("%s, after %s in %s", money.Format(expected[currency], currency), money.Format(before, currency), period))
			if before > 0 {
				if f := big.NewRat(expected[currency], before); f.Cmp(most) > 0 {
					most = f
				}
			}
		}
		return nil
	}); err != nil {
		return "", fmt.Errorf("read the last settled period: %w", err)
	}
	if len(grown) == 0 {
		return "", nil
	}
	slices.Sort(grown)
	return fmt.Sprintf("the expected total is more than %s times that of the last settled period (%s): --max-growth %s lets it through",
		o.Guards.MaxGrowth, strings.Join(grown, "; "), enough(most)), nil
}

// enough is the factor as a value for --max-growth, rounded up; 0, which is any,
// where nothing less would do.
func enough(factor *big.Rat) string {
	hundredths := new(big.Int).Div(new(big.Int).Add(new(big.Int).Mul(factor.Num(), big.NewInt(100)),
		new(big.Int).Sub(factor.Denom(), big.NewInt(1))), factor.Denom())
	text := new(big.Rat).SetFrac(hundredths, big.NewInt(100)).FloatString(2)
	if hundredths.Sign() == 0 || len(text) > 12 {
		return "0"
	}
	return strings.TrimSuffix(strings.TrimSuffix(text, "0"), ".0")
}

func guardAmounts(ctx context.Context, tx pgx.Tx, o *Opening, dues frozen, _ weight) (string, error) {
	if len(o.Guards.MaxAmount) == 0 {
		return "", nil
	}
	var currencies []string
	var limits []int64
	for _, currency := range slices.Sorted(maps.Keys(o.Guards.MaxAmount)) {
		currencies, limits = append(currencies, currency), append(limits, o.Guards.MaxAmount[currency])
	}
	n := len(dues.args)
	sql := fmt.Sprintf(`
		SELECT due.customer_id, due.amount, due.currency, most.amount, count(*) OVER ()
		FROM %s AS due
		JOIN unnest($%d::text[], $%d::bigint[]) AS most (currency, amount) USING (currency)
		WHERE due.reject_code IS NULL AND due.amount > most.amount
		ORDER BY due.amount DESC, due.customer_id
		LIMIT 5`, dues.sql, n+1, n+2)
	rows, err := tx.Query(ctx, sql, dues.and(currencies, limits)...)
	if err != nil {
		return "", relationError(o.Customers, err)
	}
	var (
		over          []string
		id, currency  string
		amount, limit int64
		all           int
	)
	if _, err := pgx.ForEachRow(rows, []any{&id, &amount, &currency, &limit, &all}, func() error {
		over = append(over, fmt.Sprintf("%s owes %s %s, the limit is %s", id, currency, money.Both(amount, currency), money.Both(limit, currency)))
		return nil
	}); err != nil {
		return "", relationError(o.Customers, err)
	}
	if len(over) == 0 {
		return "", nil
	}
	if more := all - len(over); more > 0 {
		over = append(over, fmt.Sprintf("and %d more", more))
	}
	return "amounts above --max-amount: " + strings.Join(over, ", ") + ": raise it, or leave the currency out", nil
}

func guardRejected(_ context.Context, _ pgx.Tx, o *Opening, _ frozen, w weight) (string, error) {
	if o.Guards.MaxRejected == "" {
		return "", nil
	}
	limit, err := o.Guards.rejectedLimit(w.dues())
	if err != nil {
		return "", exitcode.With(exitcode.Misconfigured, err)
	}
	if w.rejected <= limit {
		return "", nil
	}
	return fmt.Sprintf("%d of %d dues would be rejected, more than %d: duesday plan lists them; --max-rejected %d lets them through",
		w.rejected, w.dues(), limit, w.rejected), nil
}

func guardUnique(ctx context.Context, tx pgx.Tx, o *Opening, dues frozen, _ weight) (string, error) {
	if !o.Guards.UniqueStripeCustomers {
		return "", nil
	}
	shared, err := o.sharedStripeCustomers(ctx, tx, dues)
	if err != nil || len(shared) == 0 {
		return "", err
	}
	words := make([]string, len(shared))
	for i, s := range shared {
		words[i] = fmt.Sprintf("%s by %s", s.StripeCustomerID, strings.Join(s.CustomerIDs, " and "))
	}
	return "Stripe customers would be charged for more than one row: " + strings.Join(words, ", ") + ": --unique-stripe-customers=false lets them through", nil
}

// SharedCustomer is a Stripe customer behind more than one due.
type SharedCustomer struct {
	StripeCustomerID string   `json:"stripe_customer_id"`
	CustomerIDs      []string `json:"customer_ids"` // the first few
}

// sharedStripeCustomers finds the first few.
func (o *Opening) sharedStripeCustomers(ctx context.Context, tx pgx.Tx, dues frozen) ([]SharedCustomer, error) {
	rows, err := tx.Query(ctx, `
		SELECT stripe_id, (array_agg(customer_id ORDER BY customer_id))[:5]
		FROM (
			SELECT coalesce(stripe_customer_id, customer_id) AS stripe_id, customer_id::text
			FROM `+dues.sql+` AS due WHERE reject_code IS NULL) AS payable
		GROUP BY stripe_id HAVING count(*) > 1
		ORDER BY stripe_id LIMIT 10`, dues.args...)
	if err != nil {
		return nil, relationError(o.Customers, err)
	}
	shared, err := pgx.CollectRows(rows, pgx.RowToStructByPos[SharedCustomer])
	if err != nil {
		return nil, relationError(o.Customers, err)
	}
	return shared, nil
}
