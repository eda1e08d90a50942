package main

import (
	"bytes"
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/internal/exitcode"
	"github.com/duesday/duesday/internal/kubesim"
	"github.com/duesday/duesday/internal/stripesim"
	"github.com/duesday/duesday/leader"
)

const (
	podNamespace = "billing"
	jobName      = "duesday-29900159"
)

// pod is the command in a pod of the Job, run in this process: the binary takes
// its cluster from where only a pod has it.
type pod struct {
	env map[string]string
	api *kubesim.Server
	now time.Time
	log bytes.Buffer
}

func newPod(t testing.TB, env map[string]string) *pod {
	t.Helper()
	api := kubesim.Start(t)
	api.PutLease(podNamespace, "duesday", coordinationv1.LeaseSpec{})
	api.PutJob(podNamespace, jobName, nil)
	return &pod{
		env: with(env, "POD_NAME", jobName+"-0-x7k2p", "POD_NAMESPACE", podNamespace, "JOB_NAME", jobName),
		api: api, now: time.Date(2026, 10, 1, 12, 0, 7, 0, time.UTC),
	}
}

func (p *pod) program() *program {
	return &program{
		out: &p.log, err: &p.log, now: func() time.Time { return p.now },
		env: func(name string) (string, bool) {
			value, ok := p.env[name]
			return value, ok
		},
		inCluster: func(namespace string) (*leader.Cluster, error) {
			return &leader.Cluster{Config: p.api.Config("pod"), Namespace: namespace}, nil
		},
	}
}

func (p *pod) run(flags ...string) int {
	args := append([]string{"run", "--rate=1000", "--workers=8", "--log-format=json"}, longLease...)
	return p.program().run(context.Background(), append(args, flags...))
}

func (p *pod) schedule(at string) {
	p.api.PutJob(podNamespace, jobName, map[string]string{"batch.kubernetes.io/cronjob-scheduled-timestamp": at})
}

// refuse answers requests for the resource with the status.
func (p *pod) refuse(resource string, status int) {
	p.api.Faults(func(r *http.Request) kubesim.Fault {
		if bytes.Contains([]byte(r.URL.Path), []byte("/"+resource+"/")) {
			return kubesim.Fault{Status: status}
		}
		return kubesim.Fault{}
	})
}

func TestRun_inAPodLeadsByTheLeaseAndGivesItBack(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	customers := payers(20)
	b.add(t, customers...)
	pod := newPod(t, b.env)
	holders := make(chan string, 1000)
	b.sim.OnRequest(func(r stripesim.Request) {
		if isPost(r) {
			holders <- *pod.api.Lease(podNamespace, "duesday").Spec.HolderIdentity
		}
	})

	require.Equal(t, 0, pod.run(), pod.log.String())
	b.requireBilled(t, customers)
	b.requireSettled(t)
	require.Len(t, holders, len(customers))
	require.Regexp(t, "^"+jobName+"-0-x7k2p_[0-9a-f]{8}@"+testNamespace+":"+testPeriod+"$", <-holders)
	require.Empty(t, *pod.api.Lease(podNamespace, "duesday").Spec.HolderIdentity)
	require.Empty(t, pod.api.Denied())
}

func TestRun_thatAnotherReplicaLeadsExitsZeroAndNamesTheLeader(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	b.add(t, payers(3)...)
	pod := newPod(t, b.env)
	lease, err := leader.AcquireLease(t.Context(), leader.LeaseConfig{
		Cluster:   &leader.Cluster{Config: pod.api.Config("leader")},
		Namespace: podNamespace, Name: "duesday", Identity: "the-other-pod", Task: testNamespace + ":" + testPeriod,
		LeaseDuration: time.Minute, RenewDeadline: 40 * time.Second, RetryPeriod: 50 * time.Millisecond,
	})
	require.NoError(t, err)
	defer func() { require.NoError(t, lease.Release(context.Background())) }()

	require.Equal(t, 0, pod.run(), pod.log.String())
	require.Contains(t, pod.log.String(), `"msg":"another replica leads, nothing to do here"`)
	require.Contains(t, pod.log.String(), `"leader":"the-other-pod@`)
	require.Empty(t, b.sim.Requests())
	require.Empty(t, b.statuses(t))
}

func TestRun_leaseFlagsNameTheLease(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	b.add(t, payers(1)...)
	pod := newPod(t, b.env)
	pod.api.PutLease("elsewhere", "dues", coordinationv1.LeaseSpec{})
	require.Equal(t, 0, pod.run("--lease-namespace=elsewhere", "--lease-name=dues"), pod.log.String())
	require.NotNil(t, pod.api.Lease("elsewhere", "dues").Spec.LeaseTransitions)
	require.Nil(t, pod.api.Lease(podNamespace, "duesday").Spec.LeaseTransitions)
}

func TestRun_withoutItsLeaseIsMisconfigured(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	b.add(t, payers(1)...)
	pod := newPod(t, b.env)
	pod.api.DeleteLease(podNamespace, "duesday")
	require.Equal(t, 2, pod.run(shortLease...), pod.log.String())
	require.Contains(t, pod.log.String(), "manifests/lease.yaml")
	require.Empty(t, b.sim.Requests())
}

// It was to start on the last minute of October, and started in November.
func TestRun_billsThePeriodThatItsJobWasScheduledFor(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	customers := payers(5)
	b.add(t, customers...)
	pod := newPod(t, b.env)
	pod.schedule("2026-10-31T23:59:00Z")
	pod.now = time.Date(2026, 11, 1, 0, 3, 0, 0, time.UTC)
	require.Equal(t, 0, pod.run(), pod.log.String())
	b.requireBilled(t, customers)
	b.requireSettled(t)
}

func TestRun_whoseJobCannotBeReadBillsNothing(t *testing.T) {
	t.Parallel()
	for status, code := range map[int]int{500: 1, 403: 2, 404: 2} {
		t.Run(http.StatusText(status), func(t *testing.T) {
			t.Parallel()
			b := setup(t, stripesim.Options{})
			customers := payers(2)
			b.add(t, customers...)
			pod := newPod(t, b.env)
			pod.refuse("jobs", status)
			require.Equal(t, code, pod.run(shortLease...), pod.log.String())
			require.Contains(t, pod.log.String(), "--period")
			require.Empty(t, b.sim.Requests())
			require.Zero(t, b.count(t, `SELECT count(*) FROM duesday.periods`))

			// A period that is named needs no Job.
			require.Equal(t, 0, pod.run("--period="+testPeriod), pod.log.String())
			b.requireBilled(t, customers)
		})
	}
}

func TestScheduled_period(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 12, 31, 23, 30, 0, 0, time.UTC)
	for name, tc := range map[string]struct {
		at     string // the annotation
		flags  periodFlags
		noJob  bool
		period string
	}{
		"of the schedule":               {at: "2026-10-31T23:59:00Z", period: "2026-10"},
		"in the zone ahead":             {at: "2026-10-31T23:59:00Z", flags: periodFlags{zone: "Europe/Berlin"}, period: "2026-11"},
		"in the zone behind":            {at: "2026-11-01T03:59:00Z", flags: periodFlags{zone: "America/New_York"}, period: "2026-10"},
		"written in the zone":           {at: "2026-11-01T00:00:00+01:00", period: "2026-10"},
		"in arrears":                    {at: "2026-01-01T12:00:00Z", flags: periodFlags{offset: -1}, period: "2025-12"},
		"named":                         {at: "2026-10-31T23:59:00Z", flags: periodFlags{period: "2026-03"}, period: "2026-03"},
		"by the clock, made by hand":    {period: "2026-12"},
		"by the clock, zone, by hand":   {flags: periodFlags{zone: "Europe/Berlin", offset: 1}, period: "2027-02"},
		"by the clock, outside of Jobs": {noJob: true, at: "2026-10-31T23:59:00Z", period: "2026-12"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod := newPod(t, map[string]string{})
			if tc.at != "" {
				pod.schedule(tc.at)
			}
			if tc.noJob {
				delete(pod.env, "JOB_NAME")
			}
			flags := runFlags{periodFlags: tc.flags, leaderFlags: leaderFlags{elect: true, renewDeadline: patience, retryEvery: time.Second}}
			flags.namespace = testNamespace
			if flags.zone == "" {
				flags.zone = "UTC"
			}
			p := pod.program()
			cluster, err := p.cluster(flags.leaderFlags)
			require.NoError(t, err)
			ledger, err := flags.ledger(now)
			require.NoError(t, err)
			ledger, err = p.scheduled(t.Context(), flags, cluster, ledger, zap.NewNop())
			require.NoError(t, err)
			require.Equal(t, tc.period, ledger.Period.String())
			require.Equal(t, testNamespace, ledger.Namespace)
		})
	}
}

func TestScheduled_badAnnotationIsMisconfigured(t *testing.T) {
	t.Parallel()
	pod := newPod(t, map[string]string{})
	pod.schedule("last October")
	p := pod.program()
	cluster, err := p.cluster(leaderFlags{elect: true})
	require.NoError(t, err)
	flags := runFlags{leaderFlags: leaderFlags{renewDeadline: patience, retryEvery: time.Second}}
	_, err = p.scheduled(t.Context(), flags, cluster, charges.Ledger{}, zap.NewNop())
	require.Equal(t, exitcode.Misconfigured, exitcode.Of(err), "%v", err)
}

func TestCluster_isNeededOnlyToElectOrToReadAJob(t *testing.T) {
	t.Parallel()
	unreadable := exitcode.With(exitcode.Misconfigured, http.ErrServerClosed) // no token was mounted, say
	for name, tc := range map[string]struct {
		elect   bool
		job     string
		cluster error
		code    int
	}{
		"election outside":                          {elect: true, cluster: leader.ErrNoCluster, code: 2},
		"election without a token":                  {elect: true, cluster: unreadable, code: 2},
		"a Job's period without token":              {job: jobName, cluster: unreadable, code: 2},
		"no election outside":                       {cluster: leader.ErrNoCluster},
		"no election, a JOB_NAME that is another's": {job: "nightly-build", cluster: leader.ErrNoCluster},
		"no election in a pod without token":        {cluster: unreadable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := program{
				env:       func(name string) (string, bool) { return tc.job, name == "JOB_NAME" && tc.job != "" },
				inCluster: func(string) (*leader.Cluster, error) { return nil, tc.cluster },
			}
			cluster, err := p.cluster(leaderFlags{elect: tc.elect})
			require.Nil(t, cluster)
			require.Equal(t, tc.code, exitcode.Of(err), "%v", err)
			if tc.elect {
				require.ErrorContains(t, err, "--leader-elect=true")
				require.ErrorContains(t, err, "--leader-elect=false")
			}
		})
	}
}
