package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// table writes aligned columns. It aligns a block of rows at a time, so that
// memory does not grow with a long table; later blocks never get narrower.
type table struct {
	out    io.Writer
	heads  []string
	right  []bool
	widths []int
	block  [][]string
	headed bool
	rows   int
}

const tableBlock = 1000

// newTable starts a table. A heading that begins with > is aligned right.
func newTable(out io.Writer, heads ...string) *table {
	t := &table{out: out, widths: make([]int, len(heads))}
	for i, h := range heads {
		t.heads = append(t.heads, strings.TrimPrefix(h, ">"))
		t.right = append(t.right, strings.HasPrefix(h, ">"))
		t.widths[i] = utf8.RuneCountInString(t.heads[i])
	}
	return t
}

func (t *table) row(cells ...any) error {
	row := make([]string, len(cells))
	for i, c := range cells {
		row[i] = fmt.Sprint(c)
		t.widths[i] = max(t.widths[i], utf8.RuneCountInString(row[i]))
	}
	t.rows++
	t.block = append(t.block, row)
	if len(t.block) < tableBlock {
		return nil
	}
	return t.flush()
}

// flush writes the rows so far, below the headings. No rows, no headings.
func (t *table) flush() error {
	if !t.headed && len(t.block) > 0 {
		t.headed = true
		if err := t.line(t.heads); err != nil {
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

func (t *table) line(cells []string) error {
	var b strings.Builder
	for i, cell := range cells {
		if i > 0 {
			b.WriteString("  ")
		}
		pad := strings.Repeat(" ", t.widths[i]-utf8.RuneCountInString(cell))
		if t.right[i] {
			b.WriteString(pad + cell)
		} else {
			b.WriteString(cell + pad)
		}
	}
	_, err := fmt.Fprintln(t.out, strings.TrimRight(b.String(), " "))
	return err
}

// printable shows a text that came from outside so that it cannot move the
// cursor or start a line: as it is if it is harmless, else quoted.
func printable(s string) string {
	for _, r := range s {
		if !unicode.IsPrint(r) || r == utf8.RuneError {
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
