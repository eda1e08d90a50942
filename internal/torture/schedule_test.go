package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDraw_isDecidedByItsSeed(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		require.Equal(t, draw(seed), draw(seed))
		require.NotEqual(t, draw(seed).String(), draw(seed+1).String())
	}
}

func TestDraw_everythingHappensInAFewHundredSeeds(t *testing.T) {
	t.Parallel()
	steps, behaviours := map[string]int{}, map[string]int{}
	for seed := range uint64(300) {
		s := draw(seed)
		for _, st := range s.steps {
			steps[st.do]++
		}
		for _, c := range s.customers {
			behaviours[c.behaves]++
		}
	}
	require.Len(t, steps, 19, steps)
	require.Len(t, behaviours, 8, behaviours)
}

func TestKeyOf_isTheContracts(t *testing.T) {
	t.Parallel()
	require.Equal(t, 1, attemptOf("cust_1", keyOf("cust_1", 1)))
	require.Equal(t, 3, attemptOf("cust_1", keyOf("cust_1", 3)))
	require.Zero(t, attemptOf("cust_2", keyOf("cust_1", 1)))
	require.Equal(t, "90d385dacce954d9262d71a98c4bf72d", keyOf("cust_123", 1))
}
