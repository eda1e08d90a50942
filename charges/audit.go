package charges

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/duesday/duesday/internal/exitcode"
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
		if err := g.listTaken(ctx, method, *since, pace, func(page []listed) error {
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
func (a *audit) compare(ctx context.Context, page []listed, wanted map[string]bool) error {
	keys := make([]string, 0, len(page))
	for _, c := range page {
		if wanted[c.metadata[metaPeriod]] {
			keys = append(keys, c.metadata[metaKey])
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
		if !wanted[c.metadata[metaPeriod]] {
			continue
		}
		key := c.metadata[metaKey]
		d := Difference{Period: c.metadata[metaPeriod], CustomerID: c.metadata[metaCustomer], ChargeID: c.id, Stripe: fmt.Sprintf("%d %s", c.amount, c.currency)}
		s, ok := byKey[key]
		switch first, again := a.seen[key]; {
		case !ok:
			d.Kind, d.Ledger = UnknownToLedger, "no slot with its key"
		case again:
			d.Kind, d.Ledger = UnknownToLedger, "one charge, "+first
		case s.Status != Succeeded:
			d.Kind, d.Ledger = UnknownToLedger, string(s.Status)
		case *s.Amount != c.amount || *s.Currency != c.currency:
			d.Kind, d.Ledger = AmountDiffers, fmt.Sprintf("%d %s", *s.Amount, *s.Currency)
		}
		a.seen[key] = c.id
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

// listTaken lists what has taken money since then, page by page. A page that
// fails is asked for again, a few times.
func (g *Gateway) listTaken(ctx context.Context, method Method, since time.Time, pace func(context.Context) error, each func([]listed) error) error {
	tries := 0
	for after := ""; ; {
		if err := pace(ctx); err != nil {
			return err
		}
		w := &wire{}
		page, more, err := g.listPage(withWire(ctx, w), method, "", since, after)
		if err != nil {
			out := judgeError(err, w)
			tries++
			err = fmt.Errorf("list the %s: %w", method, out.Err)
			if out.Verdict == Forbidden {
				return exitcode.With(exitcode.Stopped, err)
			}
			if tries == DefaultRetry.MaxSends {
				return err
			}
			continue
		}
		tries = 0
		if more {
			after = page[len(page)-1].id
		}
		// A charge that an intent made is counted as the intent.
		page = slices.DeleteFunc(page, func(o listed) bool { return !o.taken || o.intent != "" })
		if err := each(page); err != nil {
			return err
		}
		if !more {
			return nil
		}
	}
}
