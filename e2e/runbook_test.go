package e2e

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/duesday/duesday/internal/runbook"
)

const (
	runbookPath   = repository + "/docs/operations.md"
	runbookPeriod = "2026-10" // the month that stands in the document
)

// A runbookStep runs one block of the document, between what there must be
// before it and what must have come of it.
type runbookStep struct {
	block  string
	before func(t *testing.T, b *team, dir string)
	after  func(t *testing.T, b *team, said string)
}

// The steps of a team's life, in an order in which they make sense.
func runbookSteps() []runbookStep {
	const customers = 5
	none := func(*testing.T, *team, string) {}
	billed := func(periods ...string) func(*testing.T, *team, string) {
		return func(t *testing.T, b *team, _ string) { b.requireBilledFor(t, customers, periods...) }
	}
	first, both := billed(pastPeriod), billed(pastPeriod, runbookPeriod)
	says := func(text string) func(*testing.T, *team, string) {
		return func(t *testing.T, _ *team, said string) { require.Contains(t, said, text) }
	}
	suspended := func(want bool) func(*testing.T, *team, string) {
		return func(t *testing.T, b *team, _ string) {
			c, err := b.client.BatchV1().CronJobs(b.ns).Get(t.Context(), "duesday", metav1.GetOptions{})
			require.NoError(t, err)
			require.Equal(t, want, *c.Spec.Suspend)
		}
	}
	file := func(name string, content func(b *team) string) func(*testing.T, *team, string) {
		return func(t *testing.T, b *team, dir string) {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content(b)), 0o600))
		}
	}
	return []runbookStep{
		{"rerun", none, first},
		{"watch", none, says("period settled")},
		{"look", none, says("rerun-1")},
		{"rerun-month", none, both},
		{"any", none, says(runbookPeriod)},
		{"resume", none, suspended(false)},
		{"suspend", none, func(t *testing.T, b *team, said string) {
			suspended(true)(t, b, said)
			jobs, err := b.client.BatchV1().Jobs(b.ns).List(t.Context(), metav1.ListOptions{})
			require.NoError(t, err)
			require.Empty(t, jobs.Items)
		}},
		{"stripe-key", file("new-key", func(*team) string { return "rk_test_another" }), func(t *testing.T, b *team, said string) {
			s, err := b.client.CoreV1().Secrets(b.ns).Get(t.Context(), "duesday-stripe", metav1.GetOptions{})
			require.NoError(t, err)
			require.Equal(t, "rk_test_another", string(s.Data["api-key"]))
			both(t, b, said)
		}},
		{"database-password", file("new-url", func(b *team) string { return b.databaseURL }), both},
		{"after-restore", func(t *testing.T, b *team, _ string) {
			b.db.Exec(t, `TRUNCATE duesday.charges; UPDATE duesday.periods SET claim_cursor = NULL, settled_at = NULL; UPDATE duesday.totals SET claimed_total = 0`)
			b.run(t, "unaware")
			b.requireFailedAtOnce(t, "unaware", 3)
		}, func(t *testing.T, b *team, said string) {
			both(t, b, said)
			require.Equal(t, customers, b.count(t, `SELECT count(*) FROM duesday.charges WHERE status = 'succeeded' AND billing_period = $1`, runbookPeriod))
		}},
		{"leave", none, func(t *testing.T, b *team, _ string) {
			all, err := b.client.BatchV1().CronJobs(b.ns).List(t.Context(), metav1.ListOptions{})
			require.NoError(t, err)
			require.Empty(t, all.Items)
		}},
	}
}

// requireBilledFor looks for each customer's one charge in each of the periods.
func (b *team) requireBilledFor(t *testing.T, customers int, periods ...string) {
	t.Helper()
	paid := map[string]int{}
	for _, c := range b.sim.Bank() {
		paid[c.Metadata["duesday_period"]+" "+c.Customer]++
	}
	want := map[string]int{}
	for _, period := range periods {
		for i := 1; i <= customers; i++ {
			want[fmt.Sprintf("%s cus_%d", period, i)] = 1
		}
	}
	require.Equal(t, want, paid)
}

// sh runs a block as it stands in the document, with a kubectl that works in
// the team's namespace.
func (b *team) sh(t *testing.T, dir, text string) string {
	t.Helper()
	bin := t.TempDir()
	kubectl := fmt.Sprintf("#!/bin/sh\nexec %q --kubeconfig=%q --namespace=%q \"$@\"\n", b.cluster.KubectlPath(), b.cluster.Kubeconfig, b.ns)
	require.NoError(t, os.WriteFile(filepath.Join(bin, "kubectl"), []byte(kubectl), 0o700))
	cmd := exec.CommandContext(t.Context(), "sh", "-eu", "-c", text)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s\n%s", text, out)
	return string(out)
}

func TestRunbook_everyClusterCommandIsRun(t *testing.T) {
	t.Parallel()
	blocks, err := runbook.Read(runbookPath)
	require.NoError(t, err)
	left := maps.Clone(blocks["cluster"])
	delete(left, "admin-token") // below

	b := newTeam(t)
	o := ofPastPeriod()
	o.env["DUESDAY_ALLOW_FUTURE"] = "true"
	b.install(t, o)
	b.add(t, 5)
	for _, step := range runbookSteps() {
		block, ok := left[step.block]
		require.True(t, ok, "%s has no block %s", runbookPath, step.block)
		delete(left, step.block)
		dir := t.TempDir()
		step.before(t, b, dir)
		step.after(t, b, b.sh(t, dir, block.Text))
	}
	require.Empty(t, slices.Sorted(maps.Keys(left)), "no test runs these blocks of %s", runbookPath)
}

// The proxy's pods start with the token that is there, and with another after a
// restart.
func TestRunbook_theAdminTokenIsRotated(t *testing.T) {
	t.Parallel()
	blocks, err := runbook.Read(runbookPath)
	require.NoError(t, err)
	b := newTeam(t)
	b.secrets(t)
	b.kubectl(t, "create", "secret", "generic", "duesday-proxy", "--from-literal=admin-token=a-token-of-more-than-thirty-two-characters")
	b.kubectl(t, "apply", "-k", ofPastPeriod().writeProxied(t, b))
	b.awaitComplete(t, "duesday-migrate")
	b.kubectl(t, "rollout", "status", "deployment/duesday-proxy", "--timeout=5m")

	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "new-token"), []byte("another-token-of-more-than-thirty-two-characters"), 0o600))
	require.Contains(t, b.sh(t, dir, blocks["cluster"]["admin-token"].Text), "successfully rolled out")
}

// writeProxied is write with the proxy's component, whose pods charge at the
// team's Stripe.
func (o overlay) writeProxied(t *testing.T, b *team) string {
	t.Helper()
	dir := o.write(t, b)
	component, err := filepath.Abs(repository + "/manifests/proxy")
	require.NoError(t, err)
	base, err := filepath.Abs(repository + "/manifests")
	require.NoError(t, err)
	relative := func(path string) string {
		rel, err := filepath.Rel(dir, path)
		require.NoError(t, err)
		return rel
	}
	type object = map[string]any
	writeJSON(t, filepath.Join(dir, "proxy.yaml"), object{
		"apiVersion": "apps/v1", "kind": "Deployment", "metadata": object{"name": "duesday-proxy"},
		"spec": object{"template": object{"spec": object{"containers": []object{{
			"name": "proxy", "env": []object{{"name": "STRIPE_API_BASE", "value": b.stripeURL}},
		}}}}},
	})
	writeJSON(t, filepath.Join(dir, "kustomization.yaml"), object{
		"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
		"namespace": b.ns, "resources": []string{relative(base)}, "components": []string{relative(component)},
		"images":  []object{{"name": "duesday", "newName": imageName, "newTag": imageTag}},
		"patches": []object{{"path": "proxy.yaml"}},
	})
	return dir
}
