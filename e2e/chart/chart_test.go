package chart

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/duesday/duesday/internal/charttest"
)

func TestLint(t *testing.T) {
	t.Parallel()
	for _, proxy := range []string{"false", "true"} {
		_, err := helm(t, "lint", "--strict", "--kube-version", "1.36.3", "--set",
			"proxy.enabled="+proxy+",metrics.enabled="+proxy+",podMonitor.enabled="+proxy+",prometheusRule.enabled="+proxy+",dashboard.enabled="+proxy, chart)
		require.NoError(t, err)
	}
}

// What the chart makes by default is what the plain manifests are.
func TestTemplate_equalsTheManifests(t *testing.T) {
	t.Parallel()
	theirs := render(t)
	plain := decode(t, shell(t, "kubectl kustomize "+repository+"/manifests", ""))
	for _, object := range theirs {
		plainLabels(object.GetLabels())
	}

	want, got := find[*batchv1.CronJob](t, plain, "duesday"), find[*batchv1.CronJob](t, theirs, "duesday")
	plainLabels(got.Spec.JobTemplate.Labels)
	plainLabels(got.Spec.JobTemplate.Spec.Template.Labels)
	plainLabels(got.Spec.JobTemplate.Spec.Template.Spec.TopologySpreadConstraints[0].LabelSelector.MatchLabels)
	require.Equal(t, want, got)

	policy := find[*networkingv1.NetworkPolicy](t, theirs, "duesday")
	plainLabels(policy.Spec.PodSelector.MatchLabels)
	require.Equal(t, find[*networkingv1.NetworkPolicy](t, plain, "duesday"), policy)

	require.Equal(t, find[*rbacv1.Role](t, plain, "duesday"), find[*rbacv1.Role](t, theirs, "duesday"))
	require.Equal(t, find[*coordinationv1.Lease](t, plain, "duesday"), find[*coordinationv1.Lease](t, theirs, "duesday"))
	require.Equal(t, find[*corev1.ServiceAccount](t, plain, "duesday"), find[*corev1.ServiceAccount](t, theirs, "duesday"))

	binding := find[*rbacv1.RoleBinding](t, theirs, "duesday")
	binding.Subjects[0].Namespace = ""
	require.Equal(t, find[*rbacv1.RoleBinding](t, plain, "duesday"), binding)

	wantJob, gotJob := find[*batchv1.Job](t, plain, "duesday-migrate"), find[*batchv1.Job](t, theirs, "duesday-migrate")
	plainLabels(gotJob.Spec.Template.Labels)
	gotJob.Annotations = nil                          // the hook's
	wantJob.Spec.TTLSecondsAfterFinished = nil        // the hook goes by itself
	gotJob.Spec.Template.Spec.ServiceAccountName = "" // the hook's own
	require.Equal(t, wantJob, gotJob)
}

// plainLabels takes Helm's labels away.
func plainLabels(labels map[string]string) {
	for _, name := range []string{"helm.sh/chart", "app.kubernetes.io/managed-by", "app.kubernetes.io/version", "app.kubernetes.io/instance"} {
		delete(labels, name)
	}
}

func TestKustomize_theExample(t *testing.T) {
	t.Parallel()
	all := decode(t, shell(t, "kubectl kustomize "+repository+"/examples/kustomize", ""))
	for _, object := range all {
		if _, ok := object.(*corev1.Namespace); !ok {
			require.Equal(t, "billing", object.GetNamespace(), object.GetName())
		}
	}
	cron := find[*batchv1.CronJob](t, all, "duesday").Spec.JobTemplate.Spec.Template.Spec
	require.Equal(t, "registry.example.com/billing/duesday:v1.0.0", cron.Containers[0].Image)
	require.Contains(t, cron.Containers[0].Env, corev1.EnvVar{Name: "DUESDAY_PERIOD_OFFSET", Value: "-1"})
	require.Contains(t, cron.Containers[0].Env, corev1.EnvVar{Name: "DUESDAY_RATE", Value: "20"})
}

func TestTemplate_tellsZeroFromNull(t *testing.T) {
	t.Parallel()
	cron := func(json string) batchv1.CronJobSpec {
		var settings []setting
		for _, path := range []string{"backoffLimit", "successfulJobsHistoryLimit", "failedJobsHistoryLimit"} {
			settings = append(settings, setting{path, json})
		}
		all := render(t, settings...)
		require.Equal(t, find[*batchv1.CronJob](t, all, "duesday").Spec.JobTemplate.Spec.BackoffLimit,
			find[*batchv1.Job](t, all, "duesday-migrate").Spec.BackoffLimit)
		return find[*batchv1.CronJob](t, all, "duesday").Spec
	}
	zero := cron("0")
	require.Equal(t, new(int32), zero.JobTemplate.Spec.BackoffLimit)
	require.Equal(t, new(int32), zero.SuccessfulJobsHistoryLimit)
	require.Equal(t, new(int32), zero.FailedJobsHistoryLimit)
	null := cron("null")
	require.Nil(t, null.JobTemplate.Spec.BackoffLimit)
	require.Nil(t, null.SuccessfulJobsHistoryLimit)
	require.Nil(t, null.FailedJobsHistoryLimit)

	require.Nil(t, find[*batchv1.CronJob](t, render(t, setting{"startingDeadlineSeconds", "null"}), "duesday").Spec.StartingDeadlineSeconds)
	require.Contains(t, find[*batchv1.CronJob](t, render(t, setting{"billing.periodOffset", "0"}), "duesday").
		Spec.JobTemplate.Spec.Template.Spec.Containers[0].Env, corev1.EnvVar{Name: "DUESDAY_PERIOD_OFFSET", Value: "0"})

	spread := func(json string) int {
		return len(find[*batchv1.CronJob](t, render(t, setting{"topologySpreadConstraints", json}), "duesday").
			Spec.JobTemplate.Spec.Template.Spec.TopologySpreadConstraints)
	}
	require.Equal(t, 1, spread("null"))
	require.Equal(t, 0, spread("[]"))

	ports := find[*networkingv1.NetworkPolicy](t, render(t, setting{"networkPolicy.dnsPort", "null"}, setting{"networkPolicy.postgresPort", "null"}), "duesday")
	require.Len(t, ports.Spec.Egress, 2)
	closed := find[*networkingv1.NetworkPolicy](t, render(t, setting{"networkPolicy", `{"dnsPort":null,"postgresPort":null,"httpsPort":null,"apiServerPort":null}`}), "duesday")
	require.Empty(t, closed.Spec.Egress)
	require.Len(t, closed.Spec.PolicyTypes, 2)

	for _, path := range []string{"extraEnv", "extraArgs", "extraVolumes", "extraVolumeMounts", "nodeSelector", "tolerations", "affinity",
		"labels", "annotations", "podLabels", "podAnnotations", "serviceAccount.annotations", "image.pullSecrets", "networkPolicy.extraEgress", "networkPolicy.apiServerCIDRs"} {
		require.Equal(t, render(t), render(t, setting{path, "null"}), path)
	}
}

func TestTemplate_namesAreShortEnough(t *testing.T) {
	t.Parallel()
	for _, full := range []string{strings.Repeat("a", 63), strings.Repeat("a", 51) + "-b", strings.Repeat("a", 41) + "-" + strings.Repeat("b", 20), "x"} {
		all := render(t, setting{"fullnameOverride", `"` + full + `"`}, setting{"reconcile.enabled", "true"},
			setting{"database.url", `"postgres://db/x"`}, setting{"stripe.apiKey", `"rk_test_1"`},
			setting{"proxy.enabled", "true"}, setting{"proxy.adminToken.token", `"` + strings.Repeat("t", 32) + `"`},
			setting{"metrics.enabled", "true"}, setting{"podMonitor.enabled", "true"}, setting{"prometheusRule.enabled", "true"}, setting{"dashboard.enabled", "true"})
		seen := map[string]bool{}
		var leases []string
		for _, object := range all {
			name := object.GetName()
			require.LessOrEqual(t, len(name), 52)
			require.False(t, strings.HasSuffix(name, "-"), name)
			key := object.GetObjectKind().GroupVersionKind().Kind + " " + name
			require.False(t, seen[key], key)
			seen[key] = true
			if _, ok := object.(*coordinationv1.Lease); ok {
				leases = append(leases, name)
			}
		}
		require.Len(t, leases, 1)
		for _, object := range all {
			if role, ok := object.(*rbacv1.Role); ok {
				require.Equal(t, leases, role.Rules[0].ResourceNames)
			}
			if cron, ok := object.(*batchv1.CronJob); ok && cron.Name == leases[0] {
				require.Contains(t, cron.Spec.JobTemplate.Spec.Template.Spec.Containers[0].Env, corev1.EnvVar{Name: "DUESDAY_LEASE_NAME", Value: leases[0]})
			}
		}
	}
	long := strings.Repeat("r", 53)
	manifest, err := helm(t, "template", long, chart, "--kube-version", "1.36.3")
	require.NoError(t, err)
	for _, object := range decode(t, manifest) {
		require.LessOrEqual(t, len(object.GetName()), 52)
	}
}

// Hooks run before anything else of the release is there: what the migration
// needs must be a hook too, and earlier, or there before.
func TestTemplate_migrationStandsAlone(t *testing.T) {
	t.Parallel()
	for name, settings := range map[string][]setting{
		"with a secret that exists":          nil,
		"with a secret of the chart":         {{"database.url", `"postgres://db/x"`}},
		"with a role of its own":             {{"database.url", `"postgres://db/x"`}, {"migrate.existingSecret", `"owner"`}, {"migrate.key", `"dsn"`}},
		"with a service account that exists": {{"serviceAccount.create", "false"}, {"serviceAccount.name", `"theirs"`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all := render(t, settings...)
			made := map[string]string{} // kind and name, and the hook's weight
			for _, object := range all {
				if object.GetAnnotations()["helm.sh/hook"] == "test" {
					continue
				}
				accessor, err := meta.TypeAccessor(object)
				require.NoError(t, err)
				made[accessor.GetKind()+" "+object.GetName()] = object.GetAnnotations()["helm.sh/hook-weight"]
			}
			job := find[*batchv1.Job](t, all, "duesday-migrate")
			require.Equal(t, "pre-install,pre-upgrade", job.Annotations["helm.sh/hook"])
			require.Equal(t, "0", job.Annotations["helm.sh/hook-weight"])
			pod := job.Spec.Template.Spec
			for _, needed := range []string{"ServiceAccount " + pod.ServiceAccountName, "Secret " + pod.Containers[0].Env[0].ValueFrom.SecretKeyRef.Name} {
				if weight, ours := made[needed]; ours {
					require.Equal(t, "-10", weight, needed)
				}
			}
			if strings.Contains(name, "its own") {
				require.Equal(t, "owner", pod.Containers[0].Env[0].ValueFrom.SecretKeyRef.Name)
				require.Equal(t, "dsn", pod.Containers[0].Env[0].ValueFrom.SecretKeyRef.Key)
			}
			policy := find[*networkingv1.NetworkPolicy](t, all, "duesday-migrate")
			require.Equal(t, "-10", policy.Annotations["helm.sh/hook-weight"])
			for label, value := range policy.Spec.PodSelector.MatchLabels {
				require.Equal(t, value, job.Spec.Template.Labels[label])
			}
		})
	}
}

func TestTemplate_secrets(t *testing.T) {
	t.Parallel()
	checksum := func(all []charttest.Object) string {
		return find[*batchv1.CronJob](t, all, "duesday").Spec.JobTemplate.Spec.Template.Annotations["checksum/secrets"]
	}
	usual := render(t)
	for _, object := range usual {
		_, secret := object.(*corev1.Secret)
		require.False(t, secret, object.GetName())
	}
	require.Empty(t, checksum(usual))

	one := render(t, setting{"stripe.apiKey", `"rk_test_1"`}, setting{"database.url", `"postgres://db/one"`})
	require.Equal(t, map[string]string{"api-key": "rk_test_1"}, find[*corev1.Secret](t, one, "duesday-stripe").StringData)
	require.Equal(t, map[string]string{"url": "postgres://db/one"}, find[*corev1.Secret](t, one, "duesday-database").StringData)
	two := render(t, setting{"stripe.apiKey", `"rk_test_2"`}, setting{"database.url", `"postgres://db/one"`})
	require.NotEmpty(t, checksum(one))
	require.NotEqual(t, checksum(one), checksum(two))
	for name, pod := range charttest.Pods(one) {
		for _, c := range pod.Spec.Containers {
			for _, e := range c.Env {
				require.NotContains(t, e.Value, "rk_test", name)
				require.NotContains(t, e.Value, "postgres://", name)
			}
		}
	}
}

func TestTemplate_testRunsPlan(t *testing.T) {
	t.Parallel()
	pod := find[*corev1.Pod](t, render(t), "duesday-plan")
	require.Equal(t, "test", pod.Annotations["helm.sh/hook"])
	require.Equal(t, []string{"plan"}, pod.Spec.Containers[0].Args)
	require.Equal(t, corev1.RestartPolicyNever, pod.Spec.RestartPolicy)
	require.Empty(t, pod.Spec.Volumes, "it needs no key")
}

// notes renders NOTES.txt, which helm shows only where there is a cluster, by
// way of a ConfigMap in a copy of the chart.
func notes(t *testing.T, settings ...setting) string {
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS(chart)))
	require.NoError(t, os.Rename(filepath.Join(dir, "templates", "NOTES.txt"), filepath.Join(dir, "notes.txt")))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "templates", "notes.yaml"), []byte(
		"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: notes}\ndata:\n  notes: |\n    {{- tpl (.Files.Get \"notes.txt\") . | nindent 4 }}\n"), 0o644))
	manifest, err := helm(t, append([]string{"template", "duesday", dir, "--kube-version", "1.36.3", "--namespace", "billing"}, flags(settings)...)...)
	require.NoError(t, err)
	return find[*corev1.ConfigMap](t, decode(t, manifest), "notes").Data["notes"]
}

func TestNotes(t *testing.T) {
	t.Parallel()
	usual := notes(t)
	require.Contains(t, usual, `"0 12 1 * *" (Etc/UTC) from duesday.customers.`)
	require.Contains(t, usual, "kubectl -n billing create job --from=cronjob/duesday rerun-1\n")
	require.Contains(t, usual, "helm -n billing test duesday --logs")
	require.Contains(t, usual, "secret duesday-stripe, key api-key")
	require.NotContains(t, usual, "WARNING")
	require.NotContains(t, usual, "proxy")

	capped := notes(t, setting{"proxy.enabled", "true"})
	require.Contains(t, capped, "The proxy reads Stripe's key from secret duesday-stripe, key api-key.")
	require.Contains(t, capped, "through the spend-cap proxy duesday-proxy,")
	require.Contains(t, capped, "secret duesday-proxy, key admin-token.")
	require.Contains(t, capped, "kubectl -n billing port-forward service/duesday-proxy 8081")
	require.NotContains(t, capped, "WARNING")
	token := strings.Repeat("t", 32)
	shown := notes(t, setting{"proxy.enabled", "true"}, setting{"proxy.adminToken.token", `"` + token + `"`})
	require.Contains(t, shown, "WARNING")
	require.NotContains(t, shown, token)

	tried := notes(t, setting{"stripe.apiKey", `"rk_test_1"`}, setting{"database.url", `"postgres://db/x"`}, setting{"suspend", "true"},
		setting{"billing.periodOffset", "-1"}, setting{"migrate.enabled", "false"})
	require.Contains(t, tried, "WARNING")
	require.Contains(t, tried, "SUSPENDED")
	require.Contains(t, tried, "now minus 1.")
	require.Contains(t, tried, "duesday migrate")
	require.NotContains(t, tried, "rk_test_1")
	require.NotContains(t, tried, "postgres://")
}

// The pipelines that notes and readme give do what they say: what `kubectl
// create job --from` makes is fed to the commands that follow it.
func TestPipelines(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile(repository + "/manifests/README.md")
	require.NoError(t, err)
	for name, text := range map[string]string{"notes": notes(t), "readme": string(readme)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pipelines := pipelinesOf(text)
			require.Len(t, pipelines, 2)
			rerun, report := pipelines[0], pipelines[1]

			job := jobFrom(t)
			before := find[*batchv1.Job](t, decode(t, job), "by-hand")
			again := find[*batchv1.Job](t, decode(t, shell(t, rerun, job)), "by-hand")
			container := &again.Spec.Template.Spec.Containers[0]
			require.Contains(t, container.Env, corev1.EnvVar{Name: "DUESDAY_PERIOD", Value: "2026-10"})
			container.Env = container.Env[:len(container.Env)-1]
			require.Equal(t, before.Spec, again.Spec)

			told := find[*batchv1.Job](t, decode(t, shell(t, report, job)), "by-hand").Spec
			require.Equal(t, int32(1), *told.Completions)
			require.Equal(t, int32(1), *told.Parallelism)
			require.Equal(t, []string{"report"}, told.Template.Spec.Containers[0].Args)
			require.Equal(t, "duesday:dev", told.Template.Spec.Containers[0].Image)
			require.Contains(t, told.Template.Spec.Containers[0].Env, corev1.EnvVar{Name: "DUESDAY_PERIOD", Value: "2026-10"})
		})
	}
}

// pipelinesOf takes the middle out of each pipeline from create job to create.
func pipelinesOf(text string) []string {
	var all []string
	var middle []string
	inside := false
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch {
		case strings.Contains(line, "create job") && strings.HasSuffix(line, "--dry-run=client -o yaml |"):
			inside, middle = true, nil
		case inside && line == "kubectl create -f -":
			inside = false
			all = append(all, strings.TrimSuffix(strings.Join(middle, " "), "|"))
		case inside:
			middle = append(middle, line)
		}
	}
	return all
}

// jobFrom is the CronJob's Job, as kubectl create job --from makes it.
func jobFrom(t *testing.T) string {
	cron := find[*batchv1.CronJob](t, render(t), "duesday")
	job := &batchv1.Job{ObjectMeta: cron.Spec.JobTemplate.ObjectMeta, Spec: cron.Spec.JobTemplate.Spec}
	job.APIVersion, job.Kind, job.Name = "batch/v1", "Job", "by-hand"
	return marshal(t, job)
}
