package stripesim_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/stripe/stripe-go/v76"

	"github.com/duesday/duesday/internal/stripesim"
)

func TestDecline_isACardErrorAndAFailedCharge(t *testing.T) {
	tests := []struct{ customer, code, decline, advice string }{
		{"cus_funds", "card_declined", "insufficient_funds", ""},
		{"cus_old", "expired_card", "", ""},
		{"cus_sca", "card_declined", "authentication_required", ""},
		{"cus_lost", "card_declined", "lost_card", "do_not_try_again"},
		{"cus_busy", "processing_error", "", "try_again_later"},
		{"cus_declined_insufficient_funds_7", "card_declined", "insufficient_funds", ""},
		{"cus_declined_7", "card_declined", "generic_decline", ""},
		{"cus_declined_processing_error", "processing_error", "", ""},
		{"cus_expired_7", "expired_card", "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.customer, func(t *testing.T) {
			s := start(t, stripesim.Options{})
			if !strings.HasPrefix(tt.customer, stripesim.PrefixDeclined) && !strings.HasPrefix(tt.customer, stripesim.PrefixExpired) {
				s.sim.Decline(tt.customer, tt.code, tt.decline, tt.advice)
			}
			_, err := s.stripe.Charges.New(chargeParams(tt.customer, "key-1"))
			e := stripeError(t, err)
			require.Equal(t, 402, e.HTTPStatusCode)
			require.Equal(t, stripe.ErrorTypeCard, e.Type)
			require.Equal(t, tt.code, string(e.Code))
			require.Equal(t, tt.decline, string(e.DeclineCode))
			require.Equal(t, tt.advice != "", strings.Contains(string(e.LastResponse.RawJSON), `"advice_code":"`+tt.advice+`"`))

			bank := s.sim.Bank()
			require.Len(t, bank, 1)
			require.Equal(t, stripesim.StatusFailed, bank[0].Status)
			require.Equal(t, e.ChargeID, bank[0].ID)
			require.Empty(t, s.sim.Succeeded())
			ch, err := s.stripe.Charges.Get(e.ChargeID, nil)
			require.NoError(t, err)
			require.Equal(t, stripe.ChargeStatusFailed, ch.Status)
			require.Equal(t, tt.code, ch.FailureCode)
			require.False(t, ch.Paid)
		})
	}
}

func TestDecline_leavesTheIntentToBeCanceled(t *testing.T) {
	s := start(t, stripesim.Options{})
	s.sim.Decline("cus_1", "card_declined", "authentication_required")
	_, err := s.stripe.PaymentIntents.New(intentParams("cus_1", "key-1"))
	e := stripeError(t, err)
	require.Equal(t, 402, e.HTTPStatusCode)
	require.Equal(t, stripe.ErrorCodeAuthenticationRequired, e.Code)
	require.Equal(t, stripe.PaymentIntentStatusRequiresPaymentMethod, e.PaymentIntent.Status)
	require.Equal(t, "key-1", e.PaymentIntent.Metadata["duesday_key"])
	require.Equal(t, stripe.ErrorTypeCard, e.PaymentIntent.LastPaymentError.Type)

	p := &stripe.PaymentIntentCancelParams{}
	p.SetIdempotencyKey("cancel-1")
	pi, err := s.stripe.PaymentIntents.Cancel(e.PaymentIntent.ID, p)
	require.NoError(t, err)
	require.Equal(t, stripe.PaymentIntentStatusCanceled, pi.Status)
	require.Equal(t, stripesim.StatusCanceled, s.sim.Bank()[0].Status)

	p = &stripe.PaymentIntentCancelParams{}
	p.SetIdempotencyKey("cancel-2")
	_, err = s.stripe.PaymentIntents.Cancel(e.PaymentIntent.ID, p)
	require.Equal(t, stripe.ErrorCodePaymentIntentUnexpectedState, stripeError(t, err).Code)

	s.sim.Pays("cus_1")
	paid, err := s.stripe.PaymentIntents.New(intentParams("cus_1", "key-2"))
	require.NoError(t, err)
	p = &stripe.PaymentIntentCancelParams{}
	p.SetIdempotencyKey("cancel-3")
	_, err = s.stripe.PaymentIntents.Cancel(paid.ID, p)
	require.Equal(t, 400, stripeError(t, err).HTTPStatusCode, "what is paid cannot be canceled")
	require.Len(t, s.sim.Succeeded(), 1)
}

func TestDeclineOnce_aNewKeySucceeds(t *testing.T) {
	s := start(t, stripesim.Options{})
	s.sim.DeclineOnce("cus_1")
	_, err := s.stripe.Charges.New(chargeParams("cus_1", "key-1"))
	require.Equal(t, stripe.DeclineCodeInsufficientFunds, stripeError(t, err).DeclineCode)
	_, err = s.stripe.Charges.New(chargeParams("cus_1", "key-1"))
	require.Equal(t, stripe.DeclineCodeInsufficientFunds, stripeError(t, err).DeclineCode)
	_, err = s.stripe.Charges.New(chargeParams("cus_1", "key-2"))
	require.NoError(t, err)
}

func TestPending_isSettledByResolve(t *testing.T) {
	for _, succeeded := range []bool{true, false} {
		s := start(t, stripesim.Options{})
		s.sim.Pending("cus_1")
		ch, err := s.stripe.Charges.New(chargeParams("cus_1", "key-1"))
		require.NoError(t, err)
		require.Equal(t, stripe.ChargeStatusPending, ch.Status)
		require.False(t, ch.Paid)
		pi, err := s.stripe.PaymentIntents.New(intentParams("cus_1", "key-2"))
		require.NoError(t, err)
		require.Equal(t, stripe.PaymentIntentStatusProcessing, pi.Status)
		require.Empty(t, s.sim.Succeeded())

		require.Equal(t, 2, s.sim.Resolve("cus_1", succeeded))
		require.Zero(t, s.sim.Resolve("cus_1", succeeded))
		ch, err = s.stripe.Charges.Get(ch.ID, nil)
		require.NoError(t, err)
		pi, err = s.stripe.PaymentIntents.Get(pi.ID, nil)
		require.NoError(t, err)
		if succeeded {
			require.Equal(t, stripe.ChargeStatusSucceeded, ch.Status)
			require.Equal(t, stripe.PaymentIntentStatusSucceeded, pi.Status)
			require.Len(t, s.sim.Succeeded(), 2)
		} else {
			require.Equal(t, stripe.ChargeStatusFailed, ch.Status)
			require.Equal(t, stripe.PaymentIntentStatusRequiresPaymentMethod, pi.Status)
			require.Empty(t, s.sim.Succeeded())
		}
	}
}

func TestNoSource_canPayOnlyWithOneGiven(t *testing.T) {
	s := start(t, stripesim.Options{Customers: map[string]stripesim.Behaviour{"cus_1": {NoSource: true}}})
	_, err := s.stripe.Charges.New(chargeParams("cus_1", "key-1"))
	require.Equal(t, 402, stripeError(t, err).HTTPStatusCode)
	require.Equal(t, stripe.ErrorCodeMissing, stripeError(t, err).Code)
	p := intentParams("cus_1", "key-2")
	p.PaymentMethod = nil
	_, err = s.stripe.PaymentIntents.New(p)
	require.Equal(t, 400, stripeError(t, err).HTTPStatusCode)
	require.Empty(t, s.sim.Bank())

	c := chargeParams("cus_1", "key-3")
	require.NoError(t, c.SetSource("card_1"))
	_, err = s.stripe.Charges.New(c)
	require.NoError(t, err)
	require.Equal(t, "card_1", s.sim.Bank()[0].Source)
}

func TestMissing_isAnUnknownCustomer(t *testing.T) {
	s := start(t, stripesim.Options{})
	for i, customer := range []string{"cus_missing_1", "cus 1; drop table"} {
		_, err := s.stripe.Charges.New(chargeParams(customer, strings.Repeat("k", i+1)))
		require.Equal(t, stripe.ErrorCodeResourceMissing, stripeError(t, err).Code)
		require.Equal(t, "customer", stripeError(t, err).Param)
	}
	require.Empty(t, s.sim.Bank())
}
