package reportpage_test

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/duesday/duesday/charges"
)

// words is the text that a reader of the page sees, in its order.
func words(t testing.TB, page string) string {
	t.Helper()
	root, err := html.Parse(strings.NewReader(page))
	require.NoError(t, err)
	var out []string
	for n := range root.Descendants() {
		if n.Type == html.TextNode && n.Parent.Data != "style" && n.Parent.Data != "title" {
			out = append(out, n.Data)
		}
	}
	return strings.Join(strings.Fields(strings.Join(out, " ")), " ")
}

func TestPage_saysWhatBecameOfThePeriod(t *testing.T) {
	for name, test := range map[string]struct {
		overview charges.Overview
		says     []string
		not      []string
	}{
		"nobody": {nobody(),
			[]string{"October 2026", "No customer was active", "✓ Settled 1 Oct 2026, 12:00 UTC", "No charge has been settled.", "All 0", "Nothing: no charge is in doubt"},
			[]string{"Money", "NaN", "Inf", "To look at"}},
		"one": {one(),
			[]string{"The one customer has paid.", "¥1,200 collected, 100% of ¥1,200 expected", "the bar's end ¥1,320", "Succeeded paid 1 100%", "No charge was declined or rejected."},
			[]string{"Still open", "To look at"}},
		"million": {million(),
			[]string{"948,310 of 1,000,000 customers have paid.", "◷ Open since 1 Oct 2026, 12:00 UTC", "To look at: 37 in doubt 412 rejected 5,924 declined for the customer to mend 19,064 unclaimed",
				"KWD 4,900.120 collected, 95.7% of KWD 5,120.450 expected", "Still open KWD 120.330", "$93,001,204.11 collected, 93.2% of $99,750,000.00 expected",
				"In doubt no answer that says paid or not 37 <0.1%", "insufficient_funds another try, later 14,900", "expired_card the customer 5,120", "other reasons 142",
				"duesday reconcile --period 2026-10", "duesday run --period 2026-10 --reopen", "and 404 more: duesday report --period 2026-10 --format csv",
				"Settled per 15 minutes", "1 Oct, 12:00:00 2 Oct, 01:33:32", "cust_0007001 $100.00 claimed 1 Oct 2026, 12:00 UTC cus_Nx7mQ2eZvKYlo0"},
			nil},
	} {
		t.Run(name, func(t *testing.T) {
			text := words(t, write(t, test.overview))
			for _, want := range test.says {
				require.Contains(t, text, want)
			}
			for _, not := range test.not {
				require.NotContains(t, text, not)
			}
		})
	}
}

// A page of a million is no larger than that of a thousand: what grows is words.
func TestPage_sizeDoesNotGrow(t *testing.T) {
	require.Less(t, len(write(t, million())), 100_000)
}

func TestPage_linksToTheDashboardOnly(t *testing.T) {
	page := write(t, million())
	require.Contains(t, page, `href="https://dashboard.stripe.com/payments/ch_3Nx7mQ2eZvKYlo2C0Qp1v0"`)
	require.Contains(t, page, `href="https://dashboard.stripe.com/customers/cus_Nx7mQ2eZvKYlo0"`)
	require.Contains(t, page, "in test mode put test/ after dashboard.stripe.com/")
	for _, page := range []string{page, write(t, hostile())} {
		for _, link := range regexp.MustCompile(`(?:href|src)="([^"]*)"`).FindAllStringSubmatch(page, -1) {
			require.Regexp(t, `^(#look-[a-z]+|https://dashboard\.stripe\.com/(payments|customers)/[A-Za-z0-9_]+)$`, link[1])
		}
	}
}

// What customers and banks wrote stays text, whole, and in its own direction.
func TestPage_textsFromOutsideStayText(t *testing.T) {
	page := write(t, hostile())
	root, err := html.Parse(strings.NewReader(page))
	require.NoError(t, err)
	for n := range root.Descendants() {
		require.NotContains(t, []string{"script", "img", "i"}, n.Data)
	}
	text := words(t, page)
	for _, want := range []string{
		`<script>document.title="owned"</script>`, `onerror=alert(1)>`, "عميل رقم ١٢٣ في القاهرة", "日本語の顧客👩‍👩‍👧",
		`"line\nbreak\x1b[31m"`, `"\u202eright to left, never ended"`, "9223372036854775807 <b>usd",
	} {
		require.Contains(t, text, want)
	}
	require.Contains(t, page, "<bdi>عميل رقم ١٢٣ في القاهرة</bdi>")
}

// The bars fill what they stand for, and no part is too thin to be seen.
func TestPage_barsAddUp(t *testing.T) {
	bars := regexp.MustCompile(`(?s)<svg class="bar".*?</svg>`).FindAllString(write(t, million()), -1)
	require.Len(t, bars, 5)
	for _, bar := range bars {
		left := 0.0
		parts := regexp.MustCompile(`<rect x="([0-9.]+)%" y="\d" width="([0-9.]+)%"`).FindAllStringSubmatch(bar, -1)
		require.NotEmpty(t, parts)
		for _, part := range parts {
			var x, width float64
			_, err := fmt.Sscan(part[1]+" "+part[2], &x, &width)
			require.NoError(t, err)
			require.InDelta(t, left, x, 0.01)
			require.GreaterOrEqual(t, width, 0.4)
			left = x + width
		}
		if strings.Contains(bar, "customers have paid") {
			require.InDelta(t, 100, left, 0.01)
		} else {
			require.InDelta(t, 100/1.1, left, 0.01, "what is expected is the cap without its tenth")
		}
	}
}

func TestPage_isDeterministic(t *testing.T) {
	require.True(t, bytes.Equal([]byte(write(t, million())), []byte(write(t, million()))))
}
