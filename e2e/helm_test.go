package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/duesday/duesday/e2e/programs"
)

const chart = repository + "/helm/duesday"

// helmCommand builds Helm, unless the cache has it.
var helmCommand = sync.OnceValues(func() (string, error) {
	return programs.Helm(context.Background(), os.Stderr)
})

// helm runs the real Helm in the team's namespace.
func (b *team) helm(t *testing.T, args ...string) (string, error) {
	t.Helper()
	path, err := helmCommand()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), path, append([]string{"--kubeconfig", b.cluster.Kubeconfig, "--namespace", b.ns}, args...)...)
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+t.TempDir(), "HELM_CONFIG_HOME="+t.TempDir(), "HELM_DATA_HOME="+t.TempDir())
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("helm %s: %w: %s", args[0], err, complaint.String())
	}
	return out.String(), nil
}

func (b *team) mustHelm(t *testing.T, args ...string) string {
	t.Helper()
	said, err := b.helm(t, args...)
	require.NoError(t, err)
	return said
}

// values are what a team gives the chart, over those that it has.
func (b *team) values(t *testing.T) string {
	t.Helper()
	type object = map[string]any
	var env []object
	for _, name := range []string{"DUESDAY_LEASE_DURATION", "DUESDAY_RENEW_DEADLINE", "DUESDAY_RETRY_PERIOD"} {
		env = append(env, object{"name": name, "value": shortLease()[name]})
	}
	env = append(env, object{"name": "DUESDAY_PERIOD", "value": pastPeriod})
	path := t.TempDir() + "/values.yaml"
	writeJSON(t, path, object{
		"image":    object{"repository": imageName, "tag": imageTag},
		"suspend":  true,
		"stripe":   object{"apiBase": b.stripeURL},
		"billing":  object{"rate": 500},
		"extraEnv": env,
	})
	return path
}

func TestSmokeHelmInstall_bringsASchemaAndAJobThatCompletes(t *testing.T) {
	t.Parallel()
	b := newTeam(t)
	b.secrets(t)
	b.mustHelm(t, "install", "duesday", chart, "--values", b.values(t), "--wait", "--timeout", "3m")
	// The hook has run: the schema is there, and nothing of the hook is left.
	const customers = 40
	b.add(t, customers)
	left, err := b.client.BatchV1().Jobs(b.ns).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Empty(t, left.Items)

	said := b.mustHelm(t, "test", "duesday", "--logs")
	require.Contains(t, said, "A run would open it with 40 dues, charge 40 and reject 0")
	require.Empty(t, b.sim.Bank())

	b.run(t, "by-hand")
	b.awaitComplete(t, "by-hand")
	require.Equal(t, map[int32]int{0: 2}, b.exits(t, "by-hand"))
	b.requireBilled(t, customers)
	require.Contains(t, b.mustHelm(t, "test", "duesday", "--logs"), "is settled: a run would do nothing")

	b.mustHelm(t, "uninstall", "duesday", "--wait", "--timeout", "3m")
	require.Equal(t, customers, b.count(t, `SELECT count(*) FROM duesday.charges`), "the ledger outlives the release")
}

func TestHelmUpgrade_fromTheFirstChartsValuesKeepsBilling(t *testing.T) {
	t.Parallel()
	b := newTeam(t)
	b.secrets(t)
	own := b.values(t)
	b.mustHelm(t, "install", "billing", chart, "--values", "testdata/values-0.1.0.yaml", "--values", own, "--wait", "--timeout", "3m")
	const customers = 5
	b.add(t, customers)
	before := b.env(t)

	b.mustHelm(t, "upgrade", "billing", chart, "--reuse-values", "--set", "replicas=3", "--wait", "--timeout", "3m")
	require.Equal(t, before, b.env(t), "an upgrade changed what is billed")
	b.kubectl(t, "create", "job", "by-hand", "--from=cronjob/billing-duesday")
	b.awaitComplete(t, "by-hand")
	require.Equal(t, map[int32]int{0: 3}, b.exits(t, "by-hand"))
	b.requireBilled(t, customers)

	_, err := b.helm(t, "upgrade", "billing", chart, "--reuse-values", "--set", "billing.periodOfset=-1")
	require.ErrorContains(t, err, "periodOfset")
	said, err := b.helm(t, "history", "billing", "--output", "json")
	require.NoError(t, err)
	require.NotContains(t, said, `"revision":3`, "a misspelt value reached the cluster")
}

// env is the CronJob's environment.
func (b *team) env(t *testing.T) map[string]string {
	t.Helper()
	c, err := b.client.BatchV1().CronJobs(b.ns).Get(t.Context(), "billing-duesday", metav1.GetOptions{})
	require.NoError(t, err)
	env := map[string]string{}
	for _, e := range c.Spec.JobTemplate.Spec.Template.Spec.Containers[0].Env {
		env[e.Name] = strings.TrimSpace(e.Value)
	}
	return env
}
