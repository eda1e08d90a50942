package leader

import (
	"context"
	"fmt"
	"slices"

	"go.uber.org/zap"

	"github.com/duesday/duesday/internal/fence"
)

// An advisory is one of the advisory locks that make a leader.
type advisory struct {
	id     int64
	shared bool
}

func (a advisory) function(name string) string {
	if a.shared {
		name += "_shared"
	}
	return `SELECT ` + name + `($1)`
}

// locks are in the order in which they are taken. That of the sisters
// comes first: a shard that is seen to share the period is never seen without it.
func (c Config) locks() []advisory {
	if c.Shard == nil {
		return []advisory{{id: c.LockID}}
	}
	return []advisory{{c.Shard.SistersID, true}, {c.LockID, true}, {c.Shard.LockID, false}}
}

// held is the condition that the backend holds what makes a leader, with
// parameters from $2 on.
func (c Config) held() (condition string, args []any) {
	if c.Shard == nil {
		return fence.Held("$2"), []any{c.LockID}
	}
	return fence.Held("$2") + ` AND ` + fence.HeldShared("$3"), []any{c.Shard.LockID, c.LockID}
}

// blockers is true of the rows of pg_locks, named l, that stand in the way, with
// parameters from $1 on.
func (c Config) blockers() (condition string, args []any) {
	if c.Shard == nil {
		return fence.OnLock("$1"), []any{c.LockID}
	}
	return `(` + fence.OnLock("$2") + ` OR ` + fence.OnLock("$1") + ` AND l.pid NOT IN (
		SELECT l.pid FROM pg_locks AS l WHERE ` + fence.OnLock("$3") + ` AND l.pid IS NOT NULL))
		AND l.pid <> pg_backend_pid()`, []any{c.LockID, c.Shard.LockID, c.Shard.SistersID}
}

// try takes the locks if they are free, all or none. It is called again only if
// they were not: Postgres counts, and a lock taken twice must be released twice.
func (c *candidate) try(ctx context.Context) (won bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.limit)
	defer cancel()
	locks := c.cfg.locks()
	for i, lock := range locks {
		if err := c.conn.QueryRow(ctx, lock.function("pg_try_advisory_lock"), lock.id).Scan(&won); err != nil {
			return false, fmt.Errorf("try the advisory lock: %w", err)
		}
		if !won {
			return false, c.unlock(ctx, locks[:i])
		}
	}
	if c.cfg.Shard == nil {
		return true, nil
	}
	// Of two that split the period differently, the later to get here has its
	// share already, and sees the other's.
	blockers, args := c.cfg.blockers()
	var blocked bool
	if err := c.conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_locks AS l WHERE `+blockers+`)`, args...).Scan(&blocked); err != nil {
		return false, fmt.Errorf("look for shards of another number: %w", err)
	}
	if blocked {
		return false, c.unlock(ctx, locks)
	}
	return true, nil
}

// unlock gives back what was taken, in the reverse order.
func (s *session) unlock(ctx context.Context, taken []advisory) error {
	for _, lock := range slices.Backward(taken) {
		var unlocked bool
		err := s.conn.QueryRow(ctx, lock.function("pg_advisory_unlock"), lock.id).Scan(&unlocked)
		if err == nil && !unlocked {
			err = fmt.Errorf("%d was not held", lock.id)
		}
		if err != nil {
			return fmt.Errorf("release the advisory lock: %w", err)
		}
	}
	return nil
}

// shardFields are none for who has the period alone.
func shardFields(shard, shards *int) []zap.Field {
	if shard == nil || shards == nil {
		return nil
	}
	return []zap.Field{zap.Int("shard", *shard), zap.Int("shards", *shards)}
}
