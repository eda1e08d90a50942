package stripesim

import (
	"net/http"
	"strings"
)

// endpoint validates a request. It returns either what to run, at most once,
// or the answer to parameters that do not validate.
type endpoint func(s *Sim, r Request) (run func() reply, bad *reply)

// route finds the endpoint of a request and a name for it to count under.
func route(r Request) (endpoint, string) {
	parts := strings.Split(strings.TrimPrefix(r.Path, "/v1/"), "/")
	if !strings.HasPrefix(r.Path, "/v1/") {
		parts = nil
	}
	post, get := r.Method == http.MethodPost, r.Method == http.MethodGet
	kinds := map[string]string{"charges": KindCharge, "payment_intents": KindIntent}
	if len(parts) > 0 && kinds[parts[0]] != "" {
		kind, name := kinds[parts[0]], r.Method+" /v1/"+parts[0]
		switch {
		case len(parts) == 1 && post && kind == KindCharge:
			return createCharge, name
		case len(parts) == 1 && post:
			return createIntent, name
		case len(parts) == 1 && get:
			return list(kind), name
		case len(parts) == 2 && get && parts[1] == "search":
			return search(kind), name + "/search"
		case len(parts) == 2 && get:
			return retrieve(kind, parts[1]), name + "/{id}"
		case len(parts) == 3 && post && kind == KindIntent && parts[2] == "cancel":
			return cancel(parts[1]), name + "/{id}/cancel"
		}
	}
	return func(*Sim, Request) (func() reply, *reply) {
		out := unrecognized(r)
		return nil, &out
	}, r.Method + " unrecognized"
}

func unrecognized(r Request) reply {
	return fail(http.StatusNotFound, apiError{Type: typeInvalid,
		Message: "Unrecognized request URL (" + r.Method + ": " + r.Path + ")."})
}

func createCharge(s *Sim, r Request) (func() reply, *reply) {
	f := newForm(r.Params, []string{
		"amount", "currency", "customer", "source", "description", "metadata", "expand",
		"receipt_email", "statement_descriptor", "statement_descriptor_suffix",
	}, collections())
	c := Charge{Kind: KindCharge, IdempotencyKey: r.Key}
	c.Amount, c.Currency = f.amount()
	c.Customer = f.customer(s)
	c.Source = f.text("source", maxText)
	c.Description = f.text("description", maxText)
	c.Metadata = f.metadata()
	if c.Customer == "" && c.Source == "" {
		f.refuse("parameter_missing", "source", "Must provide source or customer.")
	}
	if f.bad != nil {
		return nil, f.bad
	}
	return func() reply {
		s.mu.Lock()
		if s.behaviour(c.Customer).NoSource && c.Source == "" {
			s.mu.Unlock()
			return executed(fail(http.StatusPaymentRequired, apiError{Type: typeCard, Code: "missing", Param: "customer",
				Message: "Cannot charge a customer that has no active card"}))
		}
		done := s.pay(c)
		s.mu.Unlock()
		s.committed(done.clone())
		if done.Status == StatusFailed {
			return executed(fail(http.StatusPaymentRequired, declined(done.Decline, done.ID)))
		}
		return executed(answer(http.StatusOK, encodeCharge(done)))
	}, nil
}

// pay writes a charge as the customer's bank decides; the caller holds the lock.
func (s *Sim) pay(c Charge) *Charge {
	c.Status = StatusSucceeded
	if s.behaviour(c.Customer).Pending {
		c.Status = StatusPending
	} else if c.Decline = s.declines(c.Customer); c.Decline != nil {
		c.Status = StatusFailed
	}
	return s.write(c)
}

func declined(d *Decline, charge string) apiError {
	return apiError{Type: typeCard, Code: d.Code, DeclineCode: d.DeclineCode, AdviceCode: d.AdviceCode,
		Message: d.Message, Charge: charge}
}

func createIntent(s *Sim, r Request) (func() reply, *reply) {
	nested := collections("payment_method_types")
	nested["automatic_payment_methods"] = []string{"enabled", "allow_redirects"}
	f := newForm(r.Params, []string{
		"amount", "currency", "customer", "payment_method", "off_session", "confirm", "description", "metadata", "expand",
		"automatic_payment_methods", "payment_method_types", "return_url",
		"receipt_email", "statement_descriptor", "statement_descriptor_suffix",
	}, nested)
	c := Charge{Kind: KindIntent, IdempotencyKey: r.Key}
	c.Amount, c.Currency = f.amount()
	c.Customer = f.customer(s)
	c.Source = f.text("payment_method", maxText)
	c.Description = f.text("description", maxText)
	c.Metadata = f.metadata()
	confirm := f.boolean("confirm")
	if v := r.Params.Get("off_session"); v != "one_off" && v != "recurring" && f.boolean("off_session") && !confirm {
		f.refuse("", "off_session", "off_session can only be passed when confirm is true.")
	}
	if confirm && f.boolean("automatic_payment_methods[enabled]") &&
		r.Params.Get("automatic_payment_methods[allow_redirects]") != "never" && r.Params.Get("return_url") == "" {
		f.refuse("", "return_url", "A return_url must be specified because this Payment Intent accepts payment methods that may redirect.")
	}
	s.mu.Lock()
	noSource := s.behaviour(c.Customer).NoSource || c.Customer == ""
	s.mu.Unlock()
	if confirm && noSource && c.Source == "" {
		f.refuse("payment_intent_unexpected_state", "", "You cannot confirm this PaymentIntent because it's missing a payment method.")
	}
	if f.bad != nil {
		return nil, f.bad
	}
	return func() reply { return s.runIntent(c, confirm) }, nil
}

func (s *Sim) runIntent(c Charge, confirm bool) reply {
	s.mu.Lock()
	var done *Charge
	if !confirm {
		c.Status = StatusRequiresConfirmation
		if c.Source == "" {
			c.Status = StatusRequiresPaymentMethod
		}
		done = s.write(c)
	} else {
		s.seq++
		c.ID = "pi_" + s.newID(s.seq)
		part := c.clone()
		part.ID, part.Kind, part.intent = "", KindCharge, c.ID
		ch := s.pay(part)
		c.LatestCharge, c.Decline = ch.ID, ch.Decline
		switch ch.Status {
		case StatusSucceeded:
			c.Status = StatusSucceeded
		case StatusPending:
			c.Status = StatusProcessing
		default:
			c.Status = StatusRequiresPaymentMethod
		}
		done = s.write(c)
	}
	s.mu.Unlock()
	s.committed(done.clone())
	if done.Decline != nil {
		e := declined(done.Decline, done.LatestCharge)
		if e.DeclineCode == "authentication_required" { // charges keep card_declined here, intents do not
			e.Code = "authentication_required"
		}
		pi := encodeIntent(done)
		e.PaymentIntent = &pi
		return executed(fail(http.StatusPaymentRequired, e))
	}
	return executed(answer(http.StatusOK, encodeIntent(done)))
}

// cancel ends an intent that has not been paid.
func cancel(id string) endpoint {
	return func(s *Sim, r Request) (func() reply, *reply) {
		f := newForm(r.Params, []string{"cancellation_reason", "expand"}, collections())
		switch v := r.Params.Get("cancellation_reason"); v {
		case "", "duplicate", "fraudulent", "requested_by_customer", "abandoned":
		default:
			f.refuse("", "cancellation_reason", "Invalid cancellation_reason: %s", v)
		}
		if f.bad != nil {
			return nil, f.bad
		}
		return func() reply {
			s.mu.Lock()
			defer s.mu.Unlock()
			e := s.intents.byID[id]
			if e == nil {
				return noSuch(KindIntent, id)
			}
			switch e.cur.Status {
			case StatusRequiresPaymentMethod, StatusRequiresConfirmation:
				c := e.cur.clone()
				c.Status = StatusCanceled
				e.cur = &c
				return executed(answer(http.StatusOK, encodeIntent(&c)))
			}
			pi := encodeIntent(e.cur)
			return fail(http.StatusBadRequest, apiError{Type: typeInvalid, Code: "payment_intent_unexpected_state", PaymentIntent: &pi,
				Message: "You cannot cancel this PaymentIntent because it has a status of " + e.cur.Status + "."})
		}, nil
	}
}

func noSuch(kind, id string) reply {
	return fail(http.StatusNotFound, apiError{Type: typeInvalid, Code: "resource_missing", Param: "id",
		Message: "No such " + kind + ": '" + id + "'"})
}

func retrieve(kind, id string) endpoint {
	return func(s *Sim, r Request) (func() reply, *reply) {
		f := newForm(r.Params, []string{"expand"}, collections())
		if f.bad != nil {
			return nil, f.bad
		}
		return func() reply {
			s.mu.Lock()
			e := s.book(kind).byID[id]
			if e == nil {
				s.mu.Unlock()
				return noSuch(kind, id)
			}
			c := e.cur
			s.mu.Unlock()
			return answer(http.StatusOK, encode(c))
		}, nil
	}
}
