package main

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/job"
)

// restoreFlags say that the ledger comes from a backup.
type restoreFlags struct{ after bool }

func (f *restoreFlags) add(flags *pflag.FlagSet) {
	flags.BoolVar(&f.after, "after-restore", false,
		"the database was restored from a backup: look up at Stripe who was charged for the period, record it, and only then send")
}

// command is what the run calls itself in runs.
func (f *restoreFlags) command() string {
	if f.after {
		return charges.RestoreCommand
	}
	return "run"
}

// restored is nil if the ledger is not from a backup.
func (f *runFlags) restored(period charges.Period) *job.AfterRestore {
	if !f.after {
		return nil
	}
	earlier := "--allow-future"
	if f.allowFuture {
		earlier = fmt.Sprintf("--period-offset %d", max(f.offset, 0)+12)
	}
	return &job.AfterRestore{Since: earliest(period, f.offset, f.allowFuture), Earlier: earlier}
}

// besideRestore are the flags of this run that one with --after-restore needs:
// they say how long before it begins a month may be billed.
func (f *runFlags) besideRestore() (flags []string) {
	if f.allowFuture {
		flags = append(flags, "--allow-future")
	}
	if f.offset > 0 {
		flags = append(flags, fmt.Sprintf("--period-offset %d", f.offset))
	}
	return flags
}

// earliest is before any moment at which the period can have been charged for: a
// year and a month before it begins, since it may have been billed in advance by
// a flag that today's run no longer needs; more by the months of --period-offset;
// and another year with --allow-future, which lets any month be billed. The
// ledger does not tell: a restored one may never have heard of the period, and
// one that was opened anew names that moment. Too early costs pages, no charge.
func earliest(period charges.Period, offset int, allowFuture bool) time.Time {
	months := 13 + max(offset, 0)
	if allowFuture {
		months += 12
	}
	first := period.Add(-months)
	return time.Date(first.Year, first.Month, 1, 0, 0, 0, 0, time.UTC)
}
