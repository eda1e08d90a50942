package main

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/internal/stripesim"
)

// A reconcile holds the period's lock as a run does, but claims no due. A run
// that left the period to it would exit with 0, its Job would be complete, and
// the rest of the month would never be billed.
func TestRun_waitsForAReconcileSinceThatClaimsNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	all := payers(12)
	b.add(t, all...)
	committed, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	b.sim.FaultCustomer("cus_0001", stripesim.Fault{Kind: stripesim.HangAfterCommit},
		stripesim.Fault{Kind: stripesim.HangUntilReleased, Release: release})
	b.sim.OnCommit(func(stripesim.Charge) { once.Do(func() { close(committed) }) })
	crashed := b.run(t, "--rate=2", "--workers=1")
	await(t, "the first commit", committed)
	crashed.kill(t)
	require.Less(t, len(b.statuses(t)), len(all), "nothing is left to claim")

	reconcile := b.reconcile(t)
	reconcile.awaitLog(t, "recovering slots in doubt")
	run := b.run(t)
	run.awaitLog(t, "the advisory lock is held for other work, waiting for its end")
	close(release)
	reconcile.requireExit(t, 0)
	run.requireExit(t, 0)
	b.requireBilled(t, all)
	b.requireSettled(t)
}
