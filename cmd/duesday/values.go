package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// amounts is a flag of amounts by currency: usd=50000,jpy=90000.
type amounts struct {
	to  *map[string]int64
	set bool
}

func amountsVar(flags *pflag.FlagSet, to *map[string]int64, name, usage string) {
	flags.Var(&amounts{to: to}, name, usage)
}

// Set takes the place of the default, and adds to what was set before.
func (a *amounts) Set(s string) error {
	read := map[string]int64{}
	if a.set {
		maps.Copy(read, *a.to)
	}
	for part := range strings.SplitSeq(s, ",") {
		if strings.TrimSpace(s) == "" {
			break
		}
		currency, number, ok := strings.Cut(part, "=")
		amount, err := strconv.ParseInt(strings.TrimSpace(number), 10, 64)
		if !ok || err != nil {
			return fmt.Errorf("want currencies with amounts in their smallest unit, like usd=50000,jpy=90000, got %q", part)
		}
		read[strings.TrimSpace(currency)] = amount
	}
	*a.to, a.set = read, true
	return nil
}

func (a *amounts) String() string {
	if a.to == nil {
		return ""
	}
	var parts []string
	for _, currency := range slices.Sorted(maps.Keys(*a.to)) {
		parts = append(parts, fmt.Sprintf("%s=%d", currency, (*a.to)[currency]))
	}
	return strings.Join(parts, ",")
}

func (a *amounts) Type() string { return "amounts" }

// pauses is a flag of durations: 72h,120h.
type pauses struct {
	to  *[]time.Duration
	set bool
}

// Set takes the place of the default, and adds to what was set before.
func (p *pauses) Set(s string) error {
	var read []time.Duration
	if p.set {
		read = slices.Clone(*p.to)
	}
	for part := range strings.SplitSeq(s, ",") {
		if strings.TrimSpace(s) == "" {
			break
		}
		pause, err := time.ParseDuration(strings.TrimSpace(part))
		if err != nil {
			return fmt.Errorf("want durations with a unit, like 72h,120h, got %q", part)
		}
		read = append(read, pause)
	}
	*p.to, p.set = read, true
	return nil
}

func (p *pauses) String() string {
	if p.to == nil {
		return ""
	}
	var parts []string
	for _, pause := range *p.to {
		parts = append(parts, words(pause))
	}
	return strings.Join(parts, ",")
}

func (p *pauses) Type() string { return "pauses" }

// words writes a duration without the units that are zero: 72h, not 72h0m0s.
func words(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
