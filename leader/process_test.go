package leader

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// holderConfig names the variable that makes the test binary a holder.
const holderConfig = "LEADER_TEST_HOLDER"

// holdForParent holds the lock in a process of its own and does what the
// parent's lines say, until its input ends. Each answer is one line.
func holdForParent(config string) error {
	var c Config
	if err := json.Unmarshal([]byte(config), &c); err != nil {
		return err
	}
	lock, err := Acquire(context.Background(), c)
	if err != nil {
		return err
	}
	fmt.Println("held by", lock.BackendPID(), lock.RunID())
	orders := bufio.NewScanner(os.Stdin)
	for orders.Scan() {
		switch orders.Text() {
		case "fresh?":
			fmt.Println("fresh", lock.Fresh())
		case "do":
			fmt.Println("lost", errors.Is(lock.Do(context.Background(), selectOne), ErrLost))
		case "await the end":
			<-lock.Context().Done()
			fmt.Println("lost", errors.Is(context.Cause(lock.Context()), ErrLost))
		case "work":
			_ = lock.DoLong(context.Background(), func(ctx context.Context, conn *pgx.Conn) error {
				_, err := conn.Exec(ctx, "SELECT pg_sleep(600)")
				return err
			})
		}
	}
	return lock.Release(context.Background())
}

type holder struct {
	process *os.Process
	orders  io.Writer
	answers <-chan string
	backend uint32
	run     int64
}

// startHolder starts a process that holds the lock; it is killed when the test
// ends.
func startHolder(t *testing.T, c Config) *holder {
	t.Helper()
	type unspoken *struct{}
	config, err := json.Marshal(struct {
		Config
		Log, Now, Observe unspoken `json:",omitempty"`
	}{Config: c})
	require.NoError(t, err)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), holderConfig+"="+string(config))
	cmd.Stderr = os.Stderr
	orders, err := cmd.StdinPipe()
	require.NoError(t, err)
	output, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())

	answers, read := make(chan string, 16), make(chan struct{})
	go func() {
		defer close(read)
		for lines := bufio.NewScanner(output); lines.Scan(); {
			answers <- lines.Text()
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // a test may have killed it
		<-read
		_ = cmd.Wait()
	})
	h := &holder{process: cmd.Process, orders: orders, answers: answers}
	_, err = fmt.Sscanf(await(t, "the process to hold the lock", answers), "held by %d %d", &h.backend, &h.run)
	require.NoError(t, err)
	return h
}

func (h *holder) order(t *testing.T, order string) {
	t.Helper()
	_, err := fmt.Fprintln(h.orders, order)
	require.NoError(t, err)
}

func (h *holder) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	require.NoError(t, h.process.Signal(s))
}

func TestLock_ofAFrozenProcessPassesToARival(t *testing.T) {
	b := setup(t)
	frozen := startHolder(t, b.hasty())
	frozen.order(t, "fresh?")
	require.Equal(t, "fresh true", await(t, "an answer", frozen.answers))

	frozen.signal(t, syscall.SIGSTOP)
	eventually(t, "the server to end the session", func() bool { return !b.backendLives(t, frozen.backend) })
	rival := acquireFor(t, rivalOf(b.config))

	// The question waits for it when it wakes.
	frozen.order(t, "fresh?")
	frozen.signal(t, syscall.SIGCONT)
	require.Equal(t, "fresh false", await(t, "an answer", frozen.answers))
	frozen.order(t, "do")
	require.Equal(t, "lost true", await(t, "an answer", frozen.answers))
	frozen.order(t, "await the end")
	require.Equal(t, "lost true", await(t, "the context to end", frozen.answers))
	requireHeld(t, rival)
}

func TestAcquire_isNotLostToAFrozenProcess(t *testing.T) {
	b := setup(t)
	frozen := startHolder(t, b.hasty())
	frozen.signal(t, syscall.SIGSTOP)
	result := await(t, "the rival to lead", campaignFor(t, rivalOf(b.config)))
	require.NoError(t, result.err)
	requireHeld(t, result.lock)
}

func TestAcquire_winsOnceTheHolderIsKilled(t *testing.T) {
	b := setup(t)
	killed := startHolder(t, b.config)
	killed.signal(t, syscall.SIGKILL)
	result := await(t, "the rival to lead", campaignFor(t, rivalOf(b.config)))
	require.NoError(t, result.err)
	requireHeld(t, result.lock)
}

func TestAcquire_isNotLostToAKilledProcessWhoseStatementRuns(t *testing.T) {
	b := setup(t)
	killed := startHolder(t, b.config)
	killed.order(t, "work")
	eventually(t, "the statement to run", func() (running bool) {
		b.scan(t, &running, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1 AND wait_event = 'PgSleep')`, killed.backend)
		return running
	})
	killed.signal(t, syscall.SIGKILL)
	result := await(t, "the rival to lead", campaignFor(t, rivalOf(b.config)))
	require.NoError(t, result.err)
	requireHeld(t, result.lock)
}
