package leader

import (
	"context"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	batchclient "k8s.io/client-go/kubernetes/typed/batch/v1"

	"github.com/duesday/duesday/internal/exitcode"
)

// ScheduledTime returns the time that the Job, in the pod's namespace, was
// scheduled for by its CronJob, or false for a Job that no schedule made, as
// `kubectl create job --from` does.
//
// It asks again every retry until patience is over, since nothing else may
// stand in for the answer: a run that was scheduled for the end of a month and
// starts in the next would bill the wrong one. Its error has exit code 2 if the
// Job is not there, may not be read, or bears no time, else 1.
func (c *Cluster) ScheduledTime(ctx context.Context, job string, patience, retry time.Duration) (at time.Time, scheduled bool, err error) {
	config, client, err := c.client(patience / 2)
	if err != nil {
		return at, false, err
	}
	defer utilnet.CloseIdleConnectionsFor(client.Transport)
	batch, err := batchclient.NewForConfigAndClient(config, client)
	if err != nil {
		return at, false, exitcode.With(exitcode.Misconfigured, fmt.Errorf("make a Kubernetes client: %w", err))
	}
	owner, err := readJob(ctx, batch.Jobs(c.Namespace), job, patience, retry)
	if err != nil {
		return at, false, fmt.Errorf("read Job %s/%s for its scheduled time: %w", c.Namespace, job,
			withHint(err, "JOB_NAME must name the pod's Job, and the service account needs get on jobs (manifests/role.yaml)"))
	}
	c.seen.Store(owner)
	written, scheduled := owner.Annotations[batchv1.CronJobScheduledTimestampAnnotation]
	if !scheduled {
		return at, false, nil
	}
	at, err = time.Parse(time.RFC3339, written)
	if err != nil {
		return at, false, exitcode.With(exitcode.Misconfigured,
			fmt.Errorf("annotation %s of Job %s/%s: %w", batchv1.CronJobScheduledTimestampAnnotation, c.Namespace, job, err))
	}
	return at, true, nil
}

func readJob(ctx context.Context, jobs batchclient.JobInterface, name string, patience, retry time.Duration) (*batchv1.Job, error) {
	ticker := time.NewTicker(retry)
	defer ticker.Stop()
	enough, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		job, err := jobs.Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			return job, nil
		}
		select {
		case <-enough.Done():
		case <-ticker.C:
		}
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case enough.Err() != nil:
			return nil, err
		}
	}
}
