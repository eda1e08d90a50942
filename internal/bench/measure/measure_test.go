package measure

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestSpreadOf(t *testing.T) {
	require.Equal(t, Spread{Median: 3, Min: 1, Max: 9, Rounds: 3}, SpreadOf([]float64{9, 1, 3}))
	require.Equal(t, Spread{Median: 2.5, Min: 1, Max: 4, Rounds: 4}, SpreadOf([]float64{4, 2, 3, 1}))
	require.Zero(t, SpreadOf(nil))
	given := []float64{2, 1}
	SpreadOf(given)
	require.Equal(t, []float64{2, 1}, given, "the rounds keep their order")
}

func TestRatios_ofTheSameRound(t *testing.T) {
	require.Equal(t, []float64{0.5, 2}, Ratios([]float64{1, 8, 3}, []float64{2, 4}))
	require.Equal(t, []float64{4}, Ratios([]float64{1, 4}, []float64{0, 1}))
}

func at(milliseconds ...int) []time.Time {
	start := time.Date(2026, 10, 1, 0, 0, 0, 0, time.UTC)
	var times []time.Time
	for _, ms := range milliseconds {
		times = append(times, start.Add(time.Duration(ms)*time.Millisecond))
	}
	return times
}

func TestRate_countsTheSpansBetweenEvents(t *testing.T) {
	require.InDelta(t, 20, Rate(at(0, 100, 50)), 1e-9)
	require.Zero(t, Rate(at(7)))
	require.Zero(t, Rate(at(7, 7)))
	require.Zero(t, Rate(nil))
}

func TestRolling(t *testing.T) {
	for name, c := range map[string]struct {
		times []time.Time
		want  int
	}{
		"none":                    {nil, 0},
		"one":                     {at(5), 1},
		"exactly a second apart":  {at(0, 1000, 2000), 1},
		"a millisecond less":      {at(0, 999, 2000), 2},
		"a burst between seconds": {at(0, 900, 950, 1050, 1100, 3000), 4},
		"in any order":            {at(1100, 0, 950, 3000, 900, 1050), 4},
		"all at once":             {at(1, 1, 1), 3},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, Rolling(c.times, time.Second)) })
	}
}

func TestRolling_isTheMostThatAnySpanFromAnEventHolds(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		times := at(rapid.SliceOf(rapid.IntRange(0, 5000)).Draw(r, "milliseconds")...)
		most := 0
		for _, from := range times {
			n := 0
			for _, other := range times {
				if !other.Before(from) && other.Before(from.Add(time.Second)) {
					n++
				}
			}
			most = max(most, n)
		}
		require.Equal(r, most, Rolling(times, time.Second))
	})
}

func TestTarget(t *testing.T) {
	noisy := Spread{Median: 1, Min: 0.5, Max: 2, Rounds: 5}
	require.True(t, AtLeast(1).Reached(noisy))
	require.False(t, AtLeast(1.01).Reached(noisy))
	require.True(t, AtMost(1).Reached(noisy))
	require.False(t, AtMost(0.99).Reached(noisy))
	require.True(t, Never(2).Reached(noisy))
	require.False(t, Never(1).Reached(noisy), "one bad round is enough")
	require.False(t, AtMost(1).Reached(Spread{}), "nothing was measured")
	require.False(t, Target{}.Set())
}

func TestReport_putsRatiosFirstAndMissesAsMisses(t *testing.T) {
	var r Report
	r.Show(Figure{Name: "charges", Unit: "/s", Values: []float64{4000, 5000, 3000}})
	r.Add(Report{Figures: []Figure{
		{Name: "ours ÷ theirs", Values: []float64{0.5}, Target: AtLeast(0.9)},
		{Name: "memory", Unit: "MiB", Values: []float64{40}, Target: AtMost(64)},
	}})
	r.Note("on %d cores", 2)
	var out strings.Builder
	require.NoError(t, r.Write(&out))
	require.Equal(t, `
must reach     median  min    max    rounds  unit  target  reached
ours ÷ theirs  0.500   0.500  0.500  1       ×     ≥ 0.9   MISSED

must reach, not ratios  median  min  max  rounds  unit  target  reached
memory                  40      40   40   1       MiB   ≤ 64    yes

made from, and for information  median  min   max   rounds  unit  target  reached
charges                         4000    3000  5000  3       /s            

· on 2 cores
`, out.String())
}

func TestReport_saysFirstWhatIsBroken(t *testing.T) {
	var r Report
	r.Show(Figure{Name: "charges", Unit: "/s", Values: []float64{4000}})
	r.Break("%d customers were charged twice", 3)
	var out strings.Builder
	require.NoError(t, r.Write(&out))
	require.True(t, strings.HasPrefix(out.String(), "BROKEN: 3 customers were charged twice\n"), out.String())
}

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 1: "1", 0.9944: "0.994", 1.004: "1.004", 12.34: "12.3", 57999.6: "58000", 0.0123: "0.012", 20: "20",
	} {
		require.Equal(t, want, number(v))
	}
}
