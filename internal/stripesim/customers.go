package stripesim

import "strings"

// Decline is why a card was refused, in Stripe's words.
type Decline struct {
	Code        string `json:"code"`                   // e.g. card_declined, expired_card, processing_error
	DeclineCode string `json:"decline_code,omitempty"` // e.g. insufficient_funds, lost_card
	AdviceCode  string `json:"advice_code,omitempty"`  // e.g. do_not_try_again
	Message     string `json:"message,omitempty"`
}

// Behaviour is what happens when a customer is charged. The zero value pays.
type Behaviour struct {
	// Decline refuses the payment, Times times, or always if Times is 0.
	Decline *Decline `json:"decline,omitempty"`
	Times   int      `json:"times,omitempty"`
	// Pending leaves the payment undecided until [Sim.Resolve].
	Pending bool `json:"pending,omitempty"`
	// NoSource is a customer without card or bank account.
	NoSource bool `json:"no_source,omitempty"`
	// Missing is a customer that Stripe does not know.
	Missing bool `json:"missing,omitempty"`
}

// Customers whose identifier begins so behave so, unless told otherwise. The
// rest of the identifier is free. After cus_declined_ comes the decline code:
// cus_declined_lost_card_0007.
const (
	PrefixDeclined = "cus_declined_"
	PrefixExpired  = "cus_expired_"
	PrefixPending  = "cus_pending_"
	PrefixNoSource = "cus_nosource_"
	PrefixMissing  = "cus_missing_"
)

// declineCodes can be named in a customer's identifier.
func declineCodes() []string {
	return []string{
		"insufficient_funds", "authentication_required", "lost_card", "stolen_card",
		"generic_decline", "do_not_honor", "processing_error", "issuer_not_available", "try_again_later",
	}
}

func magic(customer string) Behaviour {
	if code, ok := strings.CutPrefix(customer, PrefixDeclined); ok {
		for _, known := range declineCodes() {
			if strings.HasPrefix(code, known) {
				if known == "processing_error" {
					return Behaviour{Decline: &Decline{Code: known}}
				}
				return Behaviour{Decline: &Decline{Code: "card_declined", DeclineCode: known}}
			}
		}
		return Behaviour{Decline: &Decline{Code: "card_declined", DeclineCode: "generic_decline"}}
	}
	switch {
	case strings.HasPrefix(customer, PrefixExpired):
		return Behaviour{Decline: &Decline{Code: "expired_card"}}
	case strings.HasPrefix(customer, PrefixPending):
		return Behaviour{Pending: true}
	case strings.HasPrefix(customer, PrefixNoSource):
		return Behaviour{NoSource: true}
	case strings.HasPrefix(customer, PrefixMissing):
		return Behaviour{Missing: true}
	}
	return Behaviour{}
}

// Behave says how a customer behaves from now on; the zero [Behaviour] makes it
// pay.
func (s *Sim) Behave(customer string, b Behaviour) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.customers[customer] = b
}

// Decline refuses every charge of a customer, with an optional advice code.
func (s *Sim) Decline(customer, code, declineCode string, advice ...string) {
	s.Behave(customer, Behaviour{Decline: newDecline(code, declineCode, advice)})
}

// DeclineOnce refuses the next charge of a customer for insufficient funds; one
// under a new key succeeds.
func (s *Sim) DeclineOnce(customer string) {
	s.Behave(customer, Behaviour{Decline: newDecline("card_declined", "insufficient_funds", nil), Times: 1})
}

// Pending leaves a customer's charges pending and intents processing, until
// [Sim.Resolve].
func (s *Sim) Pending(customer string) { s.Behave(customer, Behaviour{Pending: true}) }

// NoSource takes a customer's payment methods away.
func (s *Sim) NoSource(customer string) { s.Behave(customer, Behaviour{NoSource: true}) }

// Missing makes Stripe forget a customer.
func (s *Sim) Missing(customer string) { s.Behave(customer, Behaviour{Missing: true}) }

// Pays makes a customer's charges succeed again.
func (s *Sim) Pays(customer string) { s.Behave(customer, Behaviour{}) }

func newDecline(code, declineCode string, advice []string) *Decline {
	return &Decline{Code: code, DeclineCode: declineCode, AdviceCode: strings.Join(advice, "")}
}

// behaviour returns how a customer behaves; the caller holds the lock.
func (s *Sim) behaviour(customer string) Behaviour {
	if b, ok := s.customers[customer]; ok {
		return b
	}
	return magic(customer)
}

// declines returns the decline that the customer's next payment meets, if any,
// and counts it; the caller holds the lock.
func (s *Sim) declines(customer string) *Decline {
	b := s.behaviour(customer)
	if b.Decline == nil {
		return nil
	}
	d := *b.Decline
	if d.Message == "" {
		d.Message = "Your card was declined."
	}
	if b.Times > 0 {
		if b.Times--; b.Times == 0 {
			b.Decline = nil
		}
		s.customers[customer] = b
	}
	return &d
}
