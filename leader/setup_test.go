package leader

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/internal/fence"
	"github.com/duesday/duesday/internal/pgtest"
)

func TestMain(m *testing.M) {
	if config := os.Getenv(holderConfig); config != "" {
		if err := holdForParent(config); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	pgtest.Main(m, pgtest.CheckLeaks())
}

// patience bounds what is awaited; a test that waits so long fails.
const patience = 30 * time.Second

type testBundle struct {
	db     *pgtest.DB
	config Config
}

// setup returns a migrated database and a configuration under which a live
// holder is not taken for a silent one even on a busy machine.
func setup(t *testing.T) *testBundle {
	t.Helper()
	t.Parallel()
	db := pgtest.New(t)
	_, err := charges.Migrate(t.Context(), db.Connect(t))
	require.NoError(t, err)
	return &testBundle{db: db, config: Config{
		DatabaseURL:   db.URL,
		LockID:        charges.LockID("monthly-billing", "2026-10"),
		Command:       "run",
		Period:        "2026-10",
		Holder:        "first",
		LeaseDuration: 20 * time.Second,
		RenewDeadline: 15 * time.Second,
		RetryPeriod:   50 * time.Millisecond,
		Log:           zaptest.NewLogger(t),
	}}
}

// hasty returns the configuration with durations short enough to be waited for.
func (b *testBundle) hasty() Config {
	c := b.config
	c.LeaseDuration, c.RenewDeadline, c.RetryPeriod = time.Second, 700*time.Millisecond, 100*time.Millisecond
	c.Patience = patience
	return c
}

func rivalOf(c Config) Config {
	c.Holder = "rival"
	return c
}

// acquire takes the lock and releases it when the test ends.
func acquireFor(t *testing.T, c Config) *Lock {
	t.Helper()
	lock, err := Acquire(t.Context(), c)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, lock.Release(context.Background())) })
	return lock
}

type result struct {
	lock *Lock
	err  error
}

// campaignFor acquires in the background, and releases what it got when the
// test ends.
func campaignFor(t *testing.T, c Config) <-chan result {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	results, done := make(chan result, 1), make(chan struct{})
	var got result
	go func() {
		defer close(done)
		got.lock, got.err = Acquire(ctx, c)
		results <- got
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		if got.lock != nil {
			require.NoError(t, got.lock.Release(context.Background()))
		}
	})
	return results
}

func await[T any](t *testing.T, what string, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(patience):
		require.FailNow(t, "waited in vain for "+what)
		panic("unreachable")
	}
}

func requireLost(t *testing.T, lock *Lock) {
	t.Helper()
	await(t, "the lock's context to end", lock.Context().Done())
	require.ErrorIs(t, context.Cause(lock.Context()), ErrLost)
	require.False(t, lock.Fresh())
	require.ErrorIs(t, lock.Do(context.Background(), selectOne), ErrLost)
}

func requireHeld(t *testing.T, lock *Lock) {
	t.Helper()
	require.NoError(t, context.Cause(lock.Context()))
	require.True(t, holds(t, lock, lock.ID()))
	require.True(t, lock.Fresh())
}

func holds(t *testing.T, lock *Lock, id int64) (held bool) {
	t.Helper()
	require.NoError(t, lock.Do(t.Context(), func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "SELECT "+fence.Held("$1"), id).Scan(&held)
	}))
	return held
}

func selectOne(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, "SELECT 1")
	return err
}

func (b *testBundle) beats(t *testing.T, run int64) (beats int64) {
	t.Helper()
	b.scan(t, &beats, `SELECT beats FROM duesday.runs WHERE id = $1`, run)
	return beats
}

func (b *testBundle) backendLives(t *testing.T, pid uint32) (lives bool) {
	t.Helper()
	b.scan(t, &lives, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)`, pid)
	return lives
}

func (b *testBundle) scan(t *testing.T, into any, sql string, args ...any) {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), b.db.URL)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(context.Background())) }()
	require.NoError(t, conn.QueryRow(context.Background(), sql, args...).Scan(into))
}

// eventually is require.Eventually, but on the test's own goroutine, where
// happened may fail the test.
func eventually(t *testing.T, what string, happened func() bool) {
	t.Helper()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for began := time.Now(); !happened(); <-ticker.C {
		require.Less(t, time.Since(began), patience, "waited in vain for "+what)
	}
}

func asHeld(t *testing.T, err error) *HeldError {
	t.Helper()
	var held *HeldError
	require.True(t, errors.As(err, &held), "want a HeldError, got %v", err)
	return held
}
