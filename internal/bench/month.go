package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/duesday/duesday/internal/bench/measure"
)

// month is a whole month of a million: its memory, and its rerun once settled.
func month(ctx context.Context, s *stage) (r measure.Report, err error) {
	const few = 10_000
	var small []float64
	for range min(s.rounds, 3) {
		url, err := s.database(ctx, few)
		if err != nil {
			return r, err
		}
		p, memory, err := s.weigh(ctx, url)
		if err = errors.Join(err, s.drop(ctx, url)); err != nil {
			return r, err
		}
		check(&r, "duesday", p, few)
		small = append(small, memory)
		s.say("%d customers: %.1f MiB", few, memory)
	}
	url, err := s.database(ctx, s.million)
	if err != nil {
		return r, err
	}
	p, memory, err := s.weigh(ctx, url)
	if err != nil {
		return r, err
	}
	check(&r, "duesday", p, s.million)
	s.say("%d customers: %.1f MiB, %.0f charges/s", s.million, memory, p.rate)
	per := 1000 / float64(s.million)
	r.Show(
		measure.Figure{Name: fmt.Sprintf("peak memory, %d customers ÷ %d", s.million, few),
			Values: []float64{memory / measure.SpreadOf(small).Median}, Target: measure.AtMost(1.2)},
		measure.Figure{Name: fmt.Sprintf("peak memory, %d customers", s.million), Unit: "MiB", Values: []float64{memory}, Target: measure.Never(64)},
		measure.Figure{Name: fmt.Sprintf("peak memory, %d customers", few), Unit: "MiB", Values: small},
		measure.Figure{Name: fmt.Sprintf("duesday, %d customers, no Stripe latency", s.million), Unit: "charges/s", Values: []float64{p.rate}},
		measure.Figure{Name: "  CPU of duesday", Unit: "s/1,000 charges", Values: []float64{p.cpu * per}},
		measure.Figure{Name: "  CPU of its Postgres", Unit: "s/1,000 charges", Values: []float64{p.pg * per}},
	)
	r.Note("month: %d customers once, %d in %d rounds, 64 workers, no Stripe latency, --rate 1000000; VmHWM of the process", s.million, few, len(small))

	var busy, scans, wall []float64
	for range s.rounds {
		again, err := s.rerun(ctx, url)
		if err != nil {
			return r, err
		}
		busy, scans, wall = append(busy, again.busy), append(scans, float64(again.scans)), append(wall, again.wall*1000)
	}
	r.Show(
		measure.Figure{Name: "rerun of the settled month: database time", Unit: "ms", Values: busy, Target: measure.AtMost(50)},
		measure.Figure{Name: "rerun of the settled month: scans of dues, charges, attempts", Unit: "scans", Values: scans, Target: measure.Never(0)},
		measure.Figure{Name: "rerun of the settled month: whole process", Unit: "ms", Values: wall},
	)
	r.Note("rerun: database time is active_time in pg_stat_database, all the time that the run's sessions were at work; scans are seq_scan in pg_stat_user_tables")
	return r, s.drop(ctx, url)
}

// weigh bills the month of the database and returns the most memory, in MiB,
// that the process had.
func (s *stage) weigh(ctx context.Context, url string) (paid, float64, error) {
	var peak int64
	watched := make(chan error, 1)
	p, err := s.pay(ctx, 0, func(b *bank) (*child, error) {
		c, err := s.run(ctx, url, b)
		if err != nil {
			return nil, err
		}
		go func() {
			var err error
			for tick := time.NewTicker(10 * time.Millisecond); ; {
				select {
				case <-c.done:
					watched <- err
					return
				case <-tick.C:
				}
				var now int64
				if now, err = peakMemory(c.cmd.Process.Pid); err == nil {
					peak = max(peak, now)
				}
			}
		}()
		return c, nil
	}, func(*bank) error {
		<-watched // an error at the very end is that of a process that has gone
		if peak == 0 {
			return errors.New("cannot read VmHWM in /proc: this figure needs Linux")
		}
		return nil
	})
	return p, float64(peak) / (1 << 20), err
}

type again struct {
	busy  float64 // milliseconds
	scans int64
	wall  float64
}

func (s *stage) rerun(ctx context.Context, url string) (a again, err error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return a, err
	}
	b, err := s.bank(ctx, 0)
	if err != nil {
		return a, err
	}
	defer b.close()
	scans := func() (n int64, err error) {
		err = onDatabase(ctx, url, func(conn *pgx.Conn) error {
			return conn.QueryRow(ctx, `
				SELECT sum(seq_scan) FROM pg_stat_user_tables
				WHERE schemaname = 'duesday' AND relname IN ('dues', 'charges', 'attempts')`).Scan(&n)
		})
		return n, err
	}
	// A session's figures are complete once it has ended.
	busy := func() (ms float64, err error) {
		for left := true; left; {
			if err := s.admin.QueryRow(ctx, `SELECT EXISTS (
				SELECT FROM pg_stat_activity WHERE datname = $1)`, config.Database).Scan(&left); err != nil {
				return 0, err
			}
		}
		err = s.admin.QueryRow(ctx, `SELECT active_time FROM pg_stat_database WHERE datname = $1`, config.Database).Scan(&ms)
		return ms, err
	}
	scansBefore, err := scans()
	if err != nil {
		return a, err
	}
	before, err := busy()
	if err != nil {
		return a, err
	}
	c, err := s.run(ctx, url, b)
	if err != nil {
		return a, err
	}
	if err := c.wait(); err != nil {
		return a, err
	}
	after, err := busy()
	if err != nil {
		return a, err
	}
	scansAfter, err := scans()
	if err != nil {
		return a, err
	}
	stats, err := b.Stats(ctx)
	if err == nil && stats.Requests > 0 {
		err = fmt.Errorf("a rerun of a settled month sent %d requests", stats.Requests)
	}
	return again{busy: after - before, scans: scansAfter - scansBefore, wall: c.wall.Seconds()}, err
}
