package charges

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stripe/stripe-go/v76"
)

// Difference is one thing that the ledger and Stripe do not agree on.
type Difference struct {
	Period     string `json:"billing_period"`
	CustomerID string `json:"customer_id"`
	Kind       string `json:"kind"`
	ChargeID   string `json:"charge_id"`
	Ledger     string `json:"ledger"`
	Stripe     string `json:"stripe"`
}

// Kinds of differences.
const (
	MissingAtStripe = "missing_at_stripe" // the ledger says paid, Stripe has no such charge
	UnknownToLedger = "unknown_to_ledger" // Stripe has taken money that the ledger does not know
	AmountDiffers   = "amount_differs"
)

// atStripe is a charge or intent that took money, as a list shows it.
type atStripe struct {
	id, customer, period, key string
	amount                    int64
	currency                  string
}

// Audit compares what the ledger says was paid for the periods with what Stripe
// took, and calls each with every difference. It only reads. All charges (and
// intents, if a period used them) since the earliest opening are listed once,
// page by page; pace is called before each page. A listing that fails ends the
// audit with an error: then nothing is known about what is missing.
//
// It keeps the keys of all charges that Stripe has of these periods in memory.
func Audit(ctx context.Context, db Querier, g *Gateway, periods []Ledger, pace func(context.Context) error, each func(Difference) error) error {
	names := make([]string, len(periods))
	wanted := map[string]bool{}
	for i, l := range periods {
		names[i] = l.Period.String()
		wanted[names[i]] = true
	}
	const range_ = `
		SELECT min(opened_at), EXISTS (
				SELECT FROM duesday.dues WHERE billing_period = ANY($1) AND stripe_method = 'charges'),
			EXISTS (SELECT FROM duesday.dues WHERE billing_period = ANY($1) AND stripe_method = 'payment_intents')
		FROM duesday.periods WHERE billing_period = ANY($1)`
	var (
		since           *time.Time
		charges, intent bool
	)
	if err := db.QueryRow(ctx, range_, names).Scan(&since, &charges, &intent); err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	if since == nil {
		return nil
	}
	a := &audit{db: db, each: each, seen: map[string]string{}}
	for method, used := range map[Method]bool{MethodCharges: charges, MethodPaymentIntents: intent} {
		if !used {
			continue
		}
		if err := g.listTaken(ctx, method, since.Add(-lookBack), pace, func(page []atStripe) error {
			return a.compare(ctx, page, wanted)
		}); err != nil {
			return fmt.Errorf("audit: %w", err)
		}
	}
	return a.missing(ctx, names)
}

type audit struct {
	db   Querier
	each func(Difference) error
	seen map[string]string // key → charge id
}

// compare looks a page of Stripe's up in the ledger.
func (a *audit) compare(ctx context.Context, page []atStripe, wanted map[string]bool) error {
	keys := make([]string, 0, len(page))
	for _, c := range page {
		if wanted[c.period] {
			keys = append(keys, c.key)
		}
	}
	const known = `
		SELECT idempotency_key, customer_id, amount, currency, status FROM duesday.charges
		WHERE idempotency_key = ANY($1)`
	rows, err := a.db.Query(ctx, known, keys)
	if err != nil {
		return fmt.Errorf("look charges up in the ledger: %w", err)
	}
	type slot struct {
		Key, Customer string
		Amount        *int64
		Currency      *string
		Status        Status
	}
	slots, err := pgx.CollectRows(rows, pgx.RowToStructByPos[slot])
	if err != nil {
		return fmt.Errorf("look charges up in the ledger: %w", err)
	}
	byKey := make(map[string]slot, len(slots))
	for _, s := range slots {
		byKey[s.Key] = s
	}
	for _, c := range page {
		if !wanted[c.period] {
			continue
		}
		d := Difference{Period: c.period, CustomerID: c.customer, ChargeID: c.id, Stripe: fmt.Sprintf("%d %s", c.amount, c.currency)}
		s, ok := byKey[c.key]
		switch first, again := a.seen[c.key]; {
		case !ok:
			d.Kind, d.Ledger = UnknownToLedger, "no slot with its key"
		case again:
			d.Kind, d.Ledger = UnknownToLedger, "one charge, "+first
		case s.Status != Succeeded:
			d.Kind, d.Ledger = UnknownToLedger, string(s.Status)
		case *s.Amount != c.amount || *s.Currency != c.currency:
			d.Kind, d.Ledger = AmountDiffers, fmt.Sprintf("%d %s", *s.Amount, *s.Currency)
		}
		a.seen[c.key] = c.id
		if d.Kind == "" {
			continue
		}
		if err := a.each(d); err != nil {
			return err
		}
	}
	return nil
}

// missing goes through what the ledger says was paid, and names what Stripe's
// lists did not have.
func (a *audit) missing(ctx context.Context, names []string) error {
	const paid = `
		SELECT billing_period, customer_id, idempotency_key, coalesce(charge_id, ''), amount, currency
		FROM duesday.charges
		WHERE billing_period = ANY($1) AND status = 'succeeded'`
	rows, err := a.db.Query(ctx, paid, names)
	if err != nil {
		return fmt.Errorf("read the paid slots: %w", err)
	}
	var (
		d             = Difference{Kind: MissingAtStripe, Stripe: "nothing"}
		key, currency string
		amount        int64
	)
	_, err = pgx.ForEachRow(rows, []any{&d.Period, &d.CustomerID, &key, &d.ChargeID, &amount, &currency}, func() error {
		if _, ok := a.seen[key]; ok {
			return nil
		}
		d.Ledger = fmt.Sprintf("%d %s", amount, currency)
		return a.each(d)
	})
	return err
}

// listTaken lists what has taken money since then and carries Duesday's
// metadata, page by page.
func (g *Gateway) listTaken(ctx context.Context, method Method, since time.Time, pace func(context.Context) error, each func([]atStripe) error) error {
	tries := 0
	for after := ""; ; {
		if err := pace(ctx); err != nil {
			return err
		}
		w := &wire{}
		page, last, more, err := g.takenPage(withWire(ctx, w), method, since, after)
		if err != nil {
			out := judgeError(err, w)
			err = fmt.Errorf("list the %s: %w", method, out.Err)
			tries++
			if out.Verdict == Forbidden || tries == DefaultRetry.MaxSends {
				return err
			}
			continue // the same page again, in its turn
		}
		tries = 0
		if err := each(page); err != nil {
			return err
		}
		if !more {
			return nil
		}
		after = last
	}
}

func (g *Gateway) takenPage(ctx context.Context, method Method, since time.Time, after string) (page []atStripe, last string, more bool, err error) {
	params := stripe.ListParams{Context: ctx, Limit: stripe.Int64(100), Single: true}
	if after != "" {
		params.StartingAfter = stripe.String(after)
	}
	created := &stripe.RangeQueryParams{GreaterThanOrEqual: since.Unix()}
	var it pager
	if method == MethodPaymentIntents {
		list := g.api.PaymentIntents.List(&stripe.PaymentIntentListParams{ListParams: params, CreatedRange: created})
		if err := isList(list.PaymentIntentList().Data, list); err != nil {
			return nil, "", false, err
		}
		for list.Next() {
			pi := list.PaymentIntent()
			last = pi.ID
			if pi.Status == stripe.PaymentIntentStatusSucceeded {
				page = append(page, atStripe{pi.ID, pi.Metadata[metaCustomer], pi.Metadata[metaPeriod], pi.Metadata[metaKey], pi.Amount, string(pi.Currency)})
			}
		}
		it = list
	} else {
		list := g.api.Charges.List(&stripe.ChargeListParams{ListParams: params, CreatedRange: created})
		if err := isList(list.ChargeList().Data, list); err != nil {
			return nil, "", false, err
		}
		for list.Next() {
			ch := list.Charge()
			last = ch.ID
			// A charge that an intent made is counted as the intent.
			if ch.Status == stripe.ChargeStatusSucceeded && ch.PaymentIntent == nil {
				page = append(page, atStripe{ch.ID, ch.Metadata[metaCustomer], ch.Metadata[metaPeriod], ch.Metadata[metaKey], ch.Amount, string(ch.Currency)})
			}
		}
		it = list
	}
	more, err = hasMore(it, last)
	return page, last, more, err
}

// pager is what stripe-go's iterators have in common.
type pager interface {
	Err() error
	Meta() *stripe.ListMeta
}

// isList is asked before the first element of a page. stripe-go's iterator just
// ends on an error, and reads {} as an empty list.
func isList[T any](data []*T, it pager) error {
	if err := it.Err(); err != nil {
		return err
	}
	if data == nil || it.Meta().URL == "" || slices.Contains(data, nil) {
		return errNoList
	}
	return nil
}

var errNoList = errors.New("the answer is not a list")

// hasMore is asked after the last element of a page.
func hasMore(it pager, last string) (bool, error) {
	more := it.Meta().HasMore
	if more && last == "" {
		return false, errNoList
	}
	return more, nil
}
