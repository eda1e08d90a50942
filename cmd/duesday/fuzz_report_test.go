package main

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/internal/reportpage"
)

// FuzzReport: whatever texts a customer or a bank wrote, each format of the
// report is well-formed and gives them back, and none runs them.
func FuzzReport(f *testing.F) {
	f.Add("cust_1", "cus_1", "usd", "ch_1", "card_declined", "Your card was declined.", int64(1999), true)
	f.Add("=1+1", "@SUM(A1)", "<b>", "javascript:alert(1)", " \t=cmd|' /C calc'!A0", "a,\"b\"\r\nc", int64(-1), false)
	f.Add("'quoted", "\u200f＝1", "kwd", "", "\u202e", "عميل\x1b[31m", int64(5120), true)
	f.Fuzz(func(t *testing.T, id, stripeID, currency, chargeID, code, message string, amount int64, has bool) {
		// Postgres' texts are valid, and have no NUL.
		texts := []*string{&id, &stripeID, &currency, &chargeID, &code, &message}
		for _, s := range texts {
			*s = strings.ReplaceAll(strings.ToValidUTF8(*s, "?"), "\x00", "?")
		}
		row := charges.Row{CustomerID: id, StripeCustomerID: stripeID, Currency: currency, Status: "declined", Attempt: 1,
			ChargeID: chargeID, FailureCode: code, FailureMessage: message, ClaimedAt: time.Unix(0, 0)}
		if has {
			row.Amount = &amount
		}
		s := charges.PeriodStatus{Period: testPeriod, OpenedAt: time.Unix(0, 0), Tally: charges.Tally{Declined: 1}}
		all := func(each func(charges.Row) error) error { return each(row) }

		var out bytes.Buffer
		require.NoError(t, reportCSV(&out, s, all))
		records, err := csv.NewReader(&out).ReadAll()
		require.NoError(t, err)
		require.Len(t, records, 2)
		require.Equal(t, csvHead, records[0])
		for column, want := range map[int]string{1: id, 2: stripeID, 4: currency, 7: chargeID, 8: code, 9: message} {
			got := records[1][column]
			require.False(t, formula(got), "a spreadsheet would run %q", got)
			// The csv reader makes one of the two ways to end a line.
			require.Equal(t, strings.ReplaceAll(want, "\r\n", "\n"), strings.ReplaceAll(strings.TrimPrefix(got, "'"), "\r\n", "\n"))
		}

		out.Reset()
		require.NoError(t, reportJSON(&out, s, all))
		var doc struct{ Charges []rowDoc }
		require.NoError(t, json.Unmarshal(out.Bytes(), &doc))
		require.Len(t, doc.Charges, 1)
		got := doc.Charges[0]
		require.Equal(t, []string{id, stripeID, currency, chargeID, code, message},
			[]string{got.CustomerID, got.StripeCustomerID, got.Currency, got.ChargeID, got.FailureCode, got.FailureMessage})
		require.Equal(t, row.Amount, got.Amount)

		out.Reset()
		p := program{env: func(string) (string, bool) { return "", false }}
		require.NoError(t, p.reportTable(&out, s, all))
		require.Equal(t, 4, strings.Count(out.String(), "\n"), out.String())
		require.False(t, strings.ContainsFunc(strings.ReplaceAll(out.String(), "\n", ""), func(r rune) bool {
			return unicode.IsControl(r) || r == '\u202e'
		}), "a terminal would obey %q", out.String())

		out.Reset()
		o := charges.Overview{
			Reasons: []charges.Reason{{Status: charges.Declined, Code: code, Dues: 1}},
			Look:    []charges.Look{{Kind: charges.KindNeedsCustomer, Dues: 1, First: []charges.Row{row}}},
		}
		require.NoError(t, reportpage.Write(&out, charges.Period{Year: 2026, Month: time.October}, o, time.Unix(0, 0), message))
		root, err := html.Parse(&out)
		require.NoError(t, err)
		shown := false
		for n := range root.Descendants() {
			require.NotContains(t, []string{"script", "img", "iframe", "object", "form", "base", "b", "i"}, n.Data)
			for _, a := range n.Attr {
				require.False(t, strings.HasPrefix(a.Key, "on"), a.Key)
				if a.Key == "href" {
					require.Regexp(t, `^(#look-[a-z]+|https://dashboard\.stripe\.com/(payments|customers)/[A-Za-z0-9_]+)$`, a.Val)
				}
			}
			shown = shown || n.Type == html.ElementNode && n.Data == "bdi" && n.FirstChild != nil && n.FirstChild.Data == id
		}
		plain := id != "" && !strings.ContainsFunc(id, func(r rune) bool { return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == utf8.RuneError })
		require.True(t, shown || !plain, "the page does not show %q", id)
	})
}

// formula is whether a spreadsheet may take the cell for one. It is written
// anew, to judge what cell does.
func formula(s string) bool {
	for i, r := range s {
		switch {
		case i == 0 && strings.ContainsRune("\t\r\n", r):
			return true
		case strings.ContainsRune("=+-@＝＋－＠", r):
			return true
		case !unicode.IsSpace(r) && !unicode.IsControl(r) && !unicode.Is(unicode.Cf, r):
			return false
		}
	}
	return false
}

func TestCell_keepsFormulasFromRunning(t *testing.T) {
	for _, s := range []string{"=1", "+1", "-1", "@A", "\t=1", "\r=1", "\n=1", " =1", "\u00a0=1", "\ufeff=1", "\u200b+1", "  \t -1", "＝1", "＋1", "－1", "＠A", "\tharmless", "'=1"} {
		require.Equal(t, "'"+s, cell(s))
	}
	for _, s := range []string{"", " ", "cust_1", "a=1", "1-1", "zoe+billing@example.com", "−1"} {
		require.Equal(t, s, cell(s))
	}
}
