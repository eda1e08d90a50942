package pgtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"
)

// supervise is the supervisor of one server: a shell that starts it and then
// waits for word from its owner. A killed owner can send none, but the kernel
// closes its end of the pipe, and then the server and its folder go.
//
// A parent-death signal would not do: it comes when the *thread* that started
// the child ends, and does not reach a server's children.
//
//	$1 folder, $2 signal that ends the server at once, rest: the server
//	0  words: "down" (the server has ended, keep the folder), "done" (leave)
//	3  takes the server's pid; the server and its children keep it open
const supervise = `
folder=$1 signal=$2
shift 2
"$@" </dev/null >>"$folder/log" 2>&1 &
pid=$!
echo "$pid" >&3
exec 3>&-
up=yes
while read -r word; do
	case $word in
	down) up= ;;
	done) wait "$pid"; exit 0 ;;
	esac
done
if [ -n "$up" ]; then
	kill -s "$signal" "$pid"
	wait "$pid"
fi
rm -rf "$folder"
`

// A process is a server under a supervisor. It has no goroutine: what is to be
// known of the server is read from the pipe, when someone asks.
type process struct {
	pid        int // of the server
	supervisor *exec.Cmd
	words      *os.File // to the supervisor; its closing ends the server
	alive      *os.File // from the server; its end is the end of the last child
}

func startProcess(acct account, f *folder, deathSignal string, argv ...string) (*process, error) {
	wordsEnd, words, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = wordsEnd.Close() }()
	alive, aliveEnd, err := os.Pipe()
	if err != nil {
		_ = words.Close()
		return nil, err
	}
	defer func() { _ = aliveEnd.Close() }()

	args := append([]string{"-c", supervise, "pgtest-supervisor", f.path, deathSignal}, argv...)
	cmd := exec.Command("/bin/sh", args...)
	cmd.Dir = f.path
	cmd.Env = serverEnvironment(f.path)
	cmd.Stdin = wordsEnd
	cmd.ExtraFiles = []*os.File{aliveEnd}
	cmd.SysProcAttr = acct.attributes()
	p := &process{supervisor: cmd, words: words, alive: alive}
	if err := cmd.Start(); err != nil {
		_ = words.Close()
		_ = alive.Close()
		return nil, fmt.Errorf("start the supervisor: %w", err)
	}
	_ = aliveEnd.Close() // or its end would never be seen
	if p.pid, err = p.readPID(); err != nil {
		p.release()
		return nil, fmt.Errorf("start %s: %w", argv[0], err)
	}
	return p, nil
}

// serverEnvironment leaves out the caller's PG* variables and locale, which
// would change what a server or initdb does.
func serverEnvironment(home string) []string {
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "LC_ALL=C", "TZ=UTC"}
}

func (p *process) readPID() (int, error) {
	_ = p.alive.SetReadDeadline(time.Now().Add(30 * time.Second))
	var line []byte
	for b := make([]byte, 1); b[0] != '\n'; line = append(line, b[0]) {
		if _, err := p.alive.Read(b); err != nil {
			return 0, err
		}
	}
	return strconv.Atoi(string(bytes.TrimSpace(line)))
}

// awaitReady returns when ready does, and fails as soon as the server ends.
func (p *process) awaitReady(ctx context.Context, ready func() bool) error {
	for !ready() {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("not ready: %w", err)
		}
		if p.awaitEnd(10*time.Millisecond) == nil {
			return errors.New("ended while starting")
		}
	}
	return nil
}

// awaitEnd waits until the server and all its children are gone.
func (p *process) awaitEnd(timeout time.Duration) error {
	_ = p.alive.SetReadDeadline(time.Now().Add(timeout))
	for b := make([]byte, 64); ; {
		_, err := p.alive.Read(b)
		if errors.Is(err, io.EOF) || errors.Is(err, os.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("await the server's end: %w", err)
		}
	}
}

// end signals the server, waits until it and its children are gone, and tells
// the supervisor so.
func (p *process) end(sig syscall.Signal) error {
	if p.awaitEnd(time.Millisecond) != nil { // else its pid may be another's by now
		if err := syscall.Kill(p.pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("signal the server: %w", err)
		}
		if err := p.awaitEnd(30 * time.Second); err != nil {
			return err
		}
	}
	_, _ = p.words.WriteString("down\n") // fails only if the supervisor was killed
	return nil
}

// release lets the supervisor go. If the server was not ended before, the
// supervisor ends it and removes the folder.
func (p *process) release() {
	if p.awaitEnd(time.Millisecond) == nil {
		_, _ = p.words.WriteString("done\n")
	}
	_ = p.words.Close()
	_ = p.supervisor.Wait()
	_ = p.alive.Close()
}
