package reportpage

import (
	"fmt"
	"time"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/internal/money"
)

// view is what the page shows: all numbers are words already.
type view struct {
	At      string
	Version string

	Period   string // 2026-10
	Month    string // October 2026
	Settled  bool
	State    string
	Sentence string

	Dues     string
	Outcomes []share
	Money    []purse
	Time     *chart
	Reasons  []reason
	Others   string // how many declines have none of the reasons
	Look     []look
}

// status is how a status is called and drawn.
type status struct {
	Class string // names the pattern
	Name  string
	Means string
}

// statuses in the order in which bars stack them.
var statuses = []struct {
	status
	is charges.Status
}{
	{status{"succeeded", "Succeeded", "paid"}, charges.Succeeded},
	{status{"processing", "Processing", "the bank decides later"}, charges.Processing},
	{status{"doubt", "In doubt", "no answer that says paid or not"}, charges.Claimed},
	{status{"declined", "Declined", "the card or the bank refused"}, charges.Declined},
	{status{"rejected", "Rejected", "can never be charged as it is"}, charges.Rejected},
	{status{"unclaimed", "Unclaimed", "not sent to Stripe yet"}, charges.Unclaimed},
}

// share is a part of a bar, and its line in the legend.
type share struct {
	status
	Count   string
	Percent string
	X, W    string // per cent of the bar
	Empty   bool
}

// purse is one currency.
type purse struct {
	Currency                 string
	Expected, Cap, Collected string
	Percent                  string
	Waiting, Lost            string // empty: nothing
	Bar                      []share
	ExpectedAt               string // per cent of the bar
	NothingExpected          bool
}

func newView(period charges.Period, o charges.Overview) view {
	v := view{
		Period:   period.String(),
		Month:    time.Date(period.Year, period.Month, 1, 0, 0, 0, 0, time.UTC).Format("January 2006"),
		Settled:  !o.SettledAt.IsZero(),
		Sentence: sentence(o),
		Dues:     count(o.Tally.Dues()),
		Time:     newChart(o.Timeline),
	}
	v.State = "Open since " + moment(o.OpenedAt)
	if v.Settled {
		v.State = "Settled " + moment(o.SettledAt)
	}
	var parts []int64
	for _, s := range statuses {
		parts = append(parts, int64(*o.Tally.Of(s.is)))
	}
	v.Outcomes = bar(parts, sum(parts))
	for i := range v.Outcomes {
		v.Outcomes[i].Count = count(int(parts[i]))
	}
	for _, m := range o.Money {
		v.Money = append(v.Money, newPurse(m))
	}
	v.Reasons, v.Others = reasons(o)
	for _, l := range o.Look {
		v.Look = append(v.Look, newLook(period, l))
	}
	return v
}

func sentence(o charges.Overview) string {
	t := o.Tally
	unpaid := t.Dues() - t.Succeeded
	switch {
	case t.Dues() == 0:
		return "No customer was active when the period was opened: nobody was to be billed."
	case unpaid == 0 && t.Dues() == 1:
		return "The one customer has paid."
	case unpaid == 0:
		return fmt.Sprintf("All %s customers have paid.", count(t.Dues()))
	}
	return fmt.Sprintf("%s of %s %s paid.", count(t.Succeeded), count(t.Dues()), plural(t.Dues(), "customer has", "customers have"))
}

func newPurse(m charges.Money) purse {
	write := func(n int64) string { return money.Format(n, m.Currency) }
	var parts []int64
	for _, s := range statuses {
		parts = append(parts, *m.Of(s.is))
	}
	all := max(m.Cap, m.Expected, sum(parts))
	p := purse{
		Currency: m.Currency, Expected: write(m.Expected), Cap: write(m.Cap), Collected: write(m.Succeeded),
		Percent: percent(m.Succeeded, m.Expected), Bar: bar(parts, all), ExpectedAt: position(m.Expected, all),
		NothingExpected: m.Expected == 0,
	}
	if waiting := m.Processing + m.InDoubt + m.Unclaimed; waiting > 0 {
		p.Waiting = write(waiting)
	}
	if lost := m.Declined + m.Rejected; lost > 0 {
		p.Lost = write(lost)
	}
	return p
}

// bar lays the parts side by side on a bar that stands for all. Too thin to see
// would be as good as none: what that takes is taken off the largest part.
func bar(parts []int64, all int64) []share {
	const thin = 0.4
	widths := make([]float64, len(parts))
	largest := 0
	for i, n := range parts {
		if n > 0 && all > 0 {
			widths[i] = float64(n) / float64(all) * 100
		}
		if n > parts[largest] {
			largest = i
		}
	}
	for i, width := range widths {
		if width > 0 && width < thin && i != largest {
			widths[i] = thin
			widths[largest] = max(widths[largest]-(thin-width), thin)
		}
	}
	var shares []share
	left := 0.0
	for i, n := range parts {
		shares = append(shares, share{
			status: statuses[i].status, Percent: percent(n, all), Empty: n <= 0, X: decimals(left), W: decimals(widths[i]),
		})
		left += widths[i]
	}
	return shares
}

func sum(parts []int64) int64 {
	var all int64
	for _, n := range parts {
		all += n
	}
	return all
}
