package main

import (
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/internal/stripesim"
)

// shard starts shard i of n.
func (b *bundle) shard(t testing.TB, i, n int, flags ...string) *process {
	t.Helper()
	return b.run(t, append([]string{fmt.Sprintf("--shards=%d", n), fmt.Sprintf("--shard=%d", i)}, flags...)...)
}

func (b *bundle) allShards(t testing.TB, n int, flags ...string) []*process {
	t.Helper()
	var all []*process
	for i := range n {
		all = append(all, b.shard(t, i, n, flags...))
	}
	return all
}

// doomAt returns a channel that tells of each of these commits, and holds its
// answer back until it is told that whoever had to die is dead.
func (b *bundle) doomAt(t testing.TB, commits ...int) <-chan chan struct{} {
	var (
		mu    sync.Mutex
		count int
		doom  = make(chan chan struct{}, len(commits))
	)
	b.sim.OnCommit(func(stripesim.Charge) {
		mu.Lock()
		count++
		die := slices.Contains(commits, count)
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
	return doom
}

// Four shards, killed one by one and then all; three finish what they left,
// with kills on.
func TestRun_shardsThatAreKilledAndThenFewerChargeEachCustomerOnce(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{Seed: 5, FaultRate: curable(0.02)})
	customers := payers(160)
	b.add(t, customers...)
	doom := b.doomAt(t, 25, 50, 75, 110, 130)
	flags := []string{"--rate=32", "--workers=2"} // 8 a second each: pages of 16

	four := b.allShards(t, 4, flags...)
	for _, victims := range [][]int{{0}, {1, 2}} {
		dead := await(t, "a commit", doom)
		for _, i := range victims {
			four[i].kill(t)
			four[i] = b.shard(t, i, 4, flags...)
		}
		close(dead)
	}
	dead := await(t, "a commit", doom)
	for _, p := range four {
		p.kill(t)
	}
	close(dead)
	tally := b.tally(t)
	require.NotZero(t, tally["claimed"], "nothing is in doubt")
	require.Less(t, len(b.statuses(t)), len(customers), "nothing is left to claim")

	three := b.allShards(t, 3, "--rate=90", "--workers=2")
	for _, victim := range []int{2, 0} {
		dead := await(t, "a commit", doom)
		three[victim].kill(t)
		three[victim] = b.shard(t, victim, 3, "--rate=90", "--workers=2")
		close(dead)
	}
	for _, p := range three {
		p.requireExit(t, 0)
	}
	b.requireBilled(t, customers)
	b.requireSettled(t)
	b.run(t).requireExit(t, 0)
	require.Equal(t, len(customers), b.count(t, `SELECT count(*) FROM duesday.charges`))
}

func TestRun_aShardThatIsDoneLeavesTheRestToItsSisters(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	customers := payers(60)
	b.add(t, customers...)
	first := b.shard(t, 1, 3)
	first.requireExit(t, 0)
	done := first.logs(t, "shard done, the others go on")
	require.Len(t, done, 1, tail(first.err.String()))
	require.Equal(t, "1 of 3", done[0]["shard"])
	require.Equal(t, false, done[0]["settled"])
	require.Zero(t, b.count(t, `SELECT count(*) FROM duesday.periods WHERE settled_at IS NOT NULL`))
	require.Equal(t, "shard done", b.text(t, `SELECT outcome FROM duesday.runs`))
	own := 0
	for _, c := range customers {
		if charges.ShardOf(c.id, 3) == 1 {
			own++
		}
	}
	require.Len(t, b.sim.Succeeded(), own)
	b.shard(t, 1, 3).requireExit(t, 0)

	rest := []*process{b.shard(t, 0, 3), b.shard(t, 2, 3)}
	settled := 0
	for _, p := range rest {
		p.requireExit(t, 0)
		settled += len(p.logs(t, "period settled"))
	}
	require.NotZero(t, settled)
	b.requireBilled(t, customers)
	b.requireSettled(t)
	require.Len(t, b.shard(t, 1, 3).exited(t, 0).logs(t, "period already settled, nothing to do"), 1)
}

// Whoever wants the period alone, and shards of another number, wait: living
// shards do a part of the work. A reconcile leaves the period to them.
func TestRun_besideLivingShardsWaitsForTheirEnd(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	customers := payers(40)
	b.add(t, customers...)
	arrived, release := b.onTheWire(4, stripesim.HangUntilReleased)
	two := b.allShards(t, 2, "--workers=2")
	arrived(t)

	const waits = "the advisory lock is held for other work, waiting for its end"
	alone, other, same := b.run(t), b.shard(t, 2, 3), b.shard(t, 0, 2)
	for _, p := range []*process{alone, other, same} {
		p.awaitLog(t, waits)
	}
	reconcile := b.reconcile(t)
	require.NotContains(t, two[0].logs(t, "run begins")[0], "totals", "they are the whole month's")
	reconcile.requireExit(t, 0) // what is in doubt there is theirs
	require.Len(t, reconcile.logs(t, "nothing else is in doubt or processing"), 1)
	require.Len(t, reconcile.logs(t, "another process is at work on the period, it is left to it"), 1)
	require.Equal(t, 2, b.count(t, `SELECT count(*) FROM duesday.runs`))

	release()
	for _, p := range append(two, alone, other, same) {
		p.requireExit(t, 0)
	}
	b.requireBilled(t, customers)
	b.requireSettled(t)
	require.Equal(t, len(customers), b.posts(), "one request a customer is enough")
}

func TestRun_shardsWaitForARunOfTheWholePeriod(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	customers := payers(40)
	b.add(t, customers...)
	arrived, release := b.onTheWire(2, stripesim.HangUntilReleased)
	alone := b.run(t, slowPages...)
	arrived(t)
	two := b.allShards(t, 2)
	for _, p := range two {
		p.awaitLog(t, "the advisory lock is held for other work, waiting for its end")
	}
	alone.signal(t, syscall.SIGKILL)
	release()
	for _, p := range two {
		p.requireExit(t, 0)
	}
	b.requireBilled(t, customers)
	b.requireSettled(t)
}

func TestRun_aFrozenShardIsReplacedAndDoesNothingWhenItWakes(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	customers := payers(80)
	b.add(t, customers...)
	arrived, release := b.onTheWire(2, stripesim.HangUntilReleased)
	frozen := b.shard(t, 0, 2, flags(slowPages, shortLease)...)
	arrived(t)
	frozen.freeze(t)
	before := b.sim.Stats().Requests
	sister := b.shard(t, 1, 2, shortLease...)
	sister.requireExit(t, 0)
	require.Zero(t, b.count(t, `SELECT count(*) FROM duesday.periods WHERE settled_at IS NOT NULL`))
	require.Greater(t, b.sim.Stats().Requests, before)

	release() // as if the frozen one's requests arrive after all
	replacement := b.shard(t, 0, 2, shortLease...)
	replacement.requireExit(t, 0)
	b.requireBilled(t, customers)
	b.requireSettled(t)
	sent := b.sim.Stats().Requests
	frozen.signal(t, syscall.SIGCONT)
	frozen.requireExit(t, 1)
	require.Equal(t, sent, b.sim.Stats().Requests, "the woken shard sent something")
	b.requireBilled(t, customers)
}

// One opens and the others wait; a killed one leaves nothing, and the next
// opens.
func TestRun_shardsOpenThePeriodOnce(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	customers := payers(30)
	b.add(t, customers...)
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

	opener := b.shard(t, 0, 3, "--customers=slow")
	b.awaitBlocked(t)
	rest := []*process{b.shard(t, 1, 3, "--customers=slow"), b.shard(t, 2, 3, "--customers=slow")}
	eventually(t, "the others to wait for their turn", func() bool {
		return b.count(t, `SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory' AND datname = current_database()`) == 3
	})
	opener.kill(t)
	// The killed one's statement goes on until the server looks after its client.
	_, err = conn.Exec(b.ctx, `SELECT pg_advisory_unlock(42)`)
	require.NoError(t, err)
	again := b.shard(t, 0, 3, "--customers=slow")
	for _, p := range append(rest, again) {
		p.requireExit(t, 0)
	}
	b.requireBilled(t, customers)
	b.requireSettled(t)
	opened := 0
	for _, p := range append(rest, again, opener) {
		opened += len(p.logs(t, "period opened"))
	}
	require.Equal(t, 1, opened)
}

func TestRun_shardsAskAgainForDeclines(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	customers := payers(40)
	b.add(t, customers...)
	for _, c := range customers[:10] {
		b.sim.Decline(c.stripeID, "card_declined", "insufficient_funds")
	}
	for _, p := range b.allShards(t, 2) {
		p.requireExit(t, 0)
	}
	b.requireSettled(t)
	b.exec(t, `UPDATE duesday.charges SET settled_at = settled_at - interval '4 days' WHERE status = 'declined'`)
	for _, c := range customers[:10] {
		b.sim.Pays(c.stripeID)
	}
	for _, p := range b.allShards(t, 2, "--retry-declined") {
		p.requireExit(t, 0)
	}
	require.Len(t, b.sim.Succeeded(), len(customers))
	require.Equal(t, 10, b.count(t, `SELECT count(*) FROM duesday.charges WHERE attempt = 2`))
	b.requireSettled(t)
}

func TestRun_refusesShardsThatCannotWork(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	for _, test := range []struct {
		flags []string
		index string
		want  string
	}{
		{flags: []string{"--shards=0"}, want: "--shards 0: want from 1 to 100"},
		{flags: []string{"--shards=101"}, want: "--shards 101: want from 1 to 100"},
		{flags: []string{"--shards=4"}, want: "--shards 4: which of them is this? want --shard, from 0 to 3, or a Job of completionMode Indexed"},
		{flags: []string{"--shards=4"}, index: "4", want: "shard 4 of --shards 4: want from 0 to 3; an Indexed Job's completions must be as many as the shards"},
		{flags: []string{"--shards=4"}, index: "x", want: `JOB_COMPLETION_INDEX="x": want a number, as an Indexed Job sets it`},
		{flags: []string{"--shards=2", "--shard=0"}, index: "1", want: "--shard 0: this pod of an Indexed Job has index 1, whose customers nobody would bill; leave --shard out"},
		{flags: []string{"--shards=3"}, index: "1", want: "--shards 3 in an Indexed Job: JOB_NAME must name the pod's Job, in its cluster, to see that it has completions: 3"},
		{flags: []string{"--shard=1"}, want: "--shard 1: of how many? want --shards too"},
		{flags: []string{"--shards=2", "--shard=0", "--reopen"}, want: "--reopen needs the period alone, want --shards 1: run it once without shards; it bills what is left, too"},
		{flags: []string{"--shards=2", "--shard=0", "--after-restore"}, want: "--after-restore needs the period alone, want --shards 1: run it once without shards; it bills what is left, too"},
		{flags: []string{"--shards=2", "--shard=0", "--vault-url=http://localhost:1"}, want: "--vault-url: want --shards 1: a period has one vault key, and each shard's would end its sisters'"},
	} {
		env := b.env
		if test.index != "" {
			env = with(env, "JOB_COMPLETION_INDEX", test.index)
		}
		p := start(t, env, append([]string{"run", "--leader-elect=false", "--period=" + testPeriod, "--allow-future"}, test.flags...)...)
		p.requireExit(t, 2)
		require.Equal(t, test.want, p.complaint(t))
	}
	require.Zero(t, b.count(t, `SELECT count(*) FROM duesday.periods`))
}

func TestSplit_dividesTheRate(t *testing.T) {
	t.Parallel()
	p := &program{env: func(name string) (string, bool) { return "2", name == "JOB_COMPLETION_INDEX" }}
	for _, test := range []struct {
		shards, shard int
		want          charges.Shard
		rate          float64
	}{
		{1, -1, charges.Shard{}, 20},
		{4, -1, charges.Shard{Index: 2, Of: 4}, 5},
		{8, 2, charges.Shard{Index: 2, Of: 8}, 2.5},
	} {
		f := runFlags{sendingFlags: sendingFlags{rate: 20}, shardFlags: shardFlags{test.shards, test.shard}}
		got, err := p.split(&f)
		require.NoError(t, err)
		require.Equal(t, test.want, got)
		require.InDelta(t, test.rate, f.rate, 1e-9)
	}
}

// Each index of the Job leads by a Lease of its own, and waits for whoever has
// it: exit code 0 completes the index.
func TestRun_inAnIndexedJobLeadsByTheShardsLease(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	customers := payers(30)
	b.add(t, customers...)
	for i := range 2 {
		pod := newPod(t, with(b.env, "JOB_COMPLETION_INDEX", fmt.Sprint(i), "DUESDAY_SHARDS", "2"))
		pod.api.PutIndexes(podNamespace, jobName, 2)
		name := fmt.Sprintf("duesday-shard-%d", i)
		pod.api.PutLease(podNamespace, name, coordinationv1.LeaseSpec{})
		holders := make(chan string, 1000)
		b.sim.OnRequest(func(stripesim.Request) { holders <- *pod.api.Lease(podNamespace, name).Spec.HolderIdentity })
		require.Equal(t, 0, pod.run(), pod.log.String())
		require.Regexp(t, fmt.Sprintf("@%s:%s:shard-%d-of-2$", testNamespace, testPeriod, i), <-holders)
		require.Empty(t, *pod.api.Lease(podNamespace, name).Spec.HolderIdentity)
		require.Nil(t, pod.api.Lease(podNamespace, "duesday").Spec.HolderIdentity)
		require.Empty(t, pod.api.Denied())
	}
	b.requireBilled(t, customers)
	b.requireSettled(t)
}

// Two indexes for three shards would complete the Job with a third never billed.
func TestRun_inAnIndexedJobOfAnotherSizeIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	b.add(t, payers(3)...)
	pod := newPod(t, with(b.env, "JOB_COMPLETION_INDEX", "0", "DUESDAY_SHARDS", "3"))
	pod.api.PutIndexes(podNamespace, jobName, 2)
	require.Equal(t, 2, pod.run(), pod.log.String())
	require.Contains(t, pod.log.String(), "--shards 3: Job duesday-29900159 has completions: 2; want as many")
	require.Zero(t, b.count(t, `SELECT count(*) FROM duesday.runs`))

	pod.refuse("jobs", 503)
	require.Equal(t, 1, pod.run("--period="+testPeriod, "--renew-deadline=2s", "--lease-duration=3s"), "an outage is worth another try")
}

func (b *bundle) text(t testing.TB, sql string) (text string) {
	t.Helper()
	b.scan(t, &text, sql)
	return text
}

// exited waits for the end with this exit code.
func (p *process) exited(t testing.TB, code int) *process {
	t.Helper()
	p.requireExit(t, code)
	return p
}
