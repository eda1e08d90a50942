package main

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/internal/bench/measure"
	"github.com/duesday/duesday/leader"
)

const claimPage = 2000 // as a run's from --rate 1000

// claims is what claiming page by page, fenced and capped, costs beside one bare
// INSERT … SELECT. No process of Duesday claims without charging, so this is the
// ledger itself under the real lock.
func claims(ctx context.Context, s *stage) (r measure.Report, err error) {
	n := s.million
	url, err := s.database(ctx, n)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, s.drop(ctx, url)) }()
	p, err := charges.ParsePeriod(period)
	if err != nil {
		return r, err
	}
	l := charges.Ledger{Period: p, Namespace: namespace}
	pool, err := charges.OpenPool(ctx, url, 2)
	if err != nil {
		return r, err
	}
	defer pool.Close()
	lock, err := leader.Acquire(ctx, leader.Config{
		DatabaseURL: url, LockID: charges.LockID(namespace, period), Command: "run", Period: period, Holder: "bench",
		LeaseDuration: time.Hour, RenewDeadline: 40 * time.Minute, RetryPeriod: 10 * time.Second,
	})
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, lock.Release(ctx)) }()
	exec := func(sql string) error {
		_, err := pool.Exec(ctx, sql)
		return err
	}
	relation, err := charges.FindRelation(ctx, pool, "duesday.customers")
	if err != nil {
		return r, err
	}
	s.say("opening %d dues", n)
	if err := lock.DoLong(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return l.Open(ctx, conn, charges.Opening{Customers: relation, Description: "Billing period " + period,
			Method: charges.MethodCharges, CapFactor: "1.10", Timeout: 30 * time.Minute})
	}); err != nil {
		return r, err
	}
	claimAll := func() (pages []time.Duration, err error) {
		for cursor := (charges.ClaimCursor{}); ; {
			var page charges.Page
			began := time.Now()
			if err := lock.Do(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
				page, err = l.Claim(ctx, conn, cursor, claimPage)
				return err
			}); err != nil {
				return nil, err
			}
			pages = append(pages, time.Since(began))
			if page.Dues < claimPage {
				return pages, nil
			}
			cursor = page.Next
		}
	}
	if err := exec(`CREATE TABLE bare_claims (LIKE duesday.charges INCLUDING ALL)`); err != nil {
		return r, err
	}
	empty := func(table string) error {
		for _, sql := range []string{
			`TRUNCATE ` + table,
			`UPDATE duesday.periods SET claim_cursor = NULL`,
			`UPDATE duesday.totals SET claimed_total = 0`,
			`CHECKPOINT`,
		} {
			if err := exec(sql); err != nil {
				return err
			}
		}
		return nil
	}
	const bare = `
		INSERT INTO bare_claims (customer_id, billing_period, idempotency_key, amount, currency, status)
		SELECT customer_id, billing_period,
			left(encode(sha256(convert_to(customer_id || ':' || billing_period || ':' || '` + namespace + `', 'UTF8')), 'hex'), 32),
			amount, currency, 'claimed'
		FROM duesday.dues WHERE billing_period = '` + period + `' ORDER BY customer_id`
	var ours, theirs, ends []float64
	err = turns(s.rounds, func() error {
		if err := empty("duesday.charges"); err != nil {
			return err
		}
		began := time.Now()
		pages, err := claimAll()
		if err != nil {
			return err
		}
		rate := float64(n) / time.Since(began).Seconds()
		ours = append(ours, rate)
		tenth := len(pages) / 10
		ends = append(ends, total(pages[:tenth]).Seconds()/total(pages[len(pages)-1-tenth:len(pages)-1]).Seconds())
		s.say("claims      %6.0f rows/s", rate)
		var claimed int
		if err := pool.QueryRow(ctx, `SELECT count(*) FROM duesday.charges`).Scan(&claimed); err != nil {
			return err
		}
		if claimed != n {
			r.Break("claims: %d of %d dues claimed", claimed, n)
		}
		return exec(`TRUNCATE duesday.charges`) // so that both sides write into an emptied table
	}, func() error {
		if err := empty("bare_claims"); err != nil {
			return err
		}
		began := time.Now()
		if err := exec(bare); err != nil {
			return err
		}
		rate := float64(n) / time.Since(began).Seconds()
		theirs = append(theirs, rate)
		s.say("bare INSERT %6.0f rows/s", rate)
		return exec(`TRUNCATE bare_claims`)
	})
	r.Show(
		measure.Figure{Name: "claims ÷ one INSERT … SELECT of the same rows", Values: measure.Ratios(ours, theirs), Target: measure.AtLeast(0.5)},
		measure.Figure{Name: "claims, last tenth's speed ÷ first tenth's", Values: ends, Target: measure.AtLeast(0.9)},
		measure.Figure{Name: "claims", Unit: "rows/s", Values: ours},
		measure.Figure{Name: "INSERT … SELECT", Unit: "rows/s", Values: theirs},
	)
	r.Note("claims: %d dues, pages of %d, on the lock's connection; the INSERT … SELECT makes the same rows from duesday.dues, with their keys, in a table LIKE duesday.charges INCLUDING ALL: the same columns, constraints and indexes", n, claimPage)
	return r, err
}

func total(spans []time.Duration) (sum time.Duration) {
	for _, span := range spans {
		sum += span
	}
	return sum
}
