package stripesim_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/stripe/stripe-go/v76"

	"github.com/duesday/duesday/internal/stripesim"
)

// TestFault shows what the real client sees of each fault, what the books say,
// and what a resend under the same key gets.
func TestFault(t *testing.T) {
	tests := []struct {
		kind   stripesim.Kind
		typed  bool // a *stripe.Error
		status int  // of that
		code   stripe.ErrorCode
		paid   int
		resend int // 0: another error
		twice  int // paid after the resend
	}{
		{kind: stripesim.DropBefore, paid: 0, resend: 200, twice: 1},
		{kind: stripesim.DropAfterCommit, paid: 1, resend: 200, twice: 1},
		{kind: stripesim.Error500AfterCommit, typed: true, status: 500, paid: 1, resend: 500, twice: 1},
		{kind: stripesim.Error500BeforeCommit, typed: true, status: 500, resend: 500},
		{kind: stripesim.Error500CommitLater, typed: true, status: 500, resend: 500},
		{kind: stripesim.Error503, typed: true, status: 503, resend: 200, twice: 1},
		{kind: stripesim.Error429, typed: true, status: 429, code: stripe.ErrorCodeRateLimit, resend: 200, twice: 1},
		{kind: stripesim.LockTimeout429, typed: true, status: 429, code: stripe.ErrorCodeLockTimeout, resend: 200, twice: 1},
		{kind: stripesim.Conflict409, typed: true, status: 409, code: stripe.ErrorCodeLockTimeout, resend: 200, twice: 1},
		{kind: stripesim.Truncated200, paid: 1, resend: 200, twice: 1},
		{kind: stripesim.HTML200, paid: 1, resend: 200, twice: 1},
		{kind: stripesim.Unauthorized401, typed: true, status: 401, resend: 200, twice: 1},
		{kind: stripesim.Forbidden403, typed: true, status: 403, resend: 200, twice: 1},
	}
	for _, tt := range tests {
		t.Run(string(tt.kind), func(t *testing.T) {
			s := start(t, stripesim.Options{})
			s.sim.FaultCustomer("cus_1", stripesim.Fault{Kind: tt.kind, ShouldRetry: "false", RetryAfter: "2"})
			_, err := s.stripe.Charges.New(chargeParams("cus_1", "key-1"))
			require.Error(t, err)
			var e *stripe.Error
			require.Equal(t, tt.typed, errors.As(err, &e), "%v", err)
			if tt.typed {
				require.Equal(t, tt.status, e.HTTPStatusCode)
				require.Equal(t, tt.code, e.Code)
				require.NotEmpty(t, e.RequestID)
				require.Equal(t, "false", e.LastResponse.Header.Get("Stripe-Should-Retry"))
				require.Equal(t, "2", e.LastResponse.Header.Get("Retry-After"))
			}
			require.Len(t, s.sim.Succeeded(), tt.paid)
			require.Equal(t, 1, s.sim.Stats().Faults[tt.kind])
			require.Equal(t, tt.kind, s.sim.Requests()[0].Fault)
			sent := tt.status // 0 for a cut answer
			if tt.kind == stripesim.HTML200 {
				sent = http.StatusOK
			}
			require.Equal(t, sent, s.sim.Requests()[0].Status)

			ch, err := s.stripe.Charges.New(chargeParams("cus_1", "key-1"))
			if tt.resend == 200 {
				require.NoError(t, err)
				require.Equal(t, s.sim.Succeeded()[0].ID, ch.ID)
			} else {
				require.Equal(t, tt.resend, stripeError(t, err).HTTPStatusCode)
				require.Equal(t, "true", stripeError(t, err).LastResponse.Header.Get("Idempotent-Replayed"))
			}
			require.Len(t, s.sim.Succeeded(), tt.twice)
		})
	}
}

func TestFault_rollForwardCompletesAfterThe500(t *testing.T) {
	s := start(t, stripesim.Options{})
	s.sim.FaultCustomer("cus_1", stripesim.Fault{Kind: stripesim.Error500CommitLater})
	_, err := s.stripe.Charges.New(chargeParams("cus_1", "key-1"))
	require.Equal(t, 500, stripeError(t, err).HTTPStatusCode)
	require.Empty(t, s.sim.Bank())
	require.Equal(t, 1, s.sim.RollForward())
	require.Zero(t, s.sim.RollForward())
	require.Equal(t, "key-1", s.sim.Succeeded()[0].IdempotencyKey)
}

func TestFault_hangCommitsAfterTheClientHasGone(t *testing.T) {
	s := start(t, stripesim.Options{})
	release, hung, committed := make(chan struct{}), make(chan struct{}), make(chan stripesim.Charge, 1)
	s.sim.OnCommit(func(c stripesim.Charge) { committed <- c })
	s.sim.FaultCustomer("cus_1", stripesim.Fault{Kind: stripesim.HangUntilReleased, Release: release, Hung: hung})
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		p := chargeParams("cus_1", "key-1")
		p.Context = ctx
		_, err := s.stripe.Charges.New(p)
		failed <- err
	}()
	<-hung
	cancel()
	require.ErrorIs(t, <-failed, context.Canceled)
	require.Empty(t, s.sim.Bank())
	close(release)
	require.Equal(t, "key-1", (<-committed).IdempotencyKey)
	require.Len(t, s.sim.Succeeded(), 1)
}

func TestFault_hangAfterCommit(t *testing.T) {
	s := start(t, stripesim.Options{})
	hung := make(chan struct{})
	s.sim.FaultCustomer("cus_1", stripesim.Fault{Kind: stripesim.HangAfterCommit, Hung: hung})
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		p := chargeParams("cus_1", "key-1")
		p.Context = ctx
		_, err := s.stripe.Charges.New(p)
		failed <- err
	}()
	<-hung
	require.Len(t, s.sim.Succeeded(), 1)
	ch, err := s.stripe.Charges.New(chargeParams("cus_1", "key-1"))
	require.NoError(t, err)
	require.Equal(t, s.sim.Succeeded()[0].ID, ch.ID)
	cancel()
	require.ErrorIs(t, <-failed, context.Canceled)
}

func TestFault_closeReleasesWhatHangs(t *testing.T) {
	s := start(t, stripesim.Options{})
	hung := make(chan struct{})
	s.sim.FaultNext(nil, stripesim.Fault{Kind: stripesim.HangUntilReleased, Release: make(chan struct{}), Hung: hung})
	failed := make(chan error, 1)
	go func() {
		_, err := s.stripe.Charges.New(chargeParams("cus_1", "key-1"))
		failed <- err
	}()
	<-hung
	s.sim.Close()
	require.Error(t, <-failed)
	require.Empty(t, s.sim.Bank())
}

func TestFault_latencyDelays(t *testing.T) {
	s := start(t, stripesim.Options{})
	s.sim.FaultCustomer("cus_1", stripesim.Fault{Kind: stripesim.Latency, Delay: 30 * time.Millisecond})
	begin := time.Now()
	_, err := s.stripe.Charges.New(chargeParams("cus_1", "key-1"))
	require.NoError(t, err)
	require.GreaterOrEqual(t, time.Since(begin), 30*time.Millisecond)
}

func TestFault_appliesToListsAndInOrder(t *testing.T) {
	s := start(t, stripesim.Options{})
	s.sim.FaultNext(func(r stripesim.Request) bool { return r.Method == http.MethodGet },
		stripesim.Fault{Kind: stripesim.Error500BeforeCommit}, stripesim.Fault{Kind: stripesim.HTML200})
	_, err := s.stripe.Charges.New(chargeParams("cus_1", "key-1"))
	require.NoError(t, err)
	p := &stripe.ChargeListParams{Customer: stripe.String("cus_1")}
	require.Equal(t, 500, stripeError(t, s.stripe.Charges.List(p).Err()).HTTPStatusCode)
	require.Error(t, s.stripe.Charges.List(p).Err())
	require.NoError(t, s.stripe.Charges.List(p).Err())
}

// TestFaultRate_replaysWhateverTheOrder sends the same keys forwards and
// backwards and wants each to meet the same fate.
func TestFaultRate_replaysWhateverTheOrder(t *testing.T) {
	const keys = 60
	fates := func(seed uint64, backwards bool) map[string][]stripesim.Kind {
		s := start(t, stripesim.Options{Seed: seed, FaultRate: map[stripesim.Kind]float64{
			stripesim.Error503: 0.3, stripesim.Error429: 0.2, stripesim.HTML200: 0.2, stripesim.Error500BeforeCommit: 0.1,
		}})
		for i := range keys {
			if backwards {
				i = keys - 1 - i
			}
			key := fmt.Sprintf("key-%d", i)
			for range 4 {
				post(t, s, testKey, "/v1/charges", key, chargeForm("cus_1"))
			}
		}
		out := make(map[string][]stripesim.Kind)
		for _, r := range s.sim.Requests() {
			out[r.Key] = append(out[r.Key], r.Fault)
		}
		return out
	}
	a := fates(7, false)
	require.Equal(t, a, fates(7, true))
	require.NotEqual(t, a, fates(8, false))
	met := make(map[stripesim.Kind]int)
	for _, f := range a {
		require.Len(t, f, 4)
		require.Empty(t, f[3], "faults of a key are bounded")
		for _, k := range f {
			met[k]++
		}
	}
	n := float64(3 * keys)
	require.InDelta(t, 0.3*n, met[stripesim.Error503], 0.12*n)
	require.InDelta(t, 0.2*n, met[stripesim.HTML200], 0.12*n)
}

func TestAuth(t *testing.T) {
	s := start(t, stripesim.Options{})
	for key, want := range map[string]int{"sk_live_1": 401, "": 401, "rk_test_1": 200, testKey: 200} {
		require.Equal(t, want, post(t, s, key, "/v1/charges", "key-"+key, chargeForm("cus_1")).status, key)
	}
	s.sim.SetAuth(403)
	_, err := s.stripe.Charges.New(chargeParams("cus_1", "key-1"))
	require.Equal(t, 403, stripeError(t, err).HTTPStatusCode)
	require.Contains(t, stripeError(t, err).Msg, "rak_charge_write")
	s.sim.SetAuth(0)
	_, err = s.stripe.Charges.New(chargeParams("cus_1", "key-1"))
	require.NoError(t, err)
	require.Equal(t, testKey, s.sim.Requests()[5].APIKey)

	strict := start(t, stripesim.Options{APIKeys: []string{"sk_live_real"}})
	require.Equal(t, 401, post(t, strict, testKey, "/v1/charges", "k", chargeForm("cus_1")).status)
	require.Equal(t, 200, post(t, strict, "sk_live_real", "/v1/charges", "k", chargeForm("cus_1")).status)
}
