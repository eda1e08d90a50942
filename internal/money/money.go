// Package money writes amounts, and counts, for people to read. Machines get the
// integers.
package money

import (
	"strconv"
	"strings"

	"github.com/bojanz/currency"
	"golang.org/x/text/language"
	"golang.org/x/text/message"
)

// english is only ever copied: making one takes longer than using it.
var english = currency.NewFormatter(currency.NewLocale("en"))

// Format writes an amount, in the smallest unit that Stripe counts the currency
// in, as an English reader expects it: $49,500.00, ¥1,200, KWD 5.120. All its
// digits are shown. Of a currency that is unknown it writes the integer and the
// code, as it is: that may be any text.
func Format(amount int64, code string) string {
	digits := Digits(code)
	parsed, err := currency.NewAmount(decimal(amount, digits), strings.ToUpper(code))
	if err != nil || !known(code) {
		return strconv.FormatInt(amount, 10) + " " + code
	}
	f := *english
	f.MinDigits, f.MaxDigits = uint8(digits), uint8(digits)
	// A plain space can be typed in a search.
	return strings.NewReplacer("\u00a0", " ", "\u202f", " ").Replace(f.Format(parsed))
}

// Both writes an amount as a flag wants it, and as a person does:
// 4950000 ($49,500.00).
func Both(amount int64, code string) string {
	return strconv.FormatInt(amount, 10) + " (" + Format(amount, code) + ")"
}

// Decimal writes an amount as a plain number of the currency: 49500.00. Of a
// currency that is unknown it writes nothing.
func Decimal(amount int64, code string) string {
	if !known(code) {
		return ""
	}
	return decimal(amount, Digits(code))
}

// Count writes a number with its thousands apart: 1,000,000.
func Count(n int) string {
	if n > -1000 && n < 1000 {
		return strconv.Itoa(n)
	}
	return message.NewPrinter(language.English).Sprintf("%d", n)
}

func known(code string) bool { return len(code) == 3 && currency.IsValid(strings.ToUpper(code)) }

// Digits is how many digits of an amount stand behind the decimal point. That
// is Stripe's rule, which differs from ISO 4217: isk and ugx have no smaller
// unit, and Stripe counts them in hundredths all the same; of mga it counts no
// fifths. huf and twd are whole in payouts only.
// https://docs.stripe.com/currencies#minor-units
func Digits(code string) int {
	switch strings.ToLower(code) {
	case "bif", "clp", "djf", "gnf", "jpy", "kmf", "krw", "mga", "pyg", "rwf", "vnd", "vuv", "xaf", "xof", "xpf":
		return 0
	case "bhd", "jod", "kwd", "omr", "tnd":
		return 3
	}
	return 2
}

// decimal puts the point into an integer. No float comes near an amount.
func decimal(amount int64, digits int) string {
	text := strconv.FormatInt(amount, 10)
	if digits == 0 {
		return text
	}
	text, negative := strings.CutPrefix(text, "-")
	if missing := digits + 1 - len(text); missing > 0 {
		text = strings.Repeat("0", missing) + text
	}
	text = text[:len(text)-digits] + "." + text[len(text)-digits:]
	if negative {
		return "-" + text
	}
	return text
}
