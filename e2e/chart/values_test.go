package chart

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/internal/charttest"
)

// other sets every documented value to something else than its default, and
// says what must be seen of it then that is not seen else.
var other = []struct{ path, json, seen string }{
	{"nameOverride", `"dues"`, "app.kubernetes.io/name: dues\n"},
	{"fullnameOverride", `"billing"`, "name: billing\n"},
	{"image.repository", `"registry.example.com/duesday"`, "registry.example.com/duesday:dev"},
	{"image.tag", `"v9"`, "duesday:v9"},
	{"image.digest", `"sha256:` + strings.Repeat("ab", 32) + `"`, "duesday@sha256:abab"},
	{"image.pullPolicy", `"Always"`, "imagePullPolicy: Always"},
	{"image.pullSecrets", `[{"name":"pull"}]`, "imagePullSecrets:"},
	{"schedule", `"30 13 2 * *"`, `schedule: "30 13 2 * *"`},
	{"timeZone", `"Asia/Tokyo"`, `"Asia/Tokyo"`},
	{"replicas", `3`, "parallelism: 3"},
	{"shards", `3`, "completionMode: Indexed"},
	{"suspend", `true`, "suspend: true"},
	{"startingDeadlineSeconds", `3600`, "startingDeadlineSeconds: 3600"},
	{"backoffLimit", `9`, "backoffLimit: 9"},
	{"successfulJobsHistoryLimit", `12`, "successfulJobsHistoryLimit: 12"},
	{"failedJobsHistoryLimit", `13`, "failedJobsHistoryLimit: 13"},
	{"terminationGracePeriodSeconds", `90`, "terminationGracePeriodSeconds: 90"},
	{"database.existingSecret", `"other-database"`, `"other-database"`},
	{"database.key", `"dsn"`, `"dsn"`},
	{"database.url", `"postgres://duesday@db/billing"`, `url: "postgres://duesday@db/billing"`},
	{"stripe.existingSecret", `"other-stripe"`, `"other-stripe"`},
	{"stripe.key", `"restricted"`, `"restricted"`},
	{"stripe.apiKey", `"rk_test_1"`, `api-key: "rk_test_1"`},
	{"stripe.apiBase", `"http://cap:8080"`, `value: "http://cap:8080"`},
	{"billing.customers", `"billing.subscribers"`, `"billing.subscribers"`},
	{"billing.periodOffset", `-1`, `"-1"`},
	{"billing.keyNamespace", `"quarkus-billing"`, `"quarkus-billing"`},
	{"billing.method", `"payment_intents"`, `"payment_intents"`},
	{"billing.description", `"Dues: \"{period}\""`, `"Dues: \"{period}\""`},
	{"billing.rate", `0.5`, `"0.5"`},
	{"billing.workers", `1000`, `"1000"`},
	{"billing.spendCapFactor", `1.25`, `"1.25"`},
	{"extraEnv", `[{"name":"DUESDAY_DEBUG","value":"true"}]`, "DUESDAY_DEBUG"},
	{"extraArgs", `["--reopen"]`, "- --reopen"},
	{"extraVolumes", `[{"name":"ca","configMap":{"name":"database-ca"}}]`, "database-ca"},
	{"extraVolumeMounts", `[{"name":"ca","mountPath":"/ca","readOnly":true}]`, "mountPath: /ca"},
	{"resources", `{"requests":{"cpu":1,"memory":"1Gi"},"limits":{"cpu":2,"memory":"1Gi"}}`, "memory: 1Gi"},
	{"nodeSelector", `{"disk":"fast"}`, "disk: fast"},
	{"tolerations", `[{"key":"billing","operator":"Exists","effect":"NoSchedule"}]`, "tolerations:"},
	{"affinity", `{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"zone","operator":"Exists"}]}]}}}`, "nodeSelectorTerms:"},
	{"topologySpreadConstraints", `[{"maxSkew":2,"topologyKey":"zone","whenUnsatisfiable":"DoNotSchedule","labelSelector":{"matchLabels":{"a":"b"}}}]`, "maxSkew: 2"},
	{"priorityClassName", `"high"`, `priorityClassName: "high"`},
	{"labels", `{"team":"billing"}`, "team: billing"},
	{"annotations", `{"owner":"billing"}`, "owner: billing"},
	{"podLabels", `{"mesh":"off"}`, `mesh: "off"`},
	{"podAnnotations", `{"scrape":"true"}`, `scrape: "true"`},
	{"serviceAccount.create", `false`, "serviceAccountName: theirs"},
	{"serviceAccount.name", `"theirs"`, "serviceAccountName: theirs"},
	{"serviceAccount.annotations", `{"cloud/role":"billing"}`, "cloud/role: billing"},
	{"networkPolicy.enabled", `false`, ""},
	{"networkPolicy.dnsPort", `5353`, "port: 5353"},
	{"networkPolicy.postgresPort", `6432`, "port: 6432"},
	{"networkPolicy.httpsPort", `8443`, "port: 8443"},
	{"networkPolicy.apiServerPort", `16443`, "port: 16443"},
	{"networkPolicy.apiServerCIDRs", `["10.96.0.1/32","fd00::1/128"]`, `cidr: "10.96.0.1/32"`},
	{"networkPolicy.extraEgress", `[{"to":[{"ipBlock":{"cidr":"10.0.0.0/8"}}],"ports":[{"protocol":"TCP","port":9091}]}]`, "cidr: 10.0.0.0/8"},
	{"migrate.enabled", `false`, ""},
	{"migrate.existingSecret", `"owner"`, `name: "owner"`},
	{"migrate.key", `"owner-url"`, `key: "owner-url"`},
	{"reconcile.enabled", `true`, "name: duesday-reconcile\n"},
	{"reconcile.schedule", `"3 * * * *"`, `schedule: "3 * * * *"`},
	{"reconcile.retryDeclined", `true`, "name: DUESDAY_RETRY_DECLINED\n                  value: \"true\"\n"},
	{"notify.existingSecret", `"chat"`, "secretName: \"chat\"\n"},
	{"notify.key", `"webhook"`, `- key: "webhook"`},
	{"notify.signingKey", `"hmac"`, `- key: "hmac"`},
	{"proxy.enabled", `true`, "name: duesday-proxy\n"},
	{"proxy.replicas", `3`, "replicas: 3"},
	{"proxy.adminToken.existingSecret", `"other-token"`, `"other-token"`},
	{"proxy.adminToken.key", `"bearer"`, `key: "bearer"`},
	{"proxy.adminToken.token", `"` + strings.Repeat("t", 32) + `"`, "admin-token: \"tttt"},
	{"proxy.resources", `{"requests":{"cpu":1,"memory":"2Gi"},"limits":{"cpu":2,"memory":"2Gi"}}`, "memory: 2Gi"},
	{"proxy.topologySpreadConstraints", `[{"maxSkew":3,"topologyKey":"zone","whenUnsatisfiable":"DoNotSchedule","labelSelector":{"matchLabels":{"a":"b"}}}]`, "maxSkew: 3"},
	{"proxy.terminationGracePeriodSeconds", `50`, "terminationGracePeriodSeconds: 50"},
	{"proxy.extraEnv", `[{"name":"DUESDAY_DATABASE_CONNECTIONS","value":"20"}]`, "DUESDAY_DATABASE_CONNECTIONS"},
	{"proxy.podAnnotations", `{"prometheus.io/port":"8081"}`, `prometheus.io/port: "8081"`},
	{"proxy.metricsFrom", `[{"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"monitoring"}}}]`, "kubernetes.io/metadata.name: monitoring"},
	{"proxy.extraEgress", `[{"to":[{"ipBlock":{"cidr":"10.7.0.0/16"}}],"ports":[{"protocol":"TCP","port":3128}]}]`, "cidr: 10.7.0.0/16"},
	{"metrics.enabled", `true`, "name: DUESDAY_METRICS_ADDR"},
	{"metrics.port", `9999`, "containerPort: 9999"},
	{"metrics.pushgatewayUrl", `"http://pushgateway.monitoring:9091"`, `value: "http://pushgateway.monitoring:9091"`},
	{"metrics.from", `[{"podSelector":{"matchLabels":{"app":"prometheus"}}}]`, "app: prometheus"},
	{"podMonitor.enabled", `true`, "kind: PodMonitor"},
	{"podMonitor.labels", `{"release":"prometheus"}`, "release: prometheus"},
	{"podMonitor.interval", `"7s"`, "interval: 7s"},
	{"prometheusRule.enabled", `true`, "kind: PrometheusRule"},
	{"prometheusRule.labels", `{"role":"alerts"}`, "role: alerts"},
	{"prometheusRule.periodGraceDays", `17`, "> 1468800"},
	{"dashboard.enabled", `true`, "name: duesday-dashboard\n"},
	{"dashboard.labels", `{"folder":"billing"}`, "folder: billing"},
}

// needs are the values without which another has no effect, or no sense.
var needs = map[string]setting{
	"serviceAccount.create":   {"serviceAccount.name", `"theirs"`},
	"migrate.key":             {"migrate.existingSecret", `"owner"`},
	"reconcile.schedule":      {"reconcile.enabled", `true`},
	"reconcile.retryDeclined": {"reconcile.enabled", `true`},
	"notify.key":              {"notify.existingSecret", `"chat"`},
	"notify.signingKey":       {"notify.existingSecret", `"chat"`},
}

func TestTemplate_eachValue(t *testing.T) {
	t.Parallel()
	var paths []string
	for _, o := range other {
		paths = append(paths, o.path)
	}
	var documented []string
	for _, v := range values(t) {
		documented = append(documented, v.Path)
	}
	require.ElementsMatch(t, documented, paths)

	usual, err := template(t)
	require.NoError(t, err)
	for _, o := range other {
		t.Run(o.path, func(t *testing.T) {
			t.Parallel()
			settings := []setting{{o.path, o.json}}
			if group, _, _ := strings.Cut(o.path, "."); strings.Contains("metrics podMonitor prometheusRule dashboard", group) {
				settings = append([]setting{{"metrics.enabled", "true"}, {group + ".enabled", "true"}}, settings...)
			} else if need, ok := needs[o.path]; ok {
				settings = append(settings, need)
			} else if strings.HasPrefix(o.path, "proxy.") {
				settings = append(settings, setting{"proxy.enabled", "true"})
			}
			manifest, err := template(t, flags(settings)...)
			require.NoError(t, err)
			all := decode(t, manifest)
			for name, pod := range charttest.Pods(all) {
				require.Empty(t, charttest.Unrestricted(pod.Spec), name)
			}
			require.NotEqual(t, usual, manifest)
			if o.seen == "" { // it takes something away
				require.Less(t, len(all), len(decode(t, usual)))
				return
			}
			require.NotContains(t, usual, o.seen)
			require.Contains(t, manifest, o.seen)
		})
	}
}

func TestTemplate_allValuesAtOnce(t *testing.T) {
	t.Parallel()
	var settings []setting
	for _, o := range other {
		if o.json == "false" && o.path != "serviceAccount.create" {
			continue
		}
		if o.path == "shards" { // not with the proxy
			continue
		}
		settings = append(settings, setting{o.path, o.json})
	}
	all := render(t, settings...)
	require.NotEmpty(t, all)
	for name, pod := range charttest.Pods(all) {
		require.Empty(t, charttest.Unrestricted(pod.Spec), name)
	}
	for _, object := range all {
		require.Equal(t, "billing", object.GetLabels()["team"], object.GetName())
	}
}

// A misspelt value would be ignored in silence by the templates.
func TestTemplate_refusesWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	for _, v := range values(t) {
		t.Run(v.Path, func(t *testing.T) {
			t.Parallel()
			_, err := template(t, "--set", v.Path+"z=1")
			require.ErrorContains(t, err, "'"+v.Path[strings.LastIndex(v.Path, ".")+1:]+"z' not allowed")
		})
	}
}

func TestTemplate_refusesNonsense(t *testing.T) {
	t.Parallel()
	for _, s := range []setting{
		{"replicas", `0`}, {"replicas", `"two"`}, {"replicas", `1.5`}, {"replicas", `null`},
		{"schedule", `"0 12 1 *"`}, {"schedule", `"TZ=Asia/Tokyo 0 12 1 * *"`},
		{"timeZone", `"Local"`}, {"timeZone", `""`},
		{"suspend", `"yes"`},
		{"backoffLimit", `-1`}, {"successfulJobsHistoryLimit", `-1`},
		{"terminationGracePeriodSeconds", `44`},
		{"image.digest", `"sha256:1234"`}, {"image.pullPolicy", `"Sometimes"`},
		{"database.existingSecret", `""`}, {"stripe.existingSecret", `""`},
		{"billing.customers", `""`}, {"billing.keyNamespace", `"a:b"`}, {"billing.method", `"checkout"`},
		{"billing.rate", `0`}, {"billing.workers", `0`}, {"billing.spendCapFactor", `0.5`}, {"billing.spendCapFactor", `"110%"`},
		{"extraEnv", `{"A":"b"}`}, {"labels", `{"n":1}`},
		{"serviceAccount.create", `false`}, // without a name
		{"networkPolicy", `null`}, {"networkPolicy.apiServerCIDRs", `["10.96.0.1"]`},
		{"reconcile.retryDeclined", `"no"`},
		{"proxy.replicas", `0`}, {"proxy.terminationGracePeriodSeconds", `30`}, {"proxy.adminToken.token", `"short"`},
		{"metrics.port", `80`}, {"metrics.pushgatewayUrl", `"pushgateway:9091"`}, {"metrics.pushgatewayUrl", `"http://me:secret@pushgateway:9091"`},
		{"podMonitor.interval", `"often"`}, {"prometheusRule.periodGraceDays", `0`}, {"dashboard.labels", `["a"]`},
		{"proxy", `{"enabled":true,"adminToken":{"existingSecret":""}}`}, {"proxy.metricsFrom", `["monitoring"]`},
	} {
		t.Run(s.path+"="+s.json, func(t *testing.T) {
			t.Parallel()
			_, err := template(t, flags([]setting{s})...)
			require.Error(t, err)
			name, _, _ := strings.Cut(s.path, ".")
			require.ErrorContains(t, err, name)
		})
	}
}
