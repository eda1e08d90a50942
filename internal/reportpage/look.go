package reportpage

import (
	"fmt"
	"strings"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/internal/money"
)

// look is the dues of one kind that a person must look at.
type look struct {
	Class, Title, Dues, Do string
	Brief                  string // what follows the number in the alert
	Command                string // empty: there is none
	Rows                   []due
	More                   string // how many are left out; empty: none
	All                    string // the command that shows all
}

// due is a row of it.
type due struct {
	Customer, Stripe, Amount, Why, Code string
	Link, LinkID                        string // below dashboard; empty: Stripe has no page about it
}

const dashboard = "https://dashboard.stripe.com/"

func newLook(period charges.Period, l charges.Look) look {
	v := look{Dues: count(l.Dues), All: fmt.Sprintf("duesday report --period %s --format csv", period)}
	switch l.Kind {
	case charges.KindInDoubt:
		v.Class, v.Title, v.Brief = "doubt", "In doubt", "in doubt"
		v.Do = "Stripe did not say whether these were paid. The next run finds out, and charges nobody twice:"
		v.Command = fmt.Sprintf("duesday reconcile --period %s", period)
	case charges.KindRejected:
		v.Class, v.Title, v.Brief = "rejected", "Rejected", "rejected"
		v.Do = "These can never be charged as they are. Mend the customers' rows, then:"
		v.Command = fmt.Sprintf("duesday run --period %s --reopen", period)
	case charges.KindNeedsCustomer:
		v.Class, v.Title, v.Brief = "declined", "Declined, and only the customer can mend it", "declined for the customer to mend"
		v.Do = "Another try would fail in the same way: ask for another card, or for the confirmation that the bank wants."
	case charges.KindUnclaimed:
		v.Class, v.Title, v.Brief = "unclaimed", "Unclaimed", "unclaimed"
		v.Do = "No run has sent these to Stripe yet. The next one does:"
		v.Command = fmt.Sprintf("duesday run --period %s", period)
	}
	for _, r := range l.First {
		v.Rows = append(v.Rows, newDue(r))
	}
	if more := l.Dues - len(l.First); more > 0 {
		v.More = count(more)
	}
	return v
}

func newDue(r charges.Row) due {
	d := due{Customer: visible(r.CustomerID), Code: visible(r.FailureCode)}
	if r.StripeCustomerID != r.CustomerID {
		d.Stripe = visible(r.StripeCustomerID)
	}
	if r.Amount != nil {
		d.Amount = visible(money.Format(*r.Amount, r.Currency))
	}
	if r.FailureCode == "" {
		d.Code = ""
	} else if why := charges.RejectReason(r.FailureCode); why != r.FailureCode {
		d.Why = why
	}
	switch {
	case r.FailureMessage != "":
		d.Why = visible(r.FailureMessage)
	case r.Status == string(charges.Claimed) && !r.ClaimedAt.IsZero():
		d.Why = "claimed " + moment(r.ClaimedAt)
	}
	// The dashboard finds both charges and intents under payments, and asks
	// whoever follows the link whether test or live is meant.
	switch {
	case stripeID(r.ChargeID, "ch_", "pi_", "py_"):
		d.Link, d.LinkID = "payments/", r.ChargeID
	case r.Status != string(charges.Rejected) && stripeID(r.StripeCustomerID, "cus_"):
		d.Link, d.LinkID = "customers/", r.StripeCustomerID
		d.Stripe = ""
	}
	return d
}

// stripeID is whether id is one that an address may end in.
func stripeID(id string, prefixes ...string) bool {
	for _, prefix := range prefixes {
		rest, ok := strings.CutPrefix(id, prefix)
		if ok && rest != "" && !strings.ContainsFunc(rest, func(r rune) bool {
			return (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && r != '_'
		}) {
			return true
		}
	}
	return false
}

// reason is why charges came to nothing.
type reason struct {
	Class, Code, Why, Dues, Helps string
	W                             string // per cent of the bar
}

// reasons also returns how many dues have none of them.
func reasons(o charges.Overview) ([]reason, string) {
	if len(o.Reasons) == 0 {
		return nil, ""
	}
	var all []reason
	most, told := o.Reasons[0].Dues, 0
	for _, r := range o.Reasons {
		told += r.Dues
		v := reason{Class: "declined", Code: visible(r.Code), Dues: count(r.Dues), W: decimals(max(float64(r.Dues)/float64(most)*100, 0.4))}
		switch {
		case r.Status == charges.Rejected:
			v.Class, v.Helps = "rejected", "mend the row"
		case r.NeedsCustomer:
			v.Helps = "the customer"
		default:
			v.Helps = "another try, later"
		}
		if r.Code == "" {
			v.Code = "no code"
		} else if why := charges.RejectReason(r.Code); why != r.Code {
			v.Why = why
		}
		all = append(all, v)
	}
	if others := o.Tally.Declined + o.Tally.Rejected - told; others > 0 {
		return all, count(others)
	}
	return all, ""
}
