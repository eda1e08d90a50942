package stripesim

import (
	"bufio"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Process is a simulator in a process of its own, which outlives crashes of
// whatever a test kills.
type Process struct {
	Remote
	PID int
}

// StartProcess builds and starts cmd/stripesim with the given flags. It ends
// with the test, also when the test is killed.
func StartProcess(t testing.TB, args ...string) *Process {
	t.Helper()
	exe := filepath.Join(t.TempDir(), "stripesim")
	build := exec.Command("go", "build", "-o", exe, "github.com/duesday/duesday/internal/stripesim/cmd/stripesim")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build stripesim: %v\n%s", err, out)
	}
	cmd := exec.Command(exe, args...)
	cmd.SysProcAttr = dieWithParent()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatalf("pipe stdout of stripesim: %v", err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start stripesim: %v", err)
	}
	t.Cleanup(func() {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Errorf("stop stripesim: %v", err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("stripesim: %v", err)
		}
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	url, ok := strings.CutPrefix(strings.TrimSpace(line), "listening on ")
	if err != nil || !ok {
		t.Fatalf("stripesim said %q: %v", line, err)
	}
	return &Process{Remote: Remote{URL: url}, PID: cmd.Process.Pid}
}
