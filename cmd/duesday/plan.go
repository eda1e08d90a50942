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
	flags.StringVar(&output, "output", "table", "`format`: table or json")
	return cmd
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
	rejects := newTable(p.out, "REJECTED", "CODE", "WHY")
	plan, planErr := ledger.Plan(ctx, conn.Conn(), customers, o, func(r charges.PlannedReject) error {
		return rejects.row(printable(r.CustomerID), r.Code, r.Reason)
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
	totals := newTable(p.out, "CURRENCY", ">EXPECTED", ">CAP", ">CLAIMED", ">SUCCEEDED")
	for _, t := range plan.Totals {
		if err := totals.row(t.Currency, t.Expected, t.Cap, t.Claimed, t.Succeeded); err != nil {
			return err
		}
	}
	if err := totals.flush(); err != nil {
		return err
	}
	if len(plan.Totals) > 0 {
		fmt.Fprintln(p.out, "(in each currency's smallest unit)")
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
		return fmt.Sprintf("\nPeriod %s is open. A run would recover %d in doubt and charge %d more. So far: %s.",
			p.Period, t.InDoubt, t.Unclaimed, tallyWords(t))
	}
	return fmt.Sprintf("\nPeriod %s is not open. A run would open it with %d dues, charge %d and reject %d.",
		p.Period, t.Dues(), t.Unclaimed, t.Rejected)
}

func tallyWords(t charges.Tally) string {
	return fmt.Sprintf("%d succeeded, %d declined, %d rejected, %d processing", t.Succeeded, t.Declined, t.Rejected, t.Processing)
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
