package charttest_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/duesday/duesday/internal/charttest"
)

const manifests = "../../manifests"

func readManifests(t *testing.T) []charttest.Object {
	files, err := filepath.Glob(manifests + "/*.yaml")
	require.NoError(t, err)
	return read(t, files)
}

func read(t *testing.T, files []string) []charttest.Object {
	var all []charttest.Object
	for _, file := range files {
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		objects, err := charttest.Decode(content)
		require.NoError(t, err, file)
		all = append(all, objects...)
	}
	return all
}

func find[T charttest.Object](t *testing.T, all []charttest.Object, name string) T {
	found, err := charttest.Find[T](all, name)
	require.NoError(t, err)
	return found
}

// kubectl apply -f takes every *.yaml of the folder, apply -k what the
// kustomization lists.
func TestManifests_areTheKustomization(t *testing.T) {
	content, err := os.ReadFile(manifests + "/Kustomization")
	require.NoError(t, err)
	var kustomization struct {
		APIVersion, Kind string
		Resources        []string
	}
	require.NoError(t, yaml.UnmarshalStrict(content, &kustomization))
	files, err := filepath.Glob(manifests + "/*.yaml")
	require.NoError(t, err)
	for i, file := range files {
		files[i] = filepath.Base(file)
	}
	require.ElementsMatch(t, files, kustomization.Resources)
	for _, object := range readManifests(t) {
		require.Empty(t, object.GetNamespace(), object.GetName())
		require.Equal(t, "duesday", object.GetLabels()["app.kubernetes.io/name"], object.GetName())
	}
}

// readProxy reads the component's own objects, without its patches.
func readProxy(t *testing.T) []charttest.Object {
	content, err := os.ReadFile(manifests + "/proxy/Kustomization")
	require.NoError(t, err)
	var component struct {
		APIVersion, Kind string
		Resources        []string
		Patches          []struct{ Path string }
	}
	require.NoError(t, yaml.UnmarshalStrict(content, &component))
	files, err := filepath.Glob(manifests + "/proxy/*.yaml")
	require.NoError(t, err)
	var named, resources []string
	for _, name := range component.Resources {
		resources = append(resources, manifests+"/proxy/"+name)
	}
	named = append(named, resources...)
	for _, p := range component.Patches {
		named = append(named, manifests+"/proxy/"+p.Path)
	}
	require.ElementsMatch(t, files, named)
	return read(t, resources)
}

func TestProxy_deployment(t *testing.T) {
	all := readProxy(t)
	for _, object := range all {
		require.Empty(t, object.GetNamespace(), object.GetName())
		require.Equal(t, "duesday", object.GetLabels()["app.kubernetes.io/name"], object.GetName())
	}
	pod := find[*appsv1.Deployment](t, all, "duesday-proxy").Spec.Template.Spec
	require.Empty(t, charttest.Unrestricted(pod))
	require.False(t, *pod.AutomountServiceAccountToken)
	require.False(t, *pod.EnableServiceLinks)
	require.Greater(t, *pod.TerminationGracePeriodSeconds, 25+pod.Containers[0].Lifecycle.PreStop.Sleep.Seconds, "above the drain")
	require.Equal(t, 1, find[*policyv1.PodDisruptionBudget](t, all, "duesday-proxy").Spec.MinAvailable.IntValue())
}

func TestManifests_roleAllowsNothingElse(t *testing.T) {
	all := readManifests(t)
	require.Equal(t, []rbacv1.PolicyRule{
		{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, ResourceNames: []string{"duesday"}, Verbs: []string{"get", "update"}},
		{APIGroups: []string{"batch"}, Resources: []string{"jobs"}, Verbs: []string{"get"}},
		{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}},
	}, find[*rbacv1.Role](t, all, "duesday").Rules)
	binding := find[*rbacv1.RoleBinding](t, all, "duesday")
	require.Equal(t, rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "Role", Name: "duesday"}, binding.RoleRef)
	require.Equal(t, []rbacv1.Subject{{Kind: "ServiceAccount", Name: "duesday"}}, binding.Subjects)
	require.False(t, *find[*corev1.ServiceAccount](t, all, "duesday").AutomountServiceAccountToken)
	require.Equal(t, coordinationv1.LeaseSpec{}, find[*coordinationv1.Lease](t, all, "duesday").Spec,
		"to apply it again must not touch who leads")
}

func TestManifests_cronJob(t *testing.T) {
	cron := find[*batchv1.CronJob](t, readManifests(t), "duesday").Spec
	require.Equal(t, "Etc/UTC", *cron.TimeZone)
	require.Equal(t, batchv1.ForbidConcurrent, cron.ConcurrencyPolicy)
	require.Positive(t, *cron.StartingDeadlineSeconds)

	job := cron.JobTemplate.Spec
	require.Equal(t, int32(2), *job.Completions)
	require.Equal(t, int32(2), *job.Parallelism)
	require.Equal(t, int32(6), *job.BackoffLimit)
	require.Nil(t, job.CompletionMode)
	require.Nil(t, job.SuccessPolicy)
	requireFailurePolicy(t, job)

	pod := job.Template.Spec
	require.Empty(t, charttest.Unrestricted(pod))
	require.Equal(t, "duesday", pod.ServiceAccountName)
	require.True(t, *pod.AutomountServiceAccountToken)
	require.False(t, *pod.EnableServiceLinks)
	require.Greater(t, *pod.TerminationGracePeriodSeconds, int64(20+10), "above the drain")
}

func TestManifests_migrate(t *testing.T) {
	job := find[*batchv1.Job](t, readManifests(t), "duesday-migrate").Spec
	requireFailurePolicy(t, job)
	require.Empty(t, charttest.Unrestricted(job.Template.Spec))
	require.False(t, *job.Template.Spec.AutomountServiceAccountToken)
	require.False(t, *job.Template.Spec.EnableServiceLinks)
	require.Equal(t, []string{"migrate"}, job.Template.Spec.Containers[0].Args)
}

// requireFailurePolicy: what a person must act on ends the Job at once, a
// drained node costs nothing, and no pod runs beside its replacement.
func requireFailurePolicy(t *testing.T, job batchv1.JobSpec) {
	require.Equal(t, corev1.RestartPolicyNever, job.Template.Spec.RestartPolicy)
	require.Equal(t, batchv1.Failed, *job.PodReplacementPolicy)
	require.Equal(t, []batchv1.PodFailurePolicyRule{
		{Action: batchv1.PodFailurePolicyActionFailJob, OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{
			ContainerName: new("duesday"), Operator: batchv1.PodFailurePolicyOnExitCodesOpIn, Values: []int32{2, 3}}},
		{Action: batchv1.PodFailurePolicyActionIgnore, OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{
			{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}}},
	}, job.PodFailurePolicy.Rules)
	require.Equal(t, "duesday", job.Template.Spec.Containers[0].Name)
}

func TestManifests_networkPolicyLetsNothingIn(t *testing.T) {
	policy := find[*networkingv1.NetworkPolicy](t, readManifests(t), "duesday").Spec
	require.Equal(t, map[string]string{"app.kubernetes.io/name": "duesday"}, policy.PodSelector.MatchLabels)
	require.ElementsMatch(t, []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}, policy.PolicyTypes)
	require.Empty(t, policy.Ingress)
	var ports []string
	for _, rule := range policy.Egress {
		require.NotEmpty(t, rule.Ports)
		for _, p := range rule.Ports {
			ports = append(ports, string(*p.Protocol)+" "+p.Port.String())
		}
	}
	require.Equal(t, []string{"UDP 53", "TCP 53", "TCP 5432", "TCP 443", "TCP 6443"}, ports)
}

// The settings in the CronJob are flags of run, with their defaults, and run
// takes them: a misspelt one would be ignored in silence.
func TestManifests_settingsAreFlags(t *testing.T) {
	program, err := charttest.Build(t.Context(), "../..", t.TempDir())
	require.NoError(t, err)
	pods := charttest.Pods(append(readManifests(t), readProxy(t)...))
	require.Len(t, pods, 3)
	for name, pod := range pods {
		unknown, err := program.Unknown(t.Context(), pod.Spec.Containers[0])
		require.NoError(t, err)
		require.Empty(t, unknown, name)
	}

	run := pods["duesday"].Spec.Containers[0]
	defaults, err := program.Flags(t.Context(), "run")
	require.NoError(t, err)
	settings := 0
	for _, e := range run.Env {
		name, ok := charttest.Setting(e.Name)
		if !ok {
			continue
		}
		settings++
		switch {
		case name == "time-zone":
			require.Equal(t, "Etc/UTC", e.Value)
		case defaults[name] == "":
			require.Equal(t, "0", e.Value, name)
		default:
			require.Equal(t, defaults[name], e.Value, name)
		}
	}
	require.Equal(t, 10, settings)
	said, err := program.Try(t.Context(), run, "DUESDAY_LEADER_ELECT=false")
	require.NoError(t, err)
	require.Contains(t, said, "STRIPE_API_KEY_FILE: open /var/run/secrets/duesday/stripe/api-key", "it got as far as the key")
}

func TestProgram_seesWhatACommandDoesNotRead(t *testing.T) {
	program, err := charttest.Build(t.Context(), "../..", t.TempDir())
	require.NoError(t, err)
	for _, c := range []struct {
		args, env, unknown []string
	}{
		{[]string{"run", "--reopen", "--period=2026-10"}, []string{"DUESDAY_LEADER_ELECT", "DUESDAY_ADMIN_TOKEN_FILE", "DATABASE_URL"}, nil},
		{[]string{"reconcile", "--leader-elect"}, []string{"DUESDAY_LEASE_NAME", "DUESDAY_RETRY_DECLINED"}, []string{"--leader-elect", "DUESDAY_LEASE_NAME"}},
		{[]string{"plan"}, []string{"DUESDAY_RATE", "DUESDAY_ADMIN_TOKEN_FILE"}, []string{"DUESDAY_RATE", "DUESDAY_ADMIN_TOKEN_FILE"}},
		{[]string{"proxy", "now", "listen"}, []string{"DUESDAY_ADMIN_TOKEN_FILE", "DUESDAY_RATES"}, []string{"now", "listen", "DUESDAY_RATES"}},
	} {
		container := corev1.Container{Args: c.args}
		for _, name := range c.env {
			container.Env = append(container.Env, corev1.EnvVar{Name: name})
		}
		unknown, err := program.Unknown(t.Context(), container)
		require.NoError(t, err)
		require.Equal(t, c.unknown, unknown, c.args)
	}
	_, err = program.Unknown(t.Context(), corev1.Container{Args: []string{"bill"}})
	require.Error(t, err, "no such command")
}
