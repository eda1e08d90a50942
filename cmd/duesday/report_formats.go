package main

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/internal/money"
)

// New columns come last: scripts may count them.
var csvHead = []string{"billing_period", "customer_id", "stripe_customer_id", "amount", "currency", "status", "attempt",
	"charge_id", "failure_code", "failure_message", "claimed_at", "settled_at", "amount_decimal"}

func reportCSV(out io.Writer, s charges.PeriodStatus, all rows) error {
	w := csv.NewWriter(out)
	if err := w.Write(csvHead); err != nil {
		return err
	}
	if err := all(func(r charges.Row) error {
		amount, decimal := "", ""
		if r.Amount != nil {
			amount = strconv.FormatInt(*r.Amount, 10)
			decimal = money.Decimal(*r.Amount, r.Currency)
		}
		return w.Write([]string{s.Period, cell(r.CustomerID), cell(r.StripeCustomerID), amount, cell(r.Currency), r.Status,
			strconv.Itoa(r.Attempt), cell(r.ChargeID), cell(r.FailureCode), cell(r.FailureMessage),
			moment(r.ClaimedAt), moment(r.SettledAt), decimal})
	}); err != nil {
		return err
	}
	w.Flush()
	return w.Error()
}

// cell keeps a spreadsheet from taking a text for a formula: it puts an
// apostrophe before it, which spreadsheets take for "this is text". A text that
// begins with one gets one more, so that taking one away gives the text back.
// https://owasp.org/www-community/attacks/CSV_Injection
func cell(s string) string {
	// Spreadsheets overlook what cannot be seen, before a formula too.
	seen := strings.TrimLeftFunc(s, func(r rune) bool {
		return unicode.IsSpace(r) || unicode.IsControl(r) || unicode.Is(unicode.Cf, r)
	})
	first, _ := utf8.DecodeRuneInString(seen)
	hidden := s != "" && strings.ContainsRune("\t\r\n", rune(s[0]))
	if hidden || seen != "" && strings.ContainsRune("=+-@'＝＋－＠", first) {
		return "'" + s
	}
	return s
}

// rowDoc is a due in JSON.
type rowDoc struct {
	CustomerID       string     `json:"customer_id"`
	StripeCustomerID string     `json:"stripe_customer_id"`
	Amount           *int64     `json:"amount"`
	Currency         string     `json:"currency"`
	Status           string     `json:"status"`
	Attempt          int        `json:"attempt"`
	ChargeID         string     `json:"charge_id,omitempty"`
	FailureCode      string     `json:"failure_code,omitempty"`
	FailureMessage   string     `json:"failure_message,omitempty"`
	ClaimedAt        *time.Time `json:"claimed_at"`
	SettledAt        *time.Time `json:"settled_at"`
}

// reportJSON writes the period's document with its charges, one a line, as they
// are read.
func reportJSON(out io.Writer, s charges.PeriodStatus, all rows) error {
	head, err := json.Marshal(newStatusDoc(s))
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(out, "%s,\"charges\":[", head[:len(head)-1]); err != nil {
		return err
	}
	separator := "\n"
	if err := all(func(r charges.Row) error {
		doc := rowDoc{CustomerID: r.CustomerID, StripeCustomerID: r.StripeCustomerID, Amount: r.Amount, Currency: r.Currency,
			Status: r.Status, Attempt: r.Attempt, ChargeID: r.ChargeID, FailureCode: r.FailureCode, FailureMessage: r.FailureMessage,
			ClaimedAt: utc(r.ClaimedAt), SettledAt: utc(r.SettledAt)}
		line, err := json.Marshal(doc)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(out, "%s%s", separator, line)
		separator = ",\n"
		return err
	}); err != nil {
		return err
	}
	_, err = fmt.Fprint(out, "\n]}\n")
	return err
}

func utc(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}
