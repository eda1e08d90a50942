package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/rivo/uniseg"
	"golang.org/x/text/unicode/bidi"

	"github.com/duesday/duesday/internal/money"
)

// table writes aligned columns. It aligns a block of rows at a time, so that
// memory does not grow with a long table; later blocks never get narrower.
type table struct {
	out    io.Writer
	screen screen
	heads  []string
	right  []bool
	widths []int
	block  [][]any
	headed bool
	rows   int
}

const tableBlock = 1000

// screen is what stands behind an output.
type screen struct {
	terminal bool
	colours  bool
}

// newTable starts a table. A heading that begins with > is aligned right.
func (p *program) newTable(out io.Writer, heads ...string) *table {
	t := &table{out: out, screen: p.screen(), widths: make([]int, len(heads))}
	for i, h := range heads {
		t.heads = append(t.heads, strings.TrimPrefix(h, ">"))
		t.right = append(t.right, strings.HasPrefix(h, ">"))
		t.widths[i] = width(t.heads[i])
	}
	return t
}

// screen is what out is. See no-color.org.
func (p *program) screen() screen {
	none, term := p.lookup("NO_COLOR"), p.lookup("TERM")
	return screen{terminal: p.screened, colours: p.screened && none == "" && term != "dumb"}
}

func (t *table) row(cells ...any) error {
	for i, c := range cells {
		t.widths[i] = max(t.widths[i], width(text(c)))
	}
	t.rows++
	t.block = append(t.block, cells)
	if len(t.block) < tableBlock {
		return nil
	}
	return t.flush()
}

// flush writes the rows so far, below the headings. No rows, no headings.
func (t *table) flush() error {
	if !t.headed && len(t.block) > 0 {
		t.headed = true
		heads := make([]any, len(t.heads))
		for i, h := range t.heads {
			heads[i] = h
		}
		if err := t.line(heads); err != nil {
			return err
		}
	}
	for _, row := range t.block {
		if err := t.line(row); err != nil {
			return err
		}
	}
	t.block = t.block[:0]
	return nil
}

func (t *table) line(cells []any) error {
	var b strings.Builder
	owed := 0 // spaces that the line would end with if nothing followed
	for i, cell := range cells {
		if i > 0 {
			owed += 2
		}
		said := text(cell)
		pad := t.widths[i] - width(said)
		if t.right[i] {
			owed, pad = owed+pad, 0
		}
		if said != "" {
			b.WriteString(strings.Repeat(" ", owed))
			b.WriteString(t.screen.show(cell, said))
			owed = 0
		}
		owed += pad
	}
	_, err := fmt.Fprintln(t.out, b.String())
	return err
}

// show is a cell as the screen takes it.
func (s screen) show(cell any, said string) string {
	if s.terminal && rightToLeft(said) {
		// First strong isolate: else the text would take the columns beside it
		// along, on a terminal that knows directions.
		said = "\u2068" + said + "\u2069"
	}
	if c, ok := cell.(coloured); ok && s.colours && c.colour != "" {
		return "\x1b[" + c.colour + "m" + said + "\x1b[0m"
	}
	return said
}

func rightToLeft(s string) bool {
	for _, r := range s {
		if r < 0x590 {
			continue
		}
		p, _ := bidi.LookupRune(r)
		if c := p.Class(); c == bidi.R || c == bidi.AL || c == bidi.AN {
			return true
		}
	}
	return false
}

// coloured is a cell that a terminal shows in a colour. The word alone says it
// all.
type coloured struct{ text, colour string }

func (c coloured) String() string { return c.text }

const (
	red    = "31"
	green  = "32"
	yellow = "33"
	violet = "35"
)

// status colours what a person looks for.
func status(s string) coloured {
	return coloured{s, map[string]string{
		"missing": red, "rejected": red, "declined": yellow, "open": yellow, "claimed": violet, "settled": green,
	}[s]}
}

// some colours a count that should be none.
func some(n int, colour string) coloured {
	if n == 0 {
		colour = ""
	}
	return coloured{count(n), colour}
}

// text is what a cell says. Numbers have their thousands apart.
func text(cell any) string {
	switch cell := cell.(type) {
	case string:
		return cell
	case int:
		return count(cell)
	}
	return fmt.Sprint(cell)
}

// count writes 1000000 as 1,000,000.
func count(n int) string { return money.Count(n) }

// width is how many columns of a terminal a text takes.
func width(s string) int {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return uniseg.StringWidth(s)
		}
	}
	return len(s)
}

// idColumns is how wide an id may be in a table.
const idColumns = 40

// shownID is an id as a table shows it: a long one without its middle, so that
// it leaves room for the columns beside it.
func shownID(id string) string { return shorten(printable(id), idColumns) }

// shorten leaves out the middle of a text that takes more than so many columns.
// It cuts between what a reader takes for characters.
func shorten(s string, columns int) string {
	if width(s) <= columns {
		return s
	}
	var parts []string
	for g := uniseg.NewGraphemes(s); g.Next(); {
		parts = append(parts, g.Str())
	}
	head, tail := columns/2, columns-1-columns/2
	begin, end := 0, len(parts)
	for ; width(parts[begin]) <= head; begin++ {
		head -= width(parts[begin])
	}
	for ; width(parts[end-1]) <= tail; end-- {
		tail -= width(parts[end-1])
	}
	return strings.Join(parts[:begin], "") + "…" + strings.Join(parts[end:], "")
}

// printable shows a text that came from outside so that it cannot move the
// cursor or start a line: as it is if it is harmless, else quoted.
func printable(s string) string {
	for _, r := range s {
		// Joiners only say how letters connect.
		if joiner := r == '\u200c' || r == '\u200d'; !unicode.IsPrint(r) && !joiner || r == utf8.RuneError {
			return strconv.Quote(s)
		}
	}
	if s == "" {
		return `""`
	}
	return s
}

func moment(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}
