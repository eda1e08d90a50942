package reportpage

import (
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/duesday/duesday/internal/money"
)

// count writes 1000000 as 1,000,000.
func count(n int) string { return money.Count(n) }

func plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// percent never rounds to all or to nothing what is neither.
func percent(n, all int64) string {
	switch share := float64(n) / float64(all) * 100; {
	case all <= 0 || n <= 0:
		return "0%"
	case n >= all:
		return "100%"
	case share < 0.1:
		return "<0.1%"
	case share > 99.9:
		return ">99.9%"
	default:
		return strings.TrimSuffix(strconv.FormatFloat(share, 'f', 1, 64), ".0") + "%"
	}
}

func position(n, all int64) string {
	if all <= 0 {
		return "0"
	}
	return decimals(float64(n) / float64(all) * 100)
}

func decimals(f float64) string { return strconv.FormatFloat(f, 'f', 3, 64) }

func moment(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2 Jan 2006, 15:04 UTC")
}

// visible shows a text that came from outside. The page isolates its direction;
// what a browser would swallow, or show in another order, is spelt out.
func visible(s string) string {
	if s == "" {
		return `""`
	}
	for _, r := range s {
		if unicode.IsControl(r) || r == unicode.ReplacementChar || overrides(r) {
			return strconv.Quote(s)
		}
	}
	return s
}

// overrides are the embeddings, overrides and isolates of the Unicode
// Bidirectional Algorithm. The marks are harmless, and languages need them.
func overrides(r rune) bool { return r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 }
