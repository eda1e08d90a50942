package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/internal/money"
	"github.com/duesday/duesday/internal/reportpage"
)

var reportFormats = []string{"table", "csv", "json", "html"}

// reportLooks is how many customers a page shows of each kind to look at.
const reportLooks = 50

func (p *program) reportCommand() *cobra.Command {
	var (
		f              periodFlags
		format, output string
	)
	cmd := &cobra.Command{
		Use:   "report",
		Short: "One period's outcome: table, csv, json, html",
		Long: `Print what became of every due of the period, in the order of customer ids. In
csv and json, amounts are in each currency's smallest unit.

The html is one page that needs nothing else, to be mailed, kept or printed: the
totals, the outcomes over time, and the customers that a person must look at.`,
		Example: `  duesday report --period 2026-10 --format csv > 2026-10.csv
  duesday report --period 2026-10 --format html > 2026-10.html`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("output") {
				if cmd.Flags().Changed("format") && output != format {
					return usage("--output %s: --format %s says otherwise; the two mean the same", output, format)
				}
				format = output
			}
			if !slices.Contains(reportFormats, format) {
				return usage("--format %q: want table, csv, json or html", format)
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
	flags.StringVar(&format, "format", "table", "`format`: table, csv, json or html")
	flags.StringVar(&output, "output", "table", "the same as --format")
	complete(cmd, "format", reportFormats...)
	complete(cmd, "output", reportFormats...)
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
	if format == "html" {
		err = p.reportHTML(ctx, out, ledger, conn.Conn())
	} else {
		write := map[string]func(io.Writer, charges.PeriodStatus, rows) error{
			"table": p.reportTable, "csv": reportCSV, "json": reportJSON,
		}[format]
		err = write(out, all[0], func(each func(charges.Row) error) error {
			// A reader that has gone waits for no more rows to be sent here.
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			return ledger.Report(ctx, conn, func(r charges.Row) error {
				err := each(r)
				if err != nil {
					cancel()
				}
				return err
			})
		})
	}
	if err != nil {
		return databaseError(err)
	}
	return out.Flush()
}

func (p *program) reportHTML(ctx context.Context, out io.Writer, ledger charges.Ledger, conn *pgx.Conn) error {
	o, err := ledger.Overview(ctx, conn, reportLooks)
	if err != nil {
		return err
	}
	return reportpage.Write(out, ledger.Period, o, p.clock(), version)
}

// rows calls each with every row of the report.
type rows func(each func(charges.Row) error) error

func (p *program) reportTable(out io.Writer, s charges.PeriodStatus, all rows) error {
	t := p.newTable(out, "CUSTOMER", ">AMOUNT", "CURRENCY", "STATUS", ">ATTEMPT", "CHARGE", "CODE", "WHY")
	if err := all(func(r charges.Row) error {
		return t.row(shownID(r.CustomerID), formatted(r), printable(r.Currency), status(r.Status), r.Attempt,
			printable0(r.ChargeID), printable0(r.FailureCode), why(r))
	}); err != nil {
		return err
	}
	if err := t.flush(); err != nil {
		return err
	}
	fmt.Fprintf(out, "\n%s: %s; %s, %s in doubt, %s unclaimed\n", s.Period, state(s), tallyWords(s.Tally), count(s.Tally.InDoubt), count(s.Tally.Unclaimed))
	return p.totals(out, s.Totals)
}

// totals is what a period comes to, by currency.
func (p *program) totals(out io.Writer, all []charges.Total) error {
	t := p.newTable(out, "CURRENCY", ">EXPECTED", ">CAP", ">CLAIMED", ">SUCCEEDED")
	for _, c := range all {
		if err := t.row(c.Currency, money.Format(c.Expected, c.Currency), money.Format(c.Cap, c.Currency),
			money.Format(c.Claimed, c.Currency), money.Format(c.Succeeded, c.Currency)); err != nil {
			return err
		}
	}
	return t.flush()
}

func formatted(r charges.Row) string {
	if r.Amount == nil {
		return ""
	}
	return printable(money.Format(*r.Amount, r.Currency))
}

// why is what the bank says, or else what is wrong with the row. It stands last in
// a line, so that a terminal may wrap it, and is not cut: the point may come last.
func why(r charges.Row) string {
	message := r.FailureMessage
	if reason := charges.RejectReason(r.FailureCode); message == "" && reason != r.FailureCode {
		message = reason
	}
	return printable0(strings.Join(strings.Fields(message), " "))
}

// printable0 is printable, but of nothing it makes nothing.
func printable0(s string) string {
	if s == "" {
		return ""
	}
	return printable(s)
}
