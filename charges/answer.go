package charges

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/stripe/stripe-go/v76"
)

// judgeError is the table of Stripe's answers, for all that came back as an
// error. What it cannot place is Unknown: the charge may exist.
func judgeError(err error, w *wire) Outcome {
	out := Outcome{
		Verdict:    Unknown,
		Retry:      true,
		Replayed:   w.replayed(),
		RequestID:  w.requestID(),
		RetryAfter: retryAfter(w),
		Err:        err,
	}
	if w.header.Get("Stripe-Should-Retry") == "false" {
		out.Retry = false
	}

	var se *stripe.Error
	if !errors.As(err, &se) {
		se = &stripe.Error{}
		out.Err = fmt.Errorf("no decodable answer (HTTP status %d): %w", w.status, plain(err, w))
	} else {
		// Stripe's own text of an error, its whole body, stays out of logs.
		out.Err = errors.New(w.said(se))
		out.FailureMessage = se.Msg
		out.ChargeID = se.ChargeID
		if se.PaymentIntent != nil {
			out.ChargeID = se.PaymentIntent.ID
		}
		out.FailureCode = string(se.Code)
		if se.DeclineCode != "" {
			out.FailureCode = string(se.DeclineCode)
		}
	}

	switch {
	case w.status == http.StatusUnauthorized, w.status == http.StatusForbidden:
		out.Verdict, out.Retry = Forbidden, false
		switch {
		case se.Code == codeSuperseded:
			out.Err = fmt.Errorf("%w: %w", ErrSuperseded, out.Err)
		case se.Code == codeVaultKey && !w.vaultKey:
			out.Err = fmt.Errorf("%w; STRIPE_API_BASE names a spend-cap proxy: say --vault-url too, for a key that it knows", out.Err)
		case w.vaultKey && w.status == http.StatusUnauthorized && !strings.HasPrefix(string(se.Code), "vault_"):
			out.Err = fmt.Errorf("%w; does STRIPE_API_BASE name the spend-cap proxy, and is the proxy's own key right?", out.Err)
		}
	case se.Code == codeSpendCap:
		out.Verdict, out.Retry = Forbidden, false
	case w.status == http.StatusTooManyRequests:
		out.Verdict, out.Throttled = NotExecuted, true
	case w.status == http.StatusConflict, se.Code == stripe.ErrorCodeLockTimeout:
		out.Verdict = NotExecuted
	case se.Type == stripe.ErrorTypeIdempotency && w.status/100 == 4:
		out.Verdict, out.Retry = Impossible, false
		out.FailureCode = string(stripe.ErrorTypeIdempotency)
	case se.Type == stripe.ErrorTypeCard && w.status/100 == 4:
		out.Verdict, out.Retry = Refused, false
		out.NeedsCustomer = needsCustomer[out.FailureCode] || needsCustomer[string(se.Code)] || advisedAgainst(se)
	case w.status == http.StatusPaymentRequired && se.Type != "":
		out.Verdict, out.Retry = Refused, false
	case se.Type == stripe.ErrorTypeInvalidRequest && (w.status == http.StatusBadRequest || w.status == http.StatusNotFound):
		out.Verdict, out.Retry = Impossible, false
		if out.FailureCode == "" {
			out.FailureCode = string(se.Type)
		}
	case w.status == 0 && neverConnected(err):
		out.Verdict = NotExecuted
	case w.status/100 == 5 && out.Replayed:
		out.Retry = false // the same key replays it for 24 hours
	}
	return out
}

// needsCustomer are the codes after which trying again is of no use, or not
// allowed, until the customer has acted.
var needsCustomer = map[string]bool{
	"authentication_required":                  true,
	"expired_card":                             true,
	"fraudulent":                               true,
	"incorrect_number":                         true,
	"invalid_account":                          true,
	"invalid_number":                           true,
	"lost_card":                                true,
	"new_account_information_available":        true,
	"payment_intent_authentication_failure":    true,
	"pickup_card":                              true,
	"restricted_card":                          true,
	"revocation_of_all_authorizations":         true,
	"revocation_of_authorization":              true,
	"stolen_card":                              true,
	"stop_payment_order":                       true,
	"transaction_not_allowed":                  true,
	string(stripe.PaymentIntentStatusCanceled): true,
}

// advisedAgainst reports whether Stripe's advice is not to try again; stripe-go
// v76 does not decode it.
func advisedAgainst(se *stripe.Error) bool {
	if se.LastResponse == nil {
		return false
	}
	var body struct {
		Error struct {
			AdviceCode string `json:"advice_code"`
		} `json:"error"`
	}
	return json.Unmarshal(se.LastResponse.RawJSON, &body) == nil && body.Error.AdviceCode == "do_not_try_again"
}

// codeSpendCap is the spend-cap proxy's code for a charge past the cap.
const codeSpendCap stripe.ErrorCode = "spend_cap_exceeded"

// codeVaultKey is its code for a key that it did not give.
const codeVaultKey stripe.ErrorCode = "vault_key_invalid"

// codeSuperseded is its code for a vault key whose place a later one has taken.
const codeSuperseded stripe.ErrorCode = "vault_key_superseded"

// ErrSuperseded is in the error of a Forbidden outcome if another run was given
// the period's vault key since: this one is deposed, and need not know it yet.
var ErrSuperseded = errors.New("another run has taken the period's vault key over")

// said is an error answer without its text.
func (w *wire) said(se *stripe.Error) string {
	text := fmt.Sprintf("stripe: HTTP %d", w.status)
	for _, part := range []string{string(se.Type), string(se.Code)} {
		if part != "" {
			text += " " + part
		}
	}
	if id := w.requestID(); id != "" {
		text += " (request " + id + ")"
	}
	return text
}

// plain takes out of an error what must not get into a log: stripe-go puts a
// sample of a body that it cannot decode into it, and net/http the URL, which
// has the customer's id in it.
func plain(err error, w *wire) error {
	var u *url.Error
	switch {
	case errors.As(err, &u):
		return u.Err
	case w.status != 0 && !errors.Is(err, errNoList):
		return errors.New("the body is cut or not Stripe's")
	}
	return err
}

func neverConnected(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

func retryAfter(w *wire) time.Duration {
	seconds, err := strconv.Atoi(w.header.Get("Retry-After"))
	if err != nil || seconds < 0 || seconds > 60 {
		return 0
	}
	return time.Duration(seconds) * time.Second
}

// newObject is what is judged of a new charge or intent. Decoding all that
// stripe-go knows of one takes longer than sending it.
type newObject struct {
	stripe.APIResource
	ID       string            `json:"id"`
	Amount   int64             `json:"amount"`
	Currency stripe.Currency   `json:"currency"`
	Metadata map[string]string `json:"metadata"`
}

type newCharge struct {
	newObject
	Status         stripe.ChargeStatus   `json:"status"`
	FailureCode    string                `json:"failure_code"`
	FailureMessage string                `json:"failure_message"`
	Outcome        *stripe.ChargeOutcome `json:"outcome"`
}

func (c *newCharge) charge() *stripe.Charge {
	return &stripe.Charge{
		ID: c.ID, Amount: c.Amount, Currency: c.Currency, Metadata: c.Metadata, Status: c.Status,
		FailureCode: c.FailureCode, FailureMessage: c.FailureMessage, Outcome: c.Outcome,
	}
}

type newIntent struct {
	newObject
	Status           stripe.PaymentIntentStatus `json:"status"`
	LastPaymentError *stripe.Error              `json:"last_payment_error"`
}

func (i *newIntent) intent() *stripe.PaymentIntent {
	return &stripe.PaymentIntent{
		ID: i.ID, Amount: i.Amount, Currency: i.Currency, Metadata: i.Metadata, Status: i.Status,
		LastPaymentError: i.LastPaymentError,
	}
}

// judgeCharge is the table's row for a 200. Its status decides, not the 200:
// and an answer that is about something else decides nothing.
func judgeCharge(ch *stripe.Charge, slot *Slot, w *wire) Outcome {
	out := Outcome{ChargeID: ch.ID, RequestID: w.requestID(), Replayed: w.replayed()}
	if err := sameCharge(slot, ch.ID, ch.Amount, string(ch.Currency), ch.Metadata); err != nil {
		out.Verdict, out.Retry, out.Err = Unknown, true, err
		return out
	}
	switch ch.Status {
	case stripe.ChargeStatusSucceeded:
		out.Verdict = Paid
	case stripe.ChargeStatusPending:
		out.Verdict = Pending
	case stripe.ChargeStatusFailed:
		out.Verdict, out.FailureCode, out.FailureMessage = Refused, ch.FailureCode, ch.FailureMessage
		if ch.Outcome != nil && ch.Outcome.Reason != "" {
			out.FailureCode = ch.Outcome.Reason // the decline code
		}
		out.NeedsCustomer = needsCustomer[out.FailureCode] || needsCustomer[ch.FailureCode]
		out.Err = fmt.Errorf("charge %s failed: %s", ch.ID, out.FailureCode)
	default:
		out.Err = fmt.Errorf("charge %s has the unknown status %q", ch.ID, ch.Status)
	}
	return out
}

func judgeIntent(pi *stripe.PaymentIntent, slot *Slot, w *wire) Outcome {
	out := Outcome{ChargeID: pi.ID, RequestID: w.requestID(), Replayed: w.replayed()}
	if err := sameCharge(slot, pi.ID, pi.Amount, string(pi.Currency), pi.Metadata); err != nil {
		out.Verdict, out.Retry, out.Err = Unknown, true, err
		return out
	}
	switch pi.Status {
	case stripe.PaymentIntentStatusSucceeded:
		out.Verdict = Paid
	case stripe.PaymentIntentStatusProcessing:
		out.Verdict = Pending
	case stripe.PaymentIntentStatusRequiresAction, stripe.PaymentIntentStatusRequiresConfirmation:
		out.Verdict, out.FailureCode = Refused, string(stripe.ErrorCodeAuthenticationRequired)
	case stripe.PaymentIntentStatusRequiresPaymentMethod, stripe.PaymentIntentStatusCanceled:
		out.Verdict, out.FailureCode = Refused, string(pi.Status)
		if e := pi.LastPaymentError; e != nil {
			out.FailureCode, out.FailureMessage = string(e.Code), e.Msg
			if e.DeclineCode != "" {
				out.FailureCode = string(e.DeclineCode)
			}
		}
	default:
		out.Err = fmt.Errorf("payment intent %s has the unknown status %q", pi.ID, pi.Status)
		return out
	}
	if out.Verdict == Refused {
		out.NeedsCustomer = needsCustomer[out.FailureCode] ||
			pi.LastPaymentError != nil && needsCustomer[string(pi.LastPaymentError.Code)]
		out.Err = fmt.Errorf("payment intent %s was declined: %s", pi.ID, out.FailureCode)
	}
	return out
}

func sameCharge(slot *Slot, id string, amount int64, currency string, metadata map[string]string) error {
	if id == "" || amount != slot.Amount || currency != slot.Currency || metadata[metaKey] != slot.Key {
		return fmt.Errorf("the answer is not about the charge that was sent: id %q, amount %d %s", id, amount, currency)
	}
	return nil
}
