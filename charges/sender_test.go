package charges_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/internal/stripesim"
)

// senderBundle is a sender to a simulated Stripe, on a clock set by hand, that
// keeps a record of what happened in which order.
type senderBundle struct {
	*charges.Sender
	sim    *stripesim.Sim
	server *wireServer
	clock  *clock

	mu     sync.Mutex
	events []string
}

func newSender(t testing.TB) *senderBundle {
	t.Helper()
	b := &senderBundle{sim: stripesim.New(stripesim.Options{}), clock: newClock()}
	t.Cleanup(b.sim.Close)
	b.server = serve(t, b.sim)
	b.Sender = charges.NewSender(newGateway(t, b.server.url), charges.NewPacer(1000, b.clock.Now))
	b.Retry = charges.RetryPolicy{MaxSends: 4, Base: 100 * time.Microsecond, Max: time.Millisecond}
	b.Now, b.Random = b.clock.Now, func() float64 { return 0.5 }
	b.MayCharge = func() error { b.log("may"); return nil }
	b.RefreshWindow = func(_ context.Context, s *charges.Slot) error {
		b.log("refresh")
		s.WindowAge, s.ReadAt = 0, b.clock.Now()
		return nil
	}
	b.sim.OnRequest(func(r stripesim.Request) { b.log(r.Method) })
	return b
}

func (b *senderBundle) log(event string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.events = append(b.events, event)
}

func (b *senderBundle) happened() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Join(b.events, " ")
}

func (b *senderBundle) slot(method charges.Method, age time.Duration) *charges.Slot {
	s := slotFor(method, "cus_1")
	s.WindowAge, s.ReadAt = age, b.clock.Now()
	s.ClaimedAt = s.ReadAt.Add(-age)
	return s
}

func faults(kinds ...stripesim.Kind) []stripesim.Fault {
	out := make([]stripesim.Fault, len(kinds))
	for i, k := range kinds {
		out[i].Kind = k
	}
	return out
}

func TestSend_retriesUnderOneKeyWithTheSameBytes(t *testing.T) {
	t.Parallel()
	for _, method := range methods() {
		for _, kind := range []stripesim.Kind{
			stripesim.DropBefore, stripesim.DropAfterCommit, stripesim.Error503, stripesim.Error429, stripesim.LockTimeout429,
			stripesim.Conflict409, stripesim.Truncated200, stripesim.HTML200,
		} {
			t.Run(string(method)+"/"+string(kind), func(t *testing.T) {
				t.Parallel()
				b := newSender(t)
				b.sim.FaultCustomer("cus_1", faults(kind, kind)...)
				slot := b.slot(method, 0)
				out := b.Send(t.Context(), t.Context(), slot)
				require.Equal(t, charges.Paid, out.Verdict, "%v", out.Err)
				require.Len(t, b.sim.Bank(), 1)
				seen := b.server.seen()
				require.GreaterOrEqual(t, len(seen), 3)
				for _, r := range seen {
					require.Equal(t, seen[0].body, r.body)
					require.Equal(t, slot.Key, r.header.Get("Idempotency-Key"))
				}
			})
		}
	}
}

func TestSend_isBoundedByMaxSends(t *testing.T) {
	t.Parallel()
	b := newSender(t)
	server := serve(t, answer{status: 503, body: stripeErr(`"type":"api_error"`)})
	b.Gateway = newGateway(t, server.url)
	out := b.Send(t.Context(), t.Context(), b.slot(charges.MethodCharges, 0))
	require.Equal(t, charges.Unknown, out.Verdict)
	require.ErrorContains(t, out.Err, "HTTP 503")
	require.Len(t, server.seen(), 4)
	require.Equal(t, "may may may may", b.happened())
}

func TestSend_whatSettlesIsSentOnce(t *testing.T) {
	t.Parallel()
	for customer, want := range map[string]charges.Verdict{
		"cus_1": charges.Paid, "cus_declined_lost_card": charges.Refused, "cus_pending_1": charges.Pending, "cus_missing_1": charges.Impossible,
	} {
		b := newSender(t)
		slot := b.slot(charges.MethodCharges, 0)
		slot.StripeCustomerID = customer
		require.Equal(t, want, b.Send(t.Context(), t.Context(), slot).Verdict, customer)
		require.Equal(t, "may POST", b.happened())
	}
}

func TestSend_stopsAtARefusedKey(t *testing.T) {
	t.Parallel()
	for _, kind := range []stripesim.Kind{stripesim.Unauthorized401, stripesim.Forbidden403} {
		for _, age := range []time.Duration{0, 30 * time.Hour} {
			b := newSender(t)
			b.sim.FaultCustomer("cus_1", faults(kind)...)
			out := b.Send(t.Context(), t.Context(), b.slot(charges.MethodCharges, age))
			require.Equal(t, charges.Forbidden, out.Verdict)
			require.Len(t, b.server.seen(), 1)
			require.Empty(t, b.sim.Bank())
		}
	}
}

func TestSend_mayNotCharge(t *testing.T) {
	t.Parallel()
	b := newSender(t)
	deposed := errors.New("deposed")
	b.MayCharge = func() error { return deposed }
	out := b.Send(t.Context(), t.Context(), b.slot(charges.MethodCharges, 0))
	require.ErrorIs(t, out.Err, deposed)
	require.False(t, out.Settles())
	require.Empty(t, b.server.seen())

	// Deposed between two sends.
	b = newSender(t)
	n := 0
	b.MayCharge = func() error {
		if n++; n > 1 {
			return deposed
		}
		return nil
	}
	b.sim.FaultCustomer("cus_1", faults(stripesim.DropAfterCommit)...)
	out = b.Send(t.Context(), t.Context(), b.slot(charges.MethodCharges, 0))
	require.Equal(t, charges.Unknown, out.Verdict)
	require.ErrorIs(t, out.Err, deposed)
	require.Len(t, b.sim.Bank(), 1)
	require.Equal(t, "POST", b.happened())
}

func TestSend_anOldSlotIsLookedForFirst(t *testing.T) {
	t.Parallel()
	for _, method := range methods() {
		t.Run(string(method)+"/found", func(t *testing.T) {
			t.Parallel()
			b := newSender(t)
			slot := b.slot(method, 23*time.Hour)
			own := plantOwn(b.sim, slot, "")
			out := b.Send(t.Context(), t.Context(), slot)
			require.Equal(t, charges.Paid, out.Verdict)
			require.Equal(t, own.ID, out.ChargeID)
			require.Equal(t, "GET", b.happened(), "no send")
		})
		t.Run(string(method)+"/found declined", func(t *testing.T) {
			t.Parallel()
			b := newSender(t)
			slot := b.slot(method, 40*time.Hour)
			status := stripesim.StatusFailed
			if method == charges.MethodPaymentIntents {
				status = stripesim.StatusRequiresPaymentMethod
			}
			plantOwn(b.sim, slot, status)
			require.Equal(t, charges.Refused, b.Send(t.Context(), t.Context(), slot).Verdict)
			require.Equal(t, "GET", b.happened(), "a resend is not a new attempt")
		})
		t.Run(string(method)+"/not found", func(t *testing.T) {
			t.Parallel()
			b := newSender(t)
			out := b.Send(t.Context(), t.Context(), b.slot(method, 30*time.Hour))
			require.Equal(t, charges.Paid, out.Verdict, "%v", out.Err)
			require.Equal(t, "GET refresh may POST", b.happened())
		})
		t.Run(string(method)+"/window not to be refreshed", func(t *testing.T) {
			t.Parallel()
			b := newSender(t)
			b.RefreshWindow = func(context.Context, *charges.Slot) error { return charges.ErrFenced }
			out := b.Send(t.Context(), t.Context(), b.slot(method, 30*time.Hour))
			require.ErrorIs(t, out.Err, charges.ErrFenced)
			require.False(t, out.Settles())
			require.Equal(t, "GET", b.happened(), "no send")
		})
		t.Run(string(method)+"/the list fails", func(t *testing.T) {
			t.Parallel()
			for _, kind := range []stripesim.Kind{stripesim.Error503, stripesim.Error429, stripesim.Truncated200, stripesim.HTML200, stripesim.Error500BeforeCommit} {
				b := newSender(t)
				b.sim.FaultNext(nil, faults(kind, kind, kind, kind, kind, kind, kind, kind, kind, kind)...)
				out := b.Send(t.Context(), t.Context(), b.slot(method, 30*time.Hour))
				require.ErrorIs(t, out.Err, charges.ErrLookupFailed, kind)
				require.False(t, out.Settles())
				require.Equal(t, 4, strings.Count(b.happened(), "GET"), kind)
				require.NotContains(t, b.happened(), "POST")
				require.Empty(t, b.sim.Bank())
			}
		})
		t.Run(string(method)+"/the list fails once", func(t *testing.T) {
			t.Parallel()
			b := newSender(t)
			slot := b.slot(method, 30*time.Hour)
			plantOwn(b.sim, slot, "")
			b.sim.FaultNext(nil, faults(stripesim.Error503)...)
			require.Equal(t, charges.Paid, b.Send(t.Context(), t.Context(), slot).Verdict)
			require.Equal(t, "GET GET", b.happened())
		})
	}
}

func TestSend_aReplayed500IsLookedUp(t *testing.T) {
	t.Parallel()
	for _, method := range methods() {
		for kind, want := range map[stripesim.Kind]charges.Verdict{
			stripesim.Error500AfterCommit: charges.Paid, stripesim.Error500BeforeCommit: charges.Unknown, stripesim.Error500CommitLater: charges.Unknown,
		} {
			t.Run(string(method)+"/"+string(kind), func(t *testing.T) {
				t.Parallel()
				b := newSender(t)
				b.sim.FaultCustomer("cus_1", faults(kind)...)
				out := b.Send(t.Context(), t.Context(), b.slot(method, 0))
				require.Equal(t, want, out.Verdict, "%v", out.Err)
				require.Equal(t, "may POST may POST GET", b.happened(), "the replay is not repeated")
				if want == charges.Unknown {
					require.False(t, out.Settles(), "not found so soon proves nothing")
				} else {
					require.Equal(t, b.sim.Bank()[0].ID, out.ChargeID)
				}
			})
		}
	}
}

func TestSend_notToBeRetriedIsNotRetried(t *testing.T) {
	t.Parallel()
	b := newSender(t)
	b.sim.FaultCustomer("cus_1", stripesim.Fault{Kind: stripesim.Error503, ShouldRetry: "false"})
	out := b.Send(t.Context(), t.Context(), b.slot(charges.MethodCharges, 0))
	require.Equal(t, charges.Unknown, out.Verdict)
	require.Equal(t, "may POST", b.happened())
}

func TestSend_honoursRetryAfter(t *testing.T) {
	t.Parallel()
	b := newSender(t)
	b.sim.FaultCustomer("cus_1", stripesim.Fault{Kind: stripesim.Error503, RetryAfter: "1"})
	start := time.Now()
	require.Equal(t, charges.Paid, b.Send(t.Context(), t.Context(), b.slot(charges.MethodCharges, 0)).Verdict)
	require.GreaterOrEqual(t, time.Since(start), time.Second)
}

func TestSend_a429HalvesThePace(t *testing.T) {
	t.Parallel()
	for name, age := range map[string]time.Duration{"sending": 0, "looking": 30 * time.Hour} {
		b := newSender(t)
		b.sim.FaultCustomer("cus_1", faults(stripesim.Error429, stripesim.Error429)...)
		require.Equal(t, charges.Paid, b.Send(t.Context(), t.Context(), b.slot(charges.MethodCharges, age)).Verdict, name)
		require.Equal(t, 500.0, b.Pacer.Rate(), name)
	}
}

func TestSend_theWindowMayEndBetweenSends(t *testing.T) {
	t.Parallel()
	b := newSender(t)
	b.sim.OnRequest(func(stripesim.Request) { b.clock.Advance(2 * time.Minute) })
	b.sim.FaultCustomer("cus_1", faults(stripesim.DropAfterCommit)...)
	out := b.Send(t.Context(), t.Context(), b.slot(charges.MethodCharges, 23*time.Hour-time.Minute))
	require.Equal(t, charges.Unknown, out.Verdict)
	require.ErrorContains(t, out.Err, "window ended")
	require.Equal(t, "may POST", b.happened())
}

// within fails the test if f does not return in good time.
func within(t *testing.T, f func() charges.Outcome) charges.Outcome {
	t.Helper()
	done := make(chan charges.Outcome, 1)
	go func() { done <- f() }()
	select {
	case out := <-done:
		return out
	case <-time.After(20 * time.Second):
		require.Fail(t, "it does not return")
		return charges.Outcome{}
	}
}

func TestSend_cancelledWhilePausing(t *testing.T) {
	t.Parallel()
	b := newSender(t)
	b.Retry.Base, b.Retry.Max = time.Hour, time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	b.Random = func() float64 { cancel(); return 0.9 } // drawn right before the pause
	b.sim.FaultCustomer("cus_1", faults(stripesim.DropAfterCommit)...)
	out := within(t, func() charges.Outcome { return b.Send(ctx, t.Context(), b.slot(charges.MethodCharges, 0)) })
	require.Equal(t, charges.Unknown, out.Verdict)
	require.ErrorContains(t, out.Err, "no decodable answer", "the send's own error is kept")
	require.Len(t, b.server.seen(), 1)
}

func TestSend_cancelledWhileWaitingForThePace(t *testing.T) {
	t.Parallel()
	b := newSender(t)
	b.Pacer = charges.NewPacer(0.0001, b.clock.Now)
	require.NoError(t, b.Pacer.Wait(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan charges.Outcome, 1)
	go func() { done <- b.Send(ctx, t.Context(), b.slot(charges.MethodCharges, 0)) }()
	cancel()
	out := within(t, func() charges.Outcome { return <-done })
	require.ErrorIs(t, out.Err, context.Canceled)
	require.False(t, out.Settles())
	require.Empty(t, b.server.seen())
}

func TestSend_cancelledBeforeItBegins(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, age := range []time.Duration{0, 30 * time.Hour} {
		b := newSender(t)
		out := b.Send(ctx, t.Context(), b.slot(charges.MethodCharges, age))
		require.ErrorIs(t, out.Err, context.Canceled)
		require.False(t, out.Settles())
		require.Empty(t, b.server.seen())
	}
}

func TestSend_whatIsInFlightIsNotCut(t *testing.T) {
	t.Parallel()
	b := newSender(t)
	release, hung := make(chan struct{}), make(chan struct{})
	b.sim.FaultCustomer("cus_1", stripesim.Fault{Kind: stripesim.HangAfterCommit, Release: release, Hung: hung})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan charges.Outcome, 1)
	go func() { done <- b.Send(ctx, t.Context(), b.slot(charges.MethodCharges, 0)) }()
	<-hung
	cancel()
	select {
	case out := <-done:
		require.Fail(t, "the request was cut", "%v", out.Err)
	case <-time.After(50 * time.Millisecond):
	}
	close(release)
	out := within(t, func() charges.Outcome { return <-done })
	require.Equal(t, charges.Paid, out.Verdict, "%v", out.Err)
}

func TestSend_inFlightEndsWithItsOwnContext(t *testing.T) {
	t.Parallel()
	b := newSender(t)
	hung := make(chan struct{})
	b.sim.FaultCustomer("cus_1", stripesim.Fault{Kind: stripesim.HangAfterCommit, Hung: hung})
	ctx, cancel := context.WithCancel(t.Context())
	inFlight, give := context.WithCancel(t.Context())
	done := make(chan charges.Outcome, 1)
	go func() { done <- b.Send(ctx, inFlight, b.slot(charges.MethodCharges, 0)) }()
	<-hung
	cancel()
	give()
	out := within(t, func() charges.Outcome { return <-done })
	require.Equal(t, charges.Unknown, out.Verdict, "it was charged, and nobody was told")
	require.Len(t, b.sim.Bank(), 1)
}

// An earlier attempt's intent, left open by its decline, could be paid beside
// the new one.
func prior(b *senderBundle, status string) *charges.Slot {
	slot := b.slot(charges.MethodPaymentIntents, 0)
	slot.Attempt = 2
	slot.Key = charges.Key(slot.CustomerID, slot.Period, namespace, 2)
	slot.PriorIntent = b.sim.Plant(stripesim.Charge{Kind: stripesim.KindIntent, Customer: "cus_1", Amount: 1999, Currency: "usd", Status: status}).ID
	return slot
}

func TestSend_closesThePriorIntentFirst(t *testing.T) {
	t.Parallel()
	for status, want := range map[string]struct{ events, verdict string }{
		stripesim.StatusRequiresPaymentMethod: {"may GET POST may POST", "paid"},
		stripesim.StatusCanceled:              {"may GET may POST", "paid"},
		stripesim.StatusSucceeded:             {"may GET", "paid"},
		stripesim.StatusProcessing:            {"may GET", "pending"},
	} {
		b := newSender(t)
		slot := prior(b, status)
		out := b.Send(t.Context(), t.Context(), slot)
		require.Equal(t, want.verdict, out.Verdict.String(), status)
		require.Equal(t, want.events, b.happened(), status)
		require.LessOrEqual(t, len(b.sim.Succeeded()), 1)
		require.Equal(t, !strings.HasSuffix(want.events, "POST"), out.ChargeID == slot.PriorIntent, status)
		for _, r := range b.server.seen() {
			require.True(t, r.method != http.MethodPost || r.header.Get("Idempotency-Key") != "")
		}
	}
}

// Closing took its time: whether this process may still charge is asked again,
// and that the prior intent is closed is not the new attempt's decline.
func TestSend_deposedWhileClosingThePriorIntent(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(b *senderBundle, cancel func()){
		"may no longer charge": func(b *senderBundle, _ func()) { b.MayCharge = func() error { return charges.ErrFenced } },
		"told to stop":         func(_ *senderBundle, cancel func()) { cancel() },
		"the window has ended": func(b *senderBundle, _ func()) { b.clock.Advance(24 * time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newSender(t)
			slot := prior(b, stripesim.StatusRequiresPaymentMethod)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			b.sim.OnRequest(func(r stripesim.Request) {
				if strings.HasSuffix(r.Path, "/cancel") {
					stop(b, cancel)
				}
			})
			out := b.Send(ctx, t.Context(), slot)
			require.False(t, out.Settles(), "%s", out.Verdict)
			require.Error(t, out.Err)
			require.Equal(t, "may GET POST", b.happened())
			require.Empty(t, b.sim.Succeeded())
		})
	}
}

// Stripe repeats a failure that it has stored until it forgets the key: asking
// again and again only holds the others up.
func TestSend_aStoredFailureOfTheCancellingIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	for kind, want := range map[stripesim.Kind]string{
		stripesim.Error500BeforeCommit: "may GET POST may GET POST GET",
		stripesim.Error500AfterCommit:  "may GET POST may GET may POST",
		stripesim.Error503:             "may GET POST may GET POST may POST",
	} {
		b := newSender(t)
		slot := prior(b, stripesim.StatusRequiresPaymentMethod)
		b.sim.FaultNext(func(r stripesim.Request) bool { return r.Method == http.MethodPost }, faults(kind)...)
		out := b.Send(t.Context(), t.Context(), slot)
		require.Equal(t, kind != stripesim.Error500BeforeCommit, out.Settles(), kind)
		require.Equal(t, want, b.happened(), kind)
	}
}

func TestSend_aPriorIntentThatCannotBeSeenHoldsTheSendUp(t *testing.T) {
	t.Parallel()
	b := newSender(t)
	slot := prior(b, stripesim.StatusRequiresPaymentMethod)
	b.sim.FaultNext(nil, faults(stripesim.Error503, stripesim.Error503, stripesim.Error503, stripesim.Error503)...)
	out := b.Send(t.Context(), t.Context(), slot)
	require.False(t, out.Settles())
	require.NotContains(t, b.happened(), "POST")
}
