package leader

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/duesday/duesday/internal/exitcode"
)

// ErrNoCluster says that the process runs outside Kubernetes.
var ErrNoCluster = errors.New("not in a Kubernetes pod")

// A Cluster is the Kubernetes cluster that the process runs in.
type Cluster struct {
	Config    *rest.Config
	Namespace string // the pod's

	seen atomic.Pointer[batchv1.Job] // the Job that was read last
}

// InCluster returns the cluster as the pod's service account sees it; namespace
// is the pod's, or empty if only the service account tells. It returns
// ErrNoCluster outside a pod, and an error with exit code 2 in a pod that was
// not given a service account's token.
func InCluster(namespace string) (*Cluster, error) {
	config, err := rest.InClusterConfig()
	if errors.Is(err, rest.ErrNotInCluster) {
		return nil, ErrNoCluster
	}
	if err == nil && namespace == "" {
		const file = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
		var content []byte
		content, err = os.ReadFile(file)
		namespace = strings.TrimSpace(string(content))
	}
	if err != nil {
		return nil, exitcode.With(exitcode.Misconfigured,
			fmt.Errorf("read the pod's service account: %w: want automountServiceAccountToken: true", err))
	}
	return &Cluster{Config: config, Namespace: namespace}, nil
}

// client returns what a client needs whose requests end within timeout.
func (c *Cluster) client(timeout time.Duration) (*rest.Config, *http.Client, error) {
	config := rest.CopyConfig(c.Config)
	config.Timeout = timeout
	config.QPS = -1 // whoever asks keeps his own pace
	// Requests on a dead HTTP/2 connection time out one after the other for
	// 45 seconds, longer than a lease lives. HTTP/1.1 dials anew after the first
	// (kubernetes/kubernetes#65012).
	config.NextProtos = []string{"http/1.1"}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, nil, exitcode.With(exitcode.Misconfigured, fmt.Errorf("make a Kubernetes client: %w", err))
	}
	return config, client, nil
}

// withHint gives exit code 2 to answers that only other objects or rights can
// mend.
func withHint(err error, hint string) error {
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || apierrors.IsInvalid(err) {
		return exitcode.With(exitcode.Misconfigured, fmt.Errorf("%w: %s", err, hint))
	}
	return err
}

// age is how long ago since was. The monotonic clock stands still while a
// machine is suspended, the wall clock may be set back: the longer of the two
// counts.
func age(since, now time.Time) time.Duration {
	return max(now.Sub(since), now.Round(0).Sub(since.Round(0)))
}
