package charges_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/duesday/duesday/charges"
)

// clock is set by hand. It starts at the present, since the limiter's own
// clock, which only Wait reads, is the real one.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Now()} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func TestPacer_halvesAtMostOnceASecond(t *testing.T) {
	t.Parallel()
	c := newClock()
	p := charges.NewPacer(800, c.Now)
	for range 50 {
		p.Throttled()
	}
	require.InDelta(t, 400.0, p.Rate(), 1e-6)
	c.Advance(999 * time.Millisecond)
	p.Throttled()
	require.InDelta(t, 400.0, p.Rate(), 1e-6)
	c.Advance(time.Millisecond)
	p.Throttled()
	require.InDelta(t, 200.0, p.Rate(), 1e-6)
}

func TestPacer_recoversATwentiethASecond(t *testing.T) {
	t.Parallel()
	c := newClock()
	p := charges.NewPacer(800, c.Now)
	p.Throttled()
	for _, step := range []struct {
		after time.Duration
		want  float64
	}{
		{0, 400}, {900 * time.Millisecond, 400}, {100 * time.Millisecond, 440}, {0, 440}, {time.Second, 480}, {1500 * time.Millisecond, 520},
		{500 * time.Millisecond, 560}, {3 * time.Second, 680}, {time.Hour, 800}, {time.Hour, 800},
	} {
		c.Advance(step.after)
		require.NoError(t, p.Wait(t.Context()))
		require.InDelta(t, step.want, p.Rate(), 1e-6)
	}
}

// Requests go on between the 429s: their seconds must not count as quiet.
func TestPacer_keepsSlowingDownUnderConstantThrottling(t *testing.T) {
	t.Parallel()
	c := newClock()
	p := charges.NewPacer(800, c.Now)
	last := p.Rate()
	for second := range 8 {
		for range 10 {
			require.NoError(t, p.Wait(t.Context()))
			p.Throttled()
			c.Advance(100 * time.Millisecond)
		}
		require.Less(t, p.Rate(), last, "second %d", second)
		last = p.Rate()
	}
	require.Less(t, last, 5.0)
}

func TestPacer_neverStops(t *testing.T) {
	t.Parallel()
	for full, floor := range map[float64]float64{20: 1, 1: 1, 0.5: 0.5} {
		c := newClock()
		p := charges.NewPacer(full, c.Now)
		for range 20 {
			p.Throttled()
			c.Advance(time.Second)
		}
		require.InDelta(t, floor, p.Rate(), 1e-6)
	}
}

func TestPacer_noBurst(t *testing.T) {
	t.Parallel()
	p := charges.NewPacer(100, time.Now)
	start := time.Now()
	var wg sync.WaitGroup
	for range 11 {
		wg.Go(func() { _ = p.Wait(context.Background()) })
	}
	wg.Wait()
	require.GreaterOrEqual(t, time.Since(start), 95*time.Millisecond)
}

// Stripe counts what arrives in a second, and arrivals are less even than sends.
func TestPacer_leavesRoomForUnevenArrivals(t *testing.T) {
	t.Parallel()
	for _, perSecond := range []float64{20, 100} {
		p := charges.NewPacer(perSecond, time.Now)
		between := time.Duration(float64(time.Second) / p.Limit())
		require.GreaterOrEqual(t, time.Duration(perSecond)*between, time.Second+8*time.Millisecond)
		require.Greater(t, p.Limit(), 0.99*perSecond)
	}
}

func TestPacer_waitEndsWithTheContext(t *testing.T) {
	t.Parallel()
	p := charges.NewPacer(0.001, time.Now)
	require.NoError(t, p.Wait(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Wait(ctx) }()
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	require.ErrorIs(t, p.Wait(ctx), context.Canceled)
}

func TestJitter_bounds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		policy := charges.RetryPolicy{
			Base: time.Duration(rapid.Int64Range(1, int64(time.Hour)).Draw(t, "base")),
			Max:  time.Duration(rapid.Int64Range(1, int64(24*time.Hour)).Draw(t, "max")),
		}
		x := rapid.Float64Range(0, 0.999999999).Draw(t, "random")
		j := charges.NewJitter(policy, func() float64 { return x })
		ceiling := min(policy.Base, policy.Max)
		n := rapid.IntRange(1, 100).Draw(t, "n")
		for range n {
			pause := j.NextBackOff()
			require.GreaterOrEqual(t, pause, time.Duration(0))
			require.LessOrEqual(t, pause, ceiling)
			require.InDelta(t, x*float64(ceiling), float64(pause), 1, "uniform below the ceiling")
			ceiling = min(2*ceiling, policy.Max)
		}
		j.Reset()
		require.LessOrEqual(t, j.NextBackOff(), min(policy.Base, policy.Max))
	})
}
