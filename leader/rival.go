package leader

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap"
)

// A HeldError says that another process holds the lock and was seen alive.
type HeldError struct {
	Holder     string // as the holder named itself
	RunID      int64
	BackendPID uint32
}

func (e *HeldError) Error() string {
	return fmt.Sprintf("%s leads (run %d, backend %d)", e.Holder, e.RunID, e.BackendPID)
}

// A sighting is what one look at the lock's holder shows.
type sighting struct {
	pid         uint32
	since       *time.Time // of the backend; null without the right to see it
	application *string
	state       *string // null likewise
	waitsFor    *string

	// The holder's run, if it is one of ours and still under way.
	run     *int64
	holder  *string
	command *string
	beats   *int64
	shard   *int // null: it has the period alone
	shards  *int
}

// sameHolder reports whether a and b show one session and one run. A pid alone
// may be used again.
func (a sighting) sameHolder(b sighting) bool {
	same := func(x, y *time.Time) bool { return x == y || x != nil && y != nil && x.Equal(*y) }
	return a.pid == b.pid && same(a.since, b.since) && equal(a.run, b.run)
}

func equal[T comparable](a, b *T) bool { return a == b || a != nil && b != nil && *a == *b }

// busy reports whether the backend is at work on a statement. One that waits
// for its client is not: a frozen client keeps it so for ever.
func (a sighting) busy() bool {
	return a.state != nil && *a.state == "active" && (a.waitsFor == nil || *a.waitsFor != "Client")
}

// provesLife reports whether a and then b, of the same holder, show that the
// process behind it lives and bills. A session that is not a run of ours proves
// nothing, whatever it does: nobody bills there.
func provesLife(a, b sighting) bool {
	if a.run == nil || b.run == nil {
		return false
	}
	return *b.beats > *a.beats || a.busy() && b.busy()
}

// A candidate tries for the lock and watches its holder.
type candidate struct {
	*session
	cfg Config

	last       *sighting
	waitsFor   int64     // the run whose end is waited for, once told
	began      time.Time // when it began to try, or last saw a run alive that it waits for
	firstSeen  time.Time // when last's holder was first seen
	quietSince time.Time // when last's holder was first seen, or last seen busy
	forbidden  bool      // this role may not end it
}

// campaign returns nil when the lock is won.
func (c *candidate) campaign(ctx context.Context) error {
	ticker := time.NewTicker(c.cfg.RetryPeriod)
	defer ticker.Stop()
	c.began = c.cfg.Now()
	for {
		won, err := c.try(ctx)
		if won || err != nil {
			return err
		}
		seen, err := c.look(ctx)
		if err != nil {
			return err
		}
		if err := c.judge(ctx, seen); err != nil {
			return err
		}
		if waited := c.cfg.Now().Sub(c.began); waited >= c.cfg.Patience {
			return c.giveUp(waited)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the advisory lock: %w", context.Cause(ctx))
		case <-ticker.C:
		}
	}
}

// A run belongs to a holder only if it began on that very backend. Of several
// holders the youngest is looked at; when it has ended, the next.
const lookSQL = `
	SELECT l.pid, a.backend_start, a.application_name, a.state, a.wait_event_type,
		r.id, r.holder, r.command, r.beats, r.shard, r.shards
	FROM pg_locks l
	LEFT JOIN pg_stat_activity a ON a.pid = l.pid
	LEFT JOIN LATERAL (
		SELECT id, holder, command, beats, shard, shards
		FROM duesday.runs
		WHERE lock_id = $1 AND backend_pid = l.pid AND finished_at IS NULL
			AND (a.backend_start IS NULL OR started_at >= a.backend_start)
		ORDER BY id DESC
		LIMIT 1
	) r ON true
	WHERE l.pid IS NOT NULL AND `

const youngest = `
	ORDER BY r.id DESC NULLS LAST, l.pid
	LIMIT 1`

// look returns nil if nobody is in the way any more.
func (c *candidate) look(ctx context.Context) (*sighting, error) {
	ctx, cancel := context.WithTimeout(ctx, c.limit)
	defer cancel()
	var s sighting
	blockers, args := c.cfg.blockers()
	err := c.conn.QueryRow(ctx, lookSQL+blockers+youngest, args...).Scan(&s.pid, &s.since,
		&s.application, &s.state, &s.waitsFor, &s.run, &s.holder, &s.command, &s.beats, &s.shard, &s.shards)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look at the lock's holder: %w", err)
	}
	return &s, nil
}

// judge compares what is seen with what was seen before. It returns a
// *HeldError if the holder lives, and ends a holder that was silent too long.
func (c *candidate) judge(ctx context.Context, seen *sighting) error {
	now, last := c.cfg.Now(), c.last
	c.last = seen
	if seen == nil {
		return nil
	}
	if last == nil || !last.sameHolder(*seen) {
		c.firstSeen, c.quietSince, c.forbidden = now, now, false
		return nil
	}
	if provesLife(*last, *seen) {
		if c.cfg.waits(*seen) {
			c.waitOn(*seen, now)
			return nil
		}
		return &HeldError{Holder: *seen.holder, RunID: *seen.run, BackendPID: seen.pid}
	}
	// A backend whose state is hidden is never ended: it may be opening.
	if seen.busy() || seen.state == nil {
		c.quietSince = now
	}
	if now.Sub(c.quietSince) < c.cfg.endAfter() || c.forbidden {
		return nil
	}
	return c.end(ctx, *seen)
}

// waits reports whether the holder's end is to be waited for, since it leaves
// work of ours undone, or may.
func (c Config) waits(s sighting) bool {
	return c.Shard != nil || c.WaitFor != "" && (*s.command == c.WaitFor || s.shards != nil)
}

// waitOn is patient anew with a holder that lives and is waited for.
func (c *candidate) waitOn(s sighting, now time.Time) {
	c.began, c.quietSince = now, now
	if c.waitsFor == *s.run {
		return
	}
	c.waitsFor = *s.run
	c.cfg.Log.Info("the advisory lock is held for other work, waiting for its end", append(shardFields(s.shard, s.shards),
		zap.Stringp("command", s.command), zap.Stringp("holder", s.holder), zap.Int64("run_id", *s.run))...)
}

// The conditions are those of the silence, in one statement with its end: the
// pid may be another's by now, or the heart may just have beaten.
func (c Config) endSQL(s sighting) (sql string, args []any) {
	blockers, args := c.blockers()
	n := len(args)
	return fmt.Sprintf(`
	SELECT pg_terminate_backend(a.pid)
	FROM pg_stat_activity a
	WHERE a.pid = $%d AND a.backend_start = $%d AND a.wait_event_type = 'Client'
		AND EXISTS (SELECT FROM pg_locks AS l WHERE l.pid = a.pid AND %s)
		AND NOT EXISTS (SELECT FROM duesday.runs WHERE id = $%d AND beats <> $%d)`,
		n+1, n+2, blockers, n+3, n+4), append(args, s.pid, s.since, s.run, s.beats)
}

// end ends the session of a silent holder where the server has not: before
// Postgres 14, or because it is no session of ours.
func (c *candidate) end(ctx context.Context, s sighting) error {
	ctx, cancel := context.WithTimeout(ctx, c.limit)
	defer cancel()
	log := c.cfg.Log.With(zap.Int64("lock_id", c.cfg.LockID), zap.Uint32("backend_pid", s.pid),
		zap.Stringp("holder", s.holder), zap.Duration("silent", c.cfg.Now().Sub(c.quietSince)))
	sql, args := c.cfg.endSQL(s)
	tag, err := c.conn.Exec(ctx, sql, args...)
	var pgErr *pgconn.PgError
	switch {
	case errors.As(err, &pgErr) && pgErr.Code == "42501":
		c.forbidden = true
		log.Warn("the lock's silent holder may not be ended by this role")
	case err != nil:
		return fmt.Errorf("end the lock's silent holder: %w", err)
	case tag.RowsAffected() > 0:
		log.Warn("ended the session of the lock's silent holder")
	}
	return nil
}

// giveUp says who holds the lock, as far as that can be seen.
func (c *candidate) giveUp(waited time.Duration) error {
	if c.last == nil {
		return fmt.Errorf("advisory lock %d not acquired in %s", c.cfg.LockID, waited.Round(time.Millisecond))
	}
	who := fmt.Sprintf("backend %d", c.last.pid)
	if c.last.application != nil && *c.last.application != "" {
		who += fmt.Sprintf(" (%s)", *c.last.application)
	}
	if c.last.holder != nil {
		who = fmt.Sprintf("%s on %s", *c.last.holder, who)
	}
	return fmt.Errorf("advisory lock %d is held by %s, which showed no life for %s",
		c.cfg.LockID, who, c.cfg.Now().Sub(c.firstSeen).Round(time.Millisecond))
}
