package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func testTable(out *bytes.Buffer, s screen, heads ...string) *table {
	t := (&program{env: func(string) (string, bool) { return "", false }}).newTable(out, heads...)
	t.screen = s
	return t
}

func TestTable_alignsByWhatATerminalShows(t *testing.T) {
	var out bytes.Buffer
	table := testTable(&out, screen{}, "CUSTOMER", ">AMOUNT", "STATUS")
	require.NoError(t, table.row("cust_1", "$10.00", "succeeded"))
	require.NoError(t, table.row("日本語の顧客", "¥1,200", "declined"))
	require.NoError(t, table.row("e\u0301le\u0300ve", "", ""))
	require.NoError(t, table.row("👩‍👩‍👧", 1000000, status("rejected")))
	require.NoError(t, table.flush())
	require.Equal(t, strings.Join([]string{
		"CUSTOMER         AMOUNT  STATUS",
		"cust_1           $10.00  succeeded",
		"日本語の顧客     ¥1,200  declined",
		"e\u0301le\u0300ve",
		"👩‍👩‍👧            1,000,000  rejected",
		"",
	}, "\n"), out.String())
}

func TestTable_colourAndDirectionAreForTerminals(t *testing.T) {
	line := func(s screen) string {
		var out bytes.Buffer
		table := testTable(&out, s, "A", "B", "C")
		require.NoError(t, table.row("عميل", status("rejected"), "x"))
		require.NoError(t, table.flush())
		_, row, _ := strings.Cut(out.String(), "\n")
		return row
	}
	require.Equal(t, "عميل  rejected  x\n", line(screen{}))
	require.Equal(t, "\u2068عميل\u2069  rejected  x\n", line(screen{terminal: true}))
	require.Equal(t, "\u2068عميل\u2069  \x1b[31mrejected\x1b[0m  x\n", line(screen{terminal: true, colours: true}))
}

func TestScreen_neverColoursAgainstNOCOLOR(t *testing.T) {
	for _, test := range []struct {
		screened bool
		env      map[string]string
		colours  bool
	}{
		{true, nil, true},
		{false, nil, false},
		{true, map[string]string{"NO_COLOR": "1"}, false},
		{true, map[string]string{"NO_COLOR": ""}, true},
		{true, map[string]string{"TERM": "dumb"}, false},
	} {
		p := program{screened: test.screened, env: func(name string) (string, bool) { v, ok := test.env[name]; return v, ok }}
		require.Equal(t, test.colours, p.screen().colours, "%+v", test)
	}
}

// Every line of a block has its last column where the heading has it.
func TestTable_columnsBeginWhereTheirHeadingsDo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var out bytes.Buffer
		table := testTable(&out, screen{}, "A", ">B", "END")
		n := rapid.IntRange(1, 20).Draw(t, "rows")
		for range n {
			require.NoError(t, table.row(printable(rapid.String().Draw(t, "a")), rapid.Int().Draw(t, "b"), "end"))
		}
		require.NoError(t, table.flush())
		lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
		require.Len(t, lines, n+1)
		at := width(strings.TrimSuffix(lines[0], "END"))
		for _, line := range lines[1:] {
			require.Equal(t, at, width(strings.TrimSuffix(line, "end")), line)
		}
	})
}

func TestShorten_leavesOutTheMiddle(t *testing.T) {
	require.Equal(t, "short", shorten("short", 5))
	require.Equal(t, "acco…042", shorten("account-of-0042", 8))
	require.Equal(t, "日…客", shorten("日本語の顧客", 6))
	require.Equal(t, "👩‍👩‍👧…👩‍👩‍👧", shorten("👩‍👩‍👧👩‍👩‍👧👩‍👩‍👧", 5))
	long := strings.Repeat("a", 30) + strings.Repeat("b", 30)
	require.Equal(t, strings.Repeat("a", 20)+"…"+strings.Repeat("b", 19), shownID(long))
	require.Equal(t, long[:40], shownID(long[:40]))
	rapid.Check(t, func(t *rapid.T) {
		s, columns := rapid.String().Draw(t, "s"), rapid.IntRange(2, 50).Draw(t, "columns")
		require.LessOrEqual(t, width(shorten(s, columns)), columns)
	})
}
