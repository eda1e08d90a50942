package leader

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/internal/exitcode"
	"github.com/duesday/duesday/internal/pgtest"
)

func TestAcquire_excludes(t *testing.T) {
	b := setup(t)
	first := acquireFor(t, b.config)
	requireHeld(t, first)

	_, err := Acquire(t.Context(), rivalOf(b.config))
	require.Equal(t, &HeldError{Holder: "first", RunID: first.RunID(), BackendPID: first.BackendPID()}, asHeld(t, err))
	requireHeld(t, first)

	elsewhere := b.config
	elsewhere.LockID++
	requireHeld(t, acquireFor(t, elsewhere))
}

func TestAcquire_writesTheRunDown(t *testing.T) {
	b := setup(t)
	lock := acquireFor(t, b.config)
	var wrote bool
	b.scan(t, &wrote, `
		SELECT command = 'run' AND billing_period = '2026-10' AND holder = 'first'
			AND lock_id = $2 AND backend_pid = $3 AND finished_at IS NULL
		FROM duesday.runs WHERE id = $1`, lock.RunID(), lock.ID(), lock.BackendPID())
	require.True(t, wrote)
	eventually(t, "the heart to beat", func() bool { return b.beats(t, lock.RunID()) >= 3 })
}

func TestAcquire_endsWithItsContext(t *testing.T) {
	b := setup(t)
	b.holdByHand(t, b.config)
	ctx, cancel := context.WithCancel(t.Context())
	config, looked := countingLooks(rivalOf(b.config))
	done := make(chan error)
	go func() {
		_, err := Acquire(ctx, config)
		done <- err
	}()
	eventually(t, "the candidate to look", func() bool { return looked.Load() > 3 })
	cancel()
	require.ErrorIs(t, await(t, "Acquire to return", done), context.Canceled)
}

func TestAcquire_refusesWhatCannotWork(t *testing.T) {
	b := setup(t)
	for name, spoil := range map[string]func(*Config){
		"renew deadline not below lease":     func(c *Config) { c.RenewDeadline = c.LeaseDuration },
		"retry period not below deadline":    func(c *Config) { c.RetryPeriod = c.RenewDeadline },
		"lease below a second":               func(c *Config) { c.LeaseDuration = 999 * time.Millisecond },
		"no holder":                          func(c *Config) { c.Holder = "" },
		"database URL that cannot be parsed": func(c *Config) { c.DatabaseURL = "postgres://localhost:port/" },
		"database without the schema":        func(c *Config) { c.DatabaseURL = pgtest.New(t).URL },
	} {
		config := b.config
		spoil(&config)
		_, err := Acquire(t.Context(), config)
		require.Equal(t, exitcode.Misconfigured, exitcode.Of(err), "%s: %v", name, err)
	}

	away := b.config
	away.DatabaseURL = "postgres://127.0.0.1:1/"
	_, err := Acquire(t.Context(), away)
	require.Equal(t, exitcode.Unfinished, exitcode.Of(err), "an outage is worth another try")
}

func TestRelease_freesTheLockAtOnce(t *testing.T) {
	b := setup(t)
	lock := acquireFor(t, b.config)
	require.NoError(t, lock.Release(t.Context()))
	require.NoError(t, lock.Release(t.Context()))
	require.Error(t, lock.Context().Err())
	require.NotErrorIs(t, context.Cause(lock.Context()), ErrLost)
	require.False(t, lock.Fresh())
	require.Error(t, lock.Do(t.Context(), selectOne))

	var free bool
	b.scan(t, &free, `SELECT pg_try_advisory_lock($1)`, lock.ID())
	require.True(t, free)
}

func TestRelease_waitsForADoInProgress(t *testing.T) {
	b := setup(t)
	lock := acquireFor(t, b.config)
	began, finish, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		done <- lock.Do(t.Context(), func(ctx context.Context, conn *pgx.Conn) error {
			close(began)
			<-finish
			return selectOne(ctx, conn)
		})
	}()
	await(t, "Do to begin", began)
	released := make(chan error, 1)
	go func() { released <- lock.Release(context.Background()) }()
	await(t, "the lock's context to end", lock.Context().Done())
	require.Empty(t, released)
	close(finish)
	require.NoError(t, await(t, "Do to return", done))
	require.NoError(t, await(t, "Release to return", released))
}

func TestDo_isNotCancelledByItsContext(t *testing.T) {
	b := setup(t)
	lock := acquireFor(t, b.config)
	ctx, cancel := context.WithCancel(t.Context())
	require.NoError(t, lock.Do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		cancel()
		return selectOne(ctx, conn)
	}))
	requireHeld(t, lock)
}

func TestDo_timesOutAtTheServerAndKeepsTheLock(t *testing.T) {
	b := setup(t)
	config := b.config
	config.RetryPeriod = config.RenewDeadline - 200*time.Millisecond
	lock := acquireFor(t, config)
	err := lock.Do(t.Context(), func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "SELECT pg_sleep(60)")
		return err
	})
	require.ErrorContains(t, err, "statement timeout")
	requireHeld(t, lock)
}

func TestDo_rollsBackATransactionLeftOpen(t *testing.T) {
	b := setup(t)
	lock := acquireFor(t, b.config)
	err := lock.Do(t.Context(), func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "BEGIN; CREATE TABLE public.leftover ()")
		return err
	})
	require.ErrorContains(t, err, "left open")
	var exists bool
	b.scan(t, &exists, `SELECT to_regclass('public.leftover') IS NOT NULL`)
	require.False(t, exists)
	requireHeld(t, lock)
}

func TestDo_keepsTheLockFreshUnderLoad(t *testing.T) {
	b := setup(t)
	config := b.config
	config.RetryPeriod = 100 * time.Millisecond
	lock := acquireFor(t, config)
	// The connection is never idle, so the heart alone might never get a turn.
	before := b.beats(t, lock.RunID())
	for end := time.Now().Add(time.Second); time.Now().Before(end); {
		require.NoError(t, lock.Do(t.Context(), selectOne))
	}
	require.Greater(t, b.beats(t, lock.RunID()), before+3)
	requireHeld(t, lock)
}

func TestDoLong_outlastsTheLeaseAndPassesForLife(t *testing.T) {
	b := setup(t)
	config := b.hasty()
	config.LeaseDuration, config.RenewDeadline = 1500*time.Millisecond, 1200*time.Millisecond
	lock := acquireFor(t, config)
	began, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- lock.DoLong(t.Context(), func(ctx context.Context, conn *pgx.Conn) error {
			close(began)
			_, err := conn.Exec(ctx, "SELECT pg_sleep(3)")
			return err
		})
	}()
	await(t, "DoLong to begin", began)
	beats := b.beats(t, lock.RunID())
	_, err := Acquire(t.Context(), rivalOf(config))
	require.Equal(t, lock.RunID(), asHeld(t, err).RunID)
	require.Equal(t, beats, b.beats(t, lock.RunID()), "the heart cannot have beaten")
	eventually(t, "the lock to be stale", func() bool { return !lock.Fresh() })
	require.NoError(t, lock.Context().Err())

	require.NoError(t, await(t, "DoLong to return", done))
	require.True(t, lock.Fresh())
	var timeout string
	require.NoError(t, lock.Do(t.Context(), func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "SHOW statement_timeout").Scan(&timeout)
	}))
	require.Equal(t, "1100ms", timeout, "DoLong's timeout must not outlast it")
}

func TestDoLong_isBoundedAtTheServer(t *testing.T) {
	b := setup(t)
	config := b.config
	config.StatementTimeout = 100 * time.Millisecond
	lock := acquireFor(t, config)
	err := lock.DoLong(t.Context(), func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "SELECT pg_sleep(60)")
		return err
	})
	require.ErrorContains(t, err, "statement timeout")
	requireHeld(t, lock)
}
