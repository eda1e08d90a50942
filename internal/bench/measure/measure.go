// Package measure is what the benchmarks do with their figures: spreads,
// ratios, rates, targets, and the table that shows them. It measures nothing
// itself.
package measure

import (
	"slices"
	"time"
)

// Spread is what several rounds came to. It shows a machine's noise, which a
// mean would hide.
type Spread struct {
	Median, Min, Max float64
	Rounds           int
}

// SpreadOf returns the zero Spread for no values.
func SpreadOf(values []float64) Spread {
	n := len(values)
	if n == 0 {
		return Spread{}
	}
	sorted := slices.Sorted(slices.Values(values))
	return Spread{Median: (sorted[(n-1)/2] + sorted[n/2]) / 2, Min: sorted[0], Max: sorted[n-1], Rounds: n}
}

// Ratios divides round by round, so that what slows a whole round down does not
// count. Rounds beyond the shorter of the two, and those without a baseline, are
// left out.
func Ratios(ours, baseline []float64) []float64 {
	var out []float64
	for i := range min(len(ours), len(baseline)) {
		if baseline[i] != 0 {
			out = append(out, ours[i]/baseline[i])
		}
	}
	return out
}

// Rate is events a second between the first and the last, 0 for fewer than two.
// The order of times does not matter.
func Rate(times []time.Time) float64 {
	if len(times) < 2 {
		return 0
	}
	first := slices.MinFunc(times, time.Time.Compare)
	last := slices.MaxFunc(times, time.Time.Compare)
	if !last.After(first) {
		return 0
	}
	return float64(len(times)-1) / last.Sub(first).Seconds()
}

// Rolling is the most events that any span of the length holds, the span's
// start included and its end not: events exactly a second apart are one a
// second. The order of times does not matter.
func Rolling(times []time.Time, length time.Duration) int {
	sorted := slices.SortedFunc(slices.Values(times), time.Time.Compare)
	most, first := 0, 0
	for i, t := range sorted {
		for !t.Before(sorted[first].Add(length)) {
			first++
		}
		most = max(most, i-first+1)
	}
	return most
}
