package charges

import "time"

// Verdict is what an answer of Stripe's, or the lack of one, means for a slot.
type Verdict int

// The verdicts. Only Paid, Pending, Refused and Impossible settle a slot.
const (
	// Unknown: the charge may exist. Same key again, or a look-up.
	Unknown Verdict = iota
	// NotExecuted: this request did nothing; of earlier ones it tells
	// nothing. Same key again, after a pause.
	NotExecuted
	// Paid: the money is taken.
	Paid
	// Pending: Stripe will know later (ACH, SEPA, Bacs).
	Pending
	// Refused: the bank or the card declined.
	Refused
	// Impossible: as it stands, this charge can never work.
	Impossible
	// Forbidden: Stripe, or the spend-cap proxy, refuses the key. Stop all.
	Forbidden
)

var verdictNames = [...]string{"unknown", "not_executed", "paid", "pending", "refused", "impossible", "forbidden"}

func (v Verdict) String() string { return verdictNames[v] }

// Outcome is one send's result.
type Outcome struct {
	Verdict        Verdict
	ChargeID       string // ch_… or pi_…, as soon as it is known, also from a decline
	FailureCode    string // Stripe's decline code, else its error code
	FailureMessage string
	NeedsCustomer  bool // a decline that only the customer can mend
	RequestID      string
	Replayed       bool // Stripe answered from its memory of the key
	// Retry is false where sending again under the same key cannot change the
	// answer: a replayed 500, or Stripe-Should-Retry: false.
	Retry bool
	// Throttled is true for a 429: everybody should slow down.
	Throttled bool
	// RetryAfter is Stripe's wish, zero if it had none.
	RetryAfter time.Duration
	// Err is the error behind every verdict but Paid and Pending.
	Err error
}

// Settles reports whether the outcome can be recorded as the slot's result.
func (o *Outcome) Settles() bool {
	switch o.Verdict {
	case Paid, Pending, Refused, Impossible:
		return true
	}
	return false
}

// Settlement is the record of an outcome that settles.
func (o *Outcome) Settlement(key string) Settlement {
	status := map[Verdict]Status{
		Paid: Succeeded, Pending: Processing, Refused: Declined, Impossible: Rejected,
	}[o.Verdict]
	return Settlement{
		Key: key, Status: status, ChargeID: o.ChargeID,
		FailureCode: o.FailureCode, FailureMessage: o.FailureMessage,
		NeedsCustomer: o.NeedsCustomer, RequestID: o.RequestID,
	}
}
