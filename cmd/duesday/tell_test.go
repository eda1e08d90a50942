package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/internal/kubesim"
	"github.com/duesday/duesday/internal/stripesim"
	"github.com/duesday/duesday/leader"
)

// notifyPath stands for the token that Slack puts there.
const notifyPath = "/services/T0000/B0000/hunter2-of-the-chat"

// receiver is who is notified.
type receiver struct {
	*httptest.Server
	mu       sync.Mutex
	answers  []int // the next; then 200
	messages []message
}

type message struct {
	header http.Header
	body   []byte
}

func newReceiver(t testing.TB, answers ...int) *receiver {
	t.Helper()
	r := &receiver{answers: answers}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body) // a short one is no JSON
		r.mu.Lock()
		defer r.mu.Unlock()
		status := http.StatusOK
		if len(r.answers) > 0 {
			status, r.answers = r.answers[0], r.answers[1:]
		}
		if req.Method != http.MethodPost || req.URL.Path != notifyPath {
			status = http.StatusNotFound
		}
		r.messages = append(r.messages, message{req.Header, body})
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(status)
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) flag() string { return "--notify-url=" + r.URL + notifyPath }

func (r *receiver) got() []message {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]message(nil), r.messages...)
}

func (m message) notification(t testing.TB) notification {
	t.Helper()
	var n notification
	require.NoError(t, json.Unmarshal(m.body, &n), "%s", m.body)
	return n
}

func terminationLog(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "termination-log")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	return path
}

func readTold(t testing.TB, path string) (said told) {
	t.Helper()
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(content, &said), "%s", content)
	return said
}

func TestRun_tellsEveryEndToItsJobThePodAndTheReceiver(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	b.add(t, payers(5)...)
	lead := func(t *testing.T, pod *pod) {
		lease, err := leader.AcquireLease(t.Context(), leader.LeaseConfig{
			Cluster:   &leader.Cluster{Config: pod.api.Config("leader")},
			Namespace: podNamespace, Name: "duesday", Identity: "the-other-pod", Task: testNamespace + ":" + testPeriod,
			LeaseDuration: time.Minute, RenewDeadline: 40 * time.Second, RetryPeriod: 50 * time.Millisecond,
		})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, lease.Release(context.Background())) })
	}
	for _, tc := range []struct {
		outcome, reason, kind string
		code                  int
		flags                 []string
		before                func(*testing.T, *pod)
		text                  string
		silent                bool
	}{
		{outcome: endMisconfigured, reason: "BillingStopped", kind: "Warning", code: 2, flags: []string{"--customers=no.such_view"},
			text: "Duesday: period 2026-10 cannot be billed as configured, a person must act. Exit code 2: "},
		{outcome: endNotLeader, reason: "NotLeader", kind: "Normal", before: lead, silent: true,
			text: "Duesday: the-other-pod@monthly-billing:2026-10 leads and bills period 2026-10, there was nothing to do here."},
		{outcome: endStopped, reason: "BillingStopped", kind: "Warning", code: 3,
			before: func(*testing.T, *pod) { b.sim.SetAuth(http.StatusUnauthorized) },
			text:   "Duesday: period 2026-10 was stopped, a person must act: 5 customers, 0 charged, 5 in doubt. Exit code 3: "},
		{outcome: endUnfinished, reason: "BillingUnfinished", kind: "Warning", code: 1,
			before: func(*testing.T, *pod) {
				b.sim.SetAuth(0)
				b.sim.FaultCustomer("cus_0001", stripesim.Fault{Kind: stripesim.Error500BeforeCommit})
			},
			text: "Duesday: period 2026-10 is not finished, run it again: 5 customers, 4 charged (€20.05, ¥1,002, $10.03), 1 in doubt. Exit code 1: "},
		{outcome: endSettled, reason: "BillingSettled", kind: "Normal",
			before: func(t *testing.T, _ *pod) { b.age(t) },
			text:   "Duesday: period 2026-10 is settled: 5 customers, 5 charged (€20.05, ¥1,002, $20.03)."},
		{outcome: endAlreadySettled, reason: "BillingSettled", kind: "Normal", silent: true,
			text: "Duesday: period 2026-10 was settled before, there was nothing to do."},
	} {
		t.Run(tc.outcome, func(t *testing.T) {
			pod, to, path := newPod(t, b.env), newReceiver(t), terminationLog(t)
			if tc.before != nil {
				tc.before(t, pod)
			}
			code := pod.run(append(tc.flags, "--period="+testPeriod, "--termination-log="+path, to.flag())...)
			require.Equal(t, tc.code, code, pod.log.String())

			said := readTold(t, path)
			require.Equal(t, tc.outcome, said.Outcome)
			require.Equal(t, tc.code, said.ExitCode)
			require.Equal(t, testPeriod, said.Period)
			require.True(t, strings.HasPrefix(said.Text, tc.text), said.Text)

			events := pod.api.Events()
			require.Len(t, events, 1, pod.log.String())
			event := events[0]
			require.Equal(t, tc.reason+"/"+tc.kind, event.Reason+"/"+event.Type)
			require.Equal(t, said.Text, event.Message)
			require.Equal(t, podNamespace+"/Job/batch/v1/"+jobName+"/uid-of-"+jobName, strings.Join([]string{event.Namespace,
				event.InvolvedObject.Kind, event.InvolvedObject.APIVersion, event.InvolvedObject.Name, string(event.InvolvedObject.UID)}, "/"))
			require.Equal(t, jobName+"-0-x7k2p", event.ReportingInstance)
			require.True(t, pod.now.Equal(event.FirstTimestamp.Time))
			require.Empty(t, pod.api.Denied())

			messages := to.got()
			if tc.silent {
				require.Empty(t, messages)
				return
			}
			require.Len(t, messages, 1)
			note := messages[0].notification(t)
			require.Equal(t, said.Text, note.Text)
			said.Text = ""
			require.Equal(t, said, note.Duesday)
			require.Equal(t, "application/json", messages[0].header.Get("Content-Type"))
			require.Empty(t, messages[0].header.Get("Duesday-Signature"))
		})
	}
}

// Nobody is told in time, and nothing else changes.
func TestRun_isNeitherFailedNorHeldUpByWhoIsToBeTold(t *testing.T) {
	t.Parallel()
	hung := make(chan struct{})
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body) // or the server does not notice that the client has gone
		select {
		case <-req.Context().Done():
		case <-hung:
		}
	}))
	t.Cleanup(silent.Close)
	t.Cleanup(func() { close(hung) })
	dead := httptest.NewServer(http.NotFoundHandler())
	dead.Close()
	for name, tc := range map[string]struct {
		url   string
		fault kubesim.Fault
		warn  []string
	}{
		"silent": {silent.URL, kubesim.Fault{Before: kubesim.Forever}, []string{"context deadline exceeded", "context deadline exceeded"}},
		"dead":   {dead.URL, kubesim.Fault{Status: http.StatusInternalServerError}, []string{"connection refused", "create an Event"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, stripesim.Options{})
			customers := payers(3)
			b.add(t, customers...)
			pod := newPod(t, b.env)
			pod.api.Faults(func(r *http.Request) kubesim.Fault {
				if strings.HasSuffix(r.URL.Path, "/events") {
					return tc.fault
				}
				return kubesim.Fault{}
			})
			settled := make(chan time.Time, 1)
			b.sim.OnCommit(func(stripesim.Charge) {
				select {
				case settled <- time.Now():
				default:
				}
			})
			require.Equal(t, 0, pod.run("--period="+testPeriod, "--notify-url="+tc.url+notifyPath), pod.log.String())
			require.Less(t, time.Since(<-settled), 3*tellTimeout)
			b.requireBilled(t, customers)
			warnings := strings.Count(pod.log.String(), "cannot tell how the run ended")
			require.Equal(t, len(tc.warn), warnings, pod.log.String())
			for _, w := range tc.warn {
				require.Contains(t, pod.log.String(), w)
			}
			require.Contains(t, pod.log.String(), `"msg":"period settled"`)
			require.NotContains(t, pod.log.String(), "hunter2")
		})
	}
}

// The termination message is there before anybody else is asked, and they are
// asked side by side.
func TestRun_writesTheTerminationMessageFirst(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	b.add(t, payers(3)...)
	path := terminationLog(t)
	all := make(chan struct{}) // closed when all three have been asked
	var mu sync.Mutex
	found := map[string]string{}
	server := func(name string) string {
		s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			content, _ := os.ReadFile(path)
			mu.Lock()
			if _, again := found[name]; !again {
				if found[name] = string(content); len(found) == 3 {
					close(all)
				}
			}
			mu.Unlock()
			select {
			case <-all: // never, if one is asked after the other
			case <-r.Context().Done():
			}
		}))
		t.Cleanup(s.Close)
		return s.URL
	}
	pod := newPod(t, with(b.env, "OTEL_EXPORTER_OTLP_ENDPOINT", server("collector")))
	code := pod.run("--period="+testPeriod, "--termination-log="+path, "--notify-url="+server("receiver"), "--pushgateway-url="+server("gateway"))
	require.Equal(t, 0, code, pod.log.String())
	require.NotContains(t, pod.log.String(), "cannot")
	require.Len(t, found, 3)
	for name, content := range found {
		require.Contains(t, content, `"outcome":"settled"`, name)
	}
}

func TestNotify_triesAgainWhereThatCanHelp(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		answers []int
		tries   int
		err     string
	}{
		"at once":           {nil, 1, ""},
		"no content":        {[]int{204}, 1, ""},
		"busy, then well":   {[]int{503, 429, 500}, 4, ""},
		"busy":              {[]int{500, 500, 500, 502}, 4, "--notify-url: the receiver answered 502"},
		"gone":              {[]int{404}, 1, "--notify-url: the receiver answered 404"},
		"refused":           {[]int{403}, 1, "--notify-url: the receiver answered 403"},
		"redirecting":       {[]int{302}, 1, "--notify-url: the receiver answered 302"},
		"redirecting POSTs": {[]int{308}, 1, "--notify-url: the receiver answered 308"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			to := newReceiver(t, tc.answers...)
			p := program{env: func(string) (string, bool) { return "", false }}
			n, err := p.notifier(notifyFlags{url: to.URL + notifyPath})
			require.NoError(t, err)
			err = n.send(t.Context(), told{Text: "x"})
			if tc.err == "" {
				require.NoError(t, err)
			} else {
				require.EqualError(t, err, tc.err)
			}
			require.Len(t, to.got(), tc.tries)
		})
	}
}

func TestNotify_signsAsStripeDoesAndCallsNobody(t *testing.T) {
	t.Parallel()
	to := newReceiver(t)
	dir := t.TempDir()
	secret, address := filepath.Join(dir, "secret"), filepath.Join(dir, "url")
	require.NoError(t, os.WriteFile(secret, []byte("whsec_0123456789abcdef\n"), 0o600))
	require.NoError(t, os.WriteFile(address, []byte(to.URL+notifyPath+"\n"), 0o600))
	p := program{now: func() time.Time { return time.Unix(1796000000, 0) }}
	n, err := p.notifier(notifyFlags{urlFile: address, secretFile: secret})
	require.NoError(t, err)
	require.NoError(t, n.send(t.Context(), told{Text: "<!channel> <@U1> @here: a & b"}))
	m := to.got()[0]
	require.Equal(t, "‹!channel› ‹(at)U1› (at)here: a & b", m.notification(t).Text)
	mac := hmac.New(sha256.New, []byte("whsec_0123456789abcdef"))
	fmt.Fprintf(mac, "1796000000.%s", m.body)
	require.Equal(t, "t=1796000000,v1="+hex.EncodeToString(mac.Sum(nil)), m.header.Get("Duesday-Signature"))
}

func TestNotifier_refusesWhatCanNeverWork(t *testing.T) {
	t.Parallel()
	file := func(content string) string {
		path := filepath.Join(t.TempDir(), "f")
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		return path
	}
	good := "https://hooks.slack.com" + notifyPath
	for name, tc := range map[string]struct {
		flags notifyFlags
		err   string
	}{
		"none":             {notifyFlags{}, ""},
		"https":            {notifyFlags{url: good}, ""},
		"loopback":         {notifyFlags{url: "http://127.0.0.1:8065" + notifyPath}, ""},
		"loopback, IPv6":   {notifyFlags{url: "http://[::1]:8065" + notifyPath}, ""},
		"localhost":        {notifyFlags{url: "http://localhost:8065" + notifyPath}, ""},
		"a Service":        {notifyFlags{url: "http://chat.example.svc:8065" + notifyPath}, ""},
		"a Service, whole": {notifyFlags{url: "http://chat.example.svc.cluster.local." + notifyPath}, ""},
		"in clear text":    {notifyFlags{url: "http://hooks.slack.com" + notifyPath}, "want https"},
		"an address":       {notifyFlags{url: "http://10.0.0.7" + notifyPath}, "want https"},
		"no URL":           {notifyFlags{url: "hooks.slack.com" + notifyPath}, "want a URL like"},
		"another scheme":   {notifyFlags{url: "ftp://hooks.slack.com" + notifyPath}, "want a URL like"},
		"unreadable":       {notifyFlags{url: "https://hooks.slack.com/%zz" + notifyPath}, "want a URL like"},
		"twice":            {notifyFlags{url: good, urlFile: file(good)}, "want one of them"},
		"no file":          {notifyFlags{urlFile: "/no/such/file"}, "--notify-url-file: open /no/such/file"},
		"an empty file":    {notifyFlags{urlFile: file("\n")}, "is empty"},
		"a file":           {notifyFlags{urlFile: file(good + "\n")}, ""},
		"secret alone":     {notifyFlags{secretFile: file("0123456789abcdef")}, "want --notify-url"},
		"no secret file":   {notifyFlags{url: good, secretFile: "/no/such/file"}, "--notify-secret-file: open"},
		"short secret":     {notifyFlags{url: good, secretFile: file("hunter2")}, "want 16 characters or more, got 7"},
	} {
		p := program{}
		n, err := p.notifier(tc.flags)
		if tc.err == "" {
			require.NoError(t, err, name)
			require.Equal(t, tc.flags == notifyFlags{}, n == nil, name)
			continue
		}
		require.ErrorContains(t, err, tc.err, name)
		require.NotContains(t, err.Error(), "hunter2", name)
		require.NotContains(t, err.Error(), "T0000", name)
	}
}

func TestReconcile_tellsTheReceiverOnlyWhatIsNew(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	b.add(t, payers(4)...)
	b.sim.Pending("cus_0002")
	b.sim.Pending("cus_0003")
	b.run(t).requireExit(t, 0)
	to, path := newReceiver(t), terminationLog(t)
	reconcile := func(code int, outcome, text string) {
		p := b.command(t, append([]string{"reconcile", "--rate=1000", to.flag(), "--termination-log=" + path}, longLease...)...)
		p.requireExit(t, code)
		said := readTold(t, path)
		require.Equal(t, outcome, said.Outcome)
		require.Equal(t, code, said.ExitCode)
		require.Contains(t, said.Text, text)
		require.NotContains(t, p.err.String(), "hunter2")
	}
	reconcile(1, endUnfinished, "Duesday reconcile: nothing changed. Exit code 1: still open: 0 in doubt, 2 processing")
	require.Empty(t, to.got(), "it says so every hour, for days")
	b.sim.Resolve("cus_0002", true)
	reconcile(1, endUnfinished, "Duesday reconcile: period 2026-10: 1 charged. Exit code 1: still open: 0 in doubt, 1 processing")
	require.Len(t, to.got(), 1)
	b.sim.SetAuth(http.StatusUnauthorized)
	reconcile(3, endStopped, "Duesday reconcile: nothing changed. Exit code 3: ")
	require.Len(t, to.got(), 2)
	b.sim.SetAuth(0)
	b.sim.Resolve("cus_0003", false)
	reconcile(0, endSettled, "Duesday reconcile: period 2026-10: 1 declined. Nothing is in doubt or processing.")
	reconcile(0, endSettled, "Duesday reconcile: nothing changed. Nothing is in doubt or processing.")
	require.Len(t, to.got(), 3)
	note := to.got()[2].notification(t)
	require.Equal(t, "Duesday reconcile: period 2026-10: 1 declined. Nothing is in doubt or processing.", note.Text)
	require.EqualValues(t, 1, note.Duesday.This.Declined)
}
