package job

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.uber.org/zap"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/internal/exitcode"
)

// ErrRenamed: a Stripe customer whom the period is to charge was charged for it
// under another id.
var ErrRenamed = errors.New("customers of Stripe's whom the period owes were charged for it under other ids")

// elsewhere is what a look-up has found of customers whom the period does not
// owe anything for. It keeps those whom the period may know by another id.
type elsewhere struct {
	found  []charges.Finding
	sorted int // how many were kept when they were last looked up
}

// add lets go, now and then, of what needs no second look: another product may
// have millions in the same account.
func (e *elsewhere) add(ctx context.Context, r *run, found []charges.Finding) (err error) {
	e.found = append(e.found, found...)
	if len(e.found) < 2*e.sorted+5000 {
		return nil
	}
	e.found, err = r.Ledger.Renamed(ctx, r.Pool, e.found)
	e.sorted = len(e.found)
	return err
}

// check ends the run if somebody would be charged again under another id.
func (e *elsewhere) check(ctx context.Context, r *run) error {
	if len(e.found) == 0 {
		return nil
	}
	renamed, err := r.Ledger.Renamed(ctx, r.Pool, e.found)
	if err != nil || len(renamed) == 0 {
		return err
	}
	var ids []string
	for _, f := range renamed {
		ids = append(ids, f.ChargeID)
	}
	slices.Sort(ids) // an intent and its charge are one
	ids = slices.Compact(ids)
	r.Log.Error("Stripe customers whom the period owes were charged for it under other ids", zap.Strings("charge_ids", ids))
	named := strings.Join(ids[:min(len(ids), 5)], ", ")
	if more := len(ids) - 5; more > 0 {
		named += fmt.Sprintf(" and %d more", more)
	}
	return exitcode.With(exitcode.Stopped, fmt.Errorf(
		"period %s: %w: %s. Nothing was sent. If their ids were changed, put the old ones back into the customers relation and add --reopen to --after-restore; all else is in docs/operations.md, Restore the database",
		r.summary.Period, ErrRenamed, named))
}
