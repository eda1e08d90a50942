package main

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/duesday/duesday/internal/bench/measure"
)

// opening is what freezing, totalling and guarding a month of dues costs beside
// one bare INSERT … SELECT of them, and whether a candidate could see all the
// while that the leader lives.
func opening(ctx context.Context, s *stage) (r measure.Report, err error) {
	n := s.million
	var ours, theirs, silence []float64
	// One round is over in seconds, and what the disk still does differs by more.
	err = turns(2*s.rounds-1, func() error {
		took, silent, err := s.open(ctx, n)
		if err != nil {
			return err
		}
		ours, silence = append(ours, float64(n)/took.Seconds()), append(silence, silent.Seconds())
		s.say("opening     %6.0f dues/s, %s without a sign of life at most", float64(n)/took.Seconds(), silent.Round(time.Millisecond))
		return nil
	}, func() error {
		took, err := s.insertDues(ctx, n)
		if err != nil {
			return err
		}
		theirs = append(theirs, float64(n)/took.Seconds())
		s.say("bare INSERT %6.0f dues/s", float64(n)/took.Seconds())
		return nil
	})
	r.Show(
		measure.Figure{Name: "opening ÷ one INSERT … SELECT of the dues", Values: measure.Ratios(ours, theirs), Target: measure.AtLeast(0.7)},
		measure.Figure{Name: "opening: longest without heartbeat or statement at work", Unit: "s", Values: silence, Target: measure.Never(2)},
		measure.Figure{Name: "opening", Unit: "dues/s", Values: ours},
		measure.Figure{Name: "INSERT … SELECT", Unit: "dues/s", Values: theirs},
	)
	r.Note("opening: %d dues, the real binary, from its log; it also checks, totals, guards and caps them. The INSERT … SELECT does none of that. Both fill the empty duesday.dues of a database just copied. A sign of life is a beat in runs, or the leader's backend active in pg_stat_activity, seen by another session every 50 ms; 2 s is --retry-period", n)
	return r, err
}

// insertDues does no more than to write the dues into their table.
func (s *stage) insertDues(ctx context.Context, customers int) (took time.Duration, err error) {
	url, err := s.database(ctx, customers)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, s.drop(ctx, url)) }()
	err = onDatabase(ctx, url, func(conn *pgx.Conn) error {
		began := time.Now()
		_, err := conn.Exec(ctx, `
			INSERT INTO duesday.dues (billing_period, customer_id, stripe_customer_id, payment_method,
				amount, currency, description, stripe_method)
			SELECT '`+period+`', id, stripe_customer_id, payment_method, amount, currency, 'Billing period `+period+`', 'charges'
			FROM duesday.customers WHERE active`)
		took = time.Since(began)
		return err
	})
	return took, err
}

// open has Duesday open a month, and stops it then.
func (s *stage) open(ctx context.Context, customers int) (took, silent time.Duration, err error) {
	url, err := s.database(ctx, customers)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, s.drop(ctx, url)) }()
	b, err := s.bank(ctx, 0)
	if err != nil {
		return 0, 0, err
	}
	defer b.close()
	c, err := s.run(ctx, url, b, "--workers=1")
	if err != nil {
		return 0, 0, err
	}
	defer c.terminate()
	led, err := c.awaitEvent("advisory lock acquired")
	if err != nil {
		return 0, 0, err
	}
	silent, err = watchHeart(ctx, url, func() bool {
		_, opened := c.event("period opened")
		return opened
	})
	if err != nil {
		return 0, 0, err
	}
	opened, err := c.awaitEvent("period opened")
	return opened.Sub(led), silent, err
}

// watchHeart looks at the leader as a candidate does, until done, and returns
// the longest span in which it saw no life.
func watchHeart(ctx context.Context, url string, done func() bool) (silent time.Duration, err error) {
	const look = `
		SELECT run.beats, coalesce(backend.state = 'active', false)
		FROM duesday.runs AS run LEFT JOIN pg_stat_activity AS backend ON backend.pid = run.backend_pid
		ORDER BY run.id DESC LIMIT 1`
	err = onDatabase(ctx, url, func(conn *pgx.Conn) error {
		last, alive := int64(-1), time.Now()
		for tick := time.NewTicker(50 * time.Millisecond); !done(); <-tick.C {
			var (
				beats  int64
				active bool
			)
			if err := conn.QueryRow(ctx, look).Scan(&beats, &active); err != nil {
				return err
			}
			now := time.Now()
			silent = max(silent, now.Sub(alive))
			if active || beats != last {
				last, alive = beats, now
			}
		}
		return nil
	})
	return silent, err
}
