package charges

import (
	"context"
	"fmt"
	"net/http"

	"github.com/stripe/stripe-go/v76"
)

// Look asks Stripe what has become of a slot that it had not decided yet.
func (g *Gateway) Look(ctx context.Context, slot *Slot) Outcome {
	w := &wire{}
	ctx = withWire(ctx, w)
	var out Outcome
	if slot.Method == MethodPaymentIntents {
		intent, err := g.api.PaymentIntents.Get(slot.ChargeID, &stripe.PaymentIntentParams{Params: stripe.Params{Context: ctx}})
		if err != nil {
			return unsettling(judgeError(err, w))
		}
		own := slot.asRecorded(intent.ID, intent.Metadata, intent.Amount, string(intent.Currency))
		out = judgeIntent(intent, &own, w)
	} else {
		charge, err := g.api.Charges.Get(slot.ChargeID, &stripe.ChargeParams{Params: stripe.Params{Context: ctx}})
		if err != nil {
			return unsettling(judgeError(err, w))
		}
		own := slot.asRecorded(charge.ID, charge.Metadata, charge.Amount, string(charge.Currency))
		out = judgeCharge(charge, &own, w)
	}
	return out
}

// asRecorded is the slot as the object that is on record for it has it, if that
// was made for this customer and period: under an earlier attempt's key, maybe.
func (s *Slot) asRecorded(id string, metadata map[string]string, amount int64, currency string) Slot {
	own := *s
	if id == s.ChargeID && metadata[metaCustomer] == s.CustomerID && metadata[metaPeriod] == s.Period.String() {
		own.Key, own.Amount, own.Currency = metadata[metaKey], amount, currency
	}
	return own
}

// unsettling turns the judgement of a failed read into one that settles
// nothing: that it failed tells nothing about the charge.
func unsettling(out Outcome) Outcome {
	if out.Verdict != Forbidden && out.Verdict != NotExecuted {
		out.Verdict = Unknown
	}
	return out
}

// closePrior makes sure that the intent of the slot's earlier attempt can no
// longer be paid. Refused means that it cannot: the new attempt may be sent.
// Paid and Pending mean that the customer paid it after all, on-session: that
// settles the slot, and nothing may be sent. All else: not known, try again.
//
// A crash between the cancelling and the send leaves a claimed slot whose prior
// intent is cancelled; asking again finds it so.
func (g *Gateway) closePrior(ctx context.Context, slot *Slot) Outcome {
	w := &wire{}
	tapped := withWire(ctx, w)
	intent, err := g.api.PaymentIntents.Get(slot.PriorIntent, &stripe.PaymentIntentParams{Params: stripe.Params{Context: tapped}})
	if err != nil {
		return unsettling(judgeError(err, w))
	}
	switch intent.Status {
	case stripe.PaymentIntentStatusSucceeded:
		return Outcome{Verdict: Paid, ChargeID: intent.ID, RequestID: w.requestID()}
	case stripe.PaymentIntentStatusProcessing:
		return Outcome{Verdict: Pending, ChargeID: intent.ID, RequestID: w.requestID()}
	case stripe.PaymentIntentStatusCanceled:
		return Outcome{Verdict: Refused, ChargeID: intent.ID, RequestID: w.requestID()}
	}
	w = &wire{}
	params := &stripe.PaymentIntentCancelParams{
		Params:             stripe.Params{Context: withWire(ctx, w)},
		CancellationReason: stripe.String("abandoned"),
	}
	params.SetIdempotencyKey(slot.Key + "-cancel")
	intent, err = g.api.PaymentIntents.Cancel(slot.PriorIntent, params)
	if err != nil {
		// It may have been paid in between; the next look tells. A stored
		// failure does not go away: the run that comes after the key does.
		out := unsettling(judgeError(err, w))
		out.Retry = out.Retry || w.status < http.StatusInternalServerError
		return out
	}
	if intent.Status != stripe.PaymentIntentStatusCanceled {
		return Outcome{Retry: true, Err: fmt.Errorf("intent %s is %s after its cancelling", intent.ID, intent.Status)}
	}
	return Outcome{Verdict: Refused, ChargeID: intent.ID, RequestID: w.requestID()}
}
