package chart

import (
	"testing"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/duesday/duesday/internal/charttest"
)

// requireShards: a Job with an index for each shard, which knows how many there
// are, and a Lease that each may use.
func requireShards(t *testing.T, all []charttest.Object) {
	t.Helper()
	job := find[*batchv1.CronJob](t, all, "duesday").Spec.JobTemplate.Spec
	require.Equal(t, batchv1.IndexedCompletion, *job.CompletionMode)
	require.Equal(t, int32(3), *job.Completions)
	require.Equal(t, int32(3), *job.Parallelism)
	require.Equal(t, int32(6), *job.BackoffLimitPerIndex)
	require.Nil(t, job.BackoffLimit, "one limit for all would end the sisters of a shard that fails")
	require.Nil(t, job.MaxFailedIndexes)
	require.Nil(t, job.SuccessPolicy, "one shard's success is not the period's")
	require.Equal(t, batchv1.PodFailurePolicyActionFailJob, job.PodFailurePolicy.Rules[0].Action)
	require.Equal(t, batchv1.Failed, *job.PodReplacementPolicy)
	env := job.Template.Spec.Containers[0].Env
	require.Contains(t, env, corev1.EnvVar{Name: "DUESDAY_SHARDS", Value: "3"})
	require.Contains(t, env, corev1.EnvVar{Name: "DUESDAY_LEASE_NAME", Value: "duesday"})

	names := []string{"duesday", "duesday-shard-0", "duesday-shard-1", "duesday-shard-2"}
	require.Equal(t, names, find[*rbacv1.Role](t, all, "duesday").Rules[0].ResourceNames)
	for _, name := range names {
		require.Empty(t, find[*coordinationv1.Lease](t, all, name).Spec)
	}
}

func TestTemplate_shards(t *testing.T) {
	t.Parallel()
	requireShards(t, render(t, setting{"shards", "3"}))

	unlimited := find[*batchv1.CronJob](t, render(t, setting{"shards", "3"}, setting{"backoffLimit", "null"}), "duesday")
	require.Nil(t, unlimited.Spec.JobTemplate.Spec.BackoffLimitPerIndex)
	require.Nil(t, unlimited.Spec.JobTemplate.Spec.BackoffLimit)

	one := find[*batchv1.CronJob](t, render(t, setting{"shards", "1"}, setting{"replicas", "4"}), "duesday").Spec.JobTemplate.Spec
	require.Equal(t, int32(4), *one.Completions)
	require.Nil(t, one.CompletionMode)
	require.Nil(t, one.BackoffLimitPerIndex)
	for _, e := range one.Template.Spec.Containers[0].Env {
		require.NotEqual(t, "DUESDAY_SHARDS", e.Name)
	}
}

func TestTemplate_shardsRefuseTheProxy(t *testing.T) {
	t.Parallel()
	_, err := template(t, flags([]setting{{"shards", "2"}, {"proxy.enabled", "true"}})...)
	require.ErrorContains(t, err, "a period has one vault key")
	for _, wrong := range []string{"0", "101", `"3"`} {
		_, err := template(t, flags([]setting{{"shards", wrong}})...)
		require.ErrorContains(t, err, "/shards")
	}
}

func TestKustomize_shards(t *testing.T) {
	t.Parallel()
	requireShards(t, decode(t, shell(t, "kubectl kustomize "+repository+"/examples/shards", "")))
}
