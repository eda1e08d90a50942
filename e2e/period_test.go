package e2e

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// As after a month's last minute on a cluster that took its time.
func TestPeriod_isThatOfTheJobsScheduledTimeAndNotOfTheClock(t *testing.T) {
	t.Parallel()
	b := newTeam(t)
	o := ofPastPeriod()
	delete(o.env, "DUESDAY_PERIOD")
	b.install(t, o)
	const customers = 5
	b.add(t, customers)

	var job batchv1.Job
	made := b.kubectl(t, "create", "job", "late", "--from=cronjob/duesday", "--dry-run=client", "-o", "json")
	require.NoError(t, json.Unmarshal([]byte(made), &job))
	const scheduled = "2024-10-31T23:59:00Z"
	job.Annotations = map[string]string{batchv1.CronJobScheduledTimestampAnnotation: scheduled}
	_, err := b.client.BatchV1().Jobs(b.ns).Create(t.Context(), &job, metav1.CreateOptions{})
	require.NoError(t, err)

	b.awaitComplete(t, "late")
	b.requireBilled(t, customers)
	require.Equal(t, 1, b.count(t, `SELECT count(*) FROM duesday.periods WHERE billing_period = '2024-10'`))
	said := b.said(t, "late", saysPeriod)
	require.NotEmpty(t, said)
	require.Equal(t, scheduled, said[0]["scheduled_at"])
	require.Equal(t, "2024-10", said[0]["billing_period"])
}
