package chart

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/yaml"

	"github.com/duesday/duesday/internal/charttest"
)

var measured = []setting{
	{"metrics.enabled", "true"}, {"metrics.pushgatewayUrl", `"http://pushgateway.monitoring:9091"`}, {"reconcile.enabled", "true"},
	{"podMonitor.enabled", "true"}, {"prometheusRule.enabled", "true"}, {"dashboard.enabled", "true"},
}

// What the pods are told, the program takes, and who tells it can be scraped.
func TestMetrics_settingsAreFlags(t *testing.T) {
	t.Parallel()
	all := render(t, measured...)
	program, err := charttest.Build(t.Context(), repository, t.TempDir())
	require.NoError(t, err)
	pods := charttest.Pods(all)
	for name, pod := range pods {
		require.Empty(t, charttest.Unrestricted(pod.Spec), name)
		unknown, err := program.Unknown(t.Context(), pod.Spec.Containers[0])
		require.NoError(t, err)
		require.Empty(t, unknown, name)
	}
	for _, name := range []string{"duesday", "duesday-reconcile"} {
		c := pods[name].Spec.Containers[0]
		require.Equal(t, []corev1.ContainerPort{{Name: "metrics", ContainerPort: 9464, Protocol: corev1.ProtocolTCP}}, c.Ports, name)
		env := map[string]corev1.EnvVar{}
		for _, e := range c.Env {
			require.NotContains(t, env, e.Name, "%s: twice", name)
			env[e.Name] = e
		}
		require.Equal(t, ":9464", env["DUESDAY_METRICS_ADDR"].Value, name)
		require.Equal(t, "http://pushgateway.monitoring:9091", env["DUESDAY_PUSHGATEWAY_URL"].Value, name)
		require.Equal(t, "duesday", env["DUESDAY_PUSHGATEWAY_JOB"].Value, name)
		require.Equal(t, "Etc/UTC", env["DUESDAY_TIME_ZONE"].Value, name)
		require.Equal(t, "0", env["DUESDAY_PERIOD_OFFSET"].Value, name)
		require.Equal(t, "metadata.namespace", env["POD_NAMESPACE"].ValueFrom.FieldRef.FieldPath, name)
	}
	require.Empty(t, pods["duesday-plan"].Spec.Containers[0].Ports)
	for _, e := range charttest.Pods(render(t))["duesday"].Spec.Containers[0].Env {
		require.NotContains(t, e.Name, "METRICS", "off until asked for")
		require.NotContains(t, e.Name, "PUSHGATEWAY", "off until asked for")
	}
}

// The scraper comes in and the pods go out to the Pushgateway, and only if they
// are to; the proxy's promise holds all the same.
func TestMetrics_network(t *testing.T) {
	t.Parallel()
	scraper := charttest.Peer{Pod: map[string]string{"app": "prometheus"}, Namespace: map[string]string{"kubernetes.io/metadata.name": "monitoring"}}
	stranger := charttest.Peer{Pod: map[string]string{"app": "prometheus"}, Namespace: map[string]string{"kubernetes.io/metadata.name": "shop"}}
	ask := func(all []charttest.Object) (in, strangers, out, outside bool) {
		run := charttest.Pods(all)["duesday"].Labels
		network := charttest.NewNetwork(all)
		var errs [4]error
		in, errs[0] = network.Ingress(run, scraper, corev1.ProtocolTCP, 9464)
		strangers, errs[1] = network.Ingress(run, stranger, corev1.ProtocolTCP, 9464)
		out, errs[2] = network.Egress(run, scraper, corev1.ProtocolTCP, 9091)
		outside, errs[3] = network.Egress(run, charttest.Peer{IP: "203.0.113.7"}, corev1.ProtocolTCP, 9091)
		for _, err := range errs {
			require.NoError(t, err)
		}
		return in, strangers, out, outside
	}
	in, strangers, out, outside := ask(render(t))
	require.Equal(t, []bool{false, false, false, false}, []bool{in, strangers, out, outside}, "off")
	in, strangers, out, outside = ask(render(t, measured...))
	require.Equal(t, []bool{true, false, true, false}, []bool{in, strangers, out, outside}, "on")
	in, strangers, out, outside = ask(render(t, setting{"metrics.enabled", "true"}, setting{"metrics.from", "null"}))
	require.Equal(t, []bool{false, false, false, false}, []bool{in, strangers, out, outside}, "on, and nobody may scrape")

	for _, url := range []string{"http://pushgateway:9091", "https://pushgateway", "http://10.1.2.3/base"} {
		requireProxied(t, render(t, append(append([]setting{}, measured...), proxied[0], setting{"metrics.pushgatewayUrl", `"` + url + `"`})...))
	}
	for url, port := range map[string]int{"https://pushgateway": 443, "http://pushgateway": 80, "http://pushgateway:9091/base": 9091} {
		policy := find[*networkingv1.NetworkPolicy](t, render(t, setting{"metrics.enabled", "true"}, setting{"metrics.pushgatewayUrl", `"` + url + `"`}), "duesday-metrics")
		require.Equal(t, port, policy.Spec.Egress[0].Ports[0].Port.IntValue(), url)
	}
}

func TestMetrics_podMonitor(t *testing.T) {
	t.Parallel()
	all := render(t, append(append([]setting{}, measured...), proxied[0])...)
	monitor := find[*charttest.PodMonitor](t, all, "duesday")
	for name, pod := range charttest.Pods(all) {
		for label, value := range monitor.Spec.Selector.MatchLabels {
			require.Equal(t, value, pod.Labels[label], name)
		}
	}
	ports := map[string]bool{}
	for _, pod := range charttest.Pods(all) {
		for _, p := range pod.Spec.Containers[0].Ports {
			ports[p.Name] = true
		}
	}
	require.Len(t, monitor.Spec.PodMetricsEndpoints, 2)
	for _, e := range monitor.Spec.PodMetricsEndpoints {
		require.True(t, ports[e.Port], e.Port)
		require.Equal(t, []charttest.Relabeling{{Action: "replace", TargetLabel: "job", Replacement: "duesday"}}, e.Relabelings)
	}
	require.Len(t, find[*charttest.PodMonitor](t, render(t, measured...), "duesday").Spec.PodMetricsEndpoints, 1)
}

// The PrometheusRule is the plain file, of the release's own series.
func TestMetrics_rulesAreThePlainFile(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile(repository + "/monitoring/rules.yaml")
	require.NoError(t, err)
	plain := func(from string) charttest.PrometheusRuleSpec {
		var spec charttest.PrometheusRuleSpec
		require.NoError(t, yaml.UnmarshalStrict([]byte(from), &spec))
		return spec
	}
	got := find[*charttest.PrometheusRule](t, render(t, measured...), "duesday").Spec
	require.Equal(t, plain(strings.ReplaceAll(string(content), `job="duesday"`, `job="duesday", namespace="default"`)), got)

	later := find[*charttest.PrometheusRule](t, render(t, append(append([]setting{}, measured...),
		setting{"fullnameOverride", `"dues"`}, setting{"prometheusRule.periodGraceDays", "17"})...), "dues").Spec
	want := strings.ReplaceAll(string(content), `job="duesday"`, `job="dues", namespace="default"`)
	require.Equal(t, plain(strings.Replace(want, "> 259200", "> 1468800", 1)), later)
}

func TestMetrics_dashboardIsThePlainFile(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile(repository + "/monitoring/dashboard.json")
	require.NoError(t, err)
	found := find[*corev1.ConfigMap](t, render(t, measured...), "duesday-dashboard")
	require.Equal(t, "1", found.Labels["grafana_dashboard"])
	require.Equal(t, map[string]string{"duesday.json": string(content)}, map[string]string{"duesday.json": found.Data["duesday.json"] + "\n"})
	for _, object := range render(t) {
		_, isMonitor := object.(*charttest.PodMonitor)
		_, isRule := object.(*charttest.PrometheusRule)
		_, isMap := object.(*corev1.ConfigMap)
		require.False(t, isMonitor || isRule || isMap, "off until asked for: %s", object.GetName())
	}
}

// A rule without metrics would alert for ever, a monitor without finds nothing.
func TestMetrics_refusesHalfOfIt(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"prometheusRule.enabled", "podMonitor.enabled"} {
		_, err := template(t, flags([]setting{{path, "true"}})...)
		require.ErrorContains(t, err, path)
		require.ErrorContains(t, err, "metrics.enabled")
	}
	render(t, setting{"podMonitor.enabled", "true"}, proxied[0])
}
