package metrics

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/duesday/duesday/charges"
)

// books is what the ledger says.
type books struct {
	periods []period // the oldest first
	spend   []spend  // of the newest period
	ends    []end    // how the last run ended, if one has
	doubt   doubt
}

type period struct {
	charges.Period
	settled bool
}

type spend struct {
	currency               string
	expected, cap, claimed int64
}

// end is how a command's last run ended.
type end struct {
	command     string
	at          time.Time
	success     time.Time // when it last ended with exit code 0; zero: not known
	code        int
	durationSec float64
}

type doubt struct {
	known  bool
	slots  int
	oldest time.Time // when it was claimed; zero: none
}

// read reads what is small: a row a period, a row a currency, and the newest of
// runs by their primary key.
func (b *books) read(ctx context.Context, db charges.Querier) error {
	for _, part := range []func(context.Context, charges.Querier) error{b.readPeriods, b.readSpend, b.readEnds} {
		if err := part(ctx, db); err != nil {
			return err
		}
	}
	return nil
}

func (b *books) readPeriods(ctx context.Context, db charges.Querier) error {
	const read = `
		SELECT billing_period, settled_at IS NOT NULL FROM duesday.periods ORDER BY billing_period`
	rows, err := db.Query(ctx, read)
	if err != nil {
		return fmt.Errorf("read the periods: %w", err)
	}
	b.periods, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (p period, err error) {
		var name string
		if err := row.Scan(&name, &p.settled); err != nil {
			return p, err
		}
		p.Period, err = charges.ParsePeriod(name)
		return p, err
	})
	if err != nil {
		return fmt.Errorf("read the periods: %w", err)
	}
	return nil
}

func (b *books) readSpend(ctx context.Context, db charges.Querier) error {
	const read = `
		SELECT currency, expected_total, cap, claimed_total FROM duesday.totals
		WHERE billing_period = (SELECT max(billing_period) FROM duesday.periods)
		ORDER BY currency`
	rows, err := db.Query(ctx, read)
	if err != nil {
		return fmt.Errorf("read the totals: %w", err)
	}
	b.spend, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (s spend, err error) {
		err = row.Scan(&s.currency, &s.expected, &s.cap, &s.claimed)
		return s, err
	})
	if err != nil {
		return fmt.Errorf("read the totals: %w", err)
	}
	return nil
}

func (b *books) readEnds(ctx context.Context, db charges.Querier) error {
	// Shards share a run: the worst of their last ends is its end. A reconcile has
	// a row for each period that it works on, and none of how it ended.
	const read = `
		WITH lately AS (
			SELECT split_part(command, ' ', 1) AS command, billing_period, shard, shards,
				started_at, finished_at, exit_code
			FROM (SELECT * FROM duesday.runs ORDER BY id DESC LIMIT 10000) AS newest
			WHERE finished_at IS NOT NULL AND exit_code IS NOT NULL
		), newest AS (
			SELECT DISTINCT ON (command) command, billing_period, shards
			FROM lately WHERE command = 'run'
			ORDER BY command, finished_at DESC
		), ends AS (
			SELECT DISTINCT ON (command, shard) lately.*
			FROM lately JOIN newest USING (command)
			WHERE (lately.billing_period, lately.shards) IS NOT DISTINCT FROM (newest.billing_period, newest.shards)
			ORDER BY command, shard, finished_at DESC
		)
		SELECT command, max(finished_at), (
				SELECT max(finished_at) FROM lately WHERE lately.command = ends.command AND exit_code = 0),
			max(exit_code), max(extract(epoch FROM finished_at - started_at))::float8
		FROM ends
		GROUP BY command
		ORDER BY command`
	rows, err := db.Query(ctx, read)
	if err != nil {
		return fmt.Errorf("read the runs: %w", err)
	}
	b.ends, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (e end, err error) {
		var success *time.Time
		err = row.Scan(&e.command, &e.at, &success, &e.code, &e.durationSec)
		if success != nil {
			e.success = *success
		}
		return e, err
	})
	if err != nil {
		return fmt.Errorf("read the runs: %w", err)
	}
	return nil
}

// readDoubt goes through the slots of the periods that are not settled: in a
// settled one nothing is in doubt.
func (b *books) readDoubt(ctx context.Context, db charges.Querier) error {
	const count = `
		SELECT count(*), min(slot.claimed_at)
		FROM duesday.periods AS p JOIN duesday.charges AS slot USING (billing_period)
		WHERE p.settled_at IS NULL AND slot.status = 'claimed'`
	var (
		d      = doubt{known: true}
		oldest *time.Time
	)
	if err := db.QueryRow(ctx, count).Scan(&d.slots, &oldest); err != nil {
		return fmt.Errorf("count the slots in doubt: %w", err)
	}
	if oldest != nil {
		d.oldest = *oldest
	}
	b.doubt = d
	return nil
}

// missing counts the months before the current one that should have been opened
// and were not. The current one's schedule may still be to come.
func (b *books) missing(current charges.Period) int {
	if len(b.periods) == 0 {
		return 0
	}
	have, n := b.opened(), 0
	for month := b.periods[0].Period; month.Before(current); month = month.Add(1) {
		if !have[month] {
			n++
		}
	}
	return n
}

// next is the first month that was not opened. There must be one that was.
func (b *books) next() charges.Period {
	have, month := b.opened(), b.periods[0].Period
	for have[month] {
		month = month.Add(1)
	}
	return month
}

func (b *books) opened() map[charges.Period]bool {
	have := map[charges.Period]bool{}
	for _, p := range b.periods {
		have[p.Period] = true
	}
	return have
}
