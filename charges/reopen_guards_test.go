package charges_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/internal/exitcode"
)

func TestReopen_isGuardedAsAnOpeningIs(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		guards charges.Guards
		change string
		want   string // empty: it goes through
	}{
		"a customer whose id was changed": {
			charges.Guards{UniqueStripeCustomers: true},
			`UPDATE duesday.customers SET id = 'renamed' WHERE id = 'a'`,
			"Stripe customers would be charged for more than one row: cus_a by a and renamed"},
		"an amount that is new": {
			charges.Guards{MaxAmount: map[string]int64{"usd": 2000}},
			`INSERT INTO duesday.customers VALUES ('z', NULL, NULL, 2001, 'usd')`,
			"amounts above --max-amount: z owes usd 2001 ($20.01), the limit is 2000 ($20.00)"},
		"an amount that was read again": {
			charges.Guards{MaxAmount: map[string]int64{"usd": 2000}},
			`UPDATE duesday.customers SET amount = 2002 WHERE id = 'c'`,
			"amounts above --max-amount: c owes usd 2002 ($20.02), the limit is 2000 ($20.00)"},
		"an amount that was claimed before": {
			charges.Guards{MaxAmount: map[string]int64{"usd": 2000}},
			`UPDATE duesday.customers SET amount = 1 WHERE id = 'b'`, ""},
		"a relation that broke": {
			charges.Guards{MaxRejected: "0"},
			`UPDATE duesday.customers SET amount = NULL`,
			"1 of 3 dues would be rejected, more than 0"},
		"a relation that lost its rows": {
			charges.Guards{MaxRejected: "0"},
			`DELETE FROM duesday.customers WHERE id = 'c'`,
			"1 of 3 dues would be dropped, whose customers are no longer active, more than 0: --max-rejected 1 lets them go"},
		"a relation that lost who was claimed": {
			charges.Guards{MaxRejected: "0"},
			`DELETE FROM duesday.customers WHERE id <> 'c'`, ""},
		"no guard asked for": {
			charges.Guards{}, `UPDATE duesday.customers SET id = 'renamed', amount = 5000 WHERE id = 'a'`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.customers(t, `'a', 'cus_a', NULL, 1000, 'usd'`, `'b', 'cus_b', NULL, 3000, 'usd'`, `'c', 'cus_c', NULL, 1000, 'usd'`)
			b.open(t)
			_, err := b.Claim(b.ctx, b.conn, charges.ClaimCursor{}, 2) // a and b
			require.NoError(t, err)
			b.raiseCaps(t)
			before := b.ledgerState(t)
			b.exec(t, c.change)
			o := b.opening(t)
			o.Guards = c.guards
			err = b.Reopen(b.ctx, b.conn, o)
			if c.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, charges.ErrGuard)
			require.Equal(t, exitcode.Stopped, exitcode.Of(err))
			require.ErrorContains(t, err, c.want)
			require.Equal(t, before, b.ledgerState(t))
		})
	}
}
