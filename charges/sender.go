package charges

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/duesday/duesday/internal/mutant"
)

// RetryPolicy bounds the transport retries of one slot: same key, same
// parameters, full jitter.
type RetryPolicy struct {
	MaxSends int           // in all, the first included
	Base     time.Duration // the first pause is up to this, each next up to twice it
	Max      time.Duration // and never above this
}

// DefaultRetry gives Stripe about a minute to come round.
var DefaultRetry = RetryPolicy{MaxSends: 7, Base: 500 * time.Millisecond, Max: 20 * time.Second}

// jitter is full jitter: the pause before the n-th retry is uniform between 0
// and min(Max, Base·2ⁿ), so that workers that failed together do not come back
// together.
type jitter struct {
	policy RetryPolicy
	n      int
	random func() float64 // uniform in [0, 1)
}

func (j *jitter) Reset() { j.n = 0 }

func (j *jitter) NextBackOff() time.Duration {
	ceiling := j.policy.Max
	if j.n < 63 && j.policy.Base <= j.policy.Max>>j.n { // no overflow
		ceiling = j.policy.Base << j.n
	}
	j.n++
	return time.Duration(j.random() * float64(ceiling))
}

// Sender charges slots through a gateway, with retries, a pace, and a look
// before any send that Stripe might not recognise as a resend. It may be used
// by many goroutines.
type Sender struct {
	Gateway *Gateway
	Pacer   *Pacer
	Retry   RetryPolicy
	Now     func() time.Time
	Random  func() float64 // uniform in [0, 1)

	// MayCharge is asked right before every request that could charge. An
	// error means that this process may no longer: it is not sent.
	MayCharge func() error
	// RefreshWindow records that an old slot, looked for and not found, is
	// about to be sent again. It must fail if the slot is no longer ours.
	RefreshWindow func(context.Context, *Slot) error
}

// NewSender returns a sender on the real clock.
func NewSender(g *Gateway, p *Pacer) *Sender {
	return &Sender{Gateway: g, Pacer: p, Retry: DefaultRetry, Now: time.Now, Random: rand.Float64}
}

// ErrLookupFailed marks the outcome of a look-up that could not be finished:
// nothing is known then.
var ErrLookupFailed = errors.New("look-up failed")

// Send brings the slot to an outcome. ctx ends the starting of requests and all
// waiting; a request that is under way goes on until inFlight ends. An outcome
// that does not settle leaves the slot as it is, in doubt.
func (s *Sender) Send(ctx, inFlight context.Context, slot *Slot) Outcome {
	if !slot.Resendable(s.Now()) || len(slot.RejectedKeys) > 0 {
		if out, done := s.lookFirst(ctx, inFlight, slot); done {
			return out
		}
	}
	pause := &jitter{policy: s.Retry, random: s.Random}
	last := Outcome{Err: errors.New("not sent")}
	priorOpen := slot.PriorIntent != ""
	sends := 0
	ready := func() error {
		if err := s.Pacer.Wait(ctx); err != nil {
			return err
		}
		if !slot.Resendable(s.Now()) {
			return errors.New("the key's window ended while waiting")
		}
		if mutant.Is("may-charge-ignored") {
			return nil
		}
		return s.MayCharge()
	}
	out, err := backoff.Retry(ctx, func() (Outcome, error) {
		if err := ready(); err != nil {
			last.Err = fmt.Errorf("%w; then: %w", last.Err, err)
			return last, backoff.Permanent(err)
		}
		asking := retrying(inFlight, sends)
		sends++
		if priorOpen {
			closed := s.Gateway.closePrior(asking, slot)
			if priorOpen = closed.Verdict != Refused; priorOpen {
				last = closed
			} else if err := ready(); err != nil { // that took its time
				last.Err = fmt.Errorf("%w; then: %w", last.Err, err)
				return last, backoff.Permanent(err)
			}
		}
		if !priorOpen {
			last = s.Gateway.Charge(asking, slot)
		}
		if last.Throttled {
			s.Pacer.Throttled()
		}
		switch {
		case last.Settles(), last.Verdict == Forbidden:
			return last, nil
		case !last.Retry:
			return last, backoff.Permanent(last.Err)
		case last.RetryAfter > 0:
			return last, &backoff.RetryAfterError{Duration: last.RetryAfter}
		}
		return last, last.Err
	},
		backoff.WithBackOff(pause),
		backoff.WithMaxTries(uint(s.Retry.MaxSends)),
		backoff.WithMaxElapsedTime(0))
	if err != nil {
		out = last
	}
	if out.Verdict == Unknown && out.Replayed && !out.Retry {
		// Stripe keeps repeating its failure; what became of the charge only
		// a look tells. Not finding it proves nothing so soon after.
		if found, ok, err := s.find(ctx, inFlight, slot); err == nil && ok {
			return found
		}
	}
	return out
}

// lookFirst looks for the charge of a slot that Stripe may have forgotten the
// key of, or that has rejected attempts behind it. done is false if the slot may now be sent like a new one.
func (s *Sender) lookFirst(ctx, inFlight context.Context, slot *Slot) (out Outcome, done bool) {
	found, ok, err := s.find(ctx, inFlight, slot)
	if mutant.Is("no-lookup") {
		ok, err = false, nil
	}
	switch {
	case err != nil:
		found.Err = fmt.Errorf("%w: %w", ErrLookupFailed, err)
		return found, true
	case ok:
		return found, true
	case slot.Resendable(s.Now()):
		return Outcome{}, false
	}
	if err := s.RefreshWindow(ctx, slot); err != nil {
		return Outcome{Err: err}, true
	}
	return Outcome{}, false
}

// find is Gateway.Find with retries. With an error the outcome is never one
// that settles.
func (s *Sender) find(ctx, inFlight context.Context, slot *Slot) (Outcome, bool, error) {
	var (
		out   Outcome
		found bool
		tries int
	)
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		var err error
		asking := retrying(inFlight, tries)
		tries++
		out, found, err = s.Gateway.Find(asking, slot, func(context.Context) error { return s.Pacer.Wait(ctx) })
		if out.Throttled {
			s.Pacer.Throttled()
		}
		if err != nil && out.Verdict == Forbidden {
			return struct{}{}, backoff.Permanent(err)
		}
		return struct{}{}, err
	},
		backoff.WithBackOff(&jitter{policy: s.Retry, random: s.Random}),
		backoff.WithMaxTries(uint(s.Retry.MaxSends)),
		backoff.WithMaxElapsedTime(0))
	if err != nil {
		if out.Verdict != Forbidden {
			out = Outcome{Verdict: Unknown, Err: err}
		}
		return out, false, err
	}
	return out, found, nil
}

// Look asks Stripe, with retries, what became of a slot that it had not
// decided. Only Paid, Refused and Pending say something about the charge.
func (s *Sender) Look(ctx, inFlight context.Context, slot *Slot) Outcome {
	if slot.ChargeID == "" {
		out, found, err := s.find(ctx, inFlight, slot)
		if err == nil && !found {
			out = Outcome{Err: errors.New("the charge is not in the customer's list")}
		}
		return out
	}
	var (
		out   Outcome
		tries int
	)
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		if err := s.Pacer.Wait(ctx); err != nil {
			return struct{}{}, backoff.Permanent(err)
		}
		out = s.Gateway.Look(retrying(inFlight, tries), slot)
		tries++
		if out.Throttled {
			s.Pacer.Throttled()
		}
		if out.Settles() || out.Verdict == Forbidden {
			return struct{}{}, nil
		}
		return struct{}{}, out.Err
	},
		backoff.WithBackOff(&jitter{policy: s.Retry, random: s.Random}),
		backoff.WithMaxTries(uint(s.Retry.MaxSends)),
		backoff.WithMaxElapsedTime(0))
	if err != nil && out.Err == nil {
		out.Err = err
	}
	return out
}
