package leader

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/duesday/duesday/internal/kubesim"
)

// A round is two candidates that work, stop, fail and come back for minutes of
// simulated time, on a network that cuts, holds back and loses what they say.
type round struct {
	*leaseBundle
	config LeaseConfig

	mu      sync.Mutex
	weather map[string]weather
	random  *rand.Rand
	leading map[*Lease]string
	terms   int
	lost    int
	overlap string
}

// weather is what befalls a candidate's requests until it changes.
type weather struct {
	until time.Time
	fault func(*rand.Rand) kubesim.Fault
}

func (r *round) fault(req *http.Request) kubesim.Fault {
	r.mu.Lock()
	defer r.mu.Unlock()
	client := req.UserAgent()
	w := r.weather[client]
	if now := time.Now(); now.After(w.until) {
		w = weather{now.Add(r.upTo(3 * r.config.LeaseDuration)), r.skies()}
		r.weather[client] = w
	}
	return w.fault(r.random)
}

func (r *round) upTo(d time.Duration) time.Duration {
	return 1 + time.Duration(r.random.Int64N(int64(d)))
}

func (r *round) skies() func(*rand.Rand) kubesim.Fault {
	lease := r.config.LeaseDuration
	some := func(rnd *rand.Rand, d time.Duration) time.Duration { return 1 + time.Duration(rnd.Int64N(int64(d))) }
	cut := false
	all := []func(*rand.Rand) kubesim.Fault{
		// The last that is granted is answered as late as can be.
		func(*rand.Rand) kubesim.Fault {
			if cut {
				return kubesim.Fault{Before: kubesim.Forever}
			}
			cut = true
			return kubesim.Fault{After: r.config.RenewDeadline * 49 / 100}
		},
		func(*rand.Rand) kubesim.Fault { return kubesim.Fault{} },
		func(*rand.Rand) kubesim.Fault { return kubesim.Fault{} },
		func(*rand.Rand) kubesim.Fault { return kubesim.Fault{Before: kubesim.Forever} },
		func(*rand.Rand) kubesim.Fault { return kubesim.Fault{After: kubesim.Forever} },
		func(rnd *rand.Rand) kubesim.Fault { return kubesim.Fault{After: some(rnd, r.config.RenewDeadline/2)} },
		func(rnd *rand.Rand) kubesim.Fault { return kubesim.Fault{Before: some(rnd, r.config.RenewDeadline/2)} },
		func(rnd *rand.Rand) kubesim.Fault { return kubesim.Fault{Before: some(rnd, 2*lease)} },
		func(rnd *rand.Rand) kubesim.Fault {
			return kubesim.Fault{Before: some(rnd, lease), After: some(rnd, lease)}
		},
		func(rnd *rand.Rand) kubesim.Fault {
			return kubesim.Fault{Status: []int{0, 500, 503, 429, 403, 409}[rnd.IntN(6)]}
		},
		func(rnd *rand.Rand) kubesim.Fault {
			return []kubesim.Fault{{}, {Before: kubesim.Forever}, {After: kubesim.Forever}, {After: some(rnd, lease)}}[rnd.IntN(4)]
		},
	}
	return all[r.random.IntN(len(all))]
}

// draw returns a random duration, of the round's seed.
func (r *round) draw(d time.Duration) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.upTo(d)
}

// candidate campaigns again and again until ctx ends. Each time it is another
// process.
func (r *round) candidate(ctx context.Context, name string) {
	for n := 0; ctx.Err() == nil; n++ {
		config := r.config
		config.Cluster = &Cluster{Config: r.Config(name), Namespace: billing}
		config.Identity = fmt.Sprintf("%s-%d", name, n)
		lease, err := AcquireLease(ctx, config)
		if err == nil {
			r.work(ctx, lease, config.Identity)
		}
		select {
		case <-ctx.Done():
		case <-time.After(r.draw(r.config.LeaseDuration)):
		}
	}
}

func (r *round) work(ctx context.Context, lease *Lease, identity string) {
	r.enter(lease, identity)
	var crash bool
	select {
	case <-lease.Context().Done():
	case <-ctx.Done():
	case <-time.After(r.draw(6 * r.config.LeaseDuration)):
		crash = r.draw(2) == 1
	}
	r.mu.Lock()
	delete(r.leading, lease)
	if errors.Is(context.Cause(lease.Context()), ErrLeaseLost) {
		r.lost++
	}
	r.mu.Unlock()
	if crash {
		die(lease)
		return
	}
	_ = lease.Release(context.Background()) // may fail: it expires by itself
}

// enter notes whose context has not ended at this moment.
func (r *round) enter(lease *Lease, identity string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for other, name := range r.leading {
		if other.Context().Err() == nil && lease.Context().Err() == nil {
			r.overlap = fmt.Sprintf("%s and %s lead at %s", name, identity, time.Now().Format(time.StampMilli))
		}
	}
	r.leading[lease] = identity
	r.terms++
}

func TestLease_neverHasTwoWorkingContextsAtOnce(t *testing.T) {
	const rounds = 240
	var terms, lost int
	for seed := range uint64(rounds) {
		synctest.Test(t, func(t *testing.T) {
			api, end := kubesim.InMemory()
			defer end()
			api.PutLease(billing, duesday, coordinationv1.LeaseSpec{})
			r := &round{
				leaseBundle: &leaseBundle{api},
				weather:     map[string]weather{}, leading: map[*Lease]string{},
				random: rand.New(rand.NewPCG(seed, 3)),
			}
			r.config = r.durations()
			api.Faults(r.fault)

			ctx, cancel := context.WithTimeout(t.Context(), 20*r.config.LeaseDuration)
			defer cancel()
			var both sync.WaitGroup
			both.Go(func() { r.candidate(ctx, "a") })
			both.Go(func() { r.candidate(ctx, "b") })
			both.Wait()
			require.Empty(t, r.overlap, "seed %d, %+v", seed, r.config)

			// When the trouble is over, somebody leads.
			api.Faults(nil)
			r.config.Cluster = &Cluster{Config: r.Config("c"), Namespace: billing}
			r.config.Identity = "c"
			lease, err := AcquireLease(t.Context(), r.config)
			require.NoError(t, err, "seed %d", seed)
			require.NoError(t, lease.Release(t.Context()))
			terms += r.terms
			lost += r.lost
		})
	}
	t.Logf("%d rounds, %d terms, %d of them lost", rounds, terms, lost)
	require.Greater(t, terms, 2*rounds, "little was tried")
	require.Greater(t, lost, rounds, "little was lost")
}

// durations are any that the flags allow, with less margin than is wise.
func (r *round) durations() LeaseConfig {
	c := LeaseConfig{Namespace: billing, Name: duesday, Log: zap.NewNop()}
	c.LeaseDuration = time.Second + r.upTo(14*time.Second)
	c.RenewDeadline = c.LeaseDuration - r.upTo(c.LeaseDuration/3)
	c.RetryPeriod = c.RenewDeadline/20 + r.upTo(c.RenewDeadline/4)
	return c
}
