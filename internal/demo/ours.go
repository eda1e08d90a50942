package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"time"

	"github.com/duesday/duesday/internal/stripesim"
	"github.com/duesday/duesday/internal/subproc"
)

// duesday runs three replicas at once, kills the leader with SIGKILL half-way,
// and starts another in its place, as a Job would.
func (s *stage) duesday(ctx context.Context) (result, error) {
	m, err := s.month(ctx, "duesday")
	if err != nil {
		return result{}, err
	}
	defer m.close()

	half := make(chan struct{})
	var once sync.Once
	var committed int
	var mu sync.Mutex
	m.bank.OnCommit(func(stripesim.Charge) {
		mu.Lock()
		defer mu.Unlock()
		if committed++; committed >= customers/2 {
			once.Do(func() { close(half) })
		}
	})

	began := time.Now()
	show := watch("duesday", m.bank)
	defer show.stop()
	ended := make(chan replica)
	running := map[int]*exec.Cmd{}
	start := func() error {
		cmd := exec.CommandContext(ctx, s.binary, "run", "--leader-elect=false", "--period", period,
			"--rate", "100", "--lease-duration", "3s", "--renew-deadline", "2s", "--retry-period", "500ms")
		cmd.Env = m.env()
		subproc.DieWithUs(cmd)
		log, err := os.CreateTemp(s.dir, "replica-*.log")
		if err != nil {
			return err
		}
		cmd.Stderr = log
		if err := cmd.Start(); err != nil {
			return err
		}
		running[cmd.Process.Pid] = cmd
		go func() { ended <- replica{cmd.Process.Pid, cmd.Wait(), log} }()
		return nil
	}
	for range 3 {
		if err := start(); err != nil {
			return result{}, err
		}
	}

	// A Job with completions = parallelism = 3: replace what fails, until
	// three have succeeded.
	for succeeded := 0; succeeded < 3; {
		select {
		case <-ctx.Done():
			return result{}, ctx.Err()
		case <-half:
			half = nil
			pid, err := m.leader(ctx)
			if err != nil {
				return result{}, err
			}
			cmd, ok := running[pid]
			if !ok {
				return result{}, fmt.Errorf("the leader, process %d, is not one of ours", pid)
			}
			show.say(fmt.Sprintf("half-way: kill -9 of the leader, process %d", pid))
			if err := cmd.Process.Kill(); err != nil {
				return result{}, err
			}
		case r := <-ended:
			delete(running, r.pid)
			if r.err == nil {
				succeeded++
				continue
			}
			show.say(fmt.Sprintf("process %d ended: %v; a replacement starts", r.pid, r.err))
			if time.Since(began) > 2*time.Minute {
				return result{}, errors.Join(r.err, fmt.Errorf("its log ends: %s", tail(r.log.Name())))
			}
			if err := start(); err != nil {
				return result{}, err
			}
		}
	}
	took := time.Since(began)
	var inDoubt int
	if err := m.conn.QueryRow(ctx, `SELECT count(*) FROM duesday.charges WHERE status = 'claimed'`).Scan(&inDoubt); err != nil {
		return result{}, err
	}
	return count("duesday", m.bank, inDoubt, took), nil
}

// tail is the end of a file that is about to be removed.
func tail(name string) string {
	content, err := os.ReadFile(name)
	if err != nil {
		return err.Error()
	}
	return string(content[max(0, len(content)-2000):])
}

type replica struct {
	pid int
	err error
	log *os.File
}

// leader is the process id of the newest run; the holder is "host/pid".
func (m *month) leader(ctx context.Context) (int, error) {
	var pid string
	const newest = `
		SELECT split_part(holder, '/', 2) FROM duesday.runs WHERE finished_at IS NULL ORDER BY id DESC LIMIT 1`
	if err := m.conn.QueryRow(ctx, newest).Scan(&pid); err != nil {
		return 0, err
	}
	return strconv.Atoi(pid)
}
