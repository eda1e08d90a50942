package spendcap

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkProxy prints what the proxy costs: charges made directly and through
// it, in turns within one run. It judges nothing, since machines differ, and
// clients, proxy, Postgres and the simulator share this one's processors.
//
// Where Stripe takes its time the clients set out one after the other within
// that time, as independent ones would; all at once they would stay in step
// and mostly wait for each other's processor.
func BenchmarkProxy(t *testing.B) {
	b := setup(t, options{caps: map[string]int64{"usd": 1 << 50}})
	const perTurn, turns = 2400, 4
	direct := func(key string) (string, string) { return b.sim.URL, realSecret }
	through := func(key string) (string, string) { return b.url, b.key.Secret }

	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(out, "Stripe takes\tclients\tdirect median\tproxy median\tadded\tdirect /s\tproxy /s\tratio\t")
	for _, setting := range []struct {
		stripe  time.Duration
		clients int
	}{{0, 1}, {0, 32}, {50 * time.Millisecond, 32}, {300 * time.Millisecond, 32}} {
		b.sim.SetLatency(setting.stripe)
		n := perTurn
		if setting.stripe > 0 {
			n = min(n, 640)
		}
		if setting.clients == 1 {
			n = min(n, 800)
		}
		var d, p sample
		for turn := range turns {
			// Whoever comes second finds a warmer or a busier machine: take turns.
			first, second := &d, &p
			way, other := direct, through
			if turn%2 == 1 {
				first, second, way, other = &p, &d, through, direct
			}
			prefix := fmt.Sprintf("%d-%s-%d", setting.clients, setting.stripe, turn)
			first.add(b.hammer(t, prefix+"a", setting.clients, n, setting.stripe, way))
			second.add(b.hammer(t, prefix+"b", setting.clients, n, setting.stripe, other))
		}
		fmt.Fprintf(out, "%s\t%d\t%s\t%s\t%s\t%.0f\t%.0f\t%.0f %%\t\n", setting.stripe, setting.clients,
			round(d.median()), round(p.median()), round(p.median()-d.median()), d.rate(), p.rate(), 100*p.rate()/d.rate())
	}
	fmt.Println()
	require.NoError(t, out.Flush())
	l := b.limit(t, "usd")
	require.Zero(t, l.Held)
}

func round(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }

type sample struct {
	latencies []time.Duration
	wall      time.Duration
}

func (s *sample) add(latencies []time.Duration, wall time.Duration) {
	s.latencies = append(s.latencies, latencies...)
	s.wall += wall
}

func (s *sample) median() time.Duration {
	slices.Sort(s.latencies)
	return s.latencies[len(s.latencies)/2]
}

func (s *sample) rate() float64 { return float64(len(s.latencies)) / s.wall.Seconds() }

// hammer makes n charges by as many clients and returns how long each took.
func (b *testBundle) hammer(t testing.TB, prefix string, clients, n int, stagger time.Duration, way func(key string) (url, secret string)) ([]time.Duration, time.Duration) {
	t.Helper()
	latencies := make([]time.Duration, n)
	var wg sync.WaitGroup
	began := time.Now()
	for c := range clients {
		wg.Go(func() {
			if stagger > 0 {
				<-time.After(stagger * time.Duration(c) / time.Duration(clients))
			}
			for i := c; i < n; i += clients {
				at := time.Now()
				key := fmt.Sprintf("%s-%d", prefix, i)
				url, secret := way(key)
				if err := b.once(url, secret, key); err != nil {
					t.Error(err)
					return
				}
				latencies[i] = time.Since(at)
			}
		})
	}
	wg.Wait()
	return latencies, time.Since(began)
}

func (b *testBundle) once(url, secret, key string) error {
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, url+"/v1/charges", strings.NewReader(goodBody))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Authorization", "Bearer "+secret)
	req.Header.Set("Idempotency-Key", key)
	res, err := b.client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if body, err := io.ReadAll(res.Body); err != nil || res.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d: %s: %w", res.StatusCode, body, err)
	}
	return nil
}
