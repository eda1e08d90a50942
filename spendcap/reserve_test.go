package spendcap

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/duesday/duesday/internal/stripesim"
)

func TestProxy_chargesUpToTheCapAndNotPast(t *testing.T) {
	t.Parallel()
	b := setup(t, options{caps: map[string]int64{"usd": 2500, "eur": 1000}})
	b.requireStatus(t, 200, charge{key: "k1", amount: 1500})
	b.requireStatus(t, 200, charge{key: "k2", amount: 1000})
	got := b.requireStatus(t, 402, charge{key: "k3", amount: 50})
	require.JSONEq(t, `{"error":{"type":"invalid_request_error","code":"spend_cap_exceeded","message":
		"The spend cap of billing period 2026-10 in usd is reached: this charge was not sent to Stripe."}}`, got.body)
	b.requireStatus(t, 402, charge{key: "k4", amount: 1000, currency: "jpy"}) // no limit is none
	b.requireStatus(t, 200, charge{key: "k5", amount: 1000, currency: "eur"})

	require.Len(t, b.sim.Bank(), 3)
	require.Equal(t, 3, b.sim.Stats().Requests, "what is refused is not forwarded")
	b.requireReserved(t, 2500, 0)
	require.Equal(t, []string{"spent", "spent", "capped", "capped", "spent"}, b.outcomes(t))
	b.requireSecretsKept(t, "cus_1")
}

func TestProxy_aThousandRetriesOfOneKeyCountOnce(t *testing.T) {
	t.Parallel()
	b := setup(t, options{})
	var g errgroup.Group
	g.SetLimit(32)
	for range 1000 {
		g.Go(func() error {
			if got := b.charge(t, charge{key: "k1", amount: 700}); got.status != 200 && got.status != 409 {
				return fmt.Errorf("%d %s", got.status, got.body)
			}
			return nil
		})
	}
	require.NoError(t, g.Wait())
	require.Len(t, b.sim.Bank(), 1)
	require.Equal(t, 1000, b.sim.Stats().Requests, "replays are Stripe's to answer")
	b.requireReserved(t, 700, 0)
}

// Stripe may have forgotten the key by then, and does here.
func TestProxy_theSameKeyCountsAgainADayLater(t *testing.T) {
	t.Parallel()
	b := setup(t, options{caps: map[string]int64{"usd": 2000}})
	c := charge{key: "k1", amount: 1000}
	b.requireStatus(t, 200, c)
	b.age(t, 22*time.Hour)
	require.Equal(t, "true", b.requireStatus(t, 200, c).header.Get("Idempotent-Replayed"))
	b.requireReserved(t, 1000, 0)

	b.age(t, 3*time.Hour)
	require.Empty(t, b.requireStatus(t, 200, c).header.Get("Idempotent-Replayed"))
	b.requireReserved(t, 2000, 0)
	require.EqualValues(t, 2000, b.paid())

	b.age(t, 25*time.Hour)
	b.requireStatus(t, 402, c)
	require.EqualValues(t, 2000, b.paid())
}

func TestProxy_aKeyReusedWithOtherParametersStopsHere(t *testing.T) {
	t.Parallel()
	b := setup(t, options{caps: map[string]int64{"usd": 100_000, "eur": 100_000}})
	first := charge{key: "k1", amount: 1000, more: "&metadata[a]=1&description=x+y"}
	b.requireStatus(t, 200, first)
	for name, c := range map[string]charge{
		"amount":   {key: "k1", amount: 1001, more: first.more},
		"currency": {key: "k1", amount: 1000, currency: "eur", more: first.more},
		"customer": {key: "k1", amount: 1000, customer: "cus_2", more: first.more},
		"more":     {key: "k1", amount: 1000, more: first.more + "&source=card_1"},
		"less":     {key: "k1", amount: 1000, more: "&metadata[a]=1"},
		"endpoint": {key: "k1", amount: 1000, more: first.more, endpoint: "/v1/payment_intents"},
		"account":  {key: "k1", amount: 1000, more: first.more, header: http.Header{"Stripe-Account": {"acct_2"}}},
	} {
		got := b.requireStatus(t, 400, c)
		require.Contains(t, got.body, "idempotency_error", name)
	}
	require.Equal(t, 1, b.sim.Stats().Requests)
	// The order of parameters and their spelling are not the request.
	b.requireStatus(t, 200, charge{key: "k1", amount: 1000, more: "&description=x%20y&metadata%5Ba%5D=1"})
	b.requireReserved(t, 1000, 0)

	b.age(t, 25*time.Hour)
	b.requireStatus(t, 400, charge{key: "k1", amount: 1001, more: first.more})
	b.requireReserved(t, 1000, 0)
}

func TestProxy_aDeclineFreesItsAmount(t *testing.T) {
	t.Parallel()
	b := setup(t, options{caps: map[string]int64{"usd": 1000}, sim: stripesim.Options{Customers: map[string]stripesim.Behaviour{
		"cus_poor": {Decline: &stripesim.Decline{Code: "card_declined", DeclineCode: "insufficient_funds", Message: "No money."}},
	}}})
	poor := charge{key: "k1", amount: 1000, customer: "cus_poor"}
	got := b.requireStatus(t, 402, poor)
	require.Contains(t, got.body, "insufficient_funds")
	b.requireReserved(t, 0, 0)
	b.requireStatus(t, 402, poor) // reserves again, and is freed again
	b.requireReserved(t, 0, 0)
	b.requireStatus(t, 200, charge{key: "k2", amount: 1000})
	require.Contains(t, b.requireStatus(t, 402, poor).body, codeCap)
	require.EqualValues(t, 1000, b.paid())
	require.Equal(t, []string{"void", "void", "spent", "capped"}, b.outcomes(t))
}

// What each kind of trouble at Stripe leaves, and that the same request sent
// again settles it wherever Stripe then says what happened.
func TestProxy_troubleAtStripe(t *testing.T) {
	t.Parallel()
	for kind, want := range map[stripesim.Kind]struct {
		first           int // status; 0: cut
		reserved, held  int64
		word            string
		again           int
		reservedB, hold int64
	}{
		stripesim.DropBefore:           {502, 500, 500, "doubt", 200, 500, 0},
		stripesim.DropAfterCommit:      {502, 500, 500, "doubt", 200, 500, 0},
		stripesim.Error500AfterCommit:  {500, 500, 500, "doubt", 500, 500, 500},
		stripesim.Error500BeforeCommit: {500, 500, 500, "doubt", 500, 500, 500},
		stripesim.Error500CommitLater:  {500, 500, 500, "doubt", 500, 500, 500},
		stripesim.Error503:             {503, 500, 500, "doubt", 200, 500, 0},
		stripesim.Error429:             {429, 500, 500, "later", 200, 500, 0},
		stripesim.LockTimeout429:       {429, 500, 500, "later", 200, 500, 0},
		stripesim.Conflict409:          {409, 500, 500, "later", 200, 500, 0},
		stripesim.Truncated200:         {0, 500, 500, "doubt", 200, 500, 0},
		stripesim.HTML200:              {200, 500, 500, "doubt", 200, 500, 0},
		stripesim.Unauthorized401:      {401, 0, 0, "nothing", 200, 500, 0},
		stripesim.Forbidden403:         {403, 0, 0, "nothing", 200, 500, 0},
	} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			b := setup(t, options{caps: map[string]int64{"usd": 500}})
			// The transport sends again what a dead connection ate.
			faults := []stripesim.Fault{{Kind: kind}}
			b.sim.FaultNext(nil, faults...)
			c := charge{key: "k1", amount: 500}
			got := b.charge(t, c)
			require.Equal(t, want.first, got.status, got.body)
			b.requireReserved(t, want.reserved, want.held)
			require.Equal(t, []string{want.word}, b.outcomes(t))
			if want.held > 0 {
				held, err := b.admin.Held(t.Context(), testPeriod)
				require.NoError(t, err)
				require.Len(t, held, 1)
				require.Equal(t, "k1", held[0].IdempotencyKey)
				b.requireStatus(t, 402, charge{key: "k2", amount: 50})
			}
			b.requireStatus(t, want.again, c)
			b.requireReserved(t, want.reservedB, want.hold)
			b.sim.RollForward()
			require.LessOrEqual(t, b.paid(), int64(500))
		})
	}
}

// The first send may have charged; what a resend is told about itself does not
// change that.
func TestProxy_aResendsAnswerSaysNothingAboutTheFirst(t *testing.T) {
	t.Parallel()
	for _, kind := range []stripesim.Kind{
		stripesim.Unauthorized401, stripesim.Forbidden403, stripesim.Error429, stripesim.Conflict409,
	} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			b := setup(t, options{})
			b.sim.FaultNext(nil, stripesim.Fault{Kind: stripesim.DropAfterCommit}, stripesim.Fault{Kind: kind})
			c := charge{key: "k1", amount: 500}
			b.requireStatus(t, 502, c)
			b.charge(t, c)
			b.requireReserved(t, 500, 500)
			b.requireStatus(t, 200, c)
			b.requireReserved(t, 500, 0)
		})
	}
}

func TestVault_whatSettlesWhat(t *testing.T) {
	t.Parallel()
	spentAt := func(n int64) outcome { return outcome{word: spent, status: 200, amount: n, chargeID: "ch_1"} }
	of := func(w word) outcome { return outcome{word: w, status: 400} }
	type step struct {
		call int // settle this call, counted from 0
		with outcome
	}
	for name, tc := range map[string]struct {
		sends          int
		steps          []step
		reserved, held int64
		odd            bool
	}{
		"spent":                             {1, []step{{0, spentAt(300)}}, 300, 0, false},
		"spent twice":                       {2, []step{{0, spentAt(300)}, {1, spentAt(300)}}, 300, 0, false},
		"less than asked":                   {1, []step{{0, spentAt(200)}}, 200, 0, true},
		"more than asked":                   {1, []step{{0, spentAt(400)}}, 400, 0, true},
		"more than fits":                    {1, []step{{0, spentAt(4000)}}, 1000, 0, true},
		"nothing":                           {1, []step{{0, of(nothing)}}, 0, 0, false},
		"nothing beside an open send":       {2, []step{{1, of(nothing)}}, 300, 300, false},
		"nothing from both":                 {2, []step{{1, of(nothing)}, {0, of(nothing)}}, 0, 0, false},
		"nothing after a doubt":             {2, []step{{0, of(doubt)}, {1, of(nothing)}}, 300, 300, false},
		"nothing after a later":             {2, []step{{0, of(later)}, {1, of(nothing)}}, 0, 0, false},
		"later":                             {1, []step{{0, of(later)}}, 300, 300, false},
		"void":                              {1, []step{{0, of(void)}}, 0, 0, false},
		"void after a doubt":                {2, []step{{0, of(doubt)}, {1, of(void)}}, 0, 0, false},
		"void twice":                        {2, []step{{0, of(void)}, {1, of(void)}}, 0, 0, false},
		"doubt after spent":                 {2, []step{{0, spentAt(300)}, {1, of(doubt)}}, 300, 0, false},
		"nothing after spent":               {2, []step{{0, spentAt(300)}, {1, of(nothing)}}, 300, 0, false},
		"void after spent":                  {2, []step{{0, spentAt(300)}, {1, of(void)}}, 300, 0, false},
		"spent after void":                  {2, []step{{0, of(void)}, {1, spentAt(300)}}, 300, 0, true},
		"one call settles once":             {1, []step{{0, of(void)}, {0, of(void)}}, 0, 0, false},
		"a call settled cannot change":      {1, []step{{0, of(doubt)}, {0, spentAt(300)}}, 300, 300, false},
		"an open send keeps a second later": {3, []step{{0, of(later)}, {1, of(nothing)}}, 300, 300, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, options{caps: map[string]int64{"usd": 1000}})
			c := creating{vaultKey: b.key.ID, period: testPeriod, endpoint: CreateCharge, idempotencyKey: "k",
				amount: 300, currency: "usd", fingerprint: make([]byte, 32)}
			var calls []callID
			for range tc.sends {
				id, refused, err := b.vault.reserve(t.Context(), c)
				require.NoError(t, err)
				require.Nil(t, refused)
				calls = append(calls, id)
			}
			anyOdd := false
			for _, s := range tc.steps {
				odd, err := b.vault.settle(t.Context(), c, calls[s.call], s.with)
				require.NoError(t, err)
				anyOdd = anyOdd || odd
			}
			require.Equal(t, tc.odd, anyOdd, "odd")
			b.requireReserved(t, tc.reserved, tc.held)
		})
	}
}

// A key that fills the cap is not refused for its own reservation.
func TestVault_sendsOfOneKeyAtOnceShareAReservation(t *testing.T) {
	t.Parallel()
	b := setup(t, options{caps: map[string]int64{"usd": 500}})
	vaults := []*Vault{b.vault, NewVault(newPool(t, b.db, 8))}
	for round := range 20 {
		var g errgroup.Group
		for i := range 16 {
			g.Go(func() error {
				_, refused, err := vaults[i%2].reserve(context.Background(), creating{
					vaultKey: b.key.ID, period: testPeriod, endpoint: CreateCharge, idempotencyKey: fmt.Sprint("k", round),
					amount: 500, currency: "usd", fingerprint: make([]byte, 32),
				})
				if refused != nil {
					return fmt.Errorf("refused: %s", refused.message)
				}
				return err
			})
		}
		require.NoError(t, g.Wait())
		b.requireReserved(t, 500, 500)
		b.exec(t, `DELETE FROM duesday.vault_reservations`)
		b.exec(t, `UPDATE duesday.vault_limits SET reserved = 0`)
	}
}

// Vaults that share nothing but the database, random sums, keys that collide,
// outcomes of all kinds: the row's sum is always what the reservations say, and
// never above the cap.
func TestVault_manyAtOnceNeverPassTheCap(t *testing.T) {
	t.Parallel()
	const maxAmount = 20_000
	b := setup(t, options{caps: map[string]int64{"usd": maxAmount}})
	vaults := []*Vault{b.vault, NewVault(newPool(t, b.db, 8)), NewVault(newPool(t, b.db, 8))}
	var g errgroup.Group
	for worker := range 24 {
		g.Go(func() error {
			random := rand.New(rand.NewPCG(5, uint64(worker)))
			vault := vaults[worker%3]
			for range 40 {
				n := random.IntN(200)
				c := creating{
					vaultKey: b.key.ID, period: testPeriod, endpoint: CreateCharge, idempotencyKey: fmt.Sprint("k", n),
					amount: int64(1 + n*7%500), currency: "usd", fingerprint: make([]byte, 32),
				}
				id, refused, err := vault.reserve(context.Background(), c)
				if err != nil {
					return err
				}
				if refused != nil {
					continue
				}
				// Stripe charges a key or it does not; whether it is heard is chance.
				words := []word{spent, doubt, later}
				if n%2 == 1 {
					words = []word{void, nothing, doubt}
				}
				o := outcome{word: words[random.IntN(len(words))], amount: c.amount, chargeID: "ch"}
				if _, err := vault.settle(context.Background(), c, id, o); err != nil {
					return err
				}
			}
			return nil
		})
	}
	require.NoError(t, g.Wait())
	var sum int64
	require.NoError(t, b.pool.QueryRow(t.Context(), `
		SELECT sum(CASE status WHEN 'held' THEN amount WHEN 'spent' THEN spent_amount ELSE 0 END)::bigint
		FROM duesday.vault_reservations`).Scan(&sum))
	l := b.limit(t, "usd")
	require.Equal(t, sum, l.Reserved)
	require.LessOrEqual(t, l.Reserved, int64(maxAmount))
	require.Contains(t, b.outcomes(t), "capped", "the cap was never met")
}

func TestVault_theDatabaseItselfHoldsTheCap(t *testing.T) {
	t.Parallel()
	b := setup(t, options{caps: map[string]int64{"usd": 1000}})
	_, err := b.pool.Exec(t.Context(), `UPDATE duesday.vault_limits SET reserved = 1001`)
	require.Equal(t, "vault_spend_cap", constraint(err))
}
