package main

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/internal/pgtest"
	"github.com/duesday/duesday/internal/stripesim"
)

// onTheWire holds the next n requests before they execute. It returns a wait
// for all of them to have come, and what lets them go.
func (b *bundle) onTheWire(n int, kind stripesim.Kind) (arrived func(testing.TB), release func()) {
	hung, gate := make(chan struct{}), make(chan struct{})
	faults := make([]stripesim.Fault, n)
	for i := range faults {
		faults[i] = stripesim.Fault{Kind: kind, Hung: hung, Release: gate}
	}
	b.sim.FaultNext(isPost, faults...)
	return func(t testing.TB) {
		t.Helper()
		for range n {
			await(t, "a request to hang", hung)
		}
	}, func() { close(gate) }
}

// atRequest calls f, once, when the n-th request that charges arrives.
func (b *bundle) atRequest(n int, f func()) {
	seen := make(chan struct{}, 100_000)
	b.sim.OnRequest(func(r stripesim.Request) {
		if !isPost(r) {
			return
		}
		seen <- struct{}{}
		if len(seen) == n {
			f()
		}
	})
}

// slowPages are flags with which a run claims 20 dues at a time and has at most
// two requests in flight: 40 dues are claimed when both hang.
var slowPages = []string{"--rate=10", "--workers=2"}

func flags(lists ...[]string) (all []string) {
	for _, l := range lists {
		all = append(all, l...)
	}
	return all
}

func (b *bundle) backend(t testing.TB) (pid int) {
	t.Helper()
	b.scan(t, &pid, `SELECT backend_pid FROM duesday.runs ORDER BY id LIMIT 1`)
	return pid
}

func (b *bundle) awaitNoBackend(t testing.TB, pid int) {
	t.Helper()
	eventually(t, "the session to end", func() bool {
		return b.count(t, `SELECT count(*) FROM pg_stat_activity WHERE pid = $1`, pid) == 0
	})
}

func TestRun_frozenLeaderIsReplacedAndDoesNothingWhenItWakes(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	customers := payers(100)
	b.add(t, customers...)
	arrived, release := b.onTheWire(2, stripesim.HangUntilReleased)

	frozen := b.run(t, flags(slowPages, shortLease)...)
	arrived(t)
	eventually(t, "both pages to be claimed", func() bool { return b.tally(t)["claimed"] == 40 })
	frozen.freeze(t)
	release() // charged, while nobody hears the answer

	next := b.run(t, shortLease...)
	next.requireExit(t, 0)
	b.awaitNoBackend(t, b.backend(t))
	b.requireBilled(t, customers)
	before := b.sim.Stats().Requests

	frozen.signal(t, syscall.SIGCONT)
	frozen.requireExit(t, 1)
	// Whichever is noticed first.
	require.Regexp(t, "advisory lock lost|leadership not confirmed in time", frozen.lastError(t))
	require.Equal(t, before, b.sim.Stats().Requests, "the woken process sent something")
	b.requireBilled(t, customers)
	b.requireSettled(t)
}

// With the keys pruned, anything that the woken process sends is a second
// charge: also what net/http would send again by itself, a request whose reused
// connection was closed without an answer.
func TestRun_frozenPastStripesMemoryOfTheKeysChargesNobodyAgain(t *testing.T) {
	t.Parallel()
	for _, kind := range []stripesim.Kind{stripesim.DropBefore, stripesim.DropAfterCommit} {
		t.Run("in flight meets "+string(kind), func(t *testing.T) {
			t.Parallel()
			b := setup(t, stripesim.Options{})
			customers := payers(60)
			b.add(t, customers...)
			const at = 20
			b.sim.FaultNext(isPost, append(make([]stripesim.Fault, at-1), stripesim.Fault{Kind: kind})...)
			reached, gate := make(chan struct{}), make(chan struct{})
			b.atRequest(at, func() {
				close(reached)
				select {
				case <-gate:
				case <-t.Context().Done():
				}
			})
			p := b.run(t, flags(shortLease, []string{"--rate=50", "--workers=1"})...)
			await(t, "the request", reached)
			p.freeze(t)
			if kind == stripesim.DropAfterCommit {
				// It executes after all, and only its answer is lost.
				close(gate)
				eventually(t, "the drop", func() bool { return b.sim.Stats().Faults[kind] == 1 })
			}
			next := b.run(t, shortLease...)
			next.requireExit(t, 0)
			b.requireBilled(t, customers)
			if kind == stripesim.DropBefore {
				close(gate)
				eventually(t, "the drop", func() bool { return b.sim.Stats().Faults[kind] == 1 })
			}
			b.sim.Advance(25 * time.Hour)
			before := b.sim.Stats().Requests

			p.signal(t, syscall.SIGCONT)
			p.requireExit(t, 1)
			require.Equal(t, before, b.sim.Stats().Requests, "the woken process sent something")
			b.requireBilled(t, customers)
			b.requireSettled(t)
		})
	}
}

func TestRun_thatLosesItsSessionClaimsNoMoreAndSettlesWhatIsInFlight(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	customers := payers(100)
	b.add(t, customers...)
	arrived, release := b.onTheWire(2, stripesim.HangUntilReleased)
	p := b.run(t, slowPages...)
	arrived(t)
	eventually(t, "both pages to be claimed", func() bool { return b.tally(t)["claimed"] == 40 })

	b.exec(t, `SELECT pg_terminate_backend(backend_pid) FROM duesday.runs`)
	p.awaitLog(t, "stopping: no new claims, waiting for what is in flight")
	release()
	p.requireExit(t, 1)
	require.Equal(t, map[string]int{"claimed": 38, "succeeded": 2}, b.tally(t), "claimed on, or did not settle")
	require.Len(t, b.sim.Succeeded(), 2)
	require.Contains(t, p.lastError(t), "advisory lock lost")
	require.EqualValues(t, 38, p.counts(t)["in_doubt"])

	b.finish(t)
	b.requireBilled(t, customers)
}

func TestRun_toldToStopSettlesWhatIsInFlightAndExitsOne(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{Latency: time.Second})
	customers := payers(100)
	b.add(t, customers...)
	p := b.run(t, slowPages...)
	eventually(t, "both pages to be claimed", func() bool { return b.tally(t)["claimed"] >= 38 })
	p.signal(t, syscall.SIGTERM)
	told := time.Now()
	p.requireExit(t, 1)
	require.Less(t, time.Since(told), 10*time.Second)
	require.Contains(t, p.lastError(t), "told to stop")

	paid, tally := len(b.sim.Succeeded()), b.tally(t)
	require.NotZero(t, paid)
	require.Equal(t, paid, tally["succeeded"], "what was in flight is not settled")
	require.LessOrEqual(t, tally["succeeded"]+tally["claimed"], 60)
	require.EqualValues(t, tally["claimed"], p.counts(t)["in_doubt"])
	require.Equal(t, 1, b.count(t, `SELECT exit_code FROM duesday.runs`))

	b.sim.SetLatency(0)
	b.finish(t)
	b.requireBilled(t, customers)
}

// A second SIGTERM does not wait, and still loses nothing.
func TestRun_toldTwiceStopsNow(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	customers := payers(20)
	b.add(t, customers...)
	arrived, release := b.onTheWire(2, stripesim.HangAfterCommit)
	p := b.run(t, "--workers=2")
	arrived(t)
	p.signal(t, syscall.SIGTERM)
	p.awaitLog(t, "stopping: no new claims, waiting for what is in flight")
	p.signal(t, syscall.SIGTERM)
	require.Equal(t, -1, p.exit(t), "ended by the signal")
	release()
	b.finish(t)
	b.requireBilled(t, customers)
}

func TestRun_toldToStopWhileItWaitsForTheLockExitsOne(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	b.add(t, payers(3)...)
	// A holder that is no run proves no life, and is waited for.
	conn := b.db.Connect(t)
	_, err := conn.Exec(b.ctx, `SELECT pg_advisory_lock(`+lockID+`)`)
	require.NoError(t, err)
	p := b.run(t)
	eventually(t, "the candidate", func() bool {
		return b.count(t, `SELECT count(*) FROM pg_stat_activity WHERE application_name = 'duesday run `+testPeriod+`' AND state = 'idle' AND datname = current_database()`) == 1
	})
	p.signal(t, syscall.SIGTERM)
	p.requireExit(t, 1)
	require.Contains(t, p.lastError(t), "told to stop")
	require.Empty(t, b.statuses(t))
	require.Empty(t, b.sim.Requests())
}

func TestRun_waitsForASessionThatHoldsTheLockAndIsNoRun(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	customers := payers(3)
	b.add(t, customers...)
	conn := b.db.Connect(t)
	_, err := conn.Exec(b.ctx, `SELECT pg_advisory_lock(`+lockID+`)`)
	require.NoError(t, err)
	b.run(t, shortLease...).requireExit(t, 0)
	b.requireBilled(t, customers)
}

func TestRun_outlivesAPostgresThatCrashes(t *testing.T) {
	t.Parallel()
	b := setupOn(t, pgtest.NewServer(t).NewDB(t), stripesim.Options{})
	customers := payers(100)
	b.add(t, customers...)
	arrived, release := b.onTheWire(2, stripesim.HangUntilReleased)
	p := b.run(t, slowPages...)
	arrived(t)
	eventually(t, "both pages to be claimed", func() bool { return b.tally(t)["claimed"] == 40 })

	require.NoError(t, b.db.Server.Restart(pgtest.Immediate))
	release()
	p.requireExit(t, 1)
	b.pool.Reset()
	require.Equal(t, map[string]int{"claimed": 38, "succeeded": 2}, b.tally(t),
		"a result in hand is kept until Postgres is back")

	b.finish(t)
	b.requireBilled(t, customers)
}

func TestRun_withoutPostgresExitsOne(t *testing.T) {
	t.Parallel()
	b := setupOn(t, pgtest.NewServer(t).NewDB(t), stripesim.Options{})
	customers := payers(30)
	b.add(t, customers...)
	arrived, release := b.onTheWire(2, stripesim.HangUntilReleased)
	p := b.run(t, "--workers=2")
	arrived(t)
	require.NoError(t, b.db.Server.Crash())
	p.awaitLog(t, "stopping: no new claims, waiting for what is in flight")
	release()
	p.requireExit(t, 1)
	require.Len(t, b.sim.Succeeded(), 2)

	b.run(t).requireExit(t, 1)

	require.NoError(t, b.db.Server.Restart(pgtest.Fast))
	b.pool.Reset()
	require.Equal(t, map[string]int{"claimed": 30}, b.tally(t))
	b.finish(t)
	b.requireBilled(t, customers)
}

func TestRun_throughATransactionPoolerIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	b.add(t, payers(3)...)
	url, err := pgtest.PgBouncer(t, b.db, "transaction")
	require.NoError(t, err)
	b.env["DATABASE_URL"] = url
	p := b.run(t)
	p.requireExit(t, 2)
	require.Contains(t, p.lastError(t), "transaction")
	require.Empty(t, b.statuses(t))
}
