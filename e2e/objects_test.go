package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The namespaces of all tests enforce the restricted Pod Security level, so that
// each pod of this package is a test of it. These ask the API server alone.

func TestManifests_passAServersDryRunWithoutAWarning(t *testing.T) {
	t.Parallel()
	b := newTeam(t)
	b.kubectl(t, "apply", "-k", overlay{}.write(t, b), "--dry-run=server", "--warnings-as-errors")
	b.kubectl(t, "apply", "-f", repository+"/manifests", "--dry-run=server", "--warnings-as-errors")
	_, err := b.client.BatchV1().CronJobs(b.ns).Get(t.Context(), "duesday", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)
}

func TestChart_passesAServersDryRunWithoutAWarning(t *testing.T) {
	t.Parallel()
	b := newTeam(t)
	for _, more := range [][]string{
		nil,
		{"--set", "reconcile.enabled=true"},
		{"--set", "database.url=postgres://u@h:5432/d,stripe.apiKey=rk_test_1"},
		{"--set", "networkPolicy.enabled=false,migrate.enabled=false,replicas=1"},
	} {
		manifest := b.mustHelm(t, append([]string{"template", "duesday", chart, "--skip-tests", "--values", b.values(t)}, more...)...)
		_, err := b.cluster.KubectlInput(t.Context(), manifest, "-n", b.ns, "apply", "-f", "-", "--dry-run=server", "--warnings-as-errors")
		require.NoError(t, err, more)
	}
}

// What is warned of above would be refused here.
func TestNamespace_refusesAPodThatIsNotRestricted(t *testing.T) {
	t.Parallel()
	b := newTeam(t)
	_, err := b.cluster.Kubectl(t.Context(), "-n", b.ns, "run", "loose", "--image="+imageName+":"+imageTag, "--restart=Never")
	require.ErrorContains(t, err, `violates PodSecurity "restricted`)
	_, err = b.cluster.Kubectl(t.Context(), "-n", b.ns, "create", "job", "loose", "--image="+imageName+":"+imageTag, "--dry-run=server", "--warnings-as-errors")
	require.Error(t, err)
}
