package leader

import (
	"context"
	"fmt"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sync/errgroup"

	"github.com/duesday/duesday/internal/exitcode"
)

// shardOf returns the configuration of one shard of the period.
func shardOf(c Config, index, of int) Config {
	c.Holder = fmt.Sprintf("shard %d of %d", index, of)
	c.Shard = &Shard{Index: index, Of: of, LockID: c.LockID + int64(100*of+index+1), SistersID: c.LockID + int64(100*of)}
	return c
}

// waiting acquires in the background what is held, and returns once it waits
// for the holder.
func waiting(t *testing.T, c Config) <-chan result {
	t.Helper()
	core, logs := observer.New(zap.InfoLevel)
	c.Log = zap.New(core)
	results := campaignFor(t, c)
	eventually(t, "the candidate to wait", func() bool {
		require.Empty(t, results, "it did not wait")
		return logs.FilterMessageSnippet("waiting for its end").Len() > 0
	})
	return results
}

func TestShards_haveThePeriodBetweenThem(t *testing.T) {
	b := setup(t)
	var shards []*Lock
	for i := range 3 {
		shards = append(shards, acquireFor(t, shardOf(b.config, i, 3)))
	}
	for i, lock := range shards {
		require.NoError(t, context.Cause(lock.Context()))
		require.True(t, lock.Fresh())
		require.True(t, holds(t, lock, lock.cfg.Shard.LockID))
		require.False(t, holds(t, lock, lock.ID()), "no shard has the period alone")
		var wrote bool
		b.scan(t, &wrote, `SELECT shard = $2 AND shards = 3 AND lock_id = $3 FROM duesday.runs WHERE id = $1`, lock.RunID(), i, lock.ID())
		require.True(t, wrote)
		eventually(t, "the heart to beat", func() bool { return b.beats(t, lock.RunID()) >= 2 })
	}
	for _, lock := range shards {
		require.NoError(t, lock.Release(t.Context()))
	}
	acquireFor(t, b.config)
}

// As reconcile does: it leaves the period to whoever is at work on it.
func TestAcquire_isLostToALivingShard(t *testing.T) {
	b := setup(t)
	shard := acquireFor(t, shardOf(b.config, 1, 3))
	_, err := Acquire(t.Context(), rivalOf(b.config))
	require.Equal(t, shard.RunID(), asHeld(t, err).RunID)
}

// A run must not leave the period to a shard, which does a part of it; and no
// shard has a replica for its work, whoever does it now.
func TestAcquire_waitsForHoldersThatLeaveWorkUndone(t *testing.T) {
	run := func(c Config) Config {
		c.WaitFor = "reconcile"
		return rivalOf(c)
	}
	for name, tc := range map[string]struct{ holder, candidate func(Config) Config }{
		"a run for a shard": {func(c Config) Config { return shardOf(c, 0, 2) }, run},
		"a shard for a run": {func(c Config) Config { return c }, func(c Config) Config { return shardOf(c, 0, 2) }},
		"a shard for itself": {func(c Config) Config { return shardOf(c, 1, 2) },
			func(c Config) Config { return shardOf(c, 1, 2) }},
		"a shard for one of another number": {func(c Config) Config { return shardOf(c, 0, 2) },
			func(c Config) Config { return shardOf(c, 2, 3) }},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			holder := acquireFor(t, tc.holder(b.config))
			results := waiting(t, tc.candidate(b.config))
			require.NoError(t, context.Cause(holder.Context()))
			require.NoError(t, holder.Release(t.Context()))
			require.NoError(t, await(t, "the candidate to win", results).err)
		})
	}
}

// A candidate that was refused must keep nothing: its share would keep others
// out for as long as it waits.
func TestShard_keepsNothingWhileItWaits(t *testing.T) {
	b := setup(t)
	holder := acquireFor(t, shardOf(b.config, 0, 2))
	first, second := waiting(t, shardOf(b.config, 0, 3)), waiting(t, shardOf(b.config, 0, 2))
	// Its tries are short; what it kept would stay.
	eventually(t, "the holder to be alone", func() (alone bool) {
		b.scan(t, &alone, `SELECT count(DISTINCT pid) = 1 FROM pg_locks WHERE locktype = 'advisory' AND granted
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
		return alone
	})
	require.NoError(t, holder.Release(t.Context()))
	select { // whichever comes first keeps the other waiting
	case r := <-first:
		require.NoError(t, r.err)
		require.Empty(t, second)
		require.NoError(t, r.lock.Release(t.Context()))
		require.NoError(t, await(t, "the other", second).err)
	case r := <-second:
		require.NoError(t, r.err)
		require.Empty(t, first)
		require.NoError(t, r.lock.Release(t.Context()))
		require.NoError(t, await(t, "the other", first).err)
	}
}

func TestShards_ofTwoNumbersNeverLeadAtOnce(t *testing.T) {
	b := setup(t)
	config := b.config
	config.RetryPeriod = config.RetryPeriod / 5 // many tries
	watch := b.db.Pool(t)
	var g errgroup.Group
	for _, of := range []int{2, 3} {
		for i := range of {
			g.Go(func() error {
				for range 5 {
					lock, err := Acquire(t.Context(), shardOf(config, i, of))
					if err != nil {
						return err
					}
					var others int
					err = watch.QueryRow(t.Context(), `
						SELECT count(*) FROM duesday.runs JOIN pg_stat_activity a ON a.pid = backend_pid
						WHERE shards <> $1 AND finished_at IS NULL`, of).Scan(&others)
					if err == nil && others > 0 {
						err = fmt.Errorf("%d of another number than %d lead", others, of)
					}
					// Written down, as a run does, while it still leads.
					if _, ended := watch.Exec(t.Context(), `UPDATE duesday.runs SET finished_at = clock_timestamp() WHERE id = $1`, lock.RunID()); err == nil {
						err = ended
					}
					if released := lock.Release(t.Context()); err == nil {
						err = released
					}
					if err != nil {
						return err
					}
				}
				return nil
			})
		}
	}
	require.NoError(t, g.Wait())
}

func TestShard_isLostWithoutEitherLock(t *testing.T) {
	for name, unlock := range map[string]func(Config) (string, int64){
		"its own":      func(c Config) (string, int64) { return `SELECT pg_advisory_unlock($1)`, c.Shard.LockID },
		"the period's": func(c Config) (string, int64) { return `SELECT pg_advisory_unlock_shared($1)`, c.LockID },
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			config := shardOf(b.config, 0, 2)
			lock := acquireFor(t, config)
			sql, id := unlock(config)
			_ = lock.Do(t.Context(), func(ctx context.Context, conn *pgx.Conn) error {
				_, err := conn.Exec(ctx, sql, id)
				return err
			})
			requireLost(t, lock)
			require.ErrorContains(t, context.Cause(lock.Context()), "no longer holds")
		})
	}
}

func TestShard_ofAFrozenProcessPassesToItsReplacement(t *testing.T) {
	b := setup(t)
	sister := acquireFor(t, shardOf(b.config, 1, 2))
	frozen := startHolder(t, shardOf(b.hasty(), 0, 2))
	frozen.signal(t, syscall.SIGSTOP)
	replacement := acquireFor(t, shardOf(b.config, 0, 2))

	frozen.order(t, "fresh?")
	frozen.signal(t, syscall.SIGCONT)
	require.Equal(t, "fresh false", await(t, "an answer", frozen.answers))
	frozen.order(t, "await the end")
	require.Equal(t, "lost true", await(t, "the context to end", frozen.answers))
	require.True(t, holds(t, replacement, replacement.cfg.Shard.LockID))
	require.NoError(t, context.Cause(sister.Context()))
}

// The server ends a silent session of ours; one of a person's, the candidate.
func TestShard_endsASilentHolderOfItsLocks(t *testing.T) {
	for name, locks := range map[string]func(Config) []int64{
		"its own":                   func(c Config) []int64 { return []int64{c.Shard.LockID} },
		"the period's, exclusively": func(c Config) []int64 { return []int64{c.LockID} },
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			config := shardOf(b.hasty(), 0, 2)
			holder := b.db.Connect(t)
			for _, id := range locks(config) {
				_, err := holder.Exec(t.Context(), `SELECT pg_advisory_lock($1)`, id)
				require.NoError(t, err)
			}
			require.NoError(t, await(t, "the candidate to end the session", campaignFor(t, config)).err)
			require.Error(t, holder.Ping(t.Context()))
		})
	}
}

func TestConfigValidate_refusesShardsThatAreNone(t *testing.T) {
	for _, s := range []Shard{{Index: 0, Of: 1}, {Index: 2, Of: 2}, {Index: -1, Of: 3}} {
		config := Config{DatabaseURL: "postgres://", Command: "run", Period: "2026-10", Holder: "h",
			LeaseDuration: 15e9, RenewDeadline: 10e9, RetryPeriod: 2e9, Shard: &s}
		err := config.Validate()
		require.ErrorContains(t, err, "shard "+s.String())
		require.Equal(t, exitcode.Misconfigured, exitcode.Of(err))
	}
}
