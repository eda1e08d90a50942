package main

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/duesday/duesday/internal/subproc"
)

// A replica is one process of the binary. It reaches Stripe by an address of
// its own, which tells whose a request is.
type replica struct {
	number int
	args   []string
	// generation is the world's at its start.
	generation int
	cmd        *exec.Cmd
	stripe     *httptest.Server
	conns      atomic.Int64 // open connections to Stripe
	log        subproc.Log
	done       chan struct{}
	killed     atomic.Bool
	// terminated: it was sent a SIGTERM.
	terminated atomic.Bool
	// excused: Stripe refused the API key while it ran.
	excused atomic.Bool

	asleep sync.Mutex
	sleeps int // that have not ended; the last to end wakes it
}

func (w *world) start(args ...string) (*replica, error) {
	w.gate.RLock()
	defer w.gate.RUnlock()
	p := &replica{args: args, done: make(chan struct{})}
	p.stripe = httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { w.serve(p, rw, r) }))
	p.stripe.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			p.conns.Add(1)
		case http.StateClosed, http.StateHijacked:
			p.conns.Add(-1)
		}
	}
	p.stripe.Start()
	p.cmd = exec.Command(w.binary, args...)
	p.cmd.Env = append(w.env, "DATABASE_URL="+w.url, "STRIPE_API_KEY=rk_test_torture", "STRIPE_API_BASE="+p.stripe.URL, "GORACE=atexit_sleep_ms=0")
	p.cmd.Stderr = &p.log
	dieWithUs(p.cmd)

	w.mu.Lock()
	defer w.mu.Unlock()
	if err := p.cmd.Start(); err != nil {
		p.stripe.Close()
		return nil, fmt.Errorf("start the binary: %w", err)
	}
	p.number, p.generation = len(w.replicas)+1, w.generation
	p.excused.Store(w.refusing)
	w.replicas = append(w.replicas, p)
	go func() {
		_ = p.cmd.Wait() // how it ended is in ProcessState
		close(p.done)
	}()
	return p, nil
}

func (p *replica) alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

func (p *replica) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) } // it may have ended

// kill returns when the process is gone.
func (p *replica) kill() {
	p.killed.Store(true)
	p.signal(syscall.SIGKILL)
	<-p.done
}

// stop freezes the process and returns when it stands still, or is gone. Each
// stop has a wake: one that woke the sleeper of another, longer stop would wake
// it to a day that its own clock has not seen.
func (p *replica) stop() {
	p.asleep.Lock()
	p.sleeps++
	p.signal(syscall.SIGSTOP)
	p.asleep.Unlock()
	for p.alive() && !p.stopped() {
		time.Sleep(time.Millisecond)
	}
}

func (p *replica) wake() {
	p.asleep.Lock()
	defer p.asleep.Unlock()
	if p.sleeps--; p.sleeps == 0 {
		p.signal(syscall.SIGCONT)
	}
}

// stopped reads the state in /proc; where there is none, the signal is taken to
// have worked.
func (p *replica) stopped() bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return true
	}
	_, fields, _ := strings.Cut(string(stat), ") ")
	return strings.HasPrefix(fields, "T") || strings.HasPrefix(fields, "Z")
}

// code is the exit code of a process that has ended; -1 of a killed one.
func (p *replica) code() int { return p.cmd.ProcessState.ExitCode() }

func (p *replica) said(message string) bool { return strings.Contains(p.log.String(), message) }

func (p *replica) String() string {
	state := "running"
	if !p.alive() {
		state = p.cmd.ProcessState.String()
	}
	return fmt.Sprintf("replica %d, pid %d, %s, %s", p.number, p.cmd.Process.Pid, p.args[0], state)
}
