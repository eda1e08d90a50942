package charges

import (
	"fmt"
	"time"
)

// Period is a billing period: one calendar month, written YYYY-MM.
// The zero value is no period.
type Period struct {
	Year  int
	Month time.Month
}

// ParsePeriod reads YYYY-MM, years 1000 to 9999, and nothing else.
func ParsePeriod(s string) (Period, error) {
	t, err := time.Parse("2006-01", s)
	if err != nil || t.Year() < 1000 {
		return Period{}, fmt.Errorf("billing period %q: want YYYY-MM, like 2026-10", s)
	}
	return Period{t.Year(), t.Month()}, nil
}

// PeriodOf is the month that t falls in, as a calendar in zone shows it.
func PeriodOf(t time.Time, zone *time.Location) Period {
	t = t.In(zone)
	return Period{t.Year(), t.Month()}
}

// Add returns the period the given number of months later, or earlier.
func (p Period) Add(months int) Period {
	// The first of a month in UTC: no day overflow, no daylight saving.
	t := time.Date(p.Year, p.Month+time.Month(months), 1, 0, 0, 0, 0, time.UTC)
	return Period{t.Year(), t.Month()}
}

// Before reports whether p is an earlier month than q.
func (p Period) Before(q Period) bool {
	return p.Year < q.Year || p.Year == q.Year && p.Month < q.Month
}

// String returns YYYY-MM.
func (p Period) String() string { return fmt.Sprintf("%04d-%02d", p.Year, int(p.Month)) }
