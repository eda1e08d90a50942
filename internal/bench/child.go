package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/duesday/duesday/internal/stripesim"
	"github.com/duesday/duesday/internal/subproc"
)

// child is a process under measurement.
type child struct {
	cmd     *exec.Cmd
	log     subproc.Log
	started time.Time
	done    chan struct{}
	err     error
	wall    time.Duration
}

func start(ctx context.Context, exe string, env []string, args ...string) (*child, error) {
	c := &child{cmd: exec.CommandContext(ctx, exe, args...), done: make(chan struct{}), started: time.Now()}
	c.cmd.Env = env
	c.cmd.Stderr = &c.log
	subproc.DieWithUs(c.cmd)
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(c.done)
		c.err = c.cmd.Wait()
		c.wall = time.Since(c.started)
	}()
	return c, nil
}

// wait returns when the process has ended well, or an error with the end of
// what it said.
func (c *child) wait() error {
	<-c.done
	if c.err != nil {
		return fmt.Errorf("%s %s: %w\n%s", c.cmd.Path, strings.Join(c.cmd.Args[1:], " "), c.err, c.log.Tail(2000))
	}
	return nil
}

func (c *child) kill() {
	_ = c.cmd.Process.Kill() // it may have ended
	<-c.done
}

// cpu is what the process used, once it has ended.
func (c *child) cpu() float64 {
	return (c.cmd.ProcessState.UserTime() + c.cmd.ProcessState.SystemTime()).Seconds()
}

// event is the first line of the log with the message.
func (c *child) event(message string) (at time.Time, ok bool) {
	for line := range strings.Lines(c.log.String()) {
		var event map[string]any
		if json.Unmarshal([]byte(line), &event) != nil || event["msg"] != message {
			continue
		}
		text, _ := event["time"].(string)
		if at, err := time.Parse(time.RFC3339Nano, text); err == nil {
			return at, true
		}
	}
	return time.Time{}, false
}

// awaitEvent waits until the log has the message.
func (c *child) awaitEvent(message string) (time.Time, error) {
	for {
		if at, ok := c.event(message); ok {
			return at, nil
		}
		select {
		case <-c.done:
			if at, ok := c.event(message); ok {
				return at, nil
			}
			return time.Time{}, fmt.Errorf("ended without %q\n%s", message, c.log.Tail(2000))
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// terminate tells the process to stop, and waits until it has.
func (c *child) terminate() {
	_ = c.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	<-c.done
}

// bank is a simulated Stripe in a process of its own.
type bank struct {
	stripesim.Remote
	child *child
}

// bank starts one with empty books. Its collector may be lazy: the cores are
// for what is measured.
func (s *stage) bank(ctx context.Context, latency time.Duration) (*bank, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	b := &bank{child: &child{done: make(chan struct{}), started: time.Now()}}
	b.child.cmd = exec.CommandContext(ctx, s.stripesim, "-latency", latency.String())
	b.child.cmd.Env = []string{"GOGC=400", "GOMEMLIMIT=6GiB"}
	b.child.cmd.Stdout, b.child.cmd.Stderr = w, &b.child.log
	subproc.DieWithUs(b.child.cmd)
	err = b.child.cmd.Start()
	_ = w.Close()
	if err != nil {
		return nil, err
	}
	go func() {
		defer close(b.child.done)
		b.child.err = b.child.cmd.Wait()
	}()
	line, err := bufio.NewReader(r).ReadString('\n')
	url, ok := strings.CutPrefix(strings.TrimSpace(line), "listening on ")
	if !ok {
		b.child.kill()
		return nil, errors.Join(fmt.Errorf("stripesim said %q", line), err)
	}
	b.URL = url
	return b, nil
}

// close ends the simulator and returns the CPU seconds that it used.
func (b *bank) close() float64 {
	b.child.terminate()
	return b.child.cpu()
}

func environment(url string, b *bank) []string {
	return []string{"DATABASE_URL=" + url, "STRIPE_API_KEY=" + apiKey, "STRIPE_API_BASE=" + b.URL}
}

// run starts Duesday as fast as it goes, unless flags say otherwise.
func (s *stage) run(ctx context.Context, url string, b *bank, flags ...string) (*child, error) {
	return s.runAs(ctx, s.duesday, environment(url, b), append([]string{"--leader-elect=false"}, flags...)...)
}

func (s *stage) runAs(ctx context.Context, exe string, env []string, flags ...string) (*child, error) {
	args := []string{"run", "--period=" + period, "--allow-future", "--log-format=json",
		"--rate=1000000", "--workers=" + strconv.Itoa(workers)}
	return start(ctx, exe, env, append(args, flags...)...)
}
