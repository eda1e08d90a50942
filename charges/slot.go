package charges

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/duesday/duesday/internal/mutant"
)

// Querier is what a pgx connection, pool and transaction have in common.
type Querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults
}

// Status is where a slot stands.
type Status string

// The statuses of a slot. Claimed is also "in doubt": whether Stripe has seen
// it, and what came of it, is not on record.
const (
	Claimed    Status = "claimed"
	Processing Status = "processing"
	Succeeded  Status = "succeeded"
	Declined   Status = "declined"
	Rejected   Status = "rejected"
)

// Method is the Stripe API that a slot is charged with.
type Method string

// The two methods.
const (
	MethodCharges        Method = "charges"
	MethodPaymentIntents Method = "payment_intents"
)

// ParseMethod reads the value of --stripe-method.
func ParseMethod(s string) (Method, error) {
	switch m := Method(s); m {
	case MethodCharges, MethodPaymentIntents:
		return m, nil
	}
	return "", fmt.Errorf("%q: want %s or %s", s, MethodCharges, MethodPaymentIntents)
}

// Slot is a claimed due: everything that a send to Stripe is made of, read from
// the ledger and never from the customers relation.
type Slot struct {
	Period           Period
	CustomerID       string
	StripeCustomerID string // as frozen; CustomerID where the relation had none
	PaymentMethod    string // empty: the customer's default
	Amount           int64  // in the currency's smallest unit
	Currency         string // lower-case ISO 4217
	Description      string
	Method           Method
	Attempt          int
	Key              string
	ChargeID         string // what Stripe has of this attempt, if that is known
	// PriorIntent is the PaymentIntent of an earlier attempt: before this one
	// is sent it must be beyond being paid.
	PriorIntent string
	// RejectedKeys are those of earlier attempts that Stripe rejected. That was
	// its answer to a resend, perhaps: an earlier send may have been paid, so
	// they are looked for before this attempt is sent.
	RejectedKeys []string

	// ClaimedAt is the database's clock. A look-up searches from here, or from
	// SearchFrom if there were earlier attempts: the period's opening.
	ClaimedAt  time.Time
	SearchFrom time.Time
	// WindowAge was the age, by the database's clock, of the slot's claim to
	// Stripe's memory of its key when the slot was read, and ReadAt is when
	// that was, by a monotonic clock here.
	WindowAge time.Duration
	ReadAt    time.Time
}

func (s *Slot) searchFrom() time.Time {
	if s.SearchFrom.IsZero() {
		return s.ClaimedAt
	}
	return s.SearchFrom
}

// ResendWindow is how long after its claim a slot may be sent under its key
// without a look first. Stripe forgets a key 24 hours after it first received
// it; the hour between is for slow sends and unequal clocks.
const ResendWindow = 23 * time.Hour

// Resendable reports whether Stripe surely still knows the slot's key, if it
// ever received it.
func (s *Slot) Resendable(now time.Time) bool {
	if mutant.Is("window-too-long") {
		now = now.Add(-4 * time.Hour)
	}
	return s.WindowAge+now.Sub(s.ReadAt) < ResendWindow
}

// Settlement is a slot's result, ready to be recorded.
type Settlement struct {
	Key            string
	Status         Status
	ChargeID       string
	FailureCode    string
	FailureMessage string
	NeedsCustomer  bool
	RequestID      string
}
