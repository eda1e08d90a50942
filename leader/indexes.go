package leader

import (
	"context"
	"fmt"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	batchclient "k8s.io/client-go/kubernetes/typed/batch/v1"

	"github.com/duesday/duesday/internal/exitcode"
)

// Indexes returns how many completions the Job wants, in the pod's namespace: as
// many indexes as an Indexed one has. Like ScheduledTime it asks until patience
// is over, and its errors have the same exit codes.
func (c *Cluster) Indexes(ctx context.Context, job string, patience, retry time.Duration) (int, error) {
	config, client, err := c.client(patience / 2)
	if err != nil {
		return 0, err
	}
	defer utilnet.CloseIdleConnectionsFor(client.Transport)
	batch, err := batchclient.NewForConfigAndClient(config, client)
	if err != nil {
		return 0, exitcode.With(exitcode.Misconfigured, fmt.Errorf("make a Kubernetes client: %w", err))
	}
	owner, err := readJob(ctx, batch.Jobs(c.Namespace), job, patience, retry)
	if err != nil {
		return 0, fmt.Errorf("read Job %s/%s for its completions: %w", c.Namespace, job,
			withHint(err, "JOB_NAME must name the pod's Job, and the service account needs get on jobs (manifests/role.yaml)"))
	}
	if owner.Spec.Completions == nil {
		return 1, nil
	}
	return int(*owner.Spec.Completions), nil
}
