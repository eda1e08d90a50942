package money_test

import (
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/bojanz/currency"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/duesday/duesday/internal/money"
)

func TestFormat_isTheCurrencysOwnWay(t *testing.T) {
	for _, test := range []struct {
		amount int64
		code   string
		want   string
	}{
		{4950000, "usd", "$49,500.00"},
		{4950000, "USD", "$49,500.00"},
		{5, "usd", "$0.05"},
		{0, "usd", "$0.00"},
		{-1050, "usd", "-$10.50"},
		{1999, "eur", "€19.99"},
		{1999, "cad", "CA$19.99"},
		{1999, "chf", "CHF 19.99"},

		{1200, "jpy", "¥1,200"},
		{0, "jpy", "¥0"},
		{-7, "krw", "-₩7"},
		{500, "clp", "CLP 500"},
		{5000, "xof", "F CFA 5,000"},

		{5120, "kwd", "KWD 5.120"},
		{10, "bhd", "BHD 0.010"},
		{-5120, "tnd", "-TND 5.120"},

		// Stripe's rule and not ISO's: 5 crowns are sent as 500; an ariary has
		// fifths, and Stripe counts whole ones.
		{500, "isk", "ISK 5.00"},
		{500, "ugx", "UGX 5.00"},
		{500, "mga", "MGA 500"},
		{1045, "huf", "HUF 10.45"},
		{1045, "twd", "NT$10.45"},

		{1<<53 + 1, "usd", "$90,071,992,547,409.93"},
		{math.MaxInt64, "jpy", "¥9,223,372,036,854,775,807"},
		{math.MaxInt64, "kwd", "KWD 9,223,372,036,854,775.807"},
		{math.MinInt64, "usd", "-$92,233,720,368,547,758.08"},

		{4950000, "zzz", "4950000 zzz"},
		{4950000, "", "4950000 "},
		{-1, "no such thing", "-1 no such thing"},
	} {
		require.Equal(t, test.want, money.Format(test.amount, test.code), "%d %s", test.amount, test.code)
	}
}

func TestBoth_isForAFlagAndForAPerson(t *testing.T) {
	require.Equal(t, "4950000 ($49,500.00)", money.Both(4950000, "usd"))
}

func TestDecimal_isANumber(t *testing.T) {
	require.Equal(t, "49500.00", money.Decimal(4950000, "usd"))
	require.Equal(t, "-0.05", money.Decimal(-5, "usd"))
	require.Equal(t, "1200", money.Decimal(1200, "jpy"))
	require.Equal(t, "5.120", money.Decimal(5120, "kwd"))
	require.Empty(t, money.Decimal(5120, "=usd"))
}

func TestCount(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 1000000: "1,000,000", -1234: "-1,234"} {
		require.Equal(t, want, money.Count(n))
	}
}

// No digit is lost, added or rounded, and the point stands where Stripe's rule
// puts it.
func TestFormat_keepsEveryDigit(t *testing.T) {
	codes := append(currency.GetCurrencyCodes(), "ZZZ")
	rapid.Check(t, func(t *rapid.T) {
		amount := rapid.Int64().Draw(t, "amount")
		code := strings.ToLower(rapid.SampledFrom(codes).Draw(t, "code"))
		text := money.Format(amount, code)

		digits := strings.Map(func(r rune) rune {
			if r < '0' || r > '9' {
				return -1
			}
			return r
		}, text)
		if strings.HasPrefix(text, "-") {
			digits = "-" + digits
		}
		read, err := strconv.ParseInt(digits, 10, 64)
		require.NoError(t, err, text)
		require.Equal(t, amount, read, text)

		if code != "zzz" && money.Digits(code) > 0 {
			// The last one: Cg. is a currency's sign.
			require.Equal(t, money.Digits(code), len(text)-1-strings.LastIndex(text, "."), text)
		}
	})
}
