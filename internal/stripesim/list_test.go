package stripesim_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/stripe/stripe-go/v76"

	"github.com/duesday/duesday/internal/stripesim"
)

// pay makes n charges, a minute apart, in turn for two customers, and returns
// their identifiers, newest first.
func pay(t *testing.T, s setup, n int) (all, first []string) {
	t.Helper()
	for i := range n {
		ch, err := s.stripe.Charges.New(chargeParams(fmt.Sprintf("cus_%d", i%2), fmt.Sprintf("key-%d", i)))
		require.NoError(t, err)
		all = append([]string{ch.ID}, all...)
		if i%2 == 0 {
			first = append([]string{ch.ID}, first...)
		}
		s.clock.Advance(time.Minute)
	}
	return all, first
}

func TestList_pagesFullyNewestFirst(t *testing.T) {
	s := start(t, stripesim.Options{})
	all, first := pay(t, s, 25)
	for _, limit := range []int64{1, 3, 7, 100} {
		for customer, want := range map[string][]string{"": all, "cus_0": first, "cus_9": nil} {
			p := &stripe.ChargeListParams{}
			p.Limit = stripe.Int64(limit)
			if customer != "" {
				p.Customer = stripe.String(customer)
			}
			var got []string
			it := s.stripe.Charges.List(p)
			for it.Next() {
				got = append(got, it.Charge().ID)
			}
			require.NoError(t, it.Err())
			require.Equal(t, want, got, "limit %d of %q", limit, customer)
		}
	}
}

func TestList_defaultsToTenAndRefusesMoreThanAHundred(t *testing.T) {
	s := start(t, stripesim.Options{})
	all, _ := pay(t, s, 11)
	p := &stripe.ChargeListParams{}
	p.Single = true
	it := s.stripe.Charges.List(p)
	require.Len(t, it.ChargeList().Data, 10)
	require.True(t, it.ChargeList().HasMore)
	require.Equal(t, all[0], it.ChargeList().Data[0].ID)

	for _, limit := range []int64{0, 101} {
		p.Limit = stripe.Int64(limit)
		require.Equal(t, 400, stripeError(t, s.stripe.Charges.List(p).Err()).HTTPStatusCode)
	}
	p.Limit, p.StartingAfter = nil, stripe.String("ch_none")
	require.Equal(t, stripe.ErrorCodeResourceMissing, stripeError(t, s.stripe.Charges.List(p).Err()).Code)
}

func TestList_endingBeforeIsThePageNextToTheCursor(t *testing.T) {
	s := start(t, stripesim.Options{})
	all, _ := pay(t, s, 6)
	p := &stripe.ChargeListParams{}
	p.Single, p.Limit, p.EndingBefore = true, stripe.Int64(2), stripe.String(all[4])
	list := s.stripe.Charges.List(p).ChargeList()
	require.Equal(t, []string{all[2], all[3]}, []string{list.Data[0].ID, list.Data[1].ID})
	require.True(t, list.HasMore)
	p.EndingBefore = stripe.String(all[2])
	require.False(t, s.stripe.Charges.List(p).ChargeList().HasMore)
}

func TestList_filtersByCreated(t *testing.T) {
	s := start(t, stripesim.Options{})
	begin := s.clock.Now().Unix()
	all, _ := pay(t, s, 5) // at minutes 0 to 4
	at := func(minute int64) int64 { return begin + minute*60 }
	tests := []struct {
		name string
		r    stripe.RangeQueryParams
		want []string
	}{
		{"gte", stripe.RangeQueryParams{GreaterThanOrEqual: at(3)}, all[:2]},
		{"gt", stripe.RangeQueryParams{GreaterThan: at(3)}, all[:1]},
		{"lte", stripe.RangeQueryParams{LesserThanOrEqual: at(1)}, all[3:]},
		{"lt", stripe.RangeQueryParams{LesserThan: at(1)}, all[4:]},
		{"both", stripe.RangeQueryParams{GreaterThan: at(0), LesserThan: at(3)}, all[2:4]},
		{"none", stripe.RangeQueryParams{GreaterThan: at(4)}, nil},
		{"empty range", stripe.RangeQueryParams{GreaterThan: at(3), LesserThan: at(1)}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := &stripe.ChargeListParams{CreatedRange: &tt.r}
			p.Limit = stripe.Int64(1)
			var got []string
			it := s.stripe.Charges.List(p)
			for it.Next() {
				got = append(got, it.Charge().ID)
			}
			require.NoError(t, it.Err())
			require.Equal(t, tt.want, got)
		})
	}
	p := &stripe.ChargeListParams{Created: stripe.Int64(at(2))}
	it := s.stripe.Charges.List(p)
	require.True(t, it.Next())
	require.Equal(t, all[2], it.Charge().ID)
	require.False(t, it.Next())
}

func TestList_putsWhatWasPlantedInThePastWhereItBelongs(t *testing.T) {
	s := start(t, stripesim.Options{})
	all, _ := pay(t, s, 3)
	old := s.sim.Plant(stripesim.Charge{Customer: "cus_1", Amount: 5, Currency: "eur", Created: s.clock.Now().Add(-150 * time.Second)})
	var got []string
	it := s.stripe.Charges.List(&stripe.ChargeListParams{})
	for it.Next() {
		got = append(got, it.Charge().ID)
	}
	require.NoError(t, it.Err())
	require.Equal(t, []string{all[0], all[1], old.ID, all[2]}, got)
	require.Equal(t, stripesim.StatusSucceeded, old.Status)
	require.Len(t, s.sim.Succeeded(), 4)
}

func TestList_intents(t *testing.T) {
	s := start(t, stripesim.Options{})
	var want []string
	for i := range 3 {
		pi, err := s.stripe.PaymentIntents.New(intentParams("cus_1", fmt.Sprintf("key-%d", i)))
		require.NoError(t, err)
		want = append([]string{pi.ID}, want...)
	}
	p := &stripe.PaymentIntentListParams{Customer: stripe.String("cus_1")}
	p.Limit = stripe.Int64(2)
	var got []string
	it := s.stripe.PaymentIntents.List(p)
	for it.Next() {
		got = append(got, it.PaymentIntent().ID)
	}
	require.NoError(t, it.Err())
	require.Equal(t, want, got)
}

func TestSearch_lagsAndCounts(t *testing.T) {
	s := start(t, stripesim.Options{SearchLag: time.Hour})
	all, _ := pay(t, s, 5)
	s.sim.Plant(stripesim.Charge{Customer: "cus_1", Metadata: map[string]string{"duesday_period": "2026-09"}})
	p := &stripe.ChargeSearchParams{}
	p.Query, p.Limit = "metadata['duesday_period']:'2026-10'", stripe.Int64(2)
	p.AddExpand("total_count")
	find := func() (ids []string, total *uint32) {
		it := s.stripe.Charges.Search(p)
		for it.Next() {
			ids = append(ids, it.Charge().ID)
		}
		require.NoError(t, it.Err())
		return ids, it.ChargeSearchResult().TotalCount
	}
	ids, _ := find()
	require.Empty(t, ids)
	s.clock.Advance(time.Hour)
	ids, total := find()
	require.Equal(t, all, ids)
	require.EqualValues(t, 5, *total)

	p.Query = `metadata["duesday_period"]:"2026-10" AND customer:'cus_1'`
	ids, total = find()
	require.Len(t, ids, 2)
	require.EqualValues(t, 2, *total)

	p.Query = "metadata"
	require.Equal(t, 400, stripeError(t, s.stripe.Charges.Search(p).Err()).HTTPStatusCode)
}
