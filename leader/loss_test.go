package leader

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

func TestLock_isLostWithItsBackend(t *testing.T) {
	b := setup(t)
	lock := acquireFor(t, b.config)
	b.db.Exec(t, `SELECT pg_terminate_backend($1)`, lock.BackendPID())
	// Within a beat: long before the watchdog, which waits 15 s.
	select {
	case <-lock.Context().Done():
	case <-time.After(5 * time.Second):
		require.Fail(t, "the loss went unnoticed")
	}
	requireLost(t, lock)
}

func TestLock_isLostWhenItsBackendHoldsItNoMore(t *testing.T) {
	b := setup(t)
	lock := acquireFor(t, b.config)
	// What a pooler's DISCARD ALL would do.
	_ = lock.Do(t.Context(), func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `SELECT pg_advisory_unlock_all()`)
		return err
	})
	requireLost(t, lock)
	require.ErrorContains(t, context.Cause(lock.Context()), "no longer holds")
}

func TestLock_isLostWhenNoBeatIsConfirmed(t *testing.T) {
	b := setup(t)
	lock := acquireFor(t, b.hasty())
	locked, err := b.db.Connect(t).Begin(t.Context())
	require.NoError(t, err)
	_, err = locked.Exec(t.Context(), `LOCK TABLE duesday.runs`)
	require.NoError(t, err)
	requireLost(t, lock)
	require.ErrorContains(t, context.Cause(lock.Context()), "renew deadline")
	require.NoError(t, locked.Rollback(t.Context()))
}

func TestLock_isLostBehindABlackHole(t *testing.T) {
	b := setup(t)
	config := b.hasty()
	hole := newBlackHole(t, config.DatabaseURL)
	config.DatabaseURL = hole.url
	lock := acquireFor(t, config)

	swallowed := time.Now()
	hole.open()
	requireLost(t, lock)
	require.Less(t, time.Since(swallowed), config.RenewDeadline+3*time.Second)
	require.NoError(t, lock.Release(t.Context()))

	// The server, which heard nothing either, frees the lock.
	requireHeld(t, acquireFor(t, rivalOf(b.config)))
}

func TestDo_returnsFromABlackHole(t *testing.T) {
	b := setup(t)
	config := b.hasty()
	hole := newBlackHole(t, config.DatabaseURL)
	config.DatabaseURL = hole.url
	config.StatementTimeout = 300 * time.Millisecond
	for name, do := range map[string]func(*Lock) func(context.Context, func(context.Context, *pgx.Conn) error) error{
		"Do":     func(l *Lock) func(context.Context, func(context.Context, *pgx.Conn) error) error { return l.Do },
		"DoLong": func(l *Lock) func(context.Context, func(context.Context, *pgx.Conn) error) error { return l.DoLong },
	} {
		hole.close()
		config.LockID++
		lock := acquireFor(t, config)
		done := make(chan error, 1)
		go func() {
			done <- do(lock)(t.Context(), func(ctx context.Context, conn *pgx.Conn) error {
				hole.open()
				return selectOne(ctx, conn)
			})
		}()
		require.ErrorIs(t, await(t, name+" to return", done), ErrLost)
		requireLost(t, lock)
	}
}

func TestRelease_returnsFromABlackHole(t *testing.T) {
	b := setup(t)
	config := b.config
	hole := newBlackHole(t, config.DatabaseURL)
	config.DatabaseURL = hole.url
	lock, err := Acquire(t.Context(), config)
	require.NoError(t, err)
	hole.open()
	eventually(t, "a beat to vanish", func() bool { return hole.swallowed.Load() > 0 })
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	began := time.Now()
	require.Error(t, lock.Release(ctx))
	require.Less(t, time.Since(began), config.RenewDeadline/2)
}

func TestFresh_judgesByTheClockAlone(t *testing.T) {
	beat := time.Now()
	for _, test := range []struct {
		name  string
		now   time.Time
		fresh bool
	}{
		{"just confirmed", beat, true},
		{"in time", beat.Add(9 * time.Second), true},
		{"frozen past the deadline", beat.Add(10 * time.Second), false},
	} {
		ctx, cancel := context.WithCancelCause(context.Background())
		lock := &Lock{ctx: ctx, cfg: Config{RenewDeadline: 10 * time.Second, Now: func() time.Time { return test.now }}}
		lock.confirmed.Store(&beat)
		require.Equal(t, test.fresh, lock.Fresh(), test.name)
		cancel(ErrLost)
		require.False(t, lock.Fresh(), "%s, but lost", test.name)
	}
}
