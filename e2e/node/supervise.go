package node

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
)

// programs are the processes that the node started. As pid 1 it is also the
// parent of every orphan; one goroutine reaps both kinds.
type programs struct {
	logDir string

	mu    sync.Mutex // held from a start until the pid is known, and by the reaper
	known map[string]*program
}

type program struct {
	Program
	pid     int // 0: not running
	stopped bool
	ended   chan struct{}
	status  syscall.WaitStatus
}

func supervise(logDir string) *programs {
	p := &programs{logDir: logDir, known: map[string]*program{}}
	ends := make(chan os.Signal, 1)
	signal.Notify(ends, syscall.SIGCHLD)
	go func() {
		for range ends {
			p.reap()
		}
	}()
	return p
}

func (p *programs) reap() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		for _, prog := range p.known {
			if prog.pid == pid {
				prog.pid, prog.status = 0, status
				close(prog.ended)
			}
		}
	}
}

func (p *programs) do(c Command) error {
	if c.Do == Check {
		return p.check()
	}
	if c.Do == Start {
		return p.start(c.Name, c.Program)
	}
	p.mu.Lock()
	prog := p.known[c.Name]
	if prog == nil || prog.pid == 0 {
		p.mu.Unlock()
		return fmt.Errorf("%s %s: not running", c.Do, c.Name)
	}
	signals := map[string]syscall.Signal{Stop: syscall.SIGKILL, Pause: syscall.SIGSTOP, Resume: syscall.SIGCONT}
	number, ok := signals[c.Do]
	if !ok {
		p.mu.Unlock()
		return fmt.Errorf("unknown command %q", c.Do)
	}
	if c.Do == Stop {
		prog.stopped = true
	}
	err := syscall.Kill(prog.pid, number)
	p.mu.Unlock()
	if c.Do == Stop && err == nil {
		<-prog.ended
	}
	return err
}

func (p *programs) start(name string, what *Program) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if before := p.known[name]; before != nil {
		if before.pid != 0 {
			return fmt.Errorf("start %s: already running", name)
		}
		if what == nil {
			what = &before.Program
		}
	}
	if what == nil {
		return fmt.Errorf("start %s: never ran before", name)
	}
	log, err := os.OpenFile(filepath.Join(p.logDir, name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	process, err := os.StartProcess(what.Path, append([]string{what.Path}, what.Args...), &os.ProcAttr{
		Dir: "/", Env: os.Environ(), Files: []*os.File{null, log, log},
	})
	if err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	p.known[name] = &program{Program: *what, pid: process.Pid, ended: make(chan struct{})}
	return process.Release()
}

func (p *programs) check() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var dead []error
	for name, prog := range p.known {
		if prog.pid == 0 && !prog.stopped {
			dead = append(dead, fmt.Errorf("%s ended by itself (exit status %d, signal %d)",
				name, prog.status.ExitStatus(), prog.status.Signal()))
		}
	}
	return errors.Join(dead...)
}
