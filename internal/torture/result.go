package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// figures count what happened.
type figures map[string]int

func (f figures) add(other figures) {
	for name, n := range other {
		f[name] += n
	}
}

func (f figures) sum(names ...string) (n int) {
	for _, name := range names {
		n += f[name]
	}
	return n
}

// print writes one line of what matters, and the rest below it.
func (f figures) print(out io.Writer, took time.Duration) {
	faults := 0
	for name, n := range f {
		if strings.HasPrefix(name, "fault ") {
			faults += n
		}
	}
	fmt.Fprintf(out, "\n%d schedules: %d kills, %d SIGTERMs, %d freezes, %d sessions ended, %d Postgres restarts, %d clock jumps, %d faults of Stripe; %d charges, %d duplicates, %d missed, %.0f seconds\n",
		f["schedules"], f.sum(kill, killAll), f[term], f.sum(freeze, freezeBit, "naps of a day"), f.sum(terminate, sever),
		f[restart], f["clock jumps"], faults, f["charges"], f["duplicates"], f["missed"], took.Seconds())
	for _, name := range slices.Sorted(maps.Keys(f)) {
		fmt.Fprintf(out, "  %-50s %d\n", name, f[name])
	}
}

// result is how a schedule ended.
type result struct {
	schedule schedule
	figures  figures
	problems []string
	replicas []*replica
	seconds  float64
}

func (r result) verdict() string {
	if len(r.problems) == 0 {
		return fmt.Sprintf("ok, %d charges", r.figures["charges"])
	}
	return fmt.Sprintf("%d PROBLEMS", len(r.problems))
}

// show prints the logs, below what was to happen.
func (r result) show(out io.Writer) {
	fmt.Fprint(out, r.schedule)
	for _, p := range r.replicas {
		fmt.Fprintf(out, "--- %v\n%s", p, p.log.String())
	}
}

// explain says what went wrong, and in which schedule.
func (r result) explain(out io.Writer) {
	fmt.Fprint(out, r.schedule)
	const shown = 10
	for i, problem := range r.problems {
		if i == shown {
			fmt.Fprintf(out, "  and %d more\n", len(r.problems)-shown)
			break
		}
		fmt.Fprintf(out, "  PROBLEM: %s\n", problem)
	}
	for _, p := range r.replicas {
		fmt.Fprintf(out, "  %v\n", p)
	}
}
