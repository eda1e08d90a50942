package stripesim

type chargeJSON struct {
	ID             string            `json:"id"`
	Object         string            `json:"object"`
	Amount         int64             `json:"amount"`
	AmountCaptured int64             `json:"amount_captured"`
	AmountRefunded int64             `json:"amount_refunded"`
	Captured       bool              `json:"captured"`
	Created        int64             `json:"created"`
	Currency       string            `json:"currency"`
	Customer       *string           `json:"customer"`
	Description    *string           `json:"description"`
	Disputed       bool              `json:"disputed"`
	FailureCode    *string           `json:"failure_code"`
	FailureMessage *string           `json:"failure_message"`
	Livemode       bool              `json:"livemode"`
	Metadata       map[string]string `json:"metadata"`
	Outcome        *outcomeJSON      `json:"outcome"`
	Paid           bool              `json:"paid"`
	PaymentIntent  *string           `json:"payment_intent"`
	PaymentMethod  *string           `json:"payment_method"`
	Refunded       bool              `json:"refunded"`
	Status         string            `json:"status"`
}

type outcomeJSON struct {
	NetworkStatus string  `json:"network_status"`
	Reason        *string `json:"reason"`
	SellerMessage string  `json:"seller_message"`
	Type          string  `json:"type"`
}

type intentJSON struct {
	ID                 string            `json:"id"`
	Object             string            `json:"object"`
	Amount             int64             `json:"amount"`
	AmountReceived     int64             `json:"amount_received"`
	CanceledAt         *int64            `json:"canceled_at"`
	CaptureMethod      string            `json:"capture_method"`
	ConfirmationMethod string            `json:"confirmation_method"`
	Created            int64             `json:"created"`
	Currency           string            `json:"currency"`
	Customer           *string           `json:"customer"`
	Description        *string           `json:"description"`
	LastPaymentError   *apiError         `json:"last_payment_error"`
	LatestCharge       *string           `json:"latest_charge"`
	Livemode           bool              `json:"livemode"`
	Metadata           map[string]string `json:"metadata"`
	PaymentMethod      *string           `json:"payment_method"`
	PaymentMethodTypes []string          `json:"payment_method_types"`
	Status             string            `json:"status"`
}

func encode(c *Charge) any {
	if c.Kind == KindIntent {
		return encodeIntent(c)
	}
	return encodeCharge(c)
}

func encodeCharge(c *Charge) chargeJSON {
	out := chargeJSON{
		ID: c.ID, Object: KindCharge, Amount: c.Amount, Created: c.Created.Unix(), Currency: c.Currency,
		Customer: optional(c.Customer), Description: optional(c.Description), Metadata: c.metadata(),
		PaymentIntent: optional(c.intent), PaymentMethod: optional(c.Source), Status: c.Status,
		Outcome: &outcomeJSON{NetworkStatus: "approved_by_network", SellerMessage: "Payment complete.", Type: "authorized"},
	}
	switch {
	case c.Status == StatusSucceeded:
		out.Paid, out.Captured, out.AmountCaptured = true, true, c.Amount
	case c.Decline != nil:
		out.FailureCode, out.FailureMessage = optional(c.Decline.Code), optional(c.Decline.Message)
		out.Outcome = &outcomeJSON{NetworkStatus: "declined_by_network", Reason: optional(c.Decline.DeclineCode),
			SellerMessage: "The bank did not accept the payment.", Type: "issuer_declined"}
	}
	return out
}

func encodeIntent(c *Charge) intentJSON {
	out := intentJSON{
		ID: c.ID, Object: KindIntent, Amount: c.Amount, CaptureMethod: "automatic", ConfirmationMethod: "automatic",
		Created: c.Created.Unix(), Currency: c.Currency, Customer: optional(c.Customer), Description: optional(c.Description),
		LatestCharge: optional(c.LatestCharge), Metadata: c.metadata(), PaymentMethod: optional(c.Source),
		PaymentMethodTypes: []string{"card"}, Status: c.Status,
	}
	switch c.Status {
	case StatusSucceeded:
		out.AmountReceived = c.Amount
	case StatusRequiresPaymentMethod: // a failed method is detached from its intent
		if c.Decline != nil {
			e := declined(c.Decline, c.LatestCharge)
			out.LastPaymentError, out.PaymentMethod = &e, nil
		}
	}
	return out
}

func (c *Charge) metadata() map[string]string {
	if c.Metadata == nil {
		return map[string]string{}
	}
	return c.Metadata
}

func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
