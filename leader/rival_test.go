package leader

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/internal/exitcode"
	"github.com/duesday/duesday/internal/fence"
	"github.com/duesday/duesday/internal/pgtest"
)

// holdByHand takes the lock as a person at a prompt would: no run, no heart,
// no timeouts.
func (b *testBundle) holdByHand(t *testing.T, c Config) *pgx.Conn {
	t.Helper()
	conn := b.db.Connect(t)
	_, err := conn.Exec(t.Context(), `SELECT pg_advisory_lock($1)`, c.LockID)
	require.NoError(t, err)
	return conn
}

// countingLooks counts the candidate's glances at the clock, at least one a
// look.
func countingLooks(c Config) (Config, *atomic.Int64) {
	var looks atomic.Int64
	c.Now = func() time.Time {
		looks.Add(1)
		return time.Now()
	}
	return c, &looks
}

func TestAcquire_isLostOnlyOnceTheHeartBeats(t *testing.T) {
	b := setup(t)
	holder := b.holdByHand(t, b.config)
	var run int64
	require.NoError(t, holder.QueryRow(t.Context(), beginRun, "run", "2026-10", "quiet", b.config.LockID, nil, nil).Scan(&run, new(uint32)))

	config, looks := countingLooks(rivalOf(b.config))
	results := campaignFor(t, config)
	eventually(t, "the candidate to look often", func() bool { return looks.Load() > 20 })
	require.Empty(t, results, "a lock that is merely taken proves nothing")

	condition, args := b.config.held()
	_, err := holder.Exec(t.Context(), beatSQL+condition, append([]any{run}, args...)...)
	require.NoError(t, err)
	held := asHeld(t, await(t, "the candidate to see the beat", results).err)
	require.Equal(t, "quiet", held.Holder)
	require.Equal(t, run, held.RunID)
}

func TestAcquire_isNotLostToARunThatHasFinished(t *testing.T) {
	b := setup(t)
	lock := acquireFor(t, b.config)
	b.db.Exec(t, `UPDATE duesday.runs SET finished_at = clock_timestamp(), exit_code = 1 WHERE id = $1`, lock.RunID())
	config, looks := countingLooks(rivalOf(b.config))
	results := campaignFor(t, config)
	eventually(t, "the candidate to look often", func() bool { return looks.Load() > 20 })
	require.Empty(t, results)

	require.NoError(t, lock.Release(t.Context()))
	require.NoError(t, await(t, "the candidate to win", results).err)
}

func TestAcquire_isNotLostToARunOfAnEarlierBackend(t *testing.T) {
	b := setup(t)
	holder := b.holdByHand(t, b.config)
	// Its pid was used before, by a run that was killed.
	b.db.Exec(t, `
		INSERT INTO duesday.runs (command, billing_period, holder, lock_id, backend_pid, started_at)
		VALUES ('run', '2026-10', 'killed', $1, $2, clock_timestamp() - interval '1 day')`,
		b.config.LockID, holder.PgConn().PID())
	config, looks := countingLooks(rivalOf(b.config))
	results := campaignFor(t, config)
	eventually(t, "the candidate to look often", func() bool {
		b.db.Exec(t, `UPDATE duesday.runs SET beats = beats + 1`)
		return looks.Load() > 20
	})
	require.Empty(t, results)
}

func TestAcquire_endsASessionThatHoldsTheLockByHand(t *testing.T) {
	b := setup(t)
	holder := b.holdByHand(t, b.config)
	began := time.Now()
	result := await(t, "the candidate to end the session", campaignFor(t, rivalOf(b.hasty())))
	require.NoError(t, result.err)
	require.GreaterOrEqual(t, time.Since(began), b.hasty().endAfter())
	require.Error(t, holder.Ping(t.Context()))
}

func TestAcquire_givesUpOnAHolderAtOtherWork(t *testing.T) {
	b := setup(t)
	holder := b.holdByHand(t, b.config)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = holder.Exec(ctx, "SELECT pg_sleep(600)") // ends with the test
	}()
	t.Cleanup(func() { cancel(); <-done; <-holder.PgConn().CleanupDone() })
	eventually(t, "the holder to be at work", func() (busy bool) {
		b.scan(t, &busy, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1 AND state = 'active')`, holder.PgConn().PID())
		return busy
	})

	config := rivalOf(b.hasty())
	config.Patience = 2 * time.Second
	_, err := Acquire(t.Context(), config)
	require.ErrorContains(t, err, "showed no life for")
	require.Equal(t, exitcode.Unfinished, exitcode.Of(err))
	require.True(t, b.backendLives(t, holder.PgConn().PID()), "a backend at work is not ended")
}

func TestAcquire_refusesAPoolerInTransactionMode(t *testing.T) {
	b := setup(t)
	config := b.config
	url, err := pgtest.PgBouncer(t, b.db, "transaction")
	require.NoError(t, err)
	config.DatabaseURL = url
	_, err = Acquire(t.Context(), config)
	require.Equal(t, exitcode.Misconfigured, exitcode.Of(err))
	require.ErrorContains(t, err, "DATABASE_URL goes through a connection pooler in transaction mode")
	require.ErrorContains(t, err, "connect to Postgres directly")
}

func TestAcquire_worksThroughAPoolerInSessionMode(t *testing.T) {
	b := setup(t)
	config := b.config
	url, err := pgtest.PgBouncer(t, b.db, "session")
	require.NoError(t, err)
	config.DatabaseURL = url
	lock := acquireFor(t, config)
	requireHeld(t, lock)
	_, err = Acquire(t.Context(), rivalOf(b.config))
	require.Equal(t, lock.RunID(), asHeld(t, err).RunID)
}

func TestFence_knowsEveryLockID(t *testing.T) {
	b := setup(t)
	golden := int64(0x4b8a978372b6b342)
	require.Equal(t, golden, b.config.LockID)
	for _, id := range []int64{golden, -golden, -1, 0, 1, 1 << 31, 1 << 32, -1 << 63, 1<<63 - 1, -1 << 31} {
		config := b.config
		config.LockID = id
		lock := acquireFor(t, config)
		require.True(t, holds(t, lock, id), id)
		for _, other := range []int64{id ^ 1, id ^ 1<<32, id ^ -1<<63} {
			require.False(t, holds(t, lock, other), "holds %d, not %d", id, other)
		}
		var others bool
		b.scan(t, &others, "SELECT "+fence.Held("$1"), id)
		require.False(t, others, "another backend does not hold it")
	}
}

func TestProvesLife(t *testing.T) {
	run := func(beats int64, state, waitsFor string) sighting {
		id := int64(7)
		return sighting{run: &id, beats: &beats, state: &state, waitsFor: &waitsFor}
	}
	hidden := func(beats int64) sighting {
		s := run(beats, "", "")
		s.state, s.waitsFor = nil, nil
		return s
	}
	stranger := sighting{state: new(string), waitsFor: new(string)}
	*stranger.state = "active"
	for _, test := range []struct {
		name  string
		a, b  sighting
		alive bool
	}{
		{"the heart beat", run(1, "idle", "Client"), run(2, "idle", "Client"), true},
		{"the heart beat, state hidden", hidden(1), hidden(2), true},
		{"silence", run(1, "idle", "Client"), run(1, "idle", "Client"), false},
		{"silence, state hidden", hidden(1), hidden(1), false},
		{"at work twice", run(1, "active", ""), run(1, "active", "IO"), true},
		{"waiting for a row lock", run(1, "active", "Lock"), run(1, "active", "Lock"), true},
		{"at work once", run(1, "idle", "Client"), run(1, "active", ""), false},
		{"writing to a frozen client", run(1, "active", "Client"), run(1, "active", "Client"), false},
		{"idle in transaction", run(1, "idle in transaction", "Client"), run(1, "idle in transaction", "Client"), false},
		{"at work, but not on a run", stranger, stranger, false},
	} {
		require.Equal(t, test.alive, provesLife(test.a, test.b), test.name)
	}
}

func TestSameHolder(t *testing.T) {
	at, later := time.Unix(1, 0), time.Unix(2, 0)
	one, two := int64(1), int64(2)
	first := sighting{pid: 5, since: &at, run: &one}
	require.True(t, first.sameHolder(sighting{pid: 5, since: &at, run: &one}))
	require.True(t, sighting{pid: 5}.sameHolder(sighting{pid: 5}))
	for name, other := range map[string]sighting{
		"another backend":          {pid: 6, since: &at, run: &one},
		"the pid is used again":    {pid: 5, since: &later, run: &one},
		"another run":              {pid: 5, since: &at, run: &two},
		"the run has just begun":   {pid: 5, since: &at},
		"its age is hidden of now": {pid: 5, run: &one},
	} {
		require.False(t, first.sameHolder(other), name)
	}
}
