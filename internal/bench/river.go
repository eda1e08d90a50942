package main

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/duesday/duesday/internal/bench/measure"
)

// riverRescue is when River takes a dead worker's job up again. Its default is
// an hour.
const riverRescue = 10 * time.Second

// river is the same month as jobs of riverqueue/river, and both after a kill -9.
func river(ctx context.Context, s *stage) (r measure.Report, err error) {
	exe, err := s.build(ctx, "bench/river", "river", ".")
	if err != nil {
		return r, err
	}
	n := s.customers
	var ours, theirs, month, riverMonth, cpu, pg, all, riverAll []float64
	per := func(seconds float64) float64 { return seconds / float64(n) * 1000 }
	err = turns(s.rounds, func() error {
		p, err := s.bill(ctx, n, 0)
		if err != nil {
			return err
		}
		check(&r, "duesday", p, n)
		ours, month = append(ours, p.rate), append(month, float64(n)/p.wall.Seconds())
		all = append(all, per(p.cpu+p.pg+p.bank))
		s.say("duesday %6.0f charges/s, the whole month %6.0f/s", p.rate, float64(n)/p.wall.Seconds())
		return nil
	}, func() error {
		url, err := s.riverDatabase(ctx, exe, n)
		if err != nil {
			return err
		}
		p, err := s.pay(ctx, 0, func(b *bank) (*child, error) { return start(ctx, exe, environment(url, b)) })
		if err = errors.Join(err, s.drop(ctx, url)); err != nil {
			return err
		}
		check(&r, "River", p, n)
		theirs, riverMonth = append(theirs, p.rate), append(riverMonth, float64(n)/p.wall.Seconds())
		cpu, pg = append(cpu, per(p.cpu)), append(pg, per(p.pg))
		riverAll = append(riverAll, per(p.cpu+p.pg+p.bank))
		s.say("River   %6.0f charges/s, the whole month %6.0f/s", p.rate, float64(n)/p.wall.Seconds())
		return nil
	})
	r.Show(
		measure.Figure{Name: "a month ÷ the same as River unique jobs, no Stripe latency", Values: measure.Ratios(month, riverMonth), Target: measure.AtLeast(1.5)},
		measure.Figure{Name: "  the same without opening and inserting", Values: measure.Ratios(ours, theirs)},
		measure.Figure{Name: "  the same by CPU seconds, of all processes", Values: measure.Ratios(riverAll, all)},
		measure.Figure{Name: "duesday, whole month", Unit: "charges/s", Values: month},
		measure.Figure{Name: "River, whole month", Unit: "charges/s", Values: riverMonth},
		measure.Figure{Name: "CPU of River's process", Unit: "s/1,000 charges", Values: cpu},
		measure.Figure{Name: "CPU of its Postgres", Unit: "s/1,000 charges", Values: pg},
	)
	r.Note("river: %d customers; River v0.51.2 with UniqueOpts{ByArgs: true}, InsertMany in batches of 5,000, MaxWorkers 64, FetchCooldown 2 ms and FetchPollInterval 20 ms; the month is the whole process, start to exit", n)
	if err != nil {
		return r, err
	}
	killed, err := s.killed(ctx, exe)
	r.Add(killed)
	return r, err
}

func (s *stage) riverDatabase(ctx context.Context, exe string, customers int) (string, error) {
	url, err := s.database(ctx, customers)
	if err != nil {
		return "", err
	}
	migrate, err := start(ctx, exe, []string{"DATABASE_URL=" + url}, "-migrate")
	if err != nil {
		return "", err
	}
	return url, migrate.wait()
}

// killed counts the duplicates after a kill -9 half-way, all three at once since
// they mostly wait.
func (s *stage) killed(ctx context.Context, exe string) (r measure.Report, err error) {
	n := min(s.customers, 4000)
	const takes = 20 * time.Millisecond
	half := func(url string, process func(b *bank) (*child, error)) (p paid, err error) {
		b, err := s.bank(ctx, takes)
		if err != nil {
			return p, err
		}
		defer b.close()
		first, err := process(b)
		if err != nil {
			return p, err
		}
		for {
			stats, err := b.Stats(ctx)
			if err != nil {
				return p, err
			}
			if stats.Requests >= n/2 {
				break
			}
			select {
			case <-first.done:
				return p, errors.Join(errors.New("it ended before it could be killed"), first.wait())
			case <-time.After(2 * time.Millisecond):
			}
		}
		first.kill()
		second, err := process(b)
		if err != nil {
			return p, err
		}
		if err := second.wait(); err != nil {
			return p, err
		}
		p.wall = second.wall
		p.tally, err = b.Tally(ctx)
		return p, errors.Join(err, s.drop(ctx, url))
	}
	oursURL, err := s.database(ctx, n)
	if err != nil {
		return r, err
	}
	randomURL, err := s.riverDatabase(ctx, exe, n)
	if err != nil {
		return r, err
	}
	stableURL, err := s.riverDatabase(ctx, exe, n)
	if err != nil {
		return r, err
	}
	s.say("kill -9 half-way; River's leader and rescuer take most of a minute to notice")
	var ours, random, stable paid
	var group errgroup.Group
	group.Go(func() (err error) {
		ours, err = half(oursURL, func(b *bank) (*child, error) { return s.run(ctx, oursURL, b) })
		return err
	})
	group.Go(func() (err error) {
		random, err = half(randomURL, func(b *bank) (*child, error) {
			return start(ctx, exe, environment(randomURL, b), "-rescue-after", riverRescue.String())
		})
		return err
	})
	group.Go(func() (err error) {
		stable, err = half(stableURL, func(b *bank) (*child, error) {
			return start(ctx, exe, environment(stableURL, b), "-stable-key", "-rescue-after", riverRescue.String())
		})
		return err
	})
	if err := group.Wait(); err != nil {
		return r, err
	}
	check(&r, "duesday after kill -9", ours, n)
	one := func(v int) []float64 { return []float64{float64(v)} }
	r.Show(
		measure.Figure{Name: "after kill -9: charged twice, duesday", Unit: "charges", Values: one(ours.tally.Duplicates()), Target: measure.Never(0)},
		measure.Figure{Name: "after kill -9: charged twice, River with a random key", Unit: "charges", Values: one(random.tally.Duplicates())},
		measure.Figure{Name: "after kill -9: charged twice, River with a stable key", Unit: "charges", Values: one(stable.tally.Duplicates())},
		measure.Figure{Name: "after kill -9: until the month was done, duesday", Unit: "s", Values: []float64{ours.wall.Seconds()}},
		measure.Figure{Name: "after kill -9: until the month was done, River", Unit: "s", Values: []float64{random.wall.Seconds()}},
	)
	r.Note("after kill -9: %d customers, Stripe takes %s, killed when the bank had seen half; River rescues after %s here, its default is an hour. Its stable key is customer and month: it holds for the 24 hours that Stripe remembers a key", n, takes, riverRescue)
	return r, nil
}
