package metrics_test

import (
	"context"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/internal/pgtest"
	"github.com/duesday/duesday/job"
	"github.com/duesday/duesday/metrics"
	"github.com/duesday/duesday/spendcap"
)

func TestMain(m *testing.M) { pgtest.Main(m, pgtest.CheckLeaks()) }

// config is that of a run in Berlin's noon of 15 October 2026.
func config(t testing.TB, change func(*metrics.Config)) metrics.Config {
	t.Helper()
	berlin, err := time.LoadLocation("Europe/Berlin")
	require.NoError(t, err)
	now := time.Date(2026, time.October, 15, 10, 0, 0, 0, time.UTC)
	cfg := metrics.Config{
		Command: "run", Version: "v1.2.3", Zone: berlin, Progress: func() job.Progress { return job.Progress{} }, Log: zap.NewNop(), Now: func() time.Time { return now },
	}
	if change != nil {
		change(&cfg)
	}
	return cfg
}

// ledger is a migrated database with these periods, open unless settled.
func ledger(t testing.TB, periods ...string) *pgtest.DB {
	t.Helper()
	db := pgtest.New(t)
	_, err := charges.Migrate(t.Context(), db.Connect(t))
	require.NoError(t, err)
	for _, p := range periods {
		name, settled := strings.CutSuffix(p, " settled")
		db.Exec(t, `INSERT INTO duesday.periods (billing_period, key_namespace, opened_at, settled_at)
			VALUES ($1, 'n', now(), CASE WHEN $2 THEN now() END)`, name, settled)
	}
	return db
}

// values are the gathered values by name and labels.
func values(t testing.TB, m prometheus.Collector) map[string]float64 {
	t.Helper()
	found := map[string]float64{}
	for _, family := range gather(t, m) {
		for _, metric := range family.GetMetric() {
			var labels []string
			for _, l := range metric.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			v := metric.GetGauge().GetValue() + metric.GetCounter().GetValue()
			found[strings.TrimPrefix(family.GetName(), "duesday_")+"{"+strings.Join(labels, ",")+"}"] = v
		}
	}
	return found
}

func gather(t testing.TB, collectors ...prometheus.Collector) []*dto.MetricFamily {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	for _, c := range collectors {
		require.NoError(t, registry.Register(c))
	}
	families, err := registry.Gather()
	require.NoError(t, err)
	return families
}

func TestPeriods_missingAndDue(t *testing.T) {
	t.Parallel()
	at := func(year int, month time.Month, zone string) float64 {
		location, err := time.LoadLocation(zone)
		require.NoError(t, err)
		return float64(time.Date(year, month, 1, 0, 0, 0, 0, location).Unix())
	}
	for name, tc := range map[string]struct {
		periods       []string
		offset        int
		now           time.Time
		missing, open float64
		due           float64
	}{
		"all is billed": {
			periods: []string{"2026-08 settled", "2026-09 settled", "2026-10 settled"},
			due:     at(2026, time.November, "Europe/Berlin"),
		},
		"this month's schedule may still be to come": {
			periods: []string{"2026-08 settled", "2026-09"}, open: 1,
			due: at(2026, time.October, "Europe/Berlin"),
		},
		"two months in between": {
			periods: []string{"2026-06 settled", "2026-09 settled", "2026-10"}, missing: 2, open: 1,
			due: at(2026, time.July, "Europe/Berlin"),
		},
		"none since": {
			periods: []string{"2026-07 settled"}, missing: 2,
			due: at(2026, time.August, "Europe/Berlin"),
		},
		"in arrears, and all is billed": {
			periods: []string{"2026-08 settled", "2026-09 settled"}, offset: -1,
			due: at(2026, time.November, "Europe/Berlin"),
		},
		"in arrears, and this month's run may still be to come": {
			periods: []string{"2026-08 settled"}, offset: -1,
			due: at(2026, time.October, "Europe/Berlin"),
		},
		"in advance": {
			periods: []string{"2026-09 settled", "2026-10 settled"}, offset: 1,
			due: at(2026, time.October, "Europe/Berlin"),
		},
		"it is November in Berlin, and October in London": {
			periods: []string{"2026-09 settled"}, now: time.Date(2026, time.October, 31, 23, 30, 0, 0, time.UTC), missing: 1,
			due: at(2026, time.October, "Europe/Berlin"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := ledger(t, tc.periods...)
			m := metrics.New(config(t, func(c *metrics.Config) {
				c.Offset = tc.offset
				if !tc.now.IsZero() {
					c.Now = func() time.Time { return tc.now }
				}
			}))
			m.Attach(t.Context(), db.Pool(t))()
			got := values(t, m)
			require.Equal(t, tc.missing, got["periods{state=missing}"])
			require.Equal(t, tc.open, got["periods{state=open}"])
			require.Equal(t, tc.due, got["next_period_due_timestamp_seconds{}"])
		})
	}
}

func TestState_ofALedgerThatNobodyUsed(t *testing.T) {
	t.Parallel()
	m := metrics.New(config(t, nil))
	m.Attach(t.Context(), ledger(t).Pool(t))()
	got := values(t, m)
	require.Zero(t, got["periods{state=missing}"])
	require.Contains(t, got, "in_doubt_oldest_timestamp_seconds{}", "0 replaces what was pushed before")
	require.NotContains(t, got, "next_period_due_timestamp_seconds{}")
	require.NotContains(t, got, "last_settled_period_timestamp_seconds{}")
}

// filled has a value for every metric that there is.
func filled(t testing.TB) *metrics.Metrics {
	t.Helper()
	db := ledger(t, "2026-09 settled", "2026-10")
	db.Exec(t, `INSERT INTO duesday.totals VALUES ('2026-09', 'usd', 1, 1, 1), ('2026-10', 'usd', 1000, 1100, 900), ('2026-10', 'jpy', 50, 60, 40)`)
	db.Exec(t, `INSERT INTO duesday.runs (command, billing_period, holder, lock_id, backend_pid, started_at, finished_at, exit_code) VALUES
		('run', '2026-09', 'h', 1, 1, '2026-09-01 12:00Z', '2026-09-01 12:01Z', 0),
		('run', '2026-10', 'h', 1, 1, '2026-10-01 12:00Z', '2026-10-01 12:00:30Z', 1),
		('reconcile', '2026-10', 'h', 1, 1, '2026-10-02 12:00Z', '2026-10-02 12:00:02Z', 0),
		('torture', '2026-10', 'h', 1, 1, '2026-10-02 12:00Z', '2026-10-02 12:00:02Z', 0)`)
	db.Exec(t, `INSERT INTO duesday.charges (customer_id, billing_period, idempotency_key, amount, currency, status, claimed_at, settled_at) VALUES
		('a', '2026-10', repeat('a', 32), 450, 'usd', 'claimed', '2026-10-01 12:00:10Z', NULL),
		('b', '2026-10', repeat('b', 32), 450, 'usd', 'claimed', '2026-10-01 12:00:05Z', NULL),
		('c', '2026-10', repeat('c', 32), 40, 'jpy', 'succeeded', '2026-10-01 12:00:01Z', now()),
		-- There is none such: a settled period is not gone through.
		('c', '2026-09', repeat('d', 32), 40, 'jpy', 'claimed', '2026-09-01 12:00:01Z', NULL)`)
	m := metrics.New(config(t, func(c *metrics.Config) {
		began := c.Now()
		c.Progress = func() job.Progress {
			return job.Progress{
				StartedAt: began, At: began, Known: true, Left: 2, PerSecond: 2, End: began.Add(time.Second),
				Tally:    charges.Tally{Succeeded: 1, InDoubt: 3},
				InFlight: 1, InFlightMoney: map[string]int64{"usd": 450},
				Money: []charges.Money{{Currency: "usd", InDoubt: 1350}, {Currency: "jpy", Succeeded: 40}},
			}
		}
	}))
	m.Attach(t.Context(), db.Pool(t))()
	m.Exchange(charges.Exchange{Endpoint: "charges.create", Status: 200, Duration: 300 * time.Millisecond, Replayed: true, Retry: true})
	m.Exchange(charges.Exchange{Endpoint: "charges.create", Status: 418})
	m.Exchange(charges.Exchange{Endpoint: "charges.list"})
	m.Waited(time.Second)
	m.Transition("lease", "acquired")
	return m
}

func TestState_isTheLedgers(t *testing.T) {
	t.Parallel()
	m := filled(t)
	unix := func(s string) float64 {
		at, err := time.Parse(time.RFC3339, s)
		require.NoError(t, err)
		return float64(at.Unix())
	}
	got := values(t, m)
	for series, want := range map[string]float64{
		"build_info{version=v1.2.3}":                                         1,
		"last_settled_period_timestamp_seconds{}":                            unix("2026-09-01T00:00:00Z"),
		"in_doubt_slots{}":                                                   2,
		"in_doubt_oldest_timestamp_seconds{}":                                unix("2026-10-01T12:00:05Z"),
		"spend_expected{currency=usd}":                                       1000,
		"spend_cap{currency=usd}":                                            1100,
		"spend_claimed{currency=usd}":                                        900,
		"spend_claimed{currency=jpy}":                                        40,
		"last_run_exit_code{command=run}":                                    1,
		"last_run_end_timestamp_seconds{command=run}":                        unix("2026-10-01T12:00:30Z"),
		"last_run_duration_seconds{command=run}":                             30,
		"last_success_timestamp_seconds{command=run}":                        unix("2026-09-01T12:01:00Z"),
		"run_day_end_timestamp_seconds{command=run}":                         unix("2026-10-15T22:00:00Z"),
		"slots{command=run,status=in_doubt}":                                 2,
		"slots{command=run,status=in_flight}":                                1,
		"amount{command=run,currency=usd,status=in_doubt}":                   900,
		"amount{command=run,currency=usd,status=in_flight}":                  450,
		"amount{command=run,currency=jpy,status=in_flight}":                  0,
		"stripe_answers_total{code=200,command=run,endpoint=charges.create}": 1,
		"stripe_answers_total{code=4xx,command=run,endpoint=charges.create}": 1,
		"stripe_answers_total{code=none,command=run,endpoint=charges.list}":  1,
	} {
		require.Contains(t, got, series)
		require.Equal(t, want, got[series], series)
	}
	require.NotContains(t, got, "last_run_exit_code{command=torture}")
	require.NotContains(t, got, "last_run_exit_code{command=reconcile}", "it has a row for each period")

	m.End(0, true)
	got = values(t, m)
	require.Zero(t, got["last_run_exit_code{command=run}"])
	require.Equal(t, unix("2026-10-15T10:00:00Z"), got["last_success_timestamp_seconds{command=run}"])
	require.NotContains(t, got, "run_day_end_timestamp_seconds{command=run}")
	require.Equal(t, []float64{3, 0, 1350, 0}, []float64{
		got["slots{command=run,status=in_doubt}"], got["slots{command=run,status=in_flight}"],
		got["amount{command=run,currency=usd,status=in_doubt}"], got["amount{command=run,currency=usd,status=in_flight}"],
	}, "what a run that ended leaves is in doubt")
	first := metrics.New(config(t, nil))
	first.End(0, false)
	require.NotContains(t, values(t, first), "last_run_exit_code{command=run}", "its sisters are not known")
	m.End(3, false)
	got = values(t, m)
	require.Equal(t, 3.0, got["last_run_exit_code{command=run}"])
	require.Equal(t, unix("2026-09-01T12:01:00Z"), got["last_success_timestamp_seconds{command=run}"])
}

// Shards share a run, which went as the worst of them did.
func TestState_ofAShardedRun(t *testing.T) {
	t.Parallel()
	db := ledger(t, "2026-09 settled", "2026-10")
	db.Exec(t, `INSERT INTO duesday.runs (command, billing_period, holder, lock_id, backend_pid, shard, shards, started_at, finished_at, exit_code) VALUES
		('run', '2026-09', 'h', 1, 1, 2, 3, '2026-09-01 12:00Z', '2026-09-01 12:01Z', 3),
		('run', '2026-10', 'h', 1, 1, 0, 2, '2026-10-01 12:00Z', '2026-10-01 12:01Z', 3),
		('run', '2026-10', 'h', 1, 1, 0, 2, '2026-10-01 12:02Z', '2026-10-01 12:03Z', 1),
		('run', '2026-10', 'h', 1, 1, 1, 2, '2026-10-01 12:00Z', '2026-10-01 12:04Z', 0)`)
	read := func() map[string]float64 {
		m := metrics.New(config(t, nil))
		m.Attach(t.Context(), db.Pool(t))()
		return values(t, m)
	}
	got := read()
	require.Equal(t, 1.0, got["last_run_exit_code{command=run}"])
	require.Equal(t, 240.0, got["last_run_duration_seconds{command=run}"])
	db.Exec(t, `INSERT INTO duesday.runs (command, billing_period, holder, lock_id, backend_pid, started_at, finished_at, exit_code) VALUES
		('run --after-restore', '2026-10', 'h', 1, 1, '2026-10-01 12:05Z', '2026-10-01 12:06Z', 0)`)
	require.Zero(t, read()["last_run_exit_code{command=run}"], "the whole was done by one")
}

// A scrape reads again what is small, and not more often than it may.
func TestScrape_keepsWhatWasRead(t *testing.T) {
	t.Parallel()
	db := ledger(t, "2026-10")
	db.Exec(t, `INSERT INTO duesday.charges (customer_id, billing_period, idempotency_key, amount, currency, status)
		VALUES ('a', '2026-10', repeat('a', 32), 450, 'usd', 'claimed')`)
	now := time.Date(2026, time.October, 15, 10, 0, 0, 0, time.UTC)
	m := metrics.New(config(t, func(c *metrics.Config) { c.Now = func() time.Time { return now } }))
	stopped, stop := context.WithCancel(t.Context())
	detach := m.Attach(stopped, db.Pool(t))
	stop() // told to stop, it still tells how it ended
	db.Exec(t, `UPDATE duesday.periods SET settled_at = now()`)
	now = now.Add(9 * time.Second)
	require.Equal(t, 1.0, values(t, m)["periods{state=open}"])
	now = now.Add(time.Second)
	require.Zero(t, values(t, m)["periods{state=open}"])
	require.Equal(t, 1.0, values(t, m)["in_doubt_slots{}"], "no scrape counts it anew")

	db.Exec(t, `ALTER TABLE duesday.periods RENAME TO gone`)
	now = now.Add(time.Minute)
	require.Equal(t, 1.0, values(t, m)["periods{state=settled}"], "what is known stays known")
	db.Exec(t, `ALTER TABLE duesday.gone RENAME TO periods`)
	db.Exec(t, `UPDATE duesday.periods SET settled_at = NULL`)
	detach()
	require.Equal(t, 1.0, values(t, m)["periods{state=open}"])
	db.Exec(t, `UPDATE duesday.periods SET settled_at = now()`)
	now = now.Add(time.Minute)
	require.Equal(t, 1.0, values(t, m)["periods{state=open}"], "the database is no longer asked")
}

var descText = regexp.MustCompile(`^Desc\{fqName: "([^"]*)", help: "(.*?)", (?:unit: ".*", )?constLabels: \{(.*)\}, variableLabels: \{(.*)\}\}$`)

type described struct{ help, labels string }

// describe is all that the collectors say that they have.
func describe(t testing.TB, collectors ...prometheus.Collector) map[string]described {
	t.Helper()
	all := map[string]described{}
	for _, c := range collectors {
		ch := make(chan *prometheus.Desc)
		go func() {
			defer close(ch)
			c.Describe(ch)
		}()
		for d := range ch {
			m := descText.FindStringSubmatch(d.String())
			require.NotNil(t, m, d.String())
			labels := strings.FieldsFunc(m[4], func(r rune) bool { return r == ',' })
			for _, constant := range strings.FieldsFunc(m[3], func(r rune) bool { return r == ',' }) {
				name, _, _ := strings.Cut(constant, "=")
				labels = append(labels, name)
			}
			slices.Sort(labels)
			all[m[1]] = described{help: m[2], labels: strings.Join(labels, " ")}
		}
	}
	return all
}

func proxy(t testing.TB) *spendcap.Proxy {
	t.Helper()
	p, err := spendcap.NewProxy(spendcap.ProxyConfig{APIKey: "rk_test_1", BaseURL: "http://127.0.0.1:1", Log: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p
}

var metricRow = regexp.MustCompile("^\\| `(duesday_[a-z_]+)` \\| ([a-z]+) \\| (.*?) \\| (.*?) \\| (.*) \\|$")

// The page has every metric with its labels and its help text, and no other.
func TestDocs_haveEveryMetric(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile("../docs/metrics.md")
	require.NoError(t, err)
	documented, types := map[string]described{}, map[string]string{}
	for line := range strings.Lines(string(content)) {
		m := metricRow.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
		if m == nil {
			require.False(t, strings.HasPrefix(line, "| `duesday_"), line)
			continue
		}
		var labels []string
		for _, l := range strings.Split(m[3], ", ") {
			if l != "–" {
				labels = append(labels, strings.Trim(l, "`"))
			}
		}
		slices.Sort(labels)
		require.NotContains(t, documented, m[1], "twice")
		documented[m[1]], types[m[1]] = described{help: m[5], labels: strings.Join(labels, " ")}, m[2]
		require.NotEmpty(t, m[4], m[1])
	}
	m := filled(t)
	require.Equal(t, describe(t, m, proxy(t)), documented)

	seen := map[string]string{}
	for _, family := range gather(t, m) {
		seen[family.GetName()] = strings.ToLower(family.GetType().String())
	}
	for name := range describe(t, proxy(t)) {
		seen[name] = "counter"
	}
	require.Equal(t, seen, types, "also: everything that is described is told")
}

// Names and units are Prometheus' conventions.
func TestNames_areConventional(t *testing.T) {
	t.Parallel()
	for _, family := range gather(t, filled(t)) {
		name := family.GetName()
		require.Equal(t, family.GetType() == dto.MetricType_COUNTER, strings.HasSuffix(name, "_total"), name)
		require.True(t, strings.HasSuffix(family.GetHelp(), "."), name)
		require.Equal(t, strings.Contains(family.GetHelp(), "Unix time"), strings.HasSuffix(name, "_timestamp_seconds"), name)
		money := strings.HasPrefix(name, "duesday_amount") || strings.HasPrefix(name, "duesday_spend_")
		require.Equal(t, money, strings.HasSuffix(family.GetHelp(), "in the currency's smallest unit."), name)
	}
	require.NotEmpty(t, slices.Collect(maps.Keys(values(t, filled(t)))))
}
