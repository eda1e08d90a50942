package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const saysShardDone = "shard done, the others go on"

// shardPod is the pod that holds the shard's Lease.
func (b *team) shardPod(t *testing.T, shard int) (pod string) {
	t.Helper()
	eventually(t, fmt.Sprintf("a leader of shard %d", shard), func() bool {
		l, err := b.client.CoordinationV1().Leases(b.ns).Get(t.Context(), fmt.Sprintf("duesday-shard-%d", shard), metav1.GetOptions{})
		require.NoError(t, err)
		pod = holder(l)
		return pod != ""
	})
	return pod
}

func indexOf(p corev1.Pod) string { return p.Labels[batchv1.JobCompletionIndexAnnotation] }

// An index is complete when its own part is done, the Job when all are, and the
// period is settled by then: b.job looks for that at each moment.
func TestShards_aKilledOneIsFinishedByItsReplacement(t *testing.T) {
	t.Parallel()
	const customers, shards, workers = 120, 3, 8
	b := newTeam(t)
	o := ofPastPeriod()
	o.base = "examples/shards"
	b.install(t, o)
	b.add(t, customers)
	arrived, release := b.hold(t, shards*workers)
	b.run(t, "split")
	arrived() // all workers of all shards are at Stripe
	victim := b.shardPod(t, 1)
	for _, p := range b.pods(t, "split") {
		require.Equal(t, p.Name == victim, indexOf(p) == "1", "index %s leads by another's Lease", indexOf(p))
	}
	require.NoError(t, b.cluster.KillContainer(t.Context(), b.ns, victim))
	killed := b.awaitPod(t, "split", 137)
	require.Equal(t, victim, killed.Name)
	release()

	b.awaitComplete(t, "split")
	b.requireBilled(t, customers)
	require.Equal(t, map[int32]int{0: shards, 137: 1}, b.exits(t, "split"))
	job := b.job(t, "split")
	require.Equal(t, "0-2", job.Status.CompletedIndexes)
	require.Empty(t, *job.Status.FailedIndexes)
	var indexes []string
	for _, p := range b.pods(t, "split") {
		if e := ended(p); e.ExitCode == 0 {
			indexes = append(indexes, indexOf(p))
		}
	}
	slices.Sort(indexes)
	require.Equal(t, []string{"0", "1", "2"}, indexes)
	require.NotEmpty(t, b.said(t, "split", saysSettled))
	require.Len(t, append(b.said(t, "split", saysSettled), b.said(t, "split", saysShardDone)...), shards)
	for i := range shards {
		l, err := b.client.CoordinationV1().Leases(b.ns).Get(t.Context(), fmt.Sprintf("duesday-shard-%d", i), metav1.GetOptions{})
		require.NoError(t, err)
		require.Empty(t, holder(l), "its Lease was not given back")
	}

	can := func(what string) string {
		as := "--as=system:serviceaccount:" + b.ns + ":duesday"
		said, _ := b.cluster.Kubectl(t.Context(), append([]string{"-n", b.ns, "auth", "can-i", as}, strings.Fields(what)...)...) // 1 for a no
		return strings.TrimSpace(said)
	}
	require.Equal(t, "yes", can("update leases/duesday-shard-2"))
	require.Equal(t, "yes", can("update leases/duesday"))
	require.Equal(t, "no", can("get leases/duesday-shard-3"))
}
