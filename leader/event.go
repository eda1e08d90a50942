package leader

import (
	"context"
	"fmt"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	batchclient "k8s.io/client-go/kubernetes/typed/batch/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
)

// An Event is what `kubectl describe job` shows of a run.
type Event struct {
	Job     string // in the pod's namespace
	Pod     string // that tells it
	Reason  string // one word in CamelCase
	Message string // up to 1024 bytes
	Warning bool   // else it is normal
	At      metav1.Time
}

// Tell records the event at its Job, once: nothing depends on it, so that it is
// not worth a second try. ctx bounds it.
func (c *Cluster) Tell(ctx context.Context, e Event) error {
	config, client, err := c.client(0) // ctx bounds it
	if err != nil {
		return err
	}
	defer utilnet.CloseIdleConnectionsFor(client.Transport)
	uid, err := c.jobUID(ctx, e.Job)
	if err != nil {
		return err
	}
	core, err := coreclient.NewForConfigAndClient(config, client)
	if err != nil {
		return fmt.Errorf("make a Kubernetes client: %w", err)
	}
	kind := corev1.EventTypeNormal
	if e.Warning {
		kind = corev1.EventTypeWarning
	}
	_, err = core.Events(c.Namespace).Create(ctx, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, GenerateName: e.Job + "."},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: batchv1.SchemeGroupVersion.String(), Kind: "Job",
			Namespace: c.Namespace, Name: e.Job, UID: uid,
		},
		Type: kind, Reason: e.Reason, Message: e.Message,
		FirstTimestamp: e.At, LastTimestamp: e.At, Count: 1,
		Source:              corev1.EventSource{Component: "duesday"},
		ReportingController: "duesday", ReportingInstance: e.Pod,
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create an Event in %s: %w", c.Namespace, err)
	}
	return nil
}

// jobUID is known if the Job was read before, for its scheduled time. Without it
// kubectl finds no event of the Job's.
func (c *Cluster) jobUID(ctx context.Context, name string) (types.UID, error) {
	if seen := c.seen.Load(); seen != nil && seen.Name == name {
		return seen.UID, nil
	}
	config, client, err := c.client(0)
	if err != nil {
		return "", err
	}
	defer utilnet.CloseIdleConnectionsFor(client.Transport)
	batch, err := batchclient.NewForConfigAndClient(config, client)
	if err != nil {
		return "", fmt.Errorf("make a Kubernetes client: %w", err)
	}
	job, err := batch.Jobs(c.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("read Job %s/%s: %w", c.Namespace, name, err)
	}
	return job.UID, nil
}
