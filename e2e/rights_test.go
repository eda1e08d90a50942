package e2e

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The golden list also has what Kubernetes lets everybody do: look at what the
// API server offers, and ask about oneself.
func TestServiceAccount_mayDoWhatTheRoleSaysAndNothingElse(t *testing.T) {
	t.Parallel()
	b := newTeam(t)
	b.install(t, overlay{})
	as := "--as=system:serviceaccount:" + b.ns + ":duesday"
	lines := strings.Split(strings.TrimSpace(b.kubectl(t, "auth", "can-i", "--list", as)), "\n")
	for i, line := range lines {
		lines[i] = strings.Join(strings.Fields(line), " ")
	}
	slices.Sort(lines[1:]) // they come in any order, and some twice
	lines = slices.Compact(lines)
	golden, err := os.ReadFile("testdata/can-i.txt")
	require.NoError(t, err)
	require.Equal(t, string(golden), strings.Join(lines, "\n")+"\n")

	can := func(args ...string) string {
		// It exits with 1 for a no.
		said, _ := b.cluster.Kubectl(t.Context(), append([]string{"-n", b.ns, "auth", "can-i", as}, args...)...)
		return strings.TrimSpace(said)
	}
	for _, yes := range []string{"get leases/duesday", "update leases/duesday", "get jobs/any", "create events", "patch events"} {
		require.Equal(t, "yes", can(strings.Fields(yes)...), yes)
	}
	for _, no := range []string{
		"get leases/other", "update leases/other", "list leases", "watch leases/duesday", "create leases", "patch leases/duesday", "delete leases/duesday",
		"list jobs", "create jobs", "delete jobs/any", "get cronjobs", "get pods", "delete pods", "create pods/exec",
		"get secrets/duesday-stripe", "list secrets", "get configmaps", "create serviceaccounts/token", "get nodes", "impersonate users",
		"get leases/duesday --namespace=default", "get jobs/any --namespace=default",
	} {
		require.Equal(t, "no", can(strings.Fields(no)...), no)
	}
}
