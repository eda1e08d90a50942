package charges

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/duesday/duesday/internal/exitcode"
	"github.com/duesday/duesday/internal/fence"
)

// ErrFenced is returned by the statements that need the period's lock when the
// backend that runs them does not hold it. They have changed nothing then.
var ErrFenced = errors.New("this database session does not hold the period's lock")

// Ledger is one period in Postgres, as one run sees it. Methods that take a
// connection must be given the one that holds the lock LockID(Namespace,
// Period): they check that and return ErrFenced otherwise.
type Ledger struct {
	Period    Period
	Namespace string
	// Shard limits a run to a part of the customers; zero: all of them. Its
	// methods then want a connection that holds ShardLockID, and the period's
	// lock in shared mode.
	Shard Shard
	// Now is the clock by which a slot's reading is told; nil: time.Now. All
	// ages in the ledger are the database's.
	Now func() time.Time
}

func (l *Ledger) now() time.Time {
	if l.Now == nil {
		return time.Now()
	}
	return l.Now()
}

// PeriodState is a row of periods.
type PeriodState struct {
	Opened    bool
	OpenedAt  time.Time
	SettledAt time.Time // zero: not settled
	Namespace string
}

// State reads where the period stands: one row by its primary key.
func (l *Ledger) State(ctx context.Context, db Querier) (PeriodState, error) {
	const read = `
		SELECT opened_at, settled_at, key_namespace FROM duesday.periods WHERE billing_period = $1`
	var (
		s       PeriodState
		settled *time.Time
	)
	err := db.QueryRow(ctx, read, l.Period.String()).Scan(&s.OpenedAt, &settled, &s.Namespace)
	if errors.Is(err, pgx.ErrNoRows) {
		return PeriodState{}, nil
	}
	if err != nil {
		return PeriodState{}, fmt.Errorf("read period %s: %w", l.Period, err)
	}
	s.Opened = true
	if settled != nil {
		s.SettledAt = *settled
	}
	if s.Namespace != l.Namespace {
		// Another namespace is another lock: two runs would not see each other.
		return s, exitcode.With(exitcode.Misconfigured, fmt.Errorf(
			"--key-namespace %s: period %s was opened with %s, and is finished with it", l.Namespace, l.Period, s.Namespace))
	}
	return s, nil
}

// lockID is the id of the lock that the run holds alone.
func (l *Ledger) lockID() int64 {
	if l.Shard.Split() {
		return l.ShardLockID()
	}
	return LockID(l.Namespace, l.Period.String())
}

// held is the condition that the backend holds what the run must hold; the
// parameter is lockID.
func (l *Ledger) held(parameter string) string {
	if l.Shard.Split() {
		return fence.Held(parameter) + ` AND ` + fence.HeldShared(fmt.Sprintf("(%d)", LockID(l.Namespace, l.Period.String())))
	}
	return fence.Held(parameter)
}

func (l *Ledger) checkHeld(ctx context.Context, db Querier) error {
	var held bool
	if err := db.QueryRow(ctx, `SELECT `+l.held("$1"), l.lockID()).Scan(&held); err != nil {
		return fmt.Errorf("check the period's lock: %w", err)
	}
	if !held {
		return ErrFenced
	}
	return nil
}

// byIndex leaves the planner of the same transaction no other way through the
// big tables than by their indexes, in their order. By itself it takes a table
// that has just grown from empty for a small one, or a new month for a few rows
// as there were none when it was analysed, and then goes through all of it for
// each page: a minute's work becomes hours'.
const byIndex = `
	SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true)`

// inIndexOrder is byIndex for statements that need no sort and no nested loop:
// a planner that takes a page for one row would join it row by row.
const inIndexOrder = byIndex + `, set_config('enable_sort', 'off', true), set_config('enable_nestloop', 'off', true)`

// queryPlanned runs sql after settings, in one round trip and in a transaction of
// their own, or in that which db is: there the settings stay. It has read go
// through the rows.
func queryPlanned(ctx context.Context, db Querier, settings string, read func(pgx.Rows) error, sql string, args ...any) error {
	var batch pgx.Batch
	batch.Queue(settings)
	batch.Queue(sql, args...)
	results := db.SendBatch(ctx, &batch)
	_, err := results.Exec()
	if err == nil {
		rows, _ := results.Query() // its error is in rows, too
		err = read(rows)
	}
	// It ends the transaction: only now is it known to have taken place.
	if closeErr := results.Close(); err == nil {
		err = closeErr
	}
	return err
}

// DurableCommits makes the session's commits wait for the disk even where the
// server or the role was set not to: a claim that is lost after its charge was
// sent would be sent again.
func DurableCommits(ctx context.Context, conn *pgx.Conn) error {
	const set = `
		SELECT set_config('synchronous_commit', 'on', false)
		WHERE current_setting('synchronous_commit') = 'off'`
	_, err := conn.Exec(ctx, set)
	return err
}

// OpenPool returns a pool for what needs no lock: settling, and reading. Its
// plans are made anew each time, since tables that grow from empty within
// minutes make a kept plan a trap.
func OpenPool(ctx context.Context, url string, maxConns int32) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		// pgx's message may show the URL; it redacts a password only where it
		// could tell what the password is.
		return nil, exitcode.With(exitcode.Misconfigured,
			errors.New("DATABASE_URL: want postgres://user:password@host:5432/database, or keywords as in host=… dbname=…"))
	}
	cfg.MaxConns = maxConns
	cfg.ConnConfig.ConnectTimeout = 10 * time.Second
	cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `
			SET application_name = 'duesday';
			SET plan_cache_mode = force_custom_plan;
			SET jit = off;
			SET statement_timeout = '60s'`)
		return err
	}
	return pgxpool.NewWithConfig(ctx, cfg)
}
