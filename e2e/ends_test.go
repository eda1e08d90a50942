package e2e

import (
	"context"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// What a pod's exit code does to its Job.

func TestExit2_endsTheJobAtOnceWithAReason(t *testing.T) {
	t.Parallel()
	b := newTeam(t)
	o := ofPastPeriod()
	o.env["DUESDAY_CUSTOMERS"] = "duesday.no_such_table"
	b.install(t, o)
	b.run(t, "misconfigured")
	b.requireFailedAtOnce(t, "misconfigured", 2)
}

func TestExit3_endsTheJobAtOnceWithAReason(t *testing.T) {
	t.Parallel()
	b := installed(t, 10)
	b.sim.SetAuth(401)
	b.run(t, "refused")
	b.requireFailedAtOnce(t, "refused", 3)
	require.Empty(t, b.sim.Bank())

	// A person has acted.
	b.sim.SetAuth(0)
	b.run(t, "rerun-1")
	b.awaitComplete(t, "rerun-1")
	b.requireBilled(t, 10)
}

func (b *team) requireFailedAtOnce(t *testing.T, job string, code int32) {
	t.Helper()
	failed := b.awaitEnd(t, job)
	require.Equal(t, batchv1.JobFailed, failed.Type)
	require.Equal(t, batchv1.JobReasonPodFailurePolicy, failed.Reason)
	t.Log(failed.Message)
	require.LessOrEqual(t, len(b.pods(t, job)), 2, "it was tried again")
	require.NotZero(t, b.exits(t, job)[code])
	said := b.said(t, job, saysEnded)
	require.NotEmpty(t, said)
	require.EqualValues(t, code, said[0]["exit_code"])
	t.Log(said[0]["error"])
}

func TestExit1_isRetriedUntilTheDatabaseIsBack(t *testing.T) {
	t.Parallel()
	const customers = 10
	b := newTeam(t)
	database, err := url.Parse(b.databaseURL)
	require.NoError(t, err)
	way := newGate(t, b.cluster.HostIP(), database.Host)
	database.Host = way.address()
	b.databaseURL = database.String()
	b.install(t, ofPastPeriod())
	b.add(t, customers)

	way.set(cut)
	b.run(t, "retried")
	failed := b.awaitPod(t, "retried", 1)
	said := b.logs(t, failed.Name, saysEnded)
	require.Len(t, said, 1)
	t.Log(said[0]["error"])
	way.set(open)
	b.awaitComplete(t, "retried")
	exits := b.exits(t, "retried")
	require.NotZero(t, exits[1])
	require.Equal(t, 2, exits[0])
	require.EqualValues(t, exits[1], b.job(t, "retried").Status.Failed)
	b.requireBilled(t, customers)
}

func TestEviction_costsNoBackoff(t *testing.T) {
	t.Parallel()
	const customers, inFlight = 60, 8
	b := installed(t, customers)
	arrived, release := b.hold(t, inFlight)
	b.run(t, "evicted")
	arrived()
	leader := b.leader(t)
	gone := b.follow(t, leader)
	// What kubectl drain does for each pod of its node.
	require.NoError(t, b.client.PolicyV1().Evictions(b.ns).Evict(t.Context(), &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Name: leader, Namespace: b.ns},
	}))
	b.awaitLog(t, leader, saysStopping)
	require.Len(t, b.pods(t, "evicted"), 2, "replaced before it had ended")
	release()
	b.requireUndisturbed(t, "evicted", gone(), customers)
}

// Not parallel: no pod can run on the node meanwhile.
func TestTaintedNode_costsNoBackoff(t *testing.T) {
	if !shared.Own() {
		return // other people's pods would have to leave it too
	}
	const customers, inFlight = 60, 8
	b := installed(t, customers)
	arrived, release := b.hold(t, inFlight)
	b.run(t, "tainted")
	arrived()
	b.awaitPod(t, "tainted", 0)
	leader := b.leader(t)
	p, err := b.client.CoreV1().Pods(b.ns).Get(t.Context(), leader, metav1.GetOptions{})
	require.NoError(t, err)
	gone := b.follow(t, leader)
	const taint = "duesday.test/drained"
	b.kubectl(t, "taint", "node", p.Spec.NodeName, taint+"=:NoExecute")
	untaint := sync.OnceValue(func() error {
		// t.Context may have ended.
		_, err := b.cluster.Kubectl(context.Background(), "taint", "node", p.Spec.NodeName, taint+"-")
		return err
	})
	t.Cleanup(func() { require.NoError(t, untaint()) })
	b.awaitLog(t, leader, saysStopping)
	release()
	last := gone()
	require.NoError(t, untaint())
	b.requireUndisturbed(t, "tainted", last, customers)
}

// requireUndisturbed requires that the Job completes as if its leader had never
// been taken away.
func (b *team) requireUndisturbed(t *testing.T, job string, leader corev1.Pod, customers int) {
	t.Helper()
	require.True(t, disrupted(leader))
	require.EqualValues(t, 1, ended(leader).ExitCode, "a pod that was told to stop must not count as a success")
	b.awaitComplete(t, job)
	require.Zero(t, b.job(t, job).Status.Failed, "it was counted as a failure")
	b.requireBilled(t, customers)
}

// follow returns a function that waits until a pod has gone, and returns it as
// it was last.
func (b *team) follow(t *testing.T, name string) func() corev1.Pod {
	t.Helper()
	w, err := b.client.CoreV1().Pods(b.ns).Watch(t.Context(), metav1.SingleObject(metav1.ObjectMeta{Name: name}))
	require.NoError(t, err)
	t.Cleanup(w.Stop)
	return func() (last corev1.Pod) {
		t.Helper()
		timeout := time.After(patience)
		for {
			select {
			case event, ok := <-w.ResultChan():
				require.True(t, ok, "the watch ended")
				last = *event.Object.(*corev1.Pod)
				if event.Type == watch.Deleted {
					return last
				}
			case <-timeout:
				require.Fail(t, "pod "+name+" does not go")
			}
		}
	}
}

func disrupted(p corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue {
			return true
		}
	}
	return false
}
