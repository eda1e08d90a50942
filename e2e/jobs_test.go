package e2e

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// run runs the CronJob by hand, as its users do.
func (b *team) run(t *testing.T, job string) {
	t.Helper()
	b.kubectl(t, "create", "job", job, "--from=cronjob/duesday")
}

// job reads a Job. At no moment may one that bills be Complete with the period
// unsettled.
func (b *team) job(t *testing.T, name string) *batchv1.Job {
	t.Helper()
	j, err := b.client.BatchV1().Jobs(b.ns).Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	complete := condition(j, batchv1.JobComplete)
	if complete != nil && j.Labels["app.kubernetes.io/component"] == "run" && !b.allLost(t, name) {
		settled, ok := b.settledAt(t)
		require.True(t, ok, "Job %s is Complete, and the period is not settled", name)
		// Kubernetes' times have no fractions of seconds.
		require.True(t, settled.Before(complete.LastTransitionTime.Add(time.Second)),
			"Job %s was Complete at %v, and the period settled only at %v", name, complete.LastTransitionTime, settled)
	}
	return j
}

func condition(j *batchv1.Job, kind batchv1.JobConditionType) *batchv1.JobCondition {
	for i, c := range j.Status.Conditions {
		if c.Type == kind && c.Status == corev1.ConditionTrue {
			return &j.Status.Conditions[i]
		}
	}
	return nil
}

// awaitEnd waits until a Job has completed or failed.
func (b *team) awaitEnd(t *testing.T, name string) (ended batchv1.JobCondition) {
	t.Helper()
	eventually(t, "the end of Job "+name, func() bool {
		j := b.job(t, name)
		for _, kind := range []batchv1.JobConditionType{batchv1.JobComplete, batchv1.JobFailed} {
			if c := condition(j, kind); c != nil {
				ended = *c
				return true
			}
		}
		return false
	})
	return ended
}

func (b *team) awaitComplete(t *testing.T, name string) {
	t.Helper()
	ended := b.awaitEnd(t, name)
	require.Equal(t, batchv1.JobComplete, ended.Type, "%s: %s", ended.Reason, ended.Message)
}

// pods are a Job's, oldest first.
func (b *team) pods(t *testing.T, job string) []corev1.Pod {
	t.Helper()
	list, err := b.client.CoreV1().Pods(b.ns).List(t.Context(), metav1.ListOptions{
		LabelSelector: batchv1.JobNameLabel + "=" + job,
	})
	require.NoError(t, err)
	return list.Items
}

// ended is how a pod's container ended, nil if it has not.
func ended(p corev1.Pod) *corev1.ContainerStateTerminated {
	for _, s := range p.Status.ContainerStatuses {
		return s.State.Terminated
	}
	return nil
}

// awaitPod waits for a pod of the Job whose container ended with the exit code.
func (b *team) awaitPod(t *testing.T, job string, code int32) (found corev1.Pod) {
	t.Helper()
	eventually(t, "a pod to exit", func() bool {
		for _, p := range b.pods(t, job) {
			if e := ended(p); e != nil && e.ExitCode == code {
				found = p
				return true
			}
		}
		return false
	})
	return found
}

// exits counts a Job's ended pods by exit code.
func (b *team) exits(t *testing.T, job string) map[int32]int {
	t.Helper()
	n := map[int32]int{}
	for _, p := range b.pods(t, job) {
		if e := ended(p); e != nil {
			n[e.ExitCode]++
		}
	}
	return n
}

// logs returns the events with the message in a pod's log.
func (b *team) logs(t *testing.T, pod, message string) []map[string]any {
	t.Helper()
	content, err := b.client.CoreV1().Pods(b.ns).GetLogs(pod, &corev1.PodLogOptions{}).DoRaw(t.Context())
	if apierrors.IsBadRequest(err) { // has no container yet
		return nil
	}
	require.NoError(t, err)
	var found []map[string]any
	for line := range strings.Lines(string(content)) {
		var event map[string]any
		if json.Unmarshal([]byte(line), &event) == nil && event["msg"] == message {
			found = append(found, event)
		}
	}
	return found
}

// awaitLog waits until a pod has said the message.
func (b *team) awaitLog(t *testing.T, pod, message string) {
	t.Helper()
	eventually(t, "pod "+pod+" to say "+message, func() bool { return len(b.logs(t, pod, message)) > 0 })
}

// said returns such events of all pods of a Job.
func (b *team) said(t *testing.T, job, message string) []map[string]any {
	t.Helper()
	var found []map[string]any
	for _, p := range b.pods(t, job) {
		found = append(found, b.logs(t, p.Name, message)...)
	}
	return found
}

const (
	saysWhoLeads = "another replica leads, nothing to do here"
	saysSettled  = "period settled"
	saysAlready  = "period already settled, nothing to do"
	saysEnded    = "run ended"
	saysStopping = "stopping: no new claims, waiting for what is in flight"
	saysPeriod   = "billing the period that the Job was scheduled for"
)

// allLost tells whether the Job has nothing to say about the period: each of
// its pods saw another Job's lead.
func (b *team) allLost(t *testing.T, job string) bool {
	t.Helper()
	for _, p := range b.pods(t, job) {
		lost := b.logs(t, p.Name, saysWhoLeads)
		if len(lost) == 0 || strings.HasPrefix(lost[0]["leader"].(string), job+"-") {
			return false
		}
	}
	return true
}

func (b *team) lease(t *testing.T) *coordinationv1.Lease {
	t.Helper()
	l, err := b.client.CoordinationV1().Leases(b.ns).Get(t.Context(), "duesday", metav1.GetOptions{})
	require.NoError(t, err)
	return l
}

// holder is the pod that holds the Lease, as its record says; empty: nobody.
func holder(l *coordinationv1.Lease) string {
	if l.Spec.HolderIdentity == nil {
		return ""
	}
	pod, _, _ := strings.Cut(*l.Spec.HolderIdentity, "_")
	return pod
}

// leader is the pod that leads.
func (b *team) leader(t *testing.T) (pod string) {
	t.Helper()
	eventually(t, "a leader", func() bool {
		pod = holder(b.lease(t))
		return pod != ""
	})
	return pod
}
