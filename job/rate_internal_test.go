package job

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/charges"
)

func TestLive_tellsTheRateAndTheEndByTheLastHalfMinute(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 10, 1, 12, 0, 0, 0, time.UTC)
	var l Live
	l.begin("2026-10", func() time.Time { return now })
	require.True(t, l.Snapshot().StartedAt.IsZero())
	const dues = 10_000
	l.start(&charges.Standing{
		Tally: charges.Tally{Unclaimed: dues},
		Money: []charges.Money{{Currency: "usd", Unclaimed: dues}},
	}, true)
	settle := func(n int) {
		slots, results := make([]charges.Slot, n), make([]result, n)
		for i := range slots {
			slots[i] = charges.Slot{Currency: "usd", Amount: 1}
			results[i] = result{Settlement: charges.Settlement{Status: charges.Succeeded}, was: charges.Claimed, currency: "usd", amount: 1}
		}
		l.claimed(slots, charges.Unclaimed)
		l.settled(results)
	}
	first := l.Snapshot()
	require.Zero(t, first.PerSecond)
	require.Zero(t, first.End)
	require.Equal(t, dues, first.Left)

	// Ten a second from the start: it is no less while the window fills.
	for range 60 {
		now = now.Add(time.Second)
		settle(10)
		require.InDelta(t, 10, l.Snapshot().PerSecond, 0.4, now)
	}
	p := l.Snapshot()
	require.Equal(t, 600, p.Tally.Succeeded)
	require.Equal(t, []charges.Money{{Currency: "usd", Succeeded: 600, Unclaimed: dues - 600}}, p.Money)
	require.Equal(t, dues-600, p.Left)
	require.InDelta(t, (dues-600)/10, p.TimeLeft.Seconds(), 40)
	require.Equal(t, now.Add(p.TimeLeft), p.End)

	// A pause longer than the window: nobody can know.
	now = now.Add(31 * time.Second)
	p = l.Snapshot()
	require.Zero(t, p.PerSecond)
	require.Zero(t, p.TimeLeft)
	require.True(t, p.End.IsZero())

	// One in a long time is no overflow.
	settle(1)
	p = l.Snapshot()
	require.Positive(t, p.TimeLeft)
	require.True(t, p.End.After(now))

	settle(dues - 601)
	p = l.Snapshot()
	require.Zero(t, p.Left)
	require.True(t, p.End.IsZero())
}

// A period that could not be counted is told of as far as the run itself knows.
func TestLive_ofAnUncountedPeriodNeverGoesBelowZero(t *testing.T) {
	t.Parallel()
	var l Live
	l.begin("2026-10", time.Now)
	l.start(nil, true)
	l.rejected(3)
	l.takenUp(1)
	l.settled([]result{{Settlement: charges.Settlement{Status: charges.Succeeded}, was: charges.Claimed, currency: "usd", amount: 5, doubted: true}})
	l.claimed([]charges.Slot{{Currency: "usd", Amount: 7}}, charges.Unclaimed)
	p := l.Snapshot()
	require.False(t, p.Known)
	require.Equal(t, charges.Tally{Succeeded: 1, Rejected: 3, InDoubt: 1}, p.Tally)
	require.Equal(t, []charges.Money{{Currency: "usd", Succeeded: 5, InDoubt: 7}}, p.Money)
	require.True(t, p.End.IsZero())
}
