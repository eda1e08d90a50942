package charttest_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/duesday/duesday/internal/charttest"
)

func TestDecode_isStrict(t *testing.T) {
	for name, manifest := range map[string]string{
		"a misspelt field":    "apiVersion: batch/v1\nkind: Job\nmetadata: {name: x}\nspec: {paralelism: 2}\n",
		"a field in capital":  "apiVersion: batch/v1\nkind: Job\nmetadata: {name: x}\nspec: {Parallelism: 2}\n",
		"a field given twice": "apiVersion: batch/v1\nkind: Job\nmetadata: {name: x}\nspec:\n  parallelism: 2\n  parallelism: 2\n",
		"a wrong type":        "apiVersion: batch/v1\nkind: Job\nmetadata: {name: x}\nspec: {parallelism: two}\n",
		"an unknown kind":     "apiVersion: batch/v1\nkind: Jobs\nmetadata: {name: x}\n",
	} {
		_, err := charttest.Decode([]byte(manifest))
		require.Error(t, err, name)
	}
}

func TestDecode_takesWhatIsThere(t *testing.T) {
	all, err := charttest.Decode([]byte("# nothing\n---\napiVersion: v1\nkind: Secret\nmetadata: {name: a}\n---\n# c\napiVersion: v1\nkind: Secret\nmetadata: {name: b}\n---\n"))
	require.NoError(t, err)
	require.Len(t, all, 2)
	b, err := charttest.Find[*corev1.Secret](all, "b")
	require.NoError(t, err)
	require.Equal(t, "b", b.Name)
	_, err = charttest.Find[*corev1.Secret](all, "c")
	require.EqualError(t, err, "want one Secret named c, got 0")
}

func TestUnrestricted_seesEachLack(t *testing.T) {
	require.Len(t, charttest.Unrestricted(corev1.PodSpec{HostNetwork: true, Containers: []corev1.Container{{Name: "c"}}}), 8)
}
