package main

import (
	"context"
	"errors"
	"time"

	"github.com/duesday/duesday/internal/bench/measure"
)

// latency is what remains of the workers' speed when Stripe takes its time, and
// the loop of the write-ups beside it.
func latency(ctx context.Context, s *stage) (r measure.Report, err error) {
	const takes = 50 * time.Millisecond
	n := min(s.customers, 12_800)
	const few = 100 // one after the other
	var ours, theirs, bareRates []float64
	err = turns(s.rounds, func() error {
		p, err := s.bill(ctx, n, takes)
		if err != nil {
			return err
		}
		check(&r, "duesday, unpaced", p, n)
		ours = append(ours, p.rate)
		s.say("duesday           %7.1f charges/s", p.rate)
		return nil
	}, func() error {
		url, err := s.database(ctx, few)
		if err != nil {
			return err
		}
		p, err := s.pay(ctx, takes, func(b *bank) (*child, error) {
			return start(ctx, s.self, environment(url, b), "baseline-writeup", "-stripe", b.URL)
		})
		if err = errors.Join(err, s.drop(ctx, url)); err != nil {
			return err
		}
		check(&r, "the write-ups' loop", p, few)
		theirs = append(theirs, p.rate)
		s.say("write-ups' loop   %7.1f charges/s", p.rate)
		if p, err = s.payBare(ctx, n, takes); err != nil {
			return err
		}
		bareRates = append(bareRates, p.rate)
		s.say("bare loop         %7.1f charges/s", p.rate)
		return nil
	})
	could := make([]float64, len(ours))
	for i := range could {
		could[i] = workers / takes.Seconds()
	}
	r.Show(
		measure.Figure{Name: "unpaced, Stripe takes 50 ms: charges/s ÷ (64 workers / 0.05 s)", Values: measure.Ratios(ours, could), Target: measure.AtLeast(0.95)},
		measure.Figure{Name: "the same ÷ the write-ups' loop (INSERT, charge, UPDATE, one at a time)", Values: measure.Ratios(ours, theirs), Target: measure.AtLeast(40)},
		measure.Figure{Name: "  the bare stripe-go loop ÷ the same, which is what the machine allows", Values: measure.Ratios(bareRates, could)},
		measure.Figure{Name: "duesday, 64 workers, 50 ms", Unit: "charges/s", Values: ours},
		measure.Figure{Name: "write-ups' loop, 50 ms", Unit: "charges/s", Values: theirs},
	)
	r.Note("latency: %d customers for Duesday, %d for the loop, which has a stable key and no lock; from the first charge's arrival at the bank to the last one's answer", n, few)
	return r, err
}
