package main

import (
	"bufio"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/internal/stripesim"
)

// A terminal that is closed tells so more than once, by its shell and by the
// kernel.
func TestRun_stopsInGoodOrderWhenItsTerminalIsClosed(t *testing.T) {
	t.Parallel()
	// Under nohup the binary would inherit that the signal is ignored, and rightly
	// go on: what is handled here it gets as by default.
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	b := setup(t, stripesim.Options{})
	b.add(t, payers(40)...)
	p, _, release := held(t, b)
	p.signal(t, syscall.SIGHUP)
	p.awaitLog(t, "stopping: no new claims, waiting for what is in flight")
	p.signal(t, syscall.SIGHUP)
	release()
	p.requireExit(t, 1)
	require.Contains(t, p.lastError(t), "told to stop")
}

// readerLess starts the binary with a pipe as stdout or stderr, whose reader
// goes after so many lines.
func readerLess(t testing.TB, env map[string]string, lines int, to func(*exec.Cmd, *os.File), args ...string) *process {
	t.Helper()
	path, err := built.path()
	require.NoError(t, err)
	r, w, err := os.Pipe()
	require.NoError(t, err)
	p := &process{cmd: exec.Command(path, args...), done: make(chan struct{})}
	for name, value := range env {
		p.cmd.Env = append(p.cmd.Env, name+"="+value)
	}
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.SysProcAttr = &p.out, &p.err, ownGroup()
	to(p.cmd, w)
	if lines == 0 {
		require.NoError(t, r.Close())
	}
	require.NoError(t, p.cmd.Start())
	require.NoError(t, w.Close())
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		<-p.done
	})
	if lines > 0 {
		reader := bufio.NewReader(r)
		for range lines {
			_, err := reader.ReadString('\n')
			require.NoError(t, err)
		}
		require.NoError(t, r.Close())
	}
	return p
}

// As in `duesday run 2>&1 | head -1`.
func TestRun_outlivesTheReaderOfItsLog(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	customers := payers(20)
	b.add(t, customers...)
	hung, gate := make(chan struct{}), make(chan struct{})
	b.sim.FaultCustomer("cus_0010", stripesim.Fault{Kind: stripesim.HangUntilReleased, Hung: hung, Release: gate})
	args := append([]string{"run", "--leader-elect=false", "--period=" + testPeriod, "--allow-future", "--rate=1000", "--workers=1", "--debug"}, longLease...)
	p := readerLess(t, b.env, 1, func(c *exec.Cmd, w *os.File) { c.Stderr = w }, args...)
	await(t, "the tenth charge", hung)
	close(gate)
	require.Zero(t, p.exit(t))
	b.requireBilled(t, customers)
}

// As in `duesday report | head`.
func TestReport_endsQuietlyWithItsReader(t *testing.T) {
	t.Parallel()
	b := setup(t, stripesim.Options{})
	b.add(t, payers(3)...)
	b.run(t).requireExit(t, 0)
	for _, args := range []string{
		"report --format=table", "report --format=csv", "report --format=json", "report --format=html", "status", "status --output=json",
	} {
		p := readerLess(t, b.env, 0, func(c *exec.Cmd, w *os.File) { c.Stdout = w },
			strings.Fields(strings.Replace(args, "report", "report --period="+testPeriod, 1))...)
		require.Equal(t, 1, p.exit(t), args)
		require.Empty(t, p.err.String(), args)
	}
}
