package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/duesday/duesday/internal/bench/measure"
	"github.com/duesday/duesday/internal/kubesim"
)

// takeover is how long nobody bills when the leader goes. Its rounds run at
// once: they mostly wait.
func takeover(ctx context.Context, s *stage) (r measure.Report, err error) {
	exe, err := s.build(ctx, ".", "duesday-instrumented", "./cmd/duesday", "-tags=bench")
	if err != nil {
		return r, err
	}
	cluster, end, err := kubesim.Listen()
	if err != nil {
		return r, err
	}
	defer end()
	killed, locked, told := make([]float64, s.rounds), make([]float64, s.rounds), make([]float64, s.rounds)
	var (
		group errgroup.Group
		twice atomic.Int64
	)
	each := func(name string, into []float64, lease bool, stop func(*child) time.Time) error {
		for i := range into {
			// Databases are made one at a time.
			url, err := s.database(ctx, 2000)
			if err != nil {
				return err
			}
			pod := fmt.Sprintf("%s-%d", name, i)
			env := []string{"POD_NAME=" + pod, "POD_NAMESPACE=billing", "DUESDAY_BENCH_CLUSTER=" + cluster.URL()}
			flags := []string{"--leader-elect=false"}
			if lease {
				cluster.PutLease("billing", pod, coordinationv1.LeaseSpec{})
				flags = []string{"--leader-elect=true", "--lease-name=" + pod}
			}
			group.Go(func() error {
				took, duplicates, err := s.succeed(ctx, func(b *bank) (*child, error) {
					return s.runAs(ctx, exe, append(env, environment(url, b)...), append(flags, "--rate=100", "--workers=8")...)
				}, stop)
				into[i] = took.Seconds()
				twice.Add(int64(duplicates))
				return err
			})
		}
		return nil
	}
	kill := func(c *child) time.Time {
		at := time.Now()
		c.kill()
		return at
	}
	terminate := func(c *child) time.Time {
		c.terminate()
		return time.Now()
	}
	for _, err := range []error{
		each("killed", killed, true, kill), each("locked", locked, false, kill), each("told", told, true, terminate),
	} {
		if err != nil {
			return r, errors.Join(err, group.Wait())
		}
	}
	if err = group.Wait(); twice.Load() > 0 {
		r.Break("takeover: %d charges beyond a customer's first", twice.Load())
	}
	r.Show(
		measure.Figure{Name: "kill -9 of the leader → first charge of the next, with a Lease", Unit: "s", Values: killed, Target: measure.Never(19)},
		measure.Figure{Name: "the same with the advisory lock alone", Unit: "s", Values: locked, Target: measure.Never(19)},
		measure.Figure{Name: "SIGTERM: end of the drained leader → first charge of the next", Unit: "s", Values: told, Target: measure.Never(2)},
	)
	r.Note("takeover: --lease-duration 15s, --renew-deadline 10s, --retry-period 2s, so at most 15 + 2 × 2 s; the next process starts when the leader is gone, as a Job's replacement; the Kubernetes API is simulated; Stripe takes 50 ms; all %d runs at once", 3*s.rounds)
	return r, err
}

// succeed stops a leader at work and returns how long it was from the moment
// that stop names to the first charge of the next.
func (s *stage) succeed(ctx context.Context, run func(*bank) (*child, error), stop func(*child) time.Time) (took time.Duration, duplicates int, err error) {
	b, err := s.bank(ctx, 50*time.Millisecond)
	if err != nil {
		return 0, 0, err
	}
	defer b.close()
	leader, err := run(b)
	if err != nil {
		return 0, 0, err
	}
	if _, err := b.awaitRequest(ctx, leader, leader.started); err != nil {
		leader.kill()
		return 0, 0, err
	}
	from := stop(leader)
	next, err := run(b)
	if err != nil {
		return 0, 0, err
	}
	first, err := b.awaitRequest(ctx, next, next.started)
	next.terminate()
	if err != nil {
		return 0, 0, err
	}
	tally, err := b.Tally(ctx)
	return first.Sub(from), tally.Duplicates(), err
}

// awaitRequest returns when the bank was first asked by the process, which
// started after all that asked before had ended.
func (b *bank) awaitRequest(ctx context.Context, c *child, after time.Time) (time.Time, error) {
	for tick := time.NewTicker(20 * time.Millisecond); ; {
		requests, err := b.Requests(ctx)
		if err != nil {
			return time.Time{}, err
		}
		for _, request := range requests {
			if request.Method == http.MethodPost && request.Time.After(after) {
				return request.Time, nil
			}
		}
		select {
		case <-c.done:
			return time.Time{}, errors.Join(errors.New("it ended without a charge"), c.wait())
		case <-tick.C:
		}
	}
}
