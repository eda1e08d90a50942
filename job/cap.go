package job

import (
	"context"
	"fmt"
	"strings"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/internal/money"
)

// capsThatFit are the values for --raise-cap-to under which all that is not yet
// claimed would fit; empty if they could not be read. It is for people.
func (r *run) capsThatFit(ctx context.Context) string {
	all, err := charges.Statuses(ctx, r.Pool, r.summary.Period)
	if err != nil || len(all) != 1 {
		return ""
	}
	standing, err := r.Ledger.Standing(ctx, r.Pool)
	if err != nil {
		return ""
	}
	left := map[string]int64{}
	for _, m := range standing.Money {
		left[m.Currency] = m.Unclaimed
	}
	var flags, says []string
	for _, t := range all[0].Totals {
		if fits := t.Claimed + left[t.Currency]; fits > t.Cap {
			flags = append(flags, fmt.Sprintf("%s=%d", t.Currency, fits))
			says = append(says, fmt.Sprintf("%s, the cap is %s", money.Format(fits, t.Currency), money.Format(t.Cap, t.Currency)))
		}
	}
	if len(flags) == 0 {
		return ""
	}
	return strings.Join(flags, ",") + " (" + strings.Join(says, "; ") + ")"
}
