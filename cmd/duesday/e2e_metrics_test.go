package main

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/internal/promtest"
	"github.com/duesday/duesday/internal/stripesim"
)

// value is a series' value.
func value(t testing.TB, text, series string) float64 {
	t.Helper()
	all := promtest.Series(text)
	require.Contains(t, all, series, text)
	v, err := strconv.ParseFloat(all[series], 64)
	require.NoError(t, err)
	return v
}

// address is where a process serves its metrics.
func (p *process) address(t testing.TB) string {
	t.Helper()
	p.awaitLog(t, "metrics are served")
	return "http://" + p.logs(t, "metrics are served")[0]["address"].(string) + "/metrics"
}

// held runs until 19 of 40 customers' results are on record and the next charge
// hangs, and is scraped then.
func held(t *testing.T, b *bundle, flags ...string) (p *process, scraped string, release func()) {
	t.Helper()
	hung, gate := make(chan struct{}), make(chan struct{})
	b.sim.FaultCustomer("cus_0020", stripesim.Fault{Kind: stripesim.HangUntilReleased, Hung: hung, Release: gate})
	p = b.run(t, append([]string{"--metrics-addr=127.0.0.1:0", "--workers=1"}, flags...)...)
	url := p.address(t)
	await(t, "the 20th charge", hung)
	eventually(t, "19 results on record", func() bool {
		return b.count(t, `SELECT count(*) FROM duesday.charges WHERE status IN ('succeeded', 'declined')`) == 19
	})
	eventually(t, "the metrics to tell of them", func() bool {
		scraped = promtest.Scrape(t, url)
		all := promtest.Series(scraped)
		return all[`duesday_slots{command="run",status="in_flight"}`] == "21" && all[`duesday_periods{state="open"}`] == "1"
	})
	return p, scraped, func() { close(gate) }
}

func TestMetrics_ofARunAtWork(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	customers := payers(40)
	b.add(t, customers...)
	b.sim.Decline("cus_0001", "card_declined", "insufficient_funds")
	b.sim.FaultCustomer("cus_0002", stripesim.Fault{Kind: stripesim.Error429})
	p, scraped, release := held(t, b)

	said, err := promtest.Promtool(t, scraped, "check", "metrics")
	require.NoError(t, err)
	require.Empty(t, said, "promtool check metrics")

	for series, want := range map[string]float64{
		`duesday_slots{command="run",status="declined"}`:                                            1,
		`duesday_slots{command="run",status="rejected"}`:                                            0,
		`duesday_slots{command="run",status="in_doubt"}`:                                            0,
		`duesday_slots{command="run",status="in_flight"}`:                                           21,
		`duesday_amount{command="run",currency="jpy",status="succeeded"}`:                           1002 + 1005 + 1008 + 1011 + 1014 + 1017,
		`duesday_amount{command="run",currency="usd",status="declined"}`:                            1000,
		`duesday_stripe_answers_total{code="200",command="run",endpoint="charges.create"}`:          18,
		`duesday_stripe_answers_total{code="402",command="run",endpoint="charges.create"}`:          1,
		`duesday_stripe_answers_total{code="429",command="run",endpoint="charges.create"}`:          1,
		`duesday_stripe_retries_total{command="run",endpoint="charges.create"}`:                     1,
		`duesday_stripe_request_duration_seconds_count{command="run",endpoint="charges.create"}`:    20,
		`duesday_periods{state="open"}`:                                                             1,
		`duesday_leadership_transitions_total{command="run",event="acquired",lock="advisory_lock"}`: 1,
		`duesday_in_doubt_slots`: 0,
	} {
		require.Equal(t, want, value(t, scraped, series), series)
	}
	require.GreaterOrEqual(t, value(t, scraped, `duesday_pacer_wait_seconds_count{command="run"}`), 20.0)
	require.Greater(t, value(t, scraped, `duesday_run_day_end_timestamp_seconds{command="run"}`), value(t, scraped, `duesday_run_start_timestamp_seconds{command="run"}`))
	require.NotContains(t, scraped, "cus_", "no customer in a label")
	require.NotContains(t, scraped, "go_goroutines", "a registry of its own")

	release()
	p.requireExit(t, 0)
	b.requireBilled(t, customers[1:])
}

func TestMetrics_areServedOnlyWhenAsked(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	b.add(t, payers(2)...)
	p := b.run(t)
	p.requireExit(t, 0)
	require.Empty(t, p.logs(t, "metrics are served"))
	for flag, said := range map[string]string{
		"--metrics-addr=9464":                        `--metrics-addr "9464": want host:port or :port`,
		"--metrics-addr=:http":                       `want a port from 0 to 65535`,
		"--pushgateway-url=pushgateway:9091":         "--pushgateway-url: want a URL like",
		"--pushgateway-url=ftp://me:secret@host:123": "--pushgateway-url: want a URL like",
	} {
		p := b.run(t, flag)
		p.requireExit(t, 2)
		require.Contains(t, p.err.String(), said)
		require.NotContains(t, p.err.String(), "secret")
	}
}

func TestMetrics_aTakenPortCostsAWarning(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	customers := payers(3)
	b.add(t, customers...)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = taken.Close() }()
	p := b.run(t, "--metrics-addr="+taken.Addr().String())
	p.requireExit(t, 0)
	require.Len(t, p.logs(t, "cannot serve metrics; billing is not affected"), 1)
	b.requireBilled(t, customers)
}

// What was pushed under job and command, and the state under the job.
const (
	pushedRun   = `{command="run",instance="",job="duesday"`
	pushedState = `{instance="",job="duesday"`
)

func TestPush_tellsHowTheRunEnded(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	b.add(t, payers(3)...)
	gateway := promtest.Pushgateway(t)
	push := "--pushgateway-url=" + gateway.URL
	before := float64(time.Now().Unix())

	b.run(t, push).requireExit(t, 0)
	text := gateway.Scrape(t)
	require.Zero(t, value(t, text, `duesday_last_run_exit_code`+pushedRun+`}`))
	success := value(t, text, `duesday_last_success_timestamp_seconds`+pushedRun+`}`)
	require.GreaterOrEqual(t, success, before)
	require.Equal(t, 3.0, value(t, text, `duesday_slots`+pushedRun+`,status="succeeded"}`))
	require.Equal(t, 3.0, value(t, text, `duesday_stripe_request_duration_seconds_count{command="run",endpoint="charges.create",instance="",job="duesday"}`))
	require.Equal(t, 1.0, value(t, text, `duesday_periods`+pushedState+`,state="settled"}`))
	require.Equal(t, 1790812800.0, value(t, text, `duesday_last_settled_period_timestamp_seconds`+pushedState+`}`))
	require.Equal(t, 1793491200.0, value(t, text, `duesday_next_period_due_timestamp_seconds`+pushedState+`}`))
	require.Equal(t, 1.0, value(t, text, `duesday_leadership_transitions_total{command="run",event="released",instance="",job="duesday",lock="advisory_lock"}`))
	require.NotContains(t, text, "duesday_run_expected_end", "it is over")
	require.NotContains(t, text, "duesday_run_day_end", "it is over")
	said, err := promtest.Promtool(t, onlyOurs(text), "check", "metrics")
	require.NoError(t, err)
	require.Empty(t, said, "promtool check metrics")

	// A run that fails says so, and leaves the last success as it was: also one
	// that never got to the database.
	b.sim.SetAuth(http.StatusUnauthorized)
	b.run(t, push, "--period=2026-11").requireExit(t, 3)
	text = gateway.Scrape(t)
	require.Equal(t, 3.0, value(t, text, `duesday_last_run_exit_code`+pushedRun+`}`))
	require.InDelta(t, success, value(t, text, `duesday_last_success_timestamp_seconds`+pushedRun+`}`), 5)
	require.Equal(t, 3.0, value(t, text, `duesday_in_doubt_slots`+pushedState+`}`))
	require.GreaterOrEqual(t, value(t, text, `duesday_in_doubt_oldest_timestamp_seconds`+pushedState+`}`), before)
	require.Equal(t, 1.0, value(t, text, `duesday_periods`+pushedState+`,state="open"}`))
	kept := value(t, text, `duesday_last_success_timestamp_seconds`+pushedRun+`}`)

	start(t, with(b.env, "DATABASE_URL", "postgres://nobody@127.0.0.1:1/none"), "run", "--leader-elect=false", push).requireExit(t, 1)
	text = gateway.Scrape(t)
	require.Equal(t, 1.0, value(t, text, `duesday_last_run_exit_code`+pushedRun+`}`))
	require.Equal(t, kept, value(t, text, `duesday_last_success_timestamp_seconds`+pushedRun+`}`))
	require.Equal(t, 3.0, value(t, text, `duesday_in_doubt_slots`+pushedState+`}`), "the state stays as it was")

	// What reconcile settles, the state tells, whoever told it before.
	b.sim.SetAuth(0)
	b.command(t, append([]string{"reconcile", push}, longLease...)...).requireExit(t, 0)
	text = gateway.Scrape(t)
	require.Zero(t, value(t, text, `duesday_in_doubt_slots`+pushedState+`}`))
	require.Zero(t, value(t, text, `duesday_in_doubt_oldest_timestamp_seconds`+pushedState+`}`))
	require.Zero(t, value(t, text, `duesday_last_run_exit_code{command="reconcile",instance="",job="duesday"}`))
}

// A run and a reconcile each tell how they ended themselves, and neither what it
// thinks that the other did.
func TestPush_keepsTheEndsOfRunAndReconcileApart(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	b.add(t, payers(3)...)
	gateway := promtest.Pushgateway(t)
	push := "--pushgateway-url=" + gateway.URL
	const code, success = "duesday_last_run_exit_code", "duesday_last_success_timestamp_seconds"
	const reconcile = `{command="reconcile",instance="",job="duesday"}`
	reconciled := func(code int) {
		b.command(t, append([]string{"reconcile", push}, longLease...)...).requireExit(t, code)
	}

	b.run(t, push).requireExit(t, 0)
	good := value(t, gateway.Scrape(t), success+pushedRun+"}")
	b.run(t, push, "--rate=-1").requireExit(t, 2) // before it has a row in runs
	reconciled(0)
	text := gateway.Scrape(t)
	require.Equal(t, 2.0, value(t, text, code+pushedRun+"}"))
	require.Equal(t, good, value(t, text, success+pushedRun+"}"), "a failure leaves it")
	require.Zero(t, value(t, text, code+reconcile))

	b.sim.SetAuth(http.StatusUnauthorized)
	b.run(t, push, "--period=2026-11").requireExit(t, 3)
	reconciled(3)
	b.sim.SetAuth(0)
	b.run(t, push, "--period=2026-11").requireExit(t, 0)
	text = gateway.Scrape(t)
	require.Zero(t, value(t, text, code+pushedRun+"}"))
	require.Greater(t, value(t, text, success+pushedRun+"}"), good)
	require.Equal(t, 3.0, value(t, text, code+reconcile), "its own, whatever runs said since")
	reconciled(0)
	require.Zero(t, value(t, gateway.Scrape(t), code+reconcile))
}

// onlyOurs leaves out the Pushgateway's own metrics, which it must answer for.
func onlyOurs(text string) string {
	var kept strings.Builder
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "duesday_") || strings.Contains(line, " duesday_") {
			kept.WriteString(line)
		}
	}
	return kept.String()
}

// Two installations on one Pushgateway, of which one is a pod's.
func TestPush_keepsInstallationsApart(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	gateway := promtest.Pushgateway(t)
	b.env["POD_NAMESPACE"] = "billing"
	b.run(t, "--pushgateway-url="+gateway.URL, "--pushgateway-job=eu/dues", "--allow-empty").requireExit(t, 0)
	require.Zero(t, value(t, gateway.Scrape(t), `duesday_last_run_exit_code{command="run",instance="",job="eu/dues",namespace="billing"}`))
}

// Each shard has its own figures; the state is one.
func TestPush_ofShards(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	b.add(t, payers(20)...)
	gateway := promtest.Pushgateway(t)
	for _, shard := range []string{"0", "1"} {
		b.run(t, "--shards=2", "--shard="+shard, "--pushgateway-url="+gateway.URL).requireExit(t, 0)
	}
	text := gateway.Scrape(t)
	sent := 0.0
	for _, shard := range []string{"0", "1"} {
		require.Zero(t, value(t, text, `duesday_last_run_exit_code`+pushedRun+`,shard="`+shard+`"}`))
		sent += value(t, text, `duesday_stripe_answers_total{code="200",command="run",endpoint="charges.create",instance="",job="duesday",shard="`+shard+`"}`)
	}
	require.Equal(t, 20.0, sent)
	require.Equal(t, 1.0, value(t, text, `duesday_periods`+pushedState+`,state="settled"}`))
	require.NotContains(t, text, `duesday_periods{instance="",job="duesday",shard=`)
}

// The one that leads tells how the period ended, not who stood by.
func TestPush_aStandbySaysNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	b.add(t, payers(40)...)
	gateway := promtest.Pushgateway(t)
	leader, _, release := held(t, b)
	standby := b.run(t, "--pushgateway-url="+gateway.URL)
	standby.requireExit(t, 0)
	require.Len(t, standby.logs(t, "another replica leads, nothing to do here"), 1)
	require.NotContains(t, gateway.Scrape(t), "duesday_")
	release()
	leader.requireExit(t, 0)
}

func TestPush_aStoppedRunTellsToo(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	b.add(t, payers(40)...)
	gateway := promtest.Pushgateway(t)
	p, _, release := held(t, b, "--pushgateway-url="+gateway.URL)
	p.signal(t, syscall.SIGTERM)
	p.awaitLog(t, "stopping: no new claims, waiting for what is in flight")
	release()
	p.requireExit(t, 1)
	require.Equal(t, 1.0, value(t, gateway.Scrape(t), `duesday_last_run_exit_code`+pushedRun+`}`))
}

// A gateway that is dead, slow, or something else costs a warning and seconds.
func TestPush_aBadGatewayFailsNoRun(t *testing.T) {
	t.Parallel()
	never := make(chan struct{})
	slow := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-never
	}))
	hung := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-never }))
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/login?"+strings.Repeat("x", 2000), http.StatusFound)
	}))
	t.Cleanup(func() {
		close(never)
		for _, s := range []*httptest.Server{slow, hung, other} {
			s.CloseClientConnections()
			s.Close()
		}
	})
	for name, url := range map[string]string{
		"dead": "http://user:hunter2@127.0.0.1:1", "hung": hung.URL, "other": strings.Replace(other.URL, "http://", "http://user:hunter2@", 1) + "/hunter2-of-the-path",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, stripesim.Options{})
			customers := payers(3)
			b.add(t, customers...)
			began := time.Now()
			p := b.run(t, "--pushgateway-url="+url)
			p.requireExit(t, 0)
			require.Less(t, time.Since(began), patience/2)
			require.Len(t, p.logs(t, "cannot push the metrics; billing is not affected"), 1)
			require.NotContains(t, p.err.String(), "hunter2")
			require.Less(t, len(fmt.Sprint(p.logs(t, "cannot push the metrics; billing is not affected"))), 1500)
			b.requireBilled(t, customers)
			lines := strings.Split(strings.TrimSpace(p.err.String()), "\n")
			require.Contains(t, lines[len(lines)-1], "period settled", "the last line says how it ended")
		})
	}
}
