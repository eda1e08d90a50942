// Package promtest lets tests ask Prometheus' own programs: promtool, and a real
// Pushgateway.
package promtest

import (
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/internal/subproc"
)

// program finds one of Debian's programs, and says what to install otherwise.
func program(t testing.TB, name, debian string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		path = filepath.Join("/usr/bin", name)
		_, err = os.Stat(path)
	}
	require.NoError(t, err, "no %s in PATH: apt-get install %s (hack/setup test does it as root)", name, debian)
	return path
}

// Promtool runs promtool with the input, and returns all that it said.
func Promtool(t testing.TB, input string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program(t, "promtool", "prometheus"), args...)
	cmd.Stdin = strings.NewReader(input)
	said, err := cmd.CombinedOutput()
	if err != nil {
		return string(said), fmt.Errorf("promtool %s: %w\n%s", strings.Join(args, " "), err, said)
	}
	return string(said), nil
}

// Gateway is a Pushgateway of this test's.
type Gateway struct{ URL string }

// Pushgateway starts one, and ends it with the test.
func Pushgateway(t testing.TB) *Gateway {
	t.Helper()
	path := program(t, "prometheus-pushgateway", "prometheus-pushgateway")
	const attempts = 3 // another process may take the port first
	for range attempts {
		if g := start(t, path); g != nil {
			return g
		}
	}
	require.Fail(t, "the Pushgateway does not start")
	return nil
}

func start(t testing.TB, path string) *Gateway {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := listener.Addr().String()
	require.NoError(t, listener.Close())

	// A path of its own, so that another test's that took the port first is not
	// taken for it.
	prefix := "/" + rand.Text()
	// Debian's keeps what was pushed in a file of the machine's, unless told not to.
	cmd := exec.Command(path, "--web.listen-address="+addr, "--web.route-prefix="+prefix, "--persistence.file=")
	subproc.DieWithUs(cmd)
	require.NoError(t, cmd.Start())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // it is killed
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		<-ended
	})
	g := &Gateway{URL: "http://" + addr + prefix}
	for {
		res, err := client().Get(g.URL + "/-/ready")
		if err == nil {
			_ = res.Body.Close() // nothing was read
			if res.StatusCode == http.StatusOK {
				return g
			}
		}
		select {
		case <-ended:
			return nil
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func client() *http.Client {
	return &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
}

// Scrape reads an address as Prometheus does.
func Scrape(t testing.TB, url string) string {
	t.Helper()
	res, err := client().Get(url)
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, res.StatusCode, string(body))
	return string(body)
}

// Scrape reads all that was pushed.
func (g *Gateway) Scrape(t testing.TB) string {
	t.Helper()
	return Scrape(t, g.URL+"/metrics")
}

// Series returns the lines of a scrape that begin with duesday_, by their name
// and labels.
func Series(text string) map[string]string {
	series := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "} "); ok && strings.HasPrefix(line, "duesday_") {
			series[name+"}"] = value
		} else if name, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && strings.HasPrefix(line, "duesday_") {
			series[name] = value
		}
	}
	return series
}
