package main

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/duesday/duesday/internal/bench/measure"
)

// paced is how well the pace is kept, by the bank's own clock.
func paced(ctx context.Context, s *stage) (r measure.Report, err error) {
	const span = 10 // seconds
	for _, rate := range []int{20, 100} {
		var achieved, rolling []float64
		n := min(rate*span+1, s.million)
		for range s.rounds {
			times, p, err := s.arrivals(ctx, n, rate)
			if err != nil {
				return r, err
			}
			check(&r, "duesday, paced", p, n)
			got := measure.Rate(times) / float64(rate)
			most := measure.Rolling(times, time.Second)
			s.say("%3d/s: achieved %.4f of it, at most %d in a second", rate, got, most)
			achieved = append(achieved, got)
			rolling = append(rolling, float64(most)/float64(rate))
		}
		r.Show(
			measure.Figure{Name: fmt.Sprintf("paced %d/s: achieved ÷ configured", rate), Values: achieved, Target: measure.AtLeast(0.99)},
			measure.Figure{Name: fmt.Sprintf("paced %d/s: most in any rolling second ÷ configured", rate), Values: rolling, Target: measure.Never(1)},
		)
	}
	r.Note("paced: %d seconds a round, 16 workers, Stripe takes 50 ms; times of arrival at the bank, so the way there is in them", span)
	return r, nil
}

// arrivals are the times at which the bank received the charges of a paced run.
func (s *stage) arrivals(ctx context.Context, customers, rate int) (times []time.Time, _ paid, err error) {
	url, err := s.database(ctx, customers)
	if err != nil {
		return nil, paid{}, err
	}
	p, err := s.pay(ctx, 50*time.Millisecond, func(b *bank) (*child, error) {
		return s.run(ctx, url, b, fmt.Sprintf("--rate=%d", rate), "--workers=16")
	}, func(b *bank) error {
		requests, err := b.Requests(ctx)
		for _, request := range requests {
			if request.Method == http.MethodPost { // not the look for charges that are not ours
				times = append(times, request.Time)
			}
		}
		return err
	})
	if err != nil {
		return nil, p, err
	}
	return times, p, s.drop(ctx, url)
}
