package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/duesday/duesday/charges"
)

func (p *program) statusCommand() *cobra.Command {
	var (
		f      periodFlags
		output string
	)
	cmd := &cobra.Command{
		Use:   "status",
		Short: "The periods and where each stands",
		Long: `Show every month from the first one billed to now, and where it stands. A month
that no run has opened is marked as missing, the current one as due: duesday run
--period bills it.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			now, err := f.byClock(p.clock())
			if err != nil {
				return err
			}
			return p.status(cmd.Context(), now, output)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	f.addClock(flags)
	addOutput(cmd, &output)
	return cmd
}

func (p *program) status(ctx context.Context, now charges.Period, output string) error {
	pool, err := p.database(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	all, err := charges.Statuses(ctx, pool, "")
	if err != nil {
		return databaseError(err)
	}
	all = withMissing(all, now)
	if output == "json" {
		docs := make([]statusDoc, 0, len(all))
		for _, s := range all {
			doc := newStatusDoc(s)
			doc.State = stateAt(s, now)
			docs = append(docs, doc)
		}
		return writeJSON(p.out, docs)
	}
	table := p.newTable(p.out, "PERIOD", "STATE", ">DUES", ">SUCCEEDED", ">DECLINED", ">REJECTED", ">PROCESSING", ">IN DOUBT", ">UNCLAIMED", "OPENED", "SETTLED")
	for _, s := range all {
		t := s.Tally
		if err := table.row(s.Period, status(stateAt(s, now)), t.Dues(), t.Succeeded, some(t.Declined, yellow), some(t.Rejected, red), t.Processing,
			some(t.InDoubt, violet), t.Unclaimed, moment(s.OpenedAt), moment(s.SettledAt)); err != nil {
			return err
		}
	}
	if err := table.flush(); err != nil {
		return err
	}
	if len(all) == 0 {
		fmt.Fprintln(p.out, "no period has been opened yet: see duesday plan, then duesday run")
	}
	return nil
}

// withMissing adds the months from the first to now that have no row.
func withMissing(all []charges.PeriodStatus, now charges.Period) []charges.PeriodStatus {
	if len(all) == 0 {
		return all
	}
	have := map[string]charges.PeriodStatus{}
	for _, s := range all {
		have[s.Period] = s
	}
	month, err := charges.ParsePeriod(all[0].Period)
	if err != nil {
		return all
	}
	last := all[len(all)-1].Period
	var months []charges.PeriodStatus
	for ; !now.Before(month) || month.String() <= last; month = month.Add(1) {
		s, ok := have[month.String()]
		if !ok && now.Before(month) {
			continue // not even due
		}
		if !ok {
			s = charges.PeriodStatus{Period: month.String()}
		}
		months = append(months, s)
	}
	return months
}

// stateAt is state, but the month that it is now is not missing yet.
func stateAt(s charges.PeriodStatus, now charges.Period) string {
	if s.OpenedAt.IsZero() && s.Period == now.String() {
		return "due"
	}
	return state(s)
}

func state(s charges.PeriodStatus) string {
	switch {
	case s.OpenedAt.IsZero():
		return "missing"
	case s.SettledAt.IsZero():
		return "open"
	}
	return "settled"
}

// statusDoc is a period in JSON.
type statusDoc struct {
	Period    string          `json:"billing_period"`
	State     string          `json:"state"`
	OpenedAt  *time.Time      `json:"opened_at"`
	SettledAt *time.Time      `json:"settled_at"`
	Counts    charges.Tally   `json:"counts"`
	Totals    []charges.Total `json:"totals"`
}

func newStatusDoc(s charges.PeriodStatus) statusDoc {
	doc := statusDoc{Period: s.Period, State: state(s), OpenedAt: utc(s.OpenedAt), SettledAt: utc(s.SettledAt), Counts: s.Tally, Totals: s.Totals}
	if doc.Totals == nil {
		doc.Totals = []charges.Total{}
	}
	return doc
}
