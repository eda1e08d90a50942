package reportpage

import (
	"fmt"
	"slices"
	"time"

	"github.com/duesday/duesday/charges"
)

// chart is the charges over time: columns of stacked statuses.
type chart struct {
	Bars        []column
	First, Last string
	Most, Half  string // what the lines across stand for; Half may be empty
	Step        string // what a column stands for: 15 minutes
	Says        string // all in a sentence, for who cannot see it
}

// column is one status in one stretch of time.
type column struct {
	Class      string
	X, W, Y, H string // per cent
	Title      string
}

func newChart(t charges.Timeline) *chart {
	if len(t.Buckets) == 0 {
		return nil
	}
	from := t.Buckets[0].At
	at := func(b charges.Bucket) int { return int(b.At.Sub(from) / t.Step) }
	columns := at(t.Buckets[len(t.Buckets)-1]) + 1
	heights := map[int]int{}
	most := 0
	for _, b := range t.Buckets {
		heights[at(b)] += b.Slots
		most = max(most, heights[at(b)])
	}
	all := 0
	for _, h := range heights {
		all += h
	}
	c := &chart{
		First: stamp(t.First), Last: stamp(t.Last), Most: count(most), Step: step(t.Step),
		Says: fmt.Sprintf("%s settled between %s and %s, at most %s per %s.",
			count(all), moment(t.First), moment(t.Last), count(most), step(t.Step)),
	}
	if most > 1 && most%2 == 0 {
		c.Half = count(most / 2)
	}
	// A column of its own for each stretch, but none so wide that it looks like
	// a wall.
	width := min(100/float64(columns), 12)
	for i := 0; i < len(t.Buckets); {
		slot, bottom := at(t.Buckets[i]), 0.0
		end := i
		for end < len(t.Buckets) && at(t.Buckets[end]) == slot {
			end++
		}
		for _, s := range statuses {
			j := slices.IndexFunc(t.Buckets[i:end], func(b charges.Bucket) bool { return b.Status == s.is })
			if j < 0 {
				continue
			}
			b := t.Buckets[i+j]
			height := max(float64(b.Slots)/float64(most)*100, 0.5)
			c.Bars = append(c.Bars, column{
				Class: s.Class, X: decimals(width * (float64(slot) + 0.08)), W: decimals(width * 0.84),
				Y: decimals(max(100-bottom-height, 0)), H: decimals(height),
				Title: fmt.Sprintf("%s: %s %s", moment(b.At), count(b.Slots), s.Name),
			})
			bottom += height
		}
		i = end
	}
	return c
}

func stamp(t time.Time) string { return t.UTC().Format("2 Jan, 15:04:05") }

func step(d time.Duration) string {
	for _, unit := range []struct {
		is   time.Duration
		name string
	}{{365 * 24 * time.Hour, "year"}, {24 * time.Hour, "day"}, {time.Hour, "hour"}, {time.Minute, "minute"}, {time.Second, "second"}} {
		if n := int(d / unit.is); n == 1 {
			return unit.name
		} else if n > 1 {
			return fmt.Sprintf("%d %ss", n, unit.name)
		}
	}
	return d.String()
}
