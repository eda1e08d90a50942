package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/duesday/duesday/leader"
)

// A rivalry is two candidates for one Lease on the real API server, each with a
// way to it of its own that cuts, hangs and loses answers.
type rivalry struct {
	ns, lease string
	gates     map[string]*gate
	clusters  map[string]*leader.Cluster

	mu      sync.Mutex
	working map[string]*leader.Lease
	terms   int
	lost    int
	overlap []string
}

func TestRivals_neverWorkAtOnceWhateverBecomesOfTheirConnections(t *testing.T) {
	t.Parallel()
	const pairs, roundsEach = 10, 24
	c, client := onCluster(t)
	ns := newNamespace(t, client)
	var all []*rivalry
	for i := range pairs {
		name := fmt.Sprintf("pair-%d", i)
		_, err := client.CoordinationV1().Leases(ns).Create(t.Context(),
			&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		require.NoError(t, err)
		r := &rivalry{ns: ns, lease: name, gates: map[string]*gate{}, clusters: map[string]*leader.Cluster{}, working: map[string]*leader.Lease{}}
		for _, who := range []string{"a", "b"} {
			r.gates[who], r.clusters[who] = wayToAPI(t, c.REST(), ns)
		}
		all = append(all, r)
	}
	var done sync.WaitGroup
	for seed, r := range all {
		done.Go(func() { r.play(t.Context(), rand.New(rand.NewPCG(uint64(seed), 3)), roundsEach) })
	}
	done.Wait()

	var terms, lost int
	for seed, r := range all {
		require.Empty(t, r.overlap, "seed %d", seed)
		terms += r.terms
		lost += r.lost
	}
	t.Logf("%d rounds: %d terms, %d of them lost", pairs*roundsEach, terms, lost)
	require.Greater(t, terms, pairs*roundsEach/2, "little was tried")
	require.Greater(t, lost, pairs*roundsEach/4, "little was lost")
}

// wayToAPI is the API server through a gate.
func wayToAPI(t *testing.T, config *rest.Config, ns string) (*gate, *leader.Cluster) {
	t.Helper()
	server, err := url.Parse(config.Host)
	require.NoError(t, err)
	require.NotEmpty(t, server.Port(), "an API server's address without a port")
	g := newGate(t, "127.0.0.1", server.Host)
	if config.TLSClientConfig.ServerName == "" && !config.TLSClientConfig.Insecure {
		config.TLSClientConfig.ServerName = server.Hostname()
	}
	server.Host = g.address()
	config.Host = server.String()
	return g, &leader.Cluster{Config: config, Namespace: ns}
}

// play lets both campaign while the weather changes.
func (r *rivalry) play(ctx context.Context, random *rand.Rand, rounds int) {
	ctx, stop := context.WithCancel(ctx)
	var both sync.WaitGroup
	for who, seed := range map[string]uint64{"a": random.Uint64(), "b": random.Uint64()} {
		both.Go(func() { r.candidate(ctx, who, rand.New(rand.NewPCG(seed, 4))) })
	}
	for range rounds {
		r.befall(ctx, random)
	}
	for _, g := range r.gates {
		g.set(cut) // what waits for an answer must not be waited for
	}
	stop()
	both.Wait()
}

// befall is a round: bad weather for the leader, or for both, that lasts up to
// two leases, and then good weather for long enough to elect one.
func (r *rivalry) befall(ctx context.Context, random *rand.Rand) {
	bad := []weather{cut, hung, oneWay}[random.IntN(3)]
	lasts := 200*time.Millisecond + upTo(random, 2*time.Second)
	hit := r.leaders()
	if len(hit) == 0 || random.IntN(4) == 0 {
		hit = []string{"a", "b"}
	}
	for _, who := range hit {
		r.gates[who].set(bad)
	}
	pause(ctx, lasts)
	for _, who := range hit {
		r.gates[who].set(open)
	}
	pause(ctx, 600*time.Millisecond+upTo(random, 1600*time.Millisecond))
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func (r *rivalry) leaders() (names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for who, lease := range r.working {
		if lease.Context().Err() == nil {
			names = append(names, who)
		}
	}
	return names
}

// candidate campaigns again and again, and works while it leads. Now and then it
// has done, and gives the Lease back.
func (r *rivalry) candidate(ctx context.Context, who string, random *rand.Rand) {
	for n := 0; ctx.Err() == nil; n++ {
		lease, err := leader.AcquireLease(ctx, leader.LeaseConfig{
			Cluster: r.clusters[who], Namespace: r.ns, Name: r.lease, Identity: fmt.Sprintf("%s-%d", who, n),
			LeaseDuration: time.Second, RenewDeadline: 700 * time.Millisecond, RetryPeriod: 100 * time.Millisecond,
		})
		if err != nil {
			pause(ctx, 50*time.Millisecond)
			continue
		}
		r.begin(who, lease)
		select {
		case <-lease.Context().Done():
		case <-ctx.Done():
		case <-time.After(3*time.Second + upTo(random, 6*time.Second)):
		}
		lost := errors.Is(context.Cause(lease.Context()), leader.ErrLeaseLost)
		// In bad weather it cannot be given back; it expires.
		_ = lease.Release(context.WithoutCancel(ctx))
		r.end(who, lost)
	}
}

// begin notes who works; nobody else may.
func (r *rivalry) begin(who string, lease *leader.Lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.terms++
	for other, theirs := range r.working {
		if other != who && theirs.Context().Err() == nil && lease.Context().Err() == nil {
			r.overlap = append(r.overlap, fmt.Sprintf("%s began while %s worked (fresh: %t), term %d", who, other, theirs.Fresh(), r.terms))
		}
	}
	r.working[who] = lease
}

func (r *rivalry) end(who string, lost bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if lost {
		r.lost++
	}
	delete(r.working, who)
}

func upTo(random *rand.Rand, d time.Duration) time.Duration {
	return time.Duration(random.Int64N(int64(d)))
}
