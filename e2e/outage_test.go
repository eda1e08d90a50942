package e2e

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/e2e/cluster"
)

// Not parallel: nothing else can use the cluster meanwhile.
func TestAPIServerOutage_endsTheLeaderInTimeAndTheJobFinishesByItself(t *testing.T) {
	for _, outage := range []struct {
		name      string
		take, end func(*cluster.Cluster) error
	}{
		{"stopped",
			func(c *cluster.Cluster) error { return c.StopAPIServer() },
			func(c *cluster.Cluster) error { return c.StartAPIServer(context.Background()) }},
		{"hanging",
			func(c *cluster.Cluster) error { return c.PauseAPIServer() },
			func(c *cluster.Cluster) error { return c.ResumeAPIServer() }},
	} {
		t.Run(outage.name, func(t *testing.T) {
			if c, _ := onCluster(t); !c.Own() {
				require.ErrorIs(t, outage.take(c), cluster.ErrForeign)
				return
			}
			// The contract's lease: 15 s, given up after 10.
			const (
				customers     = 120
				leaseDuration = 15 * time.Second
				renewDeadline = 10 * time.Second
				down          = 30 * time.Second
			)
			b := newTeam(t)
			b.install(t, overlay{env: map[string]string{
				"DUESDAY_PERIOD": pastPeriod, "DUESDAY_RATE": "3", "DUESDAY_WORKERS": "4"}})
			b.add(t, customers)
			b.run(t, "outage")
			b.awaitPod(t, "outage", 0)
			leader := b.leader(t)
			eventually(t, "charges", func() bool { return len(b.sim.Bank()) > 0 })

			require.NoError(t, outage.take(b.cluster))
			began := time.Now()
			restore := sync.OnceValue(func() error { return outage.end(b.cluster) })
			t.Cleanup(func() { require.NoError(t, restore()) })
			eventually(t, "the outage to outlast the lease", func() bool { return time.Since(began) > leaseDuration+renewDeadline/2 })
			claimed, sent := b.count(t, `SELECT count(*) FROM duesday.charges`), b.sim.Bank()
			require.Less(t, claimed, customers, "too few customers to be interrupted")
			require.Equal(t, len(sent), b.count(t, `SELECT count(*) FROM duesday.charges WHERE status = 'succeeded'`), "in flight, and not settled")
			var lastClaim time.Time
			require.NoError(t, b.pool.QueryRow(t.Context(), `SELECT max(claimed_at) FROM duesday.charges`).Scan(&lastClaim))
			lastCharge := sent[len(sent)-1].Created
			t.Logf("the API server was gone: last claim %v later, last charge %v later", lastClaim.Sub(began), lastCharge.Sub(began))
			// The leader may have renewed at the very end, and no later.
			require.Less(t, lastClaim.Sub(began), renewDeadline+time.Second)
			require.Less(t, lastCharge.Sub(began), renewDeadline+time.Second)

			eventually(t, "the outage's end", func() bool { return time.Since(began) > down })
			require.Equal(t, claimed, b.count(t, `SELECT count(*) FROM duesday.charges`), "claimed without a lease")
			require.Len(t, b.sim.Bank(), len(sent), "charged without a lease")
			require.NoError(t, restore())

			require.Equal(t, leader, b.awaitPod(t, "outage", 1).Name)
			said := b.logs(t, leader, saysEnded)
			require.Len(t, said, 1)
			require.Contains(t, said[0]["error"], "lease lost")
			b.awaitComplete(t, "outage")
			b.requireBilled(t, customers)
		})
	}
}
