package pgtest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// ownerVariable makes this test binary an owner to be killed: see
// TestOwner_thatWillBeKilled.
const ownerVariable = "PGTEST_OWNER"

// A victim is a test process of its own that has a server.
type victim struct {
	process    *os.Process
	folder     string
	supervisor int
	server     int
}

func TestKill_ofTheOwnerTakesTheServerAlong(t *testing.T) {
	t.Parallel()
	v := startVictim(t)
	require.NoError(t, v.process.Kill())
	awaitGone(t, v)
}

func TestKill_ofOwnerAndSupervisorIsClearedUpByTheNextStart(t *testing.T) {
	t.Parallel()
	v := startVictim(t)
	require.NoError(t, syscall.Kill(v.supervisor, syscall.SIGKILL))
	require.NoError(t, v.process.Kill())
	_, err := v.process.Wait()
	require.NoError(t, err)
	require.True(t, runsIn(v.server, v.folder), "nothing should have ended the server yet")

	NewServer(t)
	awaitGone(t, v) // perhaps by the sweep of another test, running beside
}

func TestSweep_sparesTheLiving(t *testing.T) {
	t.Parallel()
	server := NewServer(t)
	db := server.NewDB(t)
	acct, err := serverAccount()
	require.NoError(t, err)

	// An owner whose process cannot be seen, as in another container, but who
	// holds the lock.
	unseen := filepath.Join(filepath.Dir(server.Dir()), fmt.Sprintf("%s%d_1_%s", folderPrefix, 1<<22+1, randomHex(3)))
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(unseen)) })
	// Other tests sweep too: it must be locked before it has its name.
	scratch := filepath.Join(server.Dir(), "unseen")
	require.NoError(t, os.Mkdir(scratch, 0o700))
	require.NoError(t, acct.give(scratch))
	lock, err := lockFile(filepath.Join(scratch, "owner"), syscall.LOCK_EX)
	require.NoError(t, err)
	require.NoError(t, os.Rename(scratch, unseen))

	sweep(acct)
	db.Exec(t, "SELECT 1")
	require.DirExists(t, server.Dir())
	require.DirExists(t, unseen)

	require.NoError(t, lock.Close())
	sweep(acct)
	require.NoDirExists(t, unseen, "once the lock is free")
}

// TestOwner_thatWillBeKilled is no test by itself: it is what startVictim runs
// in a process of its own. It starts a server, tells of it and waits.
func TestOwner_thatWillBeKilled(t *testing.T) {
	if os.Getenv(ownerVariable) == "" {
		return
	}
	server, err := StartServer(context.Background())
	require.NoError(t, err)
	_, err = pgx.Connect(context.Background(), server.URL("postgres")) // a session that must go too
	require.NoError(t, err)
	fmt.Printf("owner: %s %d %d\n", server.Dir(), server.process.supervisor.Process.Pid, server.process.pid)
	_, _ = io.Copy(io.Discard, os.Stdin)
}

func startVictim(t *testing.T) victim {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestOwner_thatWillBeKilled$", "-test.v")
	cmd.Env = append(os.Environ(), ownerVariable+"=1")
	stdin, err := cmd.StdinPipe() // held open: only the kill ends it
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = stdin.Close()
		_ = cmd.Wait()
	})

	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		told, ok := strings.CutPrefix(lines.Text(), "owner: ")
		if !ok {
			continue
		}
		fields := strings.Fields(told)
		require.Len(t, fields, 3)
		supervisor, err := strconv.Atoi(fields[1])
		require.NoError(t, err)
		server, err := strconv.Atoi(fields[2])
		require.NoError(t, err)
		v := victim{process: cmd.Process, folder: fields[0], supervisor: supervisor, server: server}
		require.Eventually(t, func() bool { return len(processesOf(t, v.folder)) > 2 },
			10*time.Second, 10*time.Millisecond, "supervisor, server and children")
		return v
	}
	require.Fail(t, "the victim did not start", "%v", lines.Err())
	return victim{}
}

// awaitGone waits until no process and no folder of the victim is left.
func awaitGone(t *testing.T, v victim) {
	t.Helper()
	require.Eventually(t, func() bool {
		_, err := os.Stat(v.folder)
		return os.IsNotExist(err) && len(processesOf(t, v.folder)) == 0
	}, 10*time.Second, 10*time.Millisecond)
}

// processesOf lists the supervisor and the server with its children: all have
// the folder's name in their command lines, the children because it is the
// cluster's name too.
func processesOf(t *testing.T, folder string) []string {
	t.Helper()
	all, err := exec.Command("ps", "-A", "-ww", "-o", "pid=,command=").Output()
	require.NoError(t, err)
	var found []string
	for line := range strings.Lines(string(all)) {
		if strings.Contains(line, filepath.Base(folder)) {
			found = append(found, line)
		}
	}
	return found
}
