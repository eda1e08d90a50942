package main

import (
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/internal/stripesim"
)

// curable are the faults that a run gets over by itself.
func curable(rate float64) map[stripesim.Kind]float64 {
	return map[stripesim.Kind]float64{
		stripesim.DropBefore: rate, stripesim.DropAfterCommit: rate, stripesim.Error500AfterCommit: rate,
		stripesim.Error503: rate, stripesim.Error429: rate, stripesim.LockTimeout429: rate, stripesim.Conflict409: rate,
		stripesim.Truncated200: rate, stripesim.HTML200: rate, stripesim.Latency: rate,
	}
}

// leaderOf waits for one of the processes to lead and returns its index.
func leaderOf(t testing.TB, ps ...*process) int {
	t.Helper()
	leader := -1
	eventually(t, "a leader", func() bool {
		for i, p := range ps {
			if len(p.logs(t, "advisory lock acquired")) > 0 {
				leader = i
			}
		}
		return leader >= 0
	})
	return leader
}

func TestRun_threeAtOnceWithOneKilledChargeEachCustomerOnce(t *testing.T) {
	t.Parallel()
	// Two kinds leave a slot in doubt for as long as Stripe knows its key.
	faults := curable(0.03)
	faults[stripesim.Error500BeforeCommit], faults[stripesim.Error500CommitLater] = 0.02, 0.02
	b := setup(t, stripesim.Options{Seed: 7, FaultRate: faults})
	customers := payers(120)
	b.add(t, customers...)

	var (
		ps      []*process
		once    sync.Once
		reached = make(chan struct{})
		killed  = make(chan struct{})
		commits = make(chan struct{}, 10_000)
	)
	b.sim.OnCommit(func(stripesim.Charge) {
		commits <- struct{}{}
		if len(commits) == 40 {
			// Hold the answer back until the leader is dead: charged, and never
			// told.
			once.Do(func() { close(reached) })
			select {
			case <-killed:
			case <-t.Context().Done():
			}
		}
	})
	for range 3 {
		ps = append(ps, b.run(t, "--rate=200"))
	}
	leading := leaderOf(t, ps...)
	await(t, "40 charges", reached)
	for i, p := range ps {
		if i == leading {
			continue
		}
		p.requireExit(t, 0)
		said := p.logs(t, "another replica leads, nothing to do here")
		require.Len(t, said, 1)
		require.Contains(t, said[0]["leader"], "/"+strconv.Itoa(ps[leading].cmd.Process.Pid))
	}
	ps[leading].kill(t)
	close(killed)

	replacement := b.run(t, "--rate=1000")
	code := replacement.exit(t)
	require.Contains(t, []int{0, 1}, code, "a curable fault ended the run")
	if left := b.tally(t)["claimed"]; left > 0 {
		require.Equal(t, 1, code, "slots are in doubt")
		require.Greater(t, left, 0)
	}
	b.sim.RollForward()
	b.age(t)
	b.finish(t)
	b.requireBilled(t, customers)
	require.NotZero(t, b.sim.Stats().Faults[stripesim.Error500BeforeCommit], "the seed shows no such fault")
}

func TestRun_threeAtOnceWithoutTroubleLeaveOneLeader(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	customers := payers(60)
	b.add(t, customers...)
	gate := make(chan struct{})
	b.sim.OnRequest(func(stripesim.Request) {
		select {
		case <-gate:
		case <-t.Context().Done():
		}
	})
	ps := []*process{b.run(t), b.run(t), b.run(t)}
	leading := leaderOf(t, ps...)
	for i, p := range ps {
		if i != leading {
			p.requireExit(t, 0)
			require.Empty(t, p.logs(t, "advisory lock acquired"))
		}
	}
	close(gate)
	ps[leading].requireExit(t, 0)
	b.requireBilled(t, customers)
	b.requireSettled(t)
	require.Equal(t, len(customers), b.posts(), "one request a customer is enough")
}

func TestRun_killedBetweenClaimAndChargeIsFinishedByTheNext(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	customers := payers(30)
	b.add(t, customers...)
	hung := make(chan struct{})
	b.sim.FaultNext(isPost, stripesim.Fault{Kind: stripesim.HangUntilReleased, Hung: hung, Release: make(chan struct{})})

	// The rate makes it claim one page and send no more than the one request.
	p := b.run(t, "--workers=1")
	await(t, "the first request", hung)
	p.kill(t)
	require.Empty(t, b.sim.Bank())
	require.Equal(t, map[string]int{"claimed": len(customers)}, b.tally(t), "claimed before sent")

	// The request that hangs holds its key, as at Stripe: the simulator is told
	// to forget it, as if it had never arrived.
	b.sim.Advance(25 * time.Hour)
	b.finish(t)
	b.requireBilled(t, customers)
}

func TestRun_killedBetweenChargeAndSettlementIsFinishedByTheNext(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	customers := payers(30)
	b.add(t, customers...)
	committed, dead := make(chan struct{}), make(chan struct{})
	var once sync.Once
	b.sim.OnCommit(func(stripesim.Charge) {
		once.Do(func() {
			close(committed)
			select {
			case <-dead:
			case <-t.Context().Done():
			}
		})
	})
	p := b.run(t, "--workers=1")
	await(t, "the first charge", committed)
	p.kill(t)
	close(dead)
	require.Len(t, b.sim.Bank(), 1)
	require.Equal(t, map[string]int{"claimed": len(customers)}, b.tally(t))

	b.finish(t)
	b.requireBilled(t, customers)
}

func TestRun_killedAgainAndAgainStillChargesEachOnce(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{Seed: 3, FaultRate: curable(0.02)})
	customers := payers(60)
	b.add(t, customers...)
	// At every tenth charge the process dies before it hears of it.
	var (
		mu    sync.Mutex
		count int
		doom  = make(chan chan struct{}, 1)
	)
	b.sim.OnCommit(func(stripesim.Charge) {
		mu.Lock()
		count++
		die := count%10 == 0 && count <= 50
		mu.Unlock()
		if die {
			dead := make(chan struct{})
			doom <- dead
			select {
			case <-dead:
			case <-t.Context().Done():
			}
		}
	})
	deaths := 0
	for {
		p := b.run(t, "--workers=4")
		select {
		case dead := <-doom:
			p.kill(t)
			close(dead)
			deaths++
			continue
		case <-p.done:
		case <-time.After(patience):
		}
		p.requireExit(t, 0)
		break
	}
	require.Equal(t, 5, deaths)
	b.requireBilled(t, customers)
	b.requireSettled(t)
}

// A process that was killed while it opened leaves nothing, or all.
func TestRun_killedWhileOpeningOpensAfresh(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	customers := payers(10)
	b.add(t, customers...)
	// The view waits for a lock that the test holds.
	b.exec(t, `
		CREATE FUNCTION wait_for_test() RETURNS boolean LANGUAGE plpgsql AS $$
		BEGIN
			PERFORM pg_advisory_xact_lock_shared(42);
			RETURN true;
		END $$;
		CREATE VIEW slow AS SELECT * FROM duesday.customers WHERE wait_for_test()`)
	conn := b.db.Connect(t)
	_, err := conn.Exec(b.ctx, `SELECT pg_advisory_lock(42)`)
	require.NoError(t, err)

	p := b.run(t, "--customers=slow")
	b.awaitBlocked(t)
	p.signal(t, syscall.SIGKILL)
	_, err = conn.Exec(b.ctx, `SELECT pg_advisory_unlock(42)`)
	require.NoError(t, err)
	await(t, "the killed process", p.done)

	b.finish(t, "--customers=slow")
	b.requireBilled(t, customers)
	require.Equal(t, len(customers), b.count(t, `SELECT count(*) FROM duesday.dues`))
}
