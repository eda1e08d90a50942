package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/duesday/duesday/charges"
)

func (p *program) planCommand() *cobra.Command {
	var (
		period  periodFlags
		opening openingFlags
		output  string
		future  bool
	)
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "What run would do: counts and totals, problems; it changes nothing",
		Long: `Show what run would do with the period: how many customers, the total and cap
per currency, every row that would be rejected and why. For a period that is
already open: what is still to do. It only reads, and exits as opening would.`,
		Example: "  duesday plan --period 2026-10 --customers billing.subscribers",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			ledger, err := period.ledger(p.clock())
			if err != nil {
				return err
			}
			if !future {
				if err := period.refuseFuture(p.clock()); err != nil {
					return err
				}
			}
			o, err := opening.opening(ledger.Period)
			if err != nil {
				return err
			}
			return p.plan(cmd.Context(), ledger, opening.customers, o, output)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	period.add(flags)
	opening.add(flags)
	flags.BoolVar(&future, "allow-future", false, "let --period name a month that has not begun")
	addOutput(cmd, &output)
	complete(cmd, "stripe-method", "charges", "payment_intents")
	return cmd
}

// addOutput adds --output, which checkOutput checks.
func addOutput(cmd *cobra.Command, output *string) {
	cmd.Flags().StringVar(output, "output", "table", "`format`: table or json")
	complete(cmd, "output", "table", "json")
}

func checkOutput(output string) error {
	if output != "table" && output != "json" {
		return usage("--output %q: want table or json", output)
	}
	return nil
}

func (p *program) plan(ctx context.Context, ledger charges.Ledger, customers string, o charges.Opening, output string) error {
	pool, err := p.database(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()

	if output == "json" {
		return planJSON(ctx, p.out, ledger, conn.Conn(), customers, o)
	}
	rejects := p.newTable(p.out, "REJECTED", "CODE", "WHY")
	plan, planErr := ledger.Plan(ctx, conn.Conn(), customers, o, func(r charges.PlannedReject) error {
		return rejects.row(shownID(r.CustomerID), printable0(r.Code), printable0(r.Reason))
	})
	if err := rejects.flush(); err != nil {
		return err
	}
	if rejects.rows > 0 {
		fmt.Fprintln(p.out)
	}
	if planErr != nil && !plan.Opened && plan.Tally.Dues() == 0 {
		return databaseError(planErr)
	}
	if err := p.totals(p.out, plan.Totals); err != nil {
		return err
	}
	for _, c := range plan.Shared {
		fmt.Fprintf(p.out, "Stripe customer %s is behind more than one row, each would be charged: %s\n",
			printable(c.StripeCustomerID), printable(strings.Join(c.CustomerIDs, ", ")))
	}
	fmt.Fprintln(p.out, planWords(plan, planErr))
	return databaseError(planErr)
}

func planWords(p charges.Plan, err error) string {
	t := p.Tally
	switch {
	case err != nil:
		return fmt.Sprintf("\nPeriod %s cannot be opened as it is: nothing would be charged.", p.Period)
	case p.Settled:
		return fmt.Sprintf("\nPeriod %s is settled: a run would do nothing. %s.", p.Period, tallyWords(t))
	case p.Opened:
		return fmt.Sprintf("\nPeriod %s is open. A run would recover %s in doubt and charge %s more. So far: %s.",
			p.Period, count(t.InDoubt), count(t.Unclaimed), tallyWords(t))
	}
	return fmt.Sprintf("\nPeriod %s is not open. A run would open it with %s %s, charge %s and reject %s.",
		p.Period, count(t.Dues()), plural(t.Dues(), "due", "dues"), count(t.Unclaimed), count(t.Rejected))
}

func tallyWords(t charges.Tally) string {
	return fmt.Sprintf("%s succeeded, %s declined, %s rejected, %s processing",
		count(t.Succeeded), count(t.Declined), count(t.Rejected), count(t.Processing))
}

func plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

func planJSON(ctx context.Context, out io.Writer, ledger charges.Ledger, conn *pgx.Conn, customers string, o charges.Opening) error {
	rejects := []charges.PlannedReject{}
	plan, planErr := ledger.Plan(ctx, conn, customers, o, func(r charges.PlannedReject) error {
		rejects = append(rejects, r)
		return nil
	})
	doc := struct {
		charges.Plan
		Rejected []charges.PlannedReject `json:"rejected"`
		Problem  string                  `json:"problem,omitempty"`
	}{Plan: plan, Rejected: rejects}
	if planErr != nil {
		planErr = databaseError(planErr)
		doc.Problem = oneLine(planErr.Error())
	}
	if err := writeJSON(out, doc); err != nil {
		return err
	}
	return planErr
}

func writeJSON(out io.Writer, v any) error {
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
