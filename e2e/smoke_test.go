package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The tests whose names begin with TestSmoke are the heart: the four ways in
// which Duesday meets its users. `make e2e-smoke` runs no others.

func TestSmokeScheduledRun_onePodBillsAllAndTheOtherSaysWhoLeads(t *testing.T) {
	t.Parallel()
	b := newTeam(t)
	o := overlay{env: map[string]string{"DUESDAY_RATE": "500"}}
	b.install(t, o)
	const customers = 60
	b.add(t, customers)
	arrived, release := b.hold(t, 1)

	at := soon()
	o.schedule = cronLine(at)
	b.apply(t, o)
	job := b.awaitScheduled(t, at)
	require.EqualValues(t, 2, *job.Spec.Completions)
	require.EqualValues(t, 2, *job.Spec.Parallelism)

	arrived()
	loser := b.awaitPod(t, job.Name, 0)
	leader := b.leader(t)
	require.NotEqual(t, leader, loser.Name)
	told := b.logs(t, loser.Name, saysWhoLeads)
	require.Len(t, told, 1)
	require.Contains(t, told[0]["leader"], leader+"_")
	took := ended(loser).FinishedAt.Sub(ended(loser).StartedAt.Time)
	t.Logf("%s exited 0 after %v: %v leads", loser.Name, took, told[0]["leader"])
	require.Less(t, took, 15*time.Second) // with a record that is renewed every two

	release()
	b.awaitComplete(t, job.Name)
	require.Equal(t, map[int32]int{0: 2}, b.exits(t, job.Name))
	b.requireBilled(t, customers)
	settled := b.logs(t, leader, saysSettled)
	require.Len(t, settled, 1, "%s did not bill", leader)
	b.requireTold(t, job.Name, map[string]int{"settled": 1, "not_leader": 1}, "BillingSettled", "NotLeader")

	// The period is that of the annotation.
	require.Equal(t, at.Format(time.RFC3339), job.Annotations[batchv1.CronJobScheduledTimestampAnnotation])
	period := at.Format("2006-01")
	require.Equal(t, period, settled[0]["billing_period"])
	for _, event := range b.said(t, job.Name, saysPeriod) {
		require.Equal(t, at.Format(time.RFC3339), event["scheduled_at"])
		require.Equal(t, period, event["billing_period"])
	}
	require.Equal(t, 1, b.count(t, `SELECT count(*) FROM duesday.periods WHERE billing_period = $1`, period))
}

func TestSmokeKilledLeader_isReplacedAndEachCustomerHasOneCharge(t *testing.T) {
	t.Parallel()
	const customers, inFlight = 60, 8
	b := installed(t, customers)
	arrived, release := b.hold(t, inFlight)
	b.run(t, "killed")
	arrived()
	b.awaitPod(t, "killed", 0) // one completion is there; the rest depends on the replacement
	dead := b.leader(t)
	b.kubectl(t, "delete", "pod", dead, "--grace-period=0", "--force")

	b.awaitTakeover(t, "killed", dead)
	release() // what the dead one sent is charged only now
	b.awaitComplete(t, "killed")
	b.requireBilled(t, customers)
}

func TestSmokeManualRerun_chargesNothingBesideAndAfterTheScheduledRun(t *testing.T) {
	t.Parallel()
	b := newTeam(t)
	o := ofPastPeriod()
	b.install(t, o)
	const customers = 60
	b.add(t, customers)
	arrived, release := b.hold(t, 1)
	at := soon()
	o.schedule = cronLine(at)
	b.apply(t, o)
	scheduled := b.awaitScheduled(t, at)
	arrived()

	// concurrencyPolicy Forbid does not hold for what is made by hand.
	leader := b.leader(t)
	b.run(t, "rerun-1")
	b.awaitComplete(t, "rerun-1")
	require.Equal(t, map[int32]int{0: 2}, b.exits(t, "rerun-1"))
	told := b.said(t, "rerun-1", saysWhoLeads)
	require.Len(t, told, 2)
	for _, event := range told {
		require.Contains(t, event["leader"], leader+"_")
	}
	require.Equal(t, leader, holder(b.lease(t)))

	release()
	b.awaitComplete(t, scheduled.Name)
	require.Len(t, b.logs(t, leader, saysSettled), 1)
	b.requireBilled(t, customers)

	before := b.sim.Stats().Requests
	b.run(t, "rerun-2")
	b.awaitComplete(t, "rerun-2")
	require.Equal(t, map[int32]int{0: 2}, b.exits(t, "rerun-2"))
	require.NotEmpty(t, b.said(t, "rerun-2", saysAlready))
	require.Equal(t, before, b.sim.Stats().Requests, "a settled period needs nothing of Stripe")
	b.requireBilled(t, customers)
}

// soon is a full minute that is at least some seconds away.
func soon() time.Time {
	return time.Now().UTC().Add(5 * time.Second).Truncate(time.Minute).Add(time.Minute)
}

// cronLine fires at that minute, and not again for a year.
func cronLine(at time.Time) string {
	return fmt.Sprintf("%d %d %d %d *", at.Minute(), at.Hour(), at.Day(), at.Month())
}

// awaitScheduled waits for the Job that the schedule makes at that time.
func (b *team) awaitScheduled(t *testing.T, at time.Time) (found batchv1.Job) {
	t.Helper()
	eventually(t, "the schedule's Job", func() bool {
		jobs, err := b.client.BatchV1().Jobs(b.ns).List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		for _, j := range jobs.Items {
			if j.Annotations[batchv1.CronJobScheduledTimestampAnnotation] == at.Format(time.RFC3339) {
				found = j
				return true
			}
		}
		return false
	})
	return found
}

// awaitTakeover waits until another pod has taken the Lease of one of the Job's
// that died, and requires that the Lease had run out by then.
func (b *team) awaitTakeover(t *testing.T, job, dead string) {
	t.Helper()
	var last time.Time // sign of life
	eventually(t, "the lease to be taken over", func() bool {
		b.job(t, job)
		l := b.lease(t)
		require.NotEmpty(t, holder(l), "the dead one gave its lease back")
		if holder(l) == dead {
			last = l.Spec.RenewTime.Time
			return false
		}
		wait := l.Spec.AcquireTime.Sub(last)
		t.Logf("%s took over %v after the last sign of life of %s", holder(l), wait, dead)
		require.GreaterOrEqual(t, wait, 3*time.Second, "before the lease had run out")
		return true
	})
}
