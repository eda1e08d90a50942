package stripesim_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/stripe/stripe-go/v76"

	"github.com/duesday/duesday/internal/stripesim"
)

func TestSearch_findsIntentsPageByPage(t *testing.T) {
	s := start(t, stripesim.Options{})
	var want []string
	for i := range 5 {
		of := intentParams("cus_1", fmt.Sprintf("key-%d", i))
		of.AddMetadata("duesday_period", "2026-10")
		pi, err := s.stripe.PaymentIntents.New(of)
		require.NoError(t, err)
		want = append([]string{pi.ID}, want...)
	}
	p := &stripe.PaymentIntentSearchParams{}
	p.Query, p.Limit = "metadata['duesday_period']:'2026-10' AND -status:'canceled'", stripe.Int64(2)
	p.AddExpand("total_count")
	var got []string
	it := s.stripe.PaymentIntents.Search(p)
	for it.Next() {
		got = append(got, it.PaymentIntent().ID)
	}
	require.NoError(t, it.Err())
	require.Equal(t, want, got)
	require.EqualValues(t, 5, *it.PaymentIntentSearchResult().TotalCount)

	// A charge that an intent made carries its metadata.
	of := &stripe.ChargeSearchParams{}
	of.Query = "metadata['duesday_period']:'2026-10'"
	require.Len(t, s.stripe.Charges.Search(of).ChargeSearchResult().Data, 5)
}

func TestSearch_refusesWhatItDoesNotKnow(t *testing.T) {
	s := start(t, stripesim.Options{})
	for query, message := range map[string]string{
		"":                           "Missing required param: query.",
		"metadata":                   "We were unable to parse your search query.",
		"status:'a' OR status:'b'":   "We were unable to parse your search query.",
		"amount>100":                 "We were unable to parse your search query.",
		"metadata['a']~'b'":          "We were unable to parse your search query.",
		"idempotency_key:'deadbeef'": "Field `idempotency_key` is an unsupported search field for resource `charges`.",
	} {
		p := &stripe.ChargeSearchParams{}
		p.Query = query
		err := stripeError(t, s.stripe.Charges.Search(p).Err())
		require.Equal(t, 400, err.HTTPStatusCode, query)
		require.Equal(t, message, err.Msg, query)
	}
}

func TestSearch_isNotToBeHadInStripesWays(t *testing.T) {
	s := start(t, stripesim.Options{})
	pay(t, s, 3)
	p := &stripe.ChargeSearchParams{}
	p.Query = "metadata['duesday_period']:'2026-10'"
	for how, status := range map[string]int{
		stripesim.SearchNoRegion: 400, stripesim.SearchNoPermission: 403, stripesim.SearchNoRoute: 404,
	} {
		s.sim.RefuseSearch(how)
		require.Equal(t, status, stripeError(t, s.stripe.Charges.Search(p).Err()).HTTPStatusCode, how)
		require.NoError(t, s.stripe.Charges.List(&stripe.ChargeListParams{}).Err(), "lists go on")
	}
	s.sim.RefuseSearch(stripesim.SearchNoCount)
	require.Len(t, s.stripe.Charges.Search(p).ChargeSearchResult().Data, 3)
	p.AddExpand("total_count")
	require.Equal(t, "This property cannot be included (total_count)", stripeError(t, s.stripe.Charges.Search(p).Err()).Msg)
	s.sim.RefuseSearch("")
	require.EqualValues(t, 3, *s.stripe.Charges.Search(p).ChargeSearchResult().TotalCount)
}
