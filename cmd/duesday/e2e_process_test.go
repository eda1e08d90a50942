package main

import (
	"encoding/json"
	"errors"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// patience bounds every wait. It is not a timing that a test relies on: what is
// awaited comes, or the test fails.
const patience = 90 * time.Second

// process is the real binary at work.
type process struct {
	cmd      *exec.Cmd
	out, err tap
	done     chan struct{}
}

// start runs the binary with this environment and nothing else of the test's.
func start(t testing.TB, env map[string]string, args ...string) *process {
	t.Helper()
	path, err := built.path()
	require.NoError(t, err)
	p := &process{cmd: exec.Command(path, args...), done: make(chan struct{})}
	p.cmd.Env = []string{"GORACE=atexit_sleep_ms=0"}
	for name, value := range env {
		p.cmd.Env = append(p.cmd.Env, name+"="+value)
	}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.err
	p.cmd.SysProcAttr = ownGroup()
	require.NoError(t, p.cmd.Start())
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait() // what it ended with is in ProcessState
	}()
	t.Cleanup(func() {
		select {
		case <-p.done: // as most have; another may have its number by now
		default:
			_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
			<-p.done
		}
		if t.Failed() {
			t.Logf("pid %d: %s\n%s", p.cmd.Process.Pid, strings.Join(args, " "), tail(p.err.String()))
		}
	})
	return p
}

func tail(s string) string { return s[max(0, len(s)-6000):] }

// exit waits for the end and returns the exit code.
func (p *process) exit(t testing.TB) int {
	t.Helper()
	await(t, "the process to exit", p.done)
	require.NotContains(t, p.err.String(), "DATA RACE")
	return p.cmd.ProcessState.ExitCode()
}

func (p *process) requireExit(t testing.TB, code int) {
	t.Helper()
	require.Equal(t, code, p.exit(t), tail(p.err.String()))
}

func (p *process) signal(t testing.TB, s syscall.Signal) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Signal(s))
}

func (p *process) kill(t testing.TB) {
	t.Helper()
	p.signal(t, syscall.SIGKILL)
	await(t, "the killed process", p.done)
}

// logs returns the events of stderr with this message.
func (p *process) logs(t testing.TB, message string) []map[string]any {
	t.Helper()
	var found []map[string]any
	for line := range strings.Lines(p.err.String()) {
		var event map[string]any
		if json.Unmarshal([]byte(line), &event) == nil && event["msg"] == message {
			found = append(found, event)
		}
	}
	return found
}

// awaitLog waits until stderr has the message.
func (p *process) awaitLog(t testing.TB, message string) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for {
		changed := p.err.changed()
		if len(p.logs(t, message)) > 0 {
			return
		}
		select {
		case <-changed:
		case <-p.done:
			require.NotEmpty(t, p.logs(t, message), "the process ended without the message %q:\n%s", message, tail(p.err.String()))
			return
		case <-deadline.C:
			require.Fail(t, "no message "+message, tail(p.err.String()))
		}
	}
}

// freeze stops the process and waits until it stands still.
func (p *process) freeze(t testing.TB) {
	t.Helper()
	p.signal(t, syscall.SIGSTOP)
	var status syscall.WaitStatus
	_, err := syscall.Wait4(p.cmd.Process.Pid, &status, syscall.WUNTRACED, nil)
	require.False(t, err != nil && !errors.Is(err, syscall.EINTR), "wait for the freeze: %v", err)
	require.True(t, status.Stopped())
}

// tap keeps what is written to it and tells when more has come.
type tap struct {
	mu   sync.Mutex
	text strings.Builder
	more chan struct{}
}

func (b *tap) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.more != nil {
		close(b.more)
		b.more = nil
	}
	return b.text.Write(p)
}

func (b *tap) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// changed is closed at the next write.
func (b *tap) changed() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.more == nil {
		b.more = make(chan struct{})
	}
	return b.more
}

// await receives from c, or fails the test.
func await[T any](t testing.TB, what string, c <-chan T) T {
	t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case v := <-c:
		return v
	case <-timer.C:
		require.Fail(t, "waited in vain for "+what)
		panic("unreachable")
	}
}

// lastError is the error of the event "run ended".
func (p *process) lastError(t testing.TB) string {
	t.Helper()
	ended := p.logs(t, "run ended")
	require.Len(t, ended, 1, tail(p.err.String()))
	require.EqualValues(t, p.exit(t), ended[0]["exit_code"])
	return ended[0]["error"].(string)
}

// counts are what the last event says that the run did.
func (p *process) counts(t testing.TB) map[string]any {
	t.Helper()
	ended := append(p.logs(t, "run ended"), p.logs(t, "period settled")...)
	require.Len(t, ended, 1, tail(p.err.String()))
	return ended[0]["this_run"].(map[string]any)
}
