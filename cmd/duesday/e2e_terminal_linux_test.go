package main

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/duesday/duesday/internal/stripesim"
)

// pty is a pseudo terminal whose screen is kept.
type pty struct {
	tap
	slave  *os.File
	closed chan struct{}
}

func newPTY(t testing.TB, columns uint16) *pty {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	fd := int(master.Fd())
	require.NoError(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	require.NoError(t, err)
	require.NoError(t, unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: columns}))
	p := &pty{closed: make(chan struct{})}
	p.slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	go func() {
		defer close(p.closed)
		buffer := make([]byte, 4096)
		for {
			n, err := master.Read(buffer)
			_, _ = p.Write(buffer[:n])
			if err != nil { // the slave's last holder has gone
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = p.slave.Close()
		<-p.closed
		_ = master.Close()
	})
	return p
}

// onTerminal runs the binary with the terminal as its stderr.
func (b *bundle) onTerminal(t testing.TB, p *pty, env map[string]string, flags ...string) *process {
	t.Helper()
	path, err := built.path()
	require.NoError(t, err)
	args := append([]string{"run", "--leader-elect=false", "--period=" + testPeriod, "--allow-future", "--rate=40", "--workers=2"}, longLease...)
	run := &process{cmd: exec.Command(path, append(args, flags...)...), done: make(chan struct{})}
	for name, value := range env {
		run.cmd.Env = append(run.cmd.Env, name+"="+value)
	}
	run.cmd.Stderr, run.cmd.SysProcAttr = p.slave, ownGroup()
	require.NoError(t, run.cmd.Start())
	require.NoError(t, p.slave.Close())
	go func() {
		defer close(run.done)
		_ = run.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = syscall.Kill(-run.cmd.Process.Pid, syscall.SIGKILL)
		<-run.done
	})
	return run
}

// awaitText waits until the terminal was sent what matches.
func (p *pty) awaitText(t testing.TB, pattern *regexp.Regexp) {
	t.Helper()
	for {
		changed := p.changed()
		if pattern.MatchString(p.String()) {
			return
		}
		await(t, pattern.String(), changed)
	}
}

// rendered is what a person sees in the end, and every line that stood last on
// the screen at some time. It knows what a bar needs.
func (p *pty) rendered(t testing.TB) (screen []string, lasts []string) {
	t.Helper()
	<-p.closed
	line := ""
	text := p.String()
	for len(text) > 0 {
		switch {
		case strings.HasPrefix(text, clearLine):
			lasts, line, text = append(lasts, line), "", text[len(clearLine):]
		case strings.HasPrefix(text, "\r\n"):
			screen, line, text = append(screen, line), "", text[2:]
		default:
			require.NotContains(t, "\x1b\r\n", text[:1], "an escape that no bar needs: %q", text[:min(len(text), 20)])
			line, text = line+text[:1], text[1:]
		}
	}
	return append(screen, line), append(lasts, line)
}

var (
	barShown = regexp.MustCompile(`\d+% \[=+>? *\]  \d+ charged`)
	logLine  = regexp.MustCompile(`^\d\d:\d\d:\d\d\.\d{3}\t(INFO|WARN|ERROR|DEBUG)\t`)
)

func requireCleanScreen(t testing.TB, p *pty, columns int) {
	t.Helper()
	screen, lasts := p.rendered(t)
	require.Empty(t, screen[len(screen)-1], "the bar was left behind")
	for _, line := range screen[:len(screen)-1] {
		require.Regexp(t, logLine, line)
		require.NotContains(t, line, "[=", "a log line is torn")
	}
	for _, last := range lasts {
		require.Less(t, len(last), columns, last)
	}
}

func TestProgress_onATerminalIsABarThatEndsClean(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		columns uint16
		stop    bool
	}{
		"to its end":           {columns: 120},
		"stopped early":        {columns: 120, stop: true},
		"on a narrow terminal": {columns: 40},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, stripesim.Options{})
			b.add(t, payers(60)...)
			// The debug lines of sends that fail come while the bar is shown.
			b.sim.FaultCustomer("cus_0055", stripesim.Fault{Kind: stripesim.Error500BeforeCommit})
			p := newPTY(t, tc.columns)
			run := b.onTerminal(t, p, with(b.env, "TERM", "xterm"), "--debug")
			p.awaitText(t, barShown)
			if tc.stop {
				run.signal(t, syscall.SIGTERM)
			}
			require.Equal(t, 1, run.exit(t))
			requireCleanScreen(t, p, int(tc.columns))
			if !tc.stop {
				require.Contains(t, p.String(), "slot left in doubt")
			}
			require.Contains(t, p.String(), "run ended")
			require.NotContains(t, p.String(), "\tprogress\t")
		})
	}
}

func TestProgress_isNoBarWhereItCannotBeShown(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		term  string
		flags []string
	}{
		"dumb":    {term: "dumb"},
		"unknown": {},
		"json":    {term: "xterm", flags: []string{"--log-format=json"}},
		"quiet":   {term: "xterm", flags: []string{"--quiet"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, stripesim.Options{})
			customers := payers(20)
			b.add(t, customers...)
			p := newPTY(t, 120)
			env := with(b.env)
			if tc.term != "" {
				env["TERM"] = tc.term
			}
			run := b.onTerminal(t, p, env, tc.flags...)
			require.Zero(t, run.exit(t))
			screen, lasts := p.rendered(t)
			require.Len(t, lasts, 1)
			require.NotContains(t, p.String(), "\x1b")
			if name == "quiet" {
				require.Equal(t, []string{""}, screen)
			} else {
				require.Contains(t, strings.Join(screen, "\n"), "period settled")
			}
			b.requireBilled(t, customers)
		})
	}
}
