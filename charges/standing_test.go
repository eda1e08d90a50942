package charges_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/charges"
)

// In the first seconds of a month Postgres knows of few slots or none. It must
// not go through all of them for each of the dues that have none: a run that is
// told to stop then would count for half a minute, and be killed.
func TestStanding_isJoinedAtOnceHoweverNewTheMonthIs(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(t, `ALTER TABLE duesday.dues SET (autovacuum_enabled = off)`)
	b.exec(t, `ALTER TABLE duesday.charges SET (autovacuum_enabled = off)`)
	const dues, slots = 20_000, 60
	b.exec(t, `
		INSERT INTO duesday.customers (id, amount, currency)
		SELECT 'cust_' || lpad(i::text, 9, '0'), 900, 'usd' FROM generate_series(1, $1::int) AS i`, dues)
	b.open(t)
	page, err := b.Claim(b.ctx, b.conn, charges.ClaimCursor{}, slots)
	require.NoError(t, err)
	require.Equal(t, slots, len(page.Slots))
	b.exec(t, `UPDATE duesday.periods SET claim_cursor = NULL`) // as a reopening does

	standing, err := b.Standing(b.ctx, b.conn)
	require.NoError(t, err)
	require.Equal(t, charges.Tally{InDoubt: slots, Unclaimed: dues - slots}, standing.Tally)
	plan, err := b.StandingPlan(b.ctx, b.conn)
	require.NoError(t, err)
	require.Contains(t, strings.Join(plan, "\n"), "Anti Join")
	require.NotContains(t, strings.Join(plan, "\n"), "Nested Loop")
}
