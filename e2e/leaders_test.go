package e2e

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/duesday/duesday/e2e/cluster"
)

func TestKilledContainer_isReplacedAndEachCustomerHasOneCharge(t *testing.T) {
	t.Parallel()
	const customers, inFlight = 60, 8
	b := installed(t, customers)
	arrived, release := b.hold(t, inFlight)
	b.run(t, "killed")
	arrived()
	dead := b.leader(t) // the other may still be a candidate, and take over itself
	eventually(t, "the kubelet to say that it runs", func() bool {
		p, err := b.client.CoreV1().Pods(b.ns).Get(t.Context(), dead, metav1.GetOptions{})
		require.NoError(t, err)
		return p.Status.Phase == corev1.PodRunning
	})
	err := b.cluster.KillContainer(t.Context(), b.ns, dead)
	if !b.cluster.Own() && errors.Is(err, cluster.ErrForeign) {
		return // not to be done on this cluster's nodes
	}
	require.NoError(t, err)

	b.awaitTakeover(t, "killed", dead)
	release() // what the dead one sent is charged only now
	b.awaitComplete(t, "killed")
	require.Equal(t, 1, b.exits(t, "killed")[137])
	b.requireBilled(t, customers)
}

func TestManualRerun_settlesWhatWasLeftInDoubt(t *testing.T) {
	t.Parallel()
	const customers, inFlight = 60, 8
	b := installed(t, customers)
	arrived, release := b.hold(t, inFlight)
	b.run(t, "gone")
	arrived()
	// Without its Job nobody replaces the pod.
	b.kubectl(t, "delete", "job", "gone", "--cascade=orphan")
	b.kubectl(t, "delete", "pod", "--all", "--grace-period=0", "--force")
	// That takes the pod's name away at once, and its process a little later.
	eventually(t, "the leader's death", func() bool {
		return b.count(t, `
			SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND pid IN (SELECT backend_pid FROM duesday.runs)`) == 0
	})
	release()
	eventually(t, "the dead one's charges", func() bool { return len(b.sim.Bank()) >= inFlight })
	require.GreaterOrEqual(t, b.count(t, `SELECT count(*) FROM duesday.charges WHERE status = 'claimed'`), inFlight)

	b.run(t, "rerun-1")
	b.awaitComplete(t, "rerun-1")
	b.requireBilled(t, customers)
	require.Len(t, b.said(t, "rerun-1", "recovering slots in doubt"), 1)
}
