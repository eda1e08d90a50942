package measure

import "fmt"

// Target is what a figure must reach. The zero Target wants nothing.
type Target struct {
	way   string
	limit float64
	// every judges each round, not the median.
	every bool
}

// AtLeast wants the median of the rounds to be no less.
func AtLeast(limit float64) Target { return Target{way: "≥", limit: limit} }

// AtMost wants the median of the rounds to be no more.
func AtMost(limit float64) Target { return Target{way: "≤", limit: limit} }

// Never wants no round to be above the limit.
func Never(limit float64) Target { return Target{way: "≤", limit: limit, every: true} }

// Set reports whether there is a target.
func (t Target) Set() bool { return t.way != "" }

// Reached reports whether the spread is on the right side. Nothing measured has
// reached nothing.
func (t Target) Reached(s Spread) bool {
	switch {
	case s.Rounds == 0:
		return false
	case t.way == "≥":
		return s.Median >= t.limit
	case t.every:
		return s.Max <= t.limit
	}
	return s.Median <= t.limit
}

func (t Target) String() string {
	if !t.Set() {
		return ""
	}
	text := fmt.Sprintf("%s %g", t.way, t.limit)
	if t.every {
		text += " in each round"
	}
	return text
}

// number has enough digits to tell a miss from a hit.
func number(v float64) string {
	switch a := max(v, -v); {
	case a >= 100 || v == float64(int64(v)):
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.3f", v)
}
