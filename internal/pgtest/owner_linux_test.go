package pgtest

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// In a container whose first process reaps nobody, a killed test process stays
// a zombie for ever.
func TestOwner_isDeadAsAZombie(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("/bin/cat")
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	start, ok := startTime(cmd.Process.Pid)
	require.True(t, ok)
	child := owner{pid: cmd.Process.Pid, start: start}
	require.True(t, child.alive())

	require.NoError(t, stdin.Close())
	require.NoError(t, unix.Waitid(unix.P_PID, child.pid, nil, unix.WEXITED|unix.WNOWAIT, nil))
	require.False(t, child.alive())
	require.NoError(t, cmd.Wait())
	require.False(t, child.alive())
	require.False(t, owner{pid: os.Getpid(), start: 1}.alive(), "a later process with the same id")
}
