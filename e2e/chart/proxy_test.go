package chart

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"

	"github.com/duesday/duesday/internal/charttest"
)

var proxied = []setting{{"proxy.enabled", "true"}, {"reconcile.enabled", "true"}}

func requireProxied(t *testing.T, all []charttest.Object) {
	t.Helper()
	short, err := charttest.Unproxied(all, "duesday-stripe")
	require.NoError(t, err)
	require.Empty(t, short)
	for name, pod := range charttest.Pods(all) {
		require.Empty(t, charttest.Unrestricted(pod.Spec), name)
	}
}

func TestProxy_aloneReachesStripe(t *testing.T) {
	t.Parallel()
	for name, more := range map[string][]setting{
		"usual":               nil,
		"addresses":           {{"networkPolicy.apiServerCIDRs", `["10.96.0.1/32"]`}},
		"the key as a value":  {{"stripe.apiKey", `"rk_test_1"`}},
		"the token, too":      {{"proxy.adminToken.token", `"` + strings.Repeat("t", 32) + `"`}},
		"another upstream":    {{"stripe.apiBase", `"https://stripe.example.com"`}},
		"other names":         {{"nameOverride", `"dues"`}, {"fullnameOverride", `"duesday"`}},
		"metrics are scraped": {{"proxy.metricsFrom", `[{"namespaceSelector":{"matchLabels":{"name":"monitoring"}}}]`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			requireProxied(t, render(t, append(more, proxied...)...))
		})
	}
}

// What the chart makes with the proxy is what the plain component is.
func TestProxy_equalsTheManifests(t *testing.T) {
	t.Parallel()
	theirs := render(t, proxied[:1]...)
	plain := decode(t, shell(t, "kubectl kustomize "+repository+"/examples/proxy | sed 's|registry.example.com/billing/duesday:v1.0.0|duesday:dev|'", ""))
	requireProxied(t, plain)
	for _, object := range plain {
		require.Equal(t, "billing", object.GetNamespace(), object.GetName())
		object.SetNamespace("")
	}
	for _, object := range theirs {
		plainLabels(object.GetLabels())
	}

	want, got := find[*appsv1.Deployment](t, plain, "duesday-proxy"), find[*appsv1.Deployment](t, theirs, "duesday-proxy")
	plainLabels(got.Spec.Selector.MatchLabels)
	plainLabels(got.Spec.Template.Labels)
	plainLabels(got.Spec.Template.Spec.TopologySpreadConstraints[0].LabelSelector.MatchLabels)
	require.Equal(t, want, got)

	service := find[*corev1.Service](t, theirs, "duesday-proxy")
	plainLabels(service.Spec.Selector)
	require.Equal(t, find[*corev1.Service](t, plain, "duesday-proxy"), service)

	budget := find[*policyv1.PodDisruptionBudget](t, theirs, "duesday-proxy")
	plainLabels(budget.Spec.Selector.MatchLabels)
	require.Equal(t, find[*policyv1.PodDisruptionBudget](t, plain, "duesday-proxy"), budget)

	addresses := render(t, proxied[0], setting{"networkPolicy.apiServerCIDRs", `["10.96.0.1/32","192.0.2.10/32"]`})
	for _, name := range []string{"duesday", "duesday-job", "duesday-proxy"} {
		policy := find[*networkingv1.NetworkPolicy](t, addresses, name)
		plainLabels(policy.Labels)
		plainLabels(policy.Spec.PodSelector.MatchLabels)
		for _, r := range policy.Spec.Egress {
			if len(r.To) > 0 && r.To[0].PodSelector != nil {
				plainLabels(r.To[0].PodSelector.MatchLabels)
			}
		}
		for _, r := range policy.Spec.Ingress {
			plainLabels(r.From[0].PodSelector.MatchLabels)
		}
		require.Equal(t, find[*networkingv1.NetworkPolicy](t, plain, name), policy)
	}

	wantRun, gotRun := charttest.Pods(plain)["duesday"].Spec, charttest.Pods(theirs)["duesday"].Spec
	require.ElementsMatch(t, wantRun.Containers[0].Env, gotRun.Containers[0].Env)
	require.Equal(t, wantRun.Containers[0].VolumeMounts, gotRun.Containers[0].VolumeMounts)
	require.Equal(t, wantRun.Volumes, gotRun.Volumes)
	for _, e := range []corev1.EnvVar{
		{Name: "STRIPE_API_BASE", Value: "http://duesday-proxy:8080"},
		{Name: "DUESDAY_VAULT_URL", Value: "http://duesday-proxy:8081"},
		{Name: "DUESDAY_ADMIN_TOKEN_FILE", Value: "/var/run/secrets/duesday/admin/token"},
	} {
		require.Contains(t, gotRun.Containers[0].Env, e)
	}
}

// The job needs the API server, whose Service has Stripe's port.
func TestProxy_jobReachesTheAPIServer(t *testing.T) {
	t.Parallel()
	reaches := func(component, ip string, port int, settings ...setting) bool {
		all := render(t, append(settings, proxied...)...)
		for _, pod := range charttest.Pods(all) {
			if pod.Labels["app.kubernetes.io/component"] == component {
				ok, err := charttest.NewNetwork(all).Egress(pod.Labels, charttest.Peer{IP: ip}, corev1.ProtocolTCP, port)
				require.NoError(t, err)
				return ok
			}
		}
		t.Fatalf("no pod of %s", component)
		return false
	}
	require.True(t, reaches("run", "192.0.2.10", 6443))
	require.False(t, reaches("run", "10.96.0.1", 443))
	require.False(t, reaches("plan", "192.0.2.10", 6443))
	require.False(t, reaches("migrate", "192.0.2.10", 6443))
	require.False(t, reaches("proxy", "192.0.2.10", 6443))

	at := setting{"networkPolicy.apiServerCIDRs", `["10.96.0.1/32","192.0.2.10/32"]`}
	require.True(t, reaches("run", "10.96.0.1", 443, at))
	require.True(t, reaches("run", "192.0.2.10", 6443, at))
	require.False(t, reaches("run", "192.0.2.11", 443, at))
	require.False(t, reaches("run", "192.0.2.11", 6443, at))
	closed := setting{"networkPolicy.apiServerPort", "null"}
	require.False(t, reaches("run", "192.0.2.10", 6443, closed))
	require.False(t, reaches("run", "192.0.2.10", 8443, at, closed, setting{"networkPolicy.httpsPort", "null"}), "no port is not every port")

	for _, settings := range [][]setting{
		{{"networkPolicy.apiServerPort", "443"}},
		{{"networkPolicy.apiServerPort", "8443"}, {"networkPolicy.httpsPort", "8443"}},
	} {
		_, err := template(t, flags(append(settings, proxied...))...)
		require.ErrorContains(t, err, "networkPolicy.apiServerCIDRs: give the API server's addresses")
		render(t, append(append(settings, at), proxied...)...)
	}
}

func TestProxy_metricsFrom(t *testing.T) {
	t.Parallel()
	all := render(t, append([]setting{{"proxy.metricsFrom", `[{"namespaceSelector":{"matchLabels":{"name":"monitoring"}}}]`}}, proxied...)...)
	proxy := charttest.Pods(all)["duesday-proxy"].Labels
	for _, c := range []struct {
		namespace string
		port      int
		want      bool
	}{{"monitoring", 8081, true}, {"monitoring", 8080, false}, {"shop", 8081, false}} {
		ok, err := charttest.NewNetwork(all).Ingress(proxy, charttest.Peer{Namespace: map[string]string{"name": c.namespace}}, corev1.ProtocolTCP, c.port)
		require.NoError(t, err)
		require.Equal(t, c.want, ok, c)
	}
}

func TestProxy_stopsGently(t *testing.T) {
	t.Parallel()
	all := render(t, proxied...)
	deployment := find[*appsv1.Deployment](t, all, "duesday-proxy")
	pod := deployment.Spec.Template.Spec
	container := pod.Containers[0]
	require.Greater(t, *pod.TerminationGracePeriodSeconds, 25+container.Lifecycle.PreStop.Sleep.Seconds, "above the drain")
	require.Equal(t, int32(2), *deployment.Spec.Replicas)
	require.Equal(t, 0, deployment.Spec.Strategy.RollingUpdate.MaxUnavailable.IntValue())
	require.Equal(t, "/readyz", container.ReadinessProbe.HTTPGet.Path)
	require.Equal(t, "/healthz", container.LivenessProbe.HTTPGet.Path)
	require.False(t, *pod.AutomountServiceAccountToken)
	require.False(t, *pod.EnableServiceLinks, "a Service named duesday-proxy would set DUESDAY_PROXY_… variables")

	budget := find[*policyv1.PodDisruptionBudget](t, all, "duesday-proxy").Spec
	require.Equal(t, 1, budget.MinAvailable.IntValue())
	for _, object := range render(t, append([]setting{{"proxy.replicas", "1"}}, proxied...)...) {
		_, is := object.(*policyv1.PodDisruptionBudget)
		require.False(t, is, "with one replica it would hold its node for ever")
	}
}

// The upstream is for who talks to Stripe: with the proxy, the proxy alone.
func TestProxy_goesToTheUpstream(t *testing.T) {
	t.Parallel()
	pods := charttest.Pods(render(t, append([]setting{{"stripe.apiBase", `"http://sim:12111"`}}, proxied...)...))
	upstream := corev1.EnvVar{Name: "STRIPE_API_BASE", Value: "http://sim:12111"}
	require.Contains(t, pods["duesday-proxy"].Spec.Containers[0].Env, upstream)
	for _, name := range []string{"duesday", "duesday-reconcile", "duesday-plan"} {
		require.NotContains(t, pods[name].Spec.Containers[0].Env, upstream, name)
	}
}

// A secret of the chart's that changes changes the pods that have read it.
func TestProxy_restartsWithItsSecrets(t *testing.T) {
	t.Parallel()
	checksum := func(token string) string {
		all := render(t, append([]setting{{"proxy.adminToken.token", `"` + strings.Repeat(token, 32) + `"`}}, proxied...)...)
		require.Equal(t, map[string]string{"admin-token": strings.Repeat(token, 32)}, find[*corev1.Secret](t, all, "duesday-proxy").StringData)
		return find[*appsv1.Deployment](t, all, "duesday-proxy").Spec.Template.Annotations["checksum/secrets"]
	}
	require.NotEmpty(t, checksum("a"))
	require.NotEqual(t, checksum("a"), checksum("b"))
	none := find[*appsv1.Deployment](t, render(t, proxied...), "duesday-proxy").Spec.Template.Annotations
	require.NotContains(t, none, "checksum/secrets")
}

func TestProxy_namesItsServiceAsTheAPIServerWants(t *testing.T) {
	t.Parallel()
	_, err := template(t, flags(append([]setting{{"fullnameOverride", `"3dues"`}}, proxied...))...)
	require.ErrorContains(t, err, "must begin with a letter")
}

// Without networkPolicy.enabled there is none, whatever else is on.
func TestProxy_withoutPolicies(t *testing.T) {
	t.Parallel()
	all := render(t, append([]setting{{"networkPolicy.enabled", "false"}}, proxied...)...)
	require.Empty(t, charttest.NewNetwork(all))
	find[*batchv1.CronJob](t, all, "duesday-reconcile")
}

// The check that the tests above rely on sees each way past the proxy.
func TestUnproxied_seesEachWayPast(t *testing.T) {
	t.Parallel()
	manifest, err := template(t, flags(proxied)...)
	require.NoError(t, err)
	const charging = "{key: app.kubernetes.io/component, operator: In, values: [run, reconcile]}"
	for _, c := range []struct{ old, new, want string }{
		{"- {protocol: TCP, port: 5432}", "- {protocol: TCP, port: 443}", "duesday: reaches Stripe: want false"},
		{"- {protocol: TCP, port: 5432}", "- {protocol: TCP, port: 5433}", "duesday: reaches Postgres: want true"},
		{"- {protocol: TCP, port: 443}", "- {protocol: TCP, port: 444}", "duesday-proxy: reaches Stripe: want true"},
		{"- {protocol: TCP, port: 6443}", "- {protocol: TCP, port: 443}", "duesday: reaches Stripe: want false"},
		{"- {protocol: TCP, port: 8081}", "- {protocol: TCP, port: 8082}", "duesday: may go to the proxy's 8081: want true"},
		{charging, "{key: app.kubernetes.io/component, operator: Exists}", "a pod of another component: connects to the proxy's 8080: want false"},
		{charging, "{key: app.kubernetes.io/component, operator: In, values: [run]}", "duesday-reconcile: is let into the proxy's 8080: want true"},
		{"ingress: []", "ingress: [{}]", "duesday: can be reached: want false"},
		{"    - from:\n        - podSelector:", "    - from:\n        - namespaceSelector: {}\n        - podSelector:", "a namesake elsewhere: connects to the proxy's 8080: want false"},
		{`secretName: "duesday-proxy"`, `secretName: "duesday-stripe"`, "duesday: gets the secret duesday-stripe: want false"},
		{`name: "duesday-database"`, `name: "duesday-stripe"`, "duesday-migrate: gets the secret duesday-stripe: want false"},
		{"name: DUESDAY_VAULT_URL", "name: STRIPE_API_KEY", "duesday: has a variable for Stripe's key: want false"},
		{"name: DUESDAY_PERIOD_OFFSET", "name: DUESDAY_ADMIN_TOKEN_FILE", "duesday-plan: has the admin token: want false"},
		{"app.kubernetes.io/component: proxy", "app.kubernetes.io/component: relay", "no proxy"},
	} {
		t.Run(c.want, func(t *testing.T) {
			t.Parallel()
			require.Contains(t, manifest, c.old)
			short, err := charttest.Unproxied(decode(t, strings.ReplaceAll(manifest, c.old, c.new)), "duesday-stripe")
			require.NoError(t, err)
			require.Contains(t, short, c.want)
		})
	}
}
