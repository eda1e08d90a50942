package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/duesday/duesday/internal/bench/measure"
	"github.com/duesday/duesday/internal/stripesim"
)

// paid is what one month took.
type paid struct {
	tally stripesim.Tally
	rate  float64       // charges a second, between the first's arrival and the last's answer
	wall  time.Duration // of the whole process
	cpu   float64       // CPU seconds of the process,
	pg    float64       // of Postgres,
	bank  float64       // and of the simulated Stripe
}

// bill has Duesday bill a fresh month.
func (s *stage) bill(ctx context.Context, customers int, latency time.Duration, flags ...string) (_ paid, err error) {
	url, err := s.database(ctx, customers)
	if err != nil {
		return paid{}, err
	}
	defer func() { err = errors.Join(err, s.drop(ctx, url)) }()
	return s.pay(ctx, latency, func(b *bank) (*child, error) { return s.run(ctx, url, b, flags...) })
}

// pay has a process charge at a fresh bank, which is asked in the end.
func (s *stage) pay(ctx context.Context, latency time.Duration, process func(*bank) (*child, error), ask ...func(*bank) error) (paid, error) {
	b, err := s.bank(ctx, latency)
	if err != nil {
		return paid{}, err
	}
	before := s.postgresCPU()
	c, err := process(b)
	if err == nil {
		err = c.wait()
	}
	var p paid
	if err == nil {
		p.pg = s.postgresCPU() - before
		p.wall, p.cpu = c.wall, c.cpu()
		p.tally, err = b.Tally(ctx)
	}
	for _, f := range ask {
		if err == nil {
			err = f(b)
		}
	}
	p.bank = b.close()
	if took := p.tally.Last.Sub(p.tally.First).Seconds(); took > 0 {
		p.rate = float64(p.tally.Succeeded) / took
	}
	return p, err
}

// payBare has the bare loop charge.
func (s *stage) payBare(ctx context.Context, customers int, latency time.Duration) (paid, error) {
	return s.pay(ctx, latency, func(b *bank) (*child, error) {
		return start(ctx, s.self, nil, "baseline-bare", "-stripe", b.URL, "-customers", fmt.Sprint(customers))
	})
}

// check breaks the report unless each customer was charged once.
func check(r *measure.Report, who string, p paid, customers int) {
	if d := p.tally.Duplicates(); d > 0 {
		r.Break("%s: %d charges beyond a customer's first", who, d)
	}
	if p.tally.Customers != customers {
		r.Break("%s: %d of %d customers charged", who, p.tally.Customers, customers)
	}
}

// turns runs both sides each round. Whoever comes second finds a warmer or a
// busier machine, so they swap.
func turns(rounds int, ours, theirs func() error) error {
	for round := range rounds {
		first, second := ours, theirs
		if round%2 == 1 {
			first, second = theirs, ours
		}
		if err := first(); err != nil {
			return err
		}
		if err := second(); err != nil {
			return err
		}
	}
	return nil
}

// bare is what keeping books costs: Duesday beside a loop around stripe-go that
// keeps none.
func bare(ctx context.Context, s *stage) (r measure.Report, err error) {
	n := s.customers
	var ours, theirs, month, bareMonth, cpu, pg, bareCPU, bankCPU, all, bareAll []float64
	per := func(seconds float64) float64 { return seconds / float64(n) * 1000 }
	err = turns(s.rounds, func() error {
		p, err := s.bill(ctx, n, 0)
		if err != nil {
			return err
		}
		check(&r, "duesday", p, n)
		ours, month = append(ours, p.rate), append(month, float64(n)/p.wall.Seconds())
		cpu, pg, bankCPU = append(cpu, per(p.cpu)), append(pg, per(p.pg)), append(bankCPU, per(p.bank))
		all = append(all, per(p.cpu+p.pg+p.bank))
		s.say("duesday     %6.0f charges/s, the whole run %6.0f/s", p.rate, float64(n)/p.wall.Seconds())
		return nil
	}, func() error {
		p, err := s.payBare(ctx, n, 0)
		if err != nil {
			return err
		}
		check(&r, "the bare loop", p, n)
		theirs, bareMonth = append(theirs, p.rate), append(bareMonth, float64(n)/p.wall.Seconds())
		bareCPU, bareAll = append(bareCPU, per(p.cpu)), append(bareAll, per(p.cpu+p.bank))
		s.say("bare loop   %6.0f charges/s", p.rate)
		return nil
	})
	r.Show(
		measure.Figure{Name: "charges/s ÷ bare stripe-go loop, no Stripe latency", Values: measure.Ratios(ours, theirs), Target: measure.AtLeast(0.9)},
		measure.Figure{Name: "  the same for the whole process, start to exit", Values: measure.Ratios(month, bareMonth)},
		measure.Figure{Name: "  the same by CPU seconds: (bare + bank) ÷ (duesday + Postgres + bank)", Values: measure.Ratios(bareAll, all)},
		measure.Figure{Name: "duesday, no Stripe latency", Unit: "charges/s", Values: ours},
		measure.Figure{Name: "bare stripe-go loop", Unit: "charges/s", Values: theirs},
		measure.Figure{Name: "CPU of duesday", Unit: "s/1,000 charges", Values: cpu},
		measure.Figure{Name: "CPU of its Postgres", Unit: "s/1,000 charges", Values: pg},
		measure.Figure{Name: "CPU of the bare loop", Unit: "s/1,000 charges", Values: bareCPU},
		measure.Figure{Name: "CPU of the simulated Stripe", Unit: "s/1,000 charges", Values: bankCPU},
	)
	r.Note("bare: %d customers, %d workers each, the simulated Stripe in a process of its own on the same cores; charges/s are counted there, from the first charge's arrival to the last one's answer. CPU seconds are of the whole process, and other load on the machine hardly touches them", n, workers)
	r.Note(settingsNote)
	return r, err
}
