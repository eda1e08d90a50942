package charges_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/internal/exitcode"
)

func (b *testBundle) reopen(t testing.TB) {
	t.Helper()
	require.NoError(t, b.Reopen(b.ctx, b.conn, b.opening(t)))
}

// raiseCaps makes room for what a reopening adds.
func (b *testBundle) raiseCaps(t testing.TB) {
	t.Helper()
	b.exec(t, `UPDATE duesday.totals SET cap = cap * 10`)
}

func (b *testBundle) slots(t testing.TB) []string {
	t.Helper()
	return b.texts(t, `SELECT concat_ws(' ', customer_id, attempt, amount, status) FROM duesday.charges ORDER BY customer_id`)
}

func TestReopen_readsAgainWhoHasNoSlot(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.customers(t,
		`'a', NULL, NULL, 1000, 'usd'`, `'b', NULL, NULL, 1000, 'usd'`, `'c', NULL, NULL, 1000, 'usd'`,
		`'d', NULL, NULL, 1000, 'usd'`, `'e', NULL, NULL, 1000, 'usd'`, `'f', NULL, NULL, 1000, 'eur'`)
	b.open(t)
	page, err := b.Claim(b.ctx, b.conn, charges.ClaimCursor{}, 2)
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"a", "b"}, ids(page.Slots))
	b.raiseCaps(t)

	b.exec(t, `
		UPDATE duesday.customers SET amount = 2222, stripe_customer_id = 'cus_new', payment_method = 'pm_new', currency = 'usd';
		UPDATE duesday.customers SET active = false WHERE id IN ('b', 'd');
		DELETE FROM duesday.customers WHERE id = 'e'`)
	b.customers(t, `'0', NULL, NULL, 59, 'jpy'`, `'z', NULL, NULL, 0, 'usd'`)
	o := b.opening(t)
	o.Description = "October, again"
	require.NoError(t, b.Reopen(b.ctx, b.conn, o))

	require.Equal(t, []string{
		"0 - - 59 jpy October, again",
		"a - - 1000 usd Billing period 2026-10", // claimed: as it was frozen
		"b - - 1000 usd Billing period 2026-10", // left, but claimed
		"c cus_new pm_new 2222 usd October, again",
		"f cus_new pm_new 2222 usd October, again",
		"z - - 0 usd October, again amount_not_positive",
	}, b.texts(t, `
		SELECT concat_ws(' ', customer_id, coalesce(stripe_customer_id, '-'), coalesce(payment_method, '-'), amount, currency, description, reject_code)
		FROM duesday.dues ORDER BY customer_id`))
	require.Equal(t, []string{
		"eur 0 11000 0", // nobody pays in it any more
		"jpy 59 64 0",   // new: a cap of its own
		"usd 6444 55000 2000",
	}, b.texts(t, `SELECT concat_ws(' ', currency, expected_total, cap, claimed_total) FROM duesday.totals ORDER BY currency`))

	cursor, err := b.Cursor(b.ctx, b.conn)
	require.NoError(t, err)
	require.Equal(t, charges.ClaimCursor{}, cursor, "the new ones may be before the cursor")
	require.ElementsMatch(t, []string{"0", "c", "f"}, ids(b.claimAll(t)))
	require.Equal(t, []string{"0 1 59 claimed", "a 1 1000 claimed", "b 1 1000 claimed", "c 1 2222 claimed", "f 1 2222 claimed", "z 1 0 rejected"}, b.slots(t))
}

func TestReopen_leavesSettledSlotsAlone(t *testing.T) {
	t.Parallel()
	b := opened(t, 4)
	slots := b.claimAll(t)
	for i, status := range []charges.Status{charges.Succeeded, charges.Processing, charges.Declined} {
		b.settle(t, charges.Settlement{Key: slots[i].Key, Status: status})
	}
	before := b.texts(t, `SELECT c::text FROM duesday.charges AS c ORDER BY customer_id`)
	b.exec(t, `UPDATE duesday.customers SET amount = 1`)
	b.reopen(t)
	require.Equal(t, before, b.texts(t, `SELECT c::text FROM duesday.charges AS c ORDER BY customer_id`))
	require.Equal(t, []string{"1000"}, b.texts(t, `SELECT DISTINCT amount::text FROM duesday.dues`))
	require.Equal(t, "4000 4000", b.text(t, `SELECT expected_total || ' ' || claimed_total FROM duesday.totals`))
}

func TestReopen_unsettlesThePeriod(t *testing.T) {
	t.Parallel()
	b := opened(t, 1)
	b.settle(t, charges.Settlement{Key: b.claimAll(t)[0].Key, Status: charges.Succeeded})
	done, err := b.SettlePeriod(b.ctx, b.conn)
	require.NoError(t, err)
	require.True(t, done)
	b.raiseCaps(t)
	b.customers(t, `'new', NULL, NULL, 10, 'usd'`)
	b.reopen(t)
	s, err := b.State(b.ctx, b.conn)
	require.NoError(t, err)
	require.Zero(t, s.SettledAt)
	done, err = b.SettlePeriod(b.ctx, b.conn)
	require.NoError(t, err)
	require.False(t, done)
}

func TestReopen_repairedRejectsGetANewAttempt(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.customers(t,
		`'at-stripe', 'cus_gone', NULL, 1000, 'usd'`, `'idempotency', NULL, NULL, 1000, 'usd'`, `'here', NULL, NULL, 0, 'usd'`,
		`'left', NULL, NULL, 1000, 'usd'`, `'still-bad', NULL, NULL, -1, 'usd'`)
	b.open(t)
	b.raiseCaps(t)
	for _, s := range b.claimAll(t) {
		code := "resource_missing"
		if s.CustomerID == "idempotency" {
			code = "idempotency_error"
		}
		b.settle(t, charges.Settlement{Key: s.Key, Status: charges.Rejected, ChargeID: "ch_old", FailureCode: code, FailureMessage: "No."})
	}
	b.exec(t, `
		UPDATE duesday.customers SET stripe_customer_id = 'cus_back', amount = 1500 WHERE id = 'at-stripe';
		UPDATE duesday.customers SET amount = 700 WHERE id IN ('here', 'idempotency');
		UPDATE duesday.customers SET amount = -2 WHERE id = 'still-bad';
		UPDATE duesday.customers SET active = false WHERE id = 'left'`)
	old := b.texts(t, `SELECT idempotency_key FROM duesday.charges ORDER BY customer_id`)
	b.exec(t, `UPDATE duesday.charges SET key_window_at = key_window_at - interval '30 days', claimed_at = claimed_at - interval '30 days'`)
	b.reopen(t)

	require.Equal(t, []string{
		"at-stripe 2 1500 claimed", "here 2 700 claimed", "idempotency 1 1000 rejected", "left 1 1000 rejected", "still-bad 1 -1 rejected",
	}, b.slots(t))
	slots := b.inDoubt(t, "", 10)
	require.Len(t, slots, 2)
	for i, want := range []charges.Slot{
		{CustomerID: "at-stripe", StripeCustomerID: "cus_back", Amount: 1500},
		{CustomerID: "here", StripeCustomerID: "here", Amount: 700},
	} {
		got := slots[i]
		require.Equal(t, charges.Key(want.CustomerID, b.Period, namespace, 2), got.Key)
		require.NotContains(t, old, got.Key)
		require.Equal(t, want.StripeCustomerID, got.StripeCustomerID)
		require.Equal(t, want.Amount, got.Amount)
		require.Equal(t, 2, got.Attempt)
		require.True(t, got.Resendable(got.ReadAt), "a new key was never sent")
		require.Empty(t, got.ChargeID)
	}
	require.Equal(t, "3200", b.text(t, `SELECT claimed_total FROM duesday.totals`), "what an idempotency_error hides may be paid")
	require.Equal(t, "5", b.text(t, `SELECT count(*) FROM duesday.attempts WHERE attempt = 1`), "the old attempts are on record")
	require.Equal(t, "2", b.text(t, `SELECT count(*) FROM duesday.charges WHERE charge_id IS NULL AND failure_code IS NULL
		AND failure_message IS NULL AND settled_at IS NULL AND key_window_at > clock_timestamp() - interval '1 minute'`))

	// Again, and a third time.
	b.settle(t, charges.Settlement{Key: slots[0].Key, Status: charges.Rejected, FailureCode: "resource_missing"})
	b.reopen(t)
	require.Equal(t, charges.Key("at-stripe", b.Period, namespace, 3), b.inDoubt(t, "", 1)[0].Key)
}

func TestReopen_refusesAndChangesNothing(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		sql, want string
		code      int
	}{
		"past the cap": {
			sql: `INSERT INTO duesday.customers (id, amount, currency) VALUES ('new', 301, 'usd');
				INSERT INTO duesday.customers (id, amount, currency) VALUES ('yen', 10000, 'jpy')`,
			want: "reopen period 2026-10: the spend cap would be passed, nothing was changed: the dues would come to $33.01, with a cap of $33.00; if that is meant, --raise-cap-to usd=3301 lets them through",
			code: exitcode.Stopped,
		},
		"past two caps": {
			sql:  `UPDATE duesday.customers SET amount = 9000; INSERT INTO duesday.totals VALUES ('2026-10', 'jpy', 1, 1); INSERT INTO duesday.customers (id, amount, currency) VALUES ('yen', 10000, 'jpy')`,
			want: "reopen period 2026-10: the spend cap would be passed, nothing was changed: the dues would come to $190.00, with a cap of $33.00; ¥10,000, with a cap of ¥1; if that is meant, --raise-cap-to jpy=10000,usd=19000 lets them through",
			code: exitcode.Stopped,
		},
		"nobody": {
			sql:  `UPDATE duesday.customers SET active = false`,
			want: "reopen period 2026-10: --customers duesday.customers: no active customer, nothing was changed; if that is meant, say --allow-empty",
			code: exitcode.Stopped,
		},
		"repeated id": {
			sql:  `ALTER TABLE duesday.customers DROP CONSTRAINT customers_pkey; INSERT INTO duesday.customers VALUES ('c0003', NULL, NULL, 1, 'usd')`,
			want: "reopen period 2026-10: --customers duesday.customers repeats an id, want one active row a customer",
			code: exitcode.Misconfigured,
		},
		"repeated new id": {
			sql:  `ALTER TABLE duesday.customers DROP CONSTRAINT customers_pkey; INSERT INTO duesday.customers VALUES ('new', NULL, NULL, 1, 'usd'), ('new', NULL, NULL, 1, 'usd')`,
			want: "reopen period 2026-10: --customers duesday.customers repeats an id, want one active row a customer",
			code: exitcode.Misconfigured,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := opened(t, 3)
			_, err := b.Claim(b.ctx, b.conn, charges.ClaimCursor{}, 1)
			require.NoError(t, err)
			page, err := b.Claim(b.ctx, b.conn, charges.ClaimCursor{After: "c0001", Valid: true}, 1)
			require.NoError(t, err)
			b.settle(t, charges.Settlement{Key: page.Slots[0].Key, Status: charges.Rejected, FailureCode: "resource_missing"})
			b.exec(t, tc.sql)
			before := b.ledgerState(t)
			err = b.Reopen(b.ctx, b.conn, b.opening(t))
			require.EqualError(t, err, tc.want)
			require.Equal(t, tc.code, exitcode.Of(err))
			require.Equal(t, before, b.ledgerState(t))
		})
	}
}

func TestReopen_upToTheCapExactly(t *testing.T) {
	t.Parallel()
	b := opened(t, 3)
	b.customers(t, `'new', NULL, NULL, 300, 'usd'`)
	b.reopen(t)
	require.Equal(t, "3300 3300", b.text(t, `SELECT expected_total || ' ' || cap FROM duesday.totals`))
}

func TestReopen_emptyIfThatIsMeant(t *testing.T) {
	t.Parallel()
	b := opened(t, 3)
	_, err := b.Claim(b.ctx, b.conn, charges.ClaimCursor{}, 1)
	require.NoError(t, err)
	b.exec(t, `UPDATE duesday.customers SET active = false`)
	o := b.opening(t)
	o.AllowEmpty = true
	require.NoError(t, b.Reopen(b.ctx, b.conn, o))
	require.Equal(t, []string{"c0001"}, b.texts(t, `SELECT customer_id FROM duesday.dues`))
	require.Equal(t, "1000 1000", b.text(t, `SELECT expected_total || ' ' || claimed_total FROM duesday.totals`))
}

func TestReopen_twiceIsOnce(t *testing.T) {
	t.Parallel()
	b := opened(t, 3)
	b.claimAll(t)
	b.reopen(t)
	once := b.ledgerState(t)
	b.reopen(t)
	require.Equal(t, once, b.ledgerState(t))
}

func TestReopen_needsAnOpenedPeriod(t *testing.T) {
	t.Parallel()
	for name, n := range map[string]int{"customers": 2, "no customers": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.some(t, n)
			o := b.opening(t)
			o.AllowEmpty = true
			require.EqualError(t, b.Reopen(b.ctx, b.conn, o), "reopen period 2026-10: it was never opened")
			require.Empty(t, b.ledgerState(t))
		})
	}
}

// A NOT IN over more ids than work_mem holds compares everyone with everyone:
// 900 million times here.
func TestReopen_doesNotCompareEveryoneWithEveryone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(t, `
		SET work_mem = '64kB';
		INSERT INTO duesday.customers (id, amount, currency)
		SELECT 'c' || lpad(i::text, 6, '0'), 1000, 'usd' FROM generate_series(1, 30000) AS i;
		ANALYZE duesday.customers`)
	b.open(t)
	b.exec(t, `ANALYZE duesday.dues; DELETE FROM duesday.customers WHERE id > 'c029000'`)
	o := b.opening(t)
	o.Timeout = 15 * time.Second
	require.NoError(t, b.Reopen(b.ctx, b.conn, o))
	require.Equal(t, "29000", b.text(t, `SELECT count(*) FROM duesday.dues`))
}
