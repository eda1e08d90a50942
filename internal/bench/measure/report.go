package measure

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// Figure is one line of the table, with a value for each round.
type Figure struct {
	Name   string
	Unit   string // empty: a ratio
	Values []float64
	Target Target
}

// Report is what the benchmarks found.
type Report struct {
	Figures []Figure
	Notes   []string
	// Broken is what must never be, however slow the machine: somebody charged
	// twice, or not at all.
	Broken []string
}

// Add appends what another report has.
func (r *Report) Add(other Report) {
	r.Figures = append(r.Figures, other.Figures...)
	r.Notes = append(r.Notes, other.Notes...)
	r.Broken = append(r.Broken, other.Broken...)
}

// Show adds figures.
func (r *Report) Show(figures ...Figure) { r.Figures = append(r.Figures, figures...) }

// Note adds a remark.
func (r *Report) Note(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

// Break adds something that must never be.
func (r *Report) Break(format string, args ...any) {
	r.Broken = append(r.Broken, fmt.Sprintf(format, args...))
}

// Write writes the figures with a target first, ratios before the others, and
// says of each whether it was reached; then what they were made from.
func (r *Report) Write(w io.Writer) error {
	out := &printer{w: w}
	for _, line := range r.Broken {
		out.printf("BROKEN: %s\n", line)
	}
	out.table("must reach", func(f Figure) bool { return f.Target.Set() && f.Unit == "" }, r.Figures)
	out.table("must reach, not ratios", func(f Figure) bool { return f.Target.Set() && f.Unit != "" }, r.Figures)
	out.table("made from, and for information", func(f Figure) bool { return !f.Target.Set() }, r.Figures)
	if len(r.Notes) > 0 {
		out.printf("\n")
	}
	for _, line := range r.Notes {
		out.printf("· %s\n", line)
	}
	return out.err
}

type printer struct {
	w   io.Writer
	err error
}

func (p *printer) printf(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format, args...)
	}
}

func (p *printer) table(title string, which func(Figure) bool, figures []Figure) {
	tabs := &printer{w: tabwriter.NewWriter(p.w, 0, 0, 2, ' ', 0)}
	empty := true
	for _, f := range figures {
		if !which(f) {
			continue
		}
		if empty {
			p.printf("\n")
			tabs.printf("%s\tmedian\tmin\tmax\trounds\tunit\ttarget\treached\n", title)
			empty = false
		}
		s, reached := SpreadOf(f.Values), ""
		if f.Target.Set() {
			reached = "MISSED"
			if f.Target.Reached(s) {
				reached = "yes"
			}
		}
		unit := f.Unit
		if unit == "" {
			unit = "×"
		}
		tabs.printf("%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\n", f.Name,
			number(s.Median), number(s.Min), number(s.Max), s.Rounds, unit, f.Target, reached)
	}
	if p.err == nil {
		p.err = tabs.err
	}
	if flush := tabs.w.(*tabwriter.Writer).Flush(); p.err == nil {
		p.err = flush
	}
}
