package main

import (
	"bufio"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/duesday/duesday/charges"
)

func (p *program) reportCommand() *cobra.Command {
	var (
		f      periodFlags
		format string
	)
	cmd := &cobra.Command{
		Use:   "report",
		Short: "One period's outcome: table, csv, json",
		Long: `Print what became of every due of the period, in the order of customer ids.
Amounts are in each currency's smallest unit.`,
		Example: "  duesday report --period 2026-10 --format csv > 2026-10.csv",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if format != "table" && format != "csv" && format != "json" {
				return usage("--format %q: want table, csv or json", format)
			}
			ledger, err := f.ledger(p.clock())
			if err != nil {
				return err
			}
			return p.report(cmd.Context(), ledger, format)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	f.add(flags)
	flags.StringVar(&format, "format", "table", "`format`: table, csv or json")
	return cmd
}

func (p *program) report(ctx context.Context, ledger charges.Ledger, format string) error {
	pool, err := p.database(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	all, err := charges.Statuses(ctx, pool, ledger.Period.String())
	if err != nil {
		return databaseError(err)
	}
	if len(all) == 0 {
		return usage("period %s has not been opened: there is nothing to report; see duesday status", ledger.Period)
	}
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	// The rows stream as fast as their reader reads, be it a person's pager.
	if _, err := conn.Exec(ctx, `SET statement_timeout = 0`); err != nil {
		return err
	}
	out := bufio.NewWriter(p.out)
	write := map[string]func(io.Writer, charges.PeriodStatus, rows) error{
		"table": reportTable, "csv": reportCSV, "json": reportJSON,
	}[format]
	if err := write(out, all[0], func(each func(charges.Row) error) error {
		return ledger.Report(ctx, conn, each)
	}); err != nil {
		return databaseError(err)
	}
	return out.Flush()
}

// rows calls each with every row of the report.
type rows func(each func(charges.Row) error) error

func reportTable(out io.Writer, s charges.PeriodStatus, all rows) error {
	t := newTable(out, "CUSTOMER", ">AMOUNT", "CURRENCY", "STATUS", ">ATTEMPT", "CHARGE", "CODE")
	if err := all(func(r charges.Row) error {
		return t.row(printable(r.CustomerID), amount(r), printable(r.Currency), r.Status, r.Attempt, r.ChargeID, r.FailureCode)
	}); err != nil {
		return err
	}
	if err := t.flush(); err != nil {
		return err
	}
	fmt.Fprintf(out, "\n%s: %s; %s, %d in doubt, %d unclaimed\n", s.Period, state(s), tallyWords(s.Tally), s.Tally.InDoubt, s.Tally.Unclaimed)
	totals := newTable(out, "CURRENCY", ">EXPECTED", ">CAP", ">CLAIMED", ">SUCCEEDED")
	for _, c := range s.Totals {
		if err := totals.row(c.Currency, c.Expected, c.Cap, c.Claimed, c.Succeeded); err != nil {
			return err
		}
	}
	return totals.flush()
}

func amount(r charges.Row) string {
	if r.Amount == nil {
		return ""
	}
	return strconv.FormatInt(*r.Amount, 10)
}

var csvHead = []string{"billing_period", "customer_id", "stripe_customer_id", "amount", "currency", "status", "attempt",
	"charge_id", "failure_code", "failure_message", "claimed_at", "settled_at"}

func reportCSV(out io.Writer, s charges.PeriodStatus, all rows) error {
	w := csv.NewWriter(out)
	if err := w.Write(csvHead); err != nil {
		return err
	}
	if err := all(func(r charges.Row) error {
		return w.Write([]string{s.Period, cell(r.CustomerID), cell(r.StripeCustomerID), amount(r), cell(r.Currency), r.Status,
			strconv.Itoa(r.Attempt), r.ChargeID, cell(r.FailureCode), cell(r.FailureMessage), moment(r.ClaimedAt), moment(r.SettledAt)})
	}); err != nil {
		return err
	}
	w.Flush()
	return w.Error()
}

// cell keeps a spreadsheet from taking a text for a formula.
func cell(s string) string {
	if s != "" && strings.ContainsRune("=+-@\t\r", rune(s[0])) {
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
