package charges

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/stripe/stripe-go/v76"

	"github.com/duesday/duesday/internal/mutant"
)

// lookBack is how far before its claim a slot's charge is searched: clocks here
// and at Stripe differ. The key in the metadata tells it from all others.
const lookBack = time.Hour

// Find looks for what was charged under the slot's key, or taken under those of
// its rejected attempts: all charges (or intents) of the customer since then,
// page by page. pace is called before each page. Of several, one that is paid
// counts, or will be. found is false only if every page was read. With an error
// nothing is known about the charge, and the outcome says what to do about the
// listing (slow down, stop).
func (g *Gateway) Find(ctx context.Context, slot *Slot, pace func(context.Context) error) (out Outcome, found bool, err error) {
	after := ""
	for {
		if err := pace(ctx); err != nil {
			return Outcome{}, false, err
		}
		w := &wire{}
		page, more, err := g.listPage(withWire(ctx, w), slot.Method, slot.StripeCustomerID, slot.searchFrom(), after)
		if err != nil {
			if mutant.Is("list-error-is-empty") {
				return Outcome{}, false, nil
			}
			out := unsettling(judgeError(err, w))
			return out, false, fmt.Errorf("list the customer's charges: %w", out.Err)
		}
		for _, object := range page {
			if o, ours := object.outcome(slot, w); ours && (!found || better(o, out)) {
				out, found = o, true
			}
		}
		if !more || out.Verdict == Paid {
			return out, found, nil
		}
		after = page[len(page)-1].id
	}
}

// better reports whether a stands for more money than b.
func better(a, b Outcome) bool {
	return a.Verdict == Paid && b.Verdict != Paid || a.Verdict == Pending && b.Verdict != Paid && b.Verdict != Pending
}

// listed is a charge or an intent, as a list shows it.
type listed struct {
	id       string
	customer string // Stripe's id
	amount   int64
	currency string
	metadata map[string]string
	// taken: the money is; pending: it may be later.
	taken, pending bool
	// intent is the one that made this charge, and that counts then; empty: none.
	intent  string
	created time.Time
	judge   func(*Slot, *wire) Outcome
}

func listedIntent(pi *stripe.PaymentIntent) listed {
	l := listed{
		id: pi.ID, amount: pi.Amount, currency: string(pi.Currency), metadata: pi.Metadata,
		taken:   pi.Status == stripe.PaymentIntentStatusSucceeded,
		pending: pi.Status == stripe.PaymentIntentStatusProcessing,
		created: time.Unix(pi.Created, 0),
		judge:   func(s *Slot, w *wire) Outcome { return judgeIntent(pi, s, w) },
	}
	if pi.Customer != nil {
		l.customer = pi.Customer.ID
	}
	return l
}

func listedCharge(ch *stripe.Charge) listed {
	l := listed{
		id: ch.ID, amount: ch.Amount, currency: string(ch.Currency), metadata: ch.Metadata,
		taken:   ch.Status == stripe.ChargeStatusSucceeded,
		pending: ch.Status == stripe.ChargeStatusPending,
		created: time.Unix(ch.Created, 0),
		judge:   func(s *Slot, w *wire) Outcome { return judgeCharge(ch, s, w) },
	}
	if ch.Customer != nil {
		l.customer = ch.Customer.ID
	}
	if ch.PaymentIntent != nil {
		l.intent = ch.PaymentIntent.ID
	}
	return l
}

// outcome is what the object means for the slot. ours is false if it is about
// something else, or about a rejected attempt that took nothing.
func (o *listed) outcome(slot *Slot, w *wire) (out Outcome, ours bool) {
	key := o.metadata[metaKey]
	switch {
	case key == slot.Key:
		return o.judge(slot, w), true
	case !slices.Contains(slot.RejectedKeys, key):
	case o.taken:
		return Outcome{Verdict: Paid, ChargeID: o.id, RequestID: w.requestID()}, true
	case o.pending:
		return Outcome{Verdict: Pending, ChargeID: o.id, RequestID: w.requestID()}, true
	}
	return Outcome{}, false
}

// listPage reads one page, the newest first: of a customer, or of all if it is
// empty. more is true only of a page that is not empty.
func (g *Gateway) listPage(ctx context.Context, method Method, customer string, since time.Time, after string) (page []listed, more bool, err error) {
	params := stripe.ListParams{Context: ctx, Limit: stripe.Int64(100), Single: true, StartingAfter: optional(after)}
	created := &stripe.RangeQueryParams{GreaterThanOrEqual: since.Add(-lookBack).Unix()}
	if method == MethodPaymentIntents {
		it := g.api.PaymentIntents.List(&stripe.PaymentIntentListParams{
			ListParams: params, Customer: optional(customer), CreatedRange: created})
		intents, more, err := whole(it, it.PaymentIntentList().Data)
		for _, pi := range intents {
			page = append(page, listedIntent(pi))
		}
		return page, more, err
	}
	it := g.api.Charges.List(&stripe.ChargeListParams{
		ListParams: params, Customer: optional(customer), CreatedRange: created})
	charges, more, err := whole(it, it.ChargeList().Data)
	for _, ch := range charges {
		page = append(page, listedCharge(ch))
	}
	return page, more, err
}

func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// whole returns a page's objects if it is one. stripe-go's iterator just ends on
// an error, and reads {} as an empty list.
func whole[T any](it interface {
	Err() error
	Meta() *stripe.ListMeta
}, data []*T) (_ []*T, more bool, err error) {
	if err := it.Err(); err != nil {
		return nil, false, err
	}
	meta := it.Meta()
	if data == nil || meta.URL == "" || slices.Contains(data, nil) || (meta.HasMore && len(data) == 0) {
		return nil, false, errNoList
	}
	return data, meta.HasMore, nil
}

var errNoList = errors.New("the answer is not a list")
