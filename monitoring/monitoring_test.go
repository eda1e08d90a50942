// Package monitoring_test tests the rules and the dashboard with promtool.
package monitoring_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"sigs.k8s.io/yaml"

	"github.com/duesday/duesday/internal/promtest"
	"github.com/duesday/duesday/metrics"
	"github.com/duesday/duesday/spendcap"
)

type rule struct {
	Record, Alert, Expr, For string
	Labels, Annotations      map[string]string
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	return content
}

func readRules(t *testing.T) []rule {
	t.Helper()
	var file struct {
		Groups []struct {
			Name  string
			Rules []rule
		}
	}
	require.NoError(t, yaml.UnmarshalStrict(read(t, "rules.yaml"), &file))
	require.Len(t, file.Groups, 1)
	return file.Groups[0].Rules
}

func TestRules_promtoolFindsNothing(t *testing.T) {
	t.Parallel()
	said, err := promtest.Promtool(t, "", "check", "rules", "rules.yaml")
	require.NoError(t, err)
	require.Regexp(t, `SUCCESS: \d+ rules found`, said)
	require.NotContains(t, said, "lint")
}

func TestRules_fireAndAreSilent(t *testing.T) {
	t.Parallel()
	said, err := promtest.Promtool(t, "", "test", "rules", "rules_test.yaml", "months_test.yaml")
	require.NoError(t, err)
	require.Equal(t, 2, strings.Count(said, "SUCCESS"), said)
}

// Each alert has a test in which it fires, and one in which it must not.
func TestRules_areAllTested(t *testing.T) {
	t.Parallel()
	fires, silent := map[string]bool{}, map[string]bool{}
	for _, name := range []string{"rules_test.yaml", "months_test.yaml"} {
		var file struct {
			Tests []struct {
				Cases []struct {
					Alert string `json:"alertname"`
					Want  []any  `json:"exp_alerts"`
				} `json:"alert_rule_test"`
			}
		}
		require.NoError(t, yaml.Unmarshal(read(t, name), &file))
		for _, test := range file.Tests {
			for _, c := range test.Cases {
				if len(c.Want) > 0 {
					fires[c.Alert] = true
				} else {
					silent[c.Alert] = true
				}
			}
		}
	}
	for _, name := range alerts(t) {
		require.True(t, fires[name], "%s is never seen to fire", name)
		require.True(t, silent[name], "%s is never seen to be silent", name)
	}
}

// alerts are the names of all alerts.
func alerts(t *testing.T) []string {
	t.Helper()
	var names []string
	for _, r := range readRules(t) {
		if r.Alert != "" && !slices.Contains(names, r.Alert) {
			names = append(names, r.Alert)
		}
	}
	slices.Sort(names)
	require.Equal(t, []string{
		"DuesdayDeclinedShareUnusual", "DuesdayInDoubtTooLong", "DuesdayPeriodMissing",
		"DuesdayRunFailed", "DuesdaySpendCapNear", "DuesdayTooSlow",
	}, names)
	return names
}

var heading = regexp.MustCompile("(?m)^#+ .*$")

// Each alert says what it is about, and where the runbook has it.
func TestRules_leadToTheRunbook(t *testing.T) {
	t.Parallel()
	const page = "https://github.com/duesday/duesday/blob/main/docs/operations.md#"
	headings := heading.FindAllString(string(read(t, "../docs/operations.md")), -1)
	for _, r := range readRules(t) {
		if r.Alert == "" {
			continue
		}
		require.NotEmpty(t, r.Annotations["summary"], r.Alert)
		require.NotEmpty(t, r.Annotations["description"], r.Alert)
		require.Contains(t, []string{"warning", "critical"}, r.Labels["severity"], r.Alert)
		require.Equal(t, page+strings.ToLower(r.Alert), r.Annotations["runbook_url"])
		require.True(t, slices.ContainsFunc(headings, func(h string) bool {
			return strings.Trim(strings.TrimLeft(h, "# "), "`") == r.Alert
		}), "docs/operations.md has no heading %s", r.Alert)
	}
}

// names are all the metrics that there are, with those that Prometheus makes of
// a histogram and a summary, and what the rules record.
func names(t *testing.T) (described, all map[string]bool) {
	t.Helper()
	m := metrics.New(metrics.Config{Command: "run", Zone: time.UTC, Log: zap.NewNop(), Now: time.Now})
	p, err := spendcap.NewProxy(spendcap.ProxyConfig{APIKey: "rk_test_1", Log: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(p.Close)
	described, all = map[string]bool{}, map[string]bool{}
	quoted := regexp.MustCompile(`fqName: "([^"]*)"`)
	for _, c := range []prometheus.Collector{m, p} {
		ch := make(chan *prometheus.Desc)
		go func() {
			defer close(ch)
			c.Describe(ch)
		}()
		for d := range ch {
			name := quoted.FindStringSubmatch(d.String())[1]
			described[name], all[name] = true, true
			if name == "duesday_stripe_request_duration_seconds" || name == "duesday_pacer_wait_seconds" {
				for _, suffix := range []string{"_bucket", "_sum", "_count"} {
					all[name+suffix] = true
				}
			}
		}
	}
	return described, all
}

var metricName = regexp.MustCompile(`[a-z_:]*duesday_[a-z_:]+`)

func requireKnown(t *testing.T, all map[string]bool, expr string) {
	t.Helper()
	found := metricName.FindAllString(expr, -1)
	require.NotEmpty(t, found, expr)
	for _, name := range found {
		require.True(t, all[name], "there is no metric %s: %s", name, expr)
	}
}

func TestRules_nameMetricsThatExist(t *testing.T) {
	t.Parallel()
	_, all := names(t)
	for _, r := range readRules(t) {
		if r.Record != "" {
			all[r.Record] = true
		}
		requireKnown(t, all, r.Expr)
		require.Equal(t, len(selected.FindAllString(r.Expr, -1)), len(metricName.FindAllString(r.Expr, -1)),
			"the chart can put its own selector into each: %s", r.Expr)
	}
}

var selected = regexp.MustCompile(`[a-z_:]*duesday_[a-z_:]+\{job="duesday"[,}]`)

type dashboard struct {
	UID           string
	Title         string
	SchemaVersion int
	Templating    struct {
		List []struct{ Name, Type, Query, Definition any }
	}
	Panels []panel
}

type panel struct {
	ID          int
	Type, Title string
	Datasource  *datasource
	GridPos     struct{ H, W, X, Y int }
	Targets     []struct {
		Expr, RefID string
		Datasource  *datasource
	}
}

type datasource struct{ Type, UID string }

func readDashboard(t *testing.T) dashboard {
	t.Helper()
	var d dashboard
	require.NoError(t, json.Unmarshal(read(t, "dashboard.json"), &d))
	return d
}

func TestDashboard_isWellFormed(t *testing.T) {
	t.Parallel()
	d := readDashboard(t)
	require.Equal(t, "duesday-billing", d.UID)
	require.NotEmpty(t, d.Title)
	variables := map[string]bool{}
	for _, v := range d.Templating.List {
		variables[fmt.Sprint(v.Name)] = true
	}
	for _, name := range []string{"datasource", "job", "namespace", "command"} {
		require.True(t, variables[name], name)
	}
	ids, taken := map[int]bool{}, map[[2]int]string{}
	for _, p := range d.Panels {
		require.False(t, ids[p.ID], "id %d twice", p.ID)
		ids[p.ID] = true
		require.NotEmpty(t, p.Title)
		require.LessOrEqual(t, p.GridPos.X+p.GridPos.W, 24, p.Title)
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				require.Empty(t, taken[[2]int{x, y}], "%s lies on another", p.Title)
				taken[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		require.NotEmpty(t, p.Targets, p.Title)
		require.Equal(t, &datasource{"prometheus", "${datasource}"}, p.Datasource, p.Title)
		for _, target := range p.Targets {
			require.Equal(t, p.Datasource, target.Datasource, p.Title)
			require.Contains(t, target.Expr, `job="$job", namespace=~"$namespace"`, p.Title)
		}
	}
}

// Every expression parses, and every metric is on the dashboard.
func TestDashboard_asksForWhatThereIs(t *testing.T) {
	t.Parallel()
	described, all := names(t)
	fill := strings.NewReplacer("$__rate_interval", "5m", "$job", "duesday", "$namespace", ".*", "$command", "run")
	type recording struct {
		Record string `json:"record"`
		Expr   string `json:"expr"`
	}
	var rules []recording
	for _, p := range readDashboard(t).Panels {
		for _, target := range p.Targets {
			expr := fill.Replace(target.Expr)
			require.NotContains(t, expr, "$", p.Title)
			requireKnown(t, all, expr)
			for name := range described {
				if regexp.MustCompile(name + `(_bucket|_sum|_count)?\{`).MatchString(expr) {
					delete(described, name)
				}
			}
			rules = append(rules, recording{fmt.Sprintf("panel_%d_%s", p.ID, target.RefID), expr})
		}
	}
	require.Empty(t, described, "metrics that no panel shows")
	content, err := yaml.Marshal(map[string]any{"groups": []any{map[string]any{"name": "panels", "rules": rules}}})
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "panels.yaml")
	require.NoError(t, os.WriteFile(file, content, 0o600))
	said, err := promtest.Promtool(t, "", "check", "rules", file)
	require.NoError(t, err)
	require.Contains(t, said, fmt.Sprintf("SUCCESS: %d rules found", len(rules)))
}

// The chart can only read files of its own.
func TestChart_hasTheSameFiles(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"rules.yaml", "dashboard.json"} {
		require.Equal(t, string(read(t, name)), string(read(t, "../helm/duesday/files/"+name)),
			"run: cp monitoring/%s helm/duesday/files/", name)
	}
}
