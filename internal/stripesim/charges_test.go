package stripesim_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/stripe/stripe-go/v76"

	"github.com/duesday/duesday/internal/stripesim"
)

func TestCharge_isWrittenAndDecodes(t *testing.T) {
	s := start(t, stripesim.Options{})
	ch, err := s.stripe.Charges.New(chargeParams("cus_1", "key-1"))
	require.NoError(t, err)
	require.Equal(t, stripe.ChargeStatusSucceeded, ch.Status)
	require.True(t, ch.Paid)
	require.Equal(t, "cus_1", ch.Customer.ID)
	require.Equal(t, s.clock.Now().Unix(), ch.Created)
	require.NotEmpty(t, ch.LastResponse.RequestID)

	require.Equal(t, []stripesim.Charge{{
		ID: ch.ID, Kind: stripesim.KindCharge, Customer: "cus_1", Amount: 1200, Currency: "usd",
		Status: stripesim.StatusSucceeded, Description: "Billing period 2026-10",
		Metadata:       map[string]string{"duesday_customer": "cus_1", "duesday_period": "2026-10", "duesday_key": "key-1"},
		IdempotencyKey: "key-1", Created: s.clock.Now(),
	}}, s.sim.Bank())

	again, err := s.stripe.Charges.Get(ch.ID, nil)
	require.NoError(t, err)
	require.Equal(t, ch.Metadata, again.Metadata)

	_, err = s.stripe.Charges.Get("ch_none", nil)
	require.Equal(t, stripe.ErrorCodeResourceMissing, stripeError(t, err).Code)
	require.Equal(t, 404, stripeError(t, err).HTTPStatusCode)
}

func TestIntent_isWrittenAndDecodes(t *testing.T) {
	s := start(t, stripesim.Options{})
	pi, err := s.stripe.PaymentIntents.New(intentParams("cus_1", "key-1"))
	require.NoError(t, err)
	require.Equal(t, stripe.PaymentIntentStatusSucceeded, pi.Status)
	require.Equal(t, int64(1200), pi.AmountReceived)

	bank := s.sim.Bank()
	require.Len(t, bank, 1, "an intent and its charge are one movement of money")
	require.Equal(t, stripesim.KindIntent, bank[0].Kind)
	require.Equal(t, pi.ID, bank[0].ID)

	ch, err := s.stripe.Charges.Get(pi.LatestCharge.ID, nil)
	require.NoError(t, err)
	require.Equal(t, pi.ID, ch.PaymentIntent.ID)

	got, err := s.stripe.PaymentIntents.Get(pi.ID, nil)
	require.NoError(t, err)
	require.Equal(t, pi.Metadata, got.Metadata)
}
