package spendcap

import (
	"encoding/json"
	"errors"
	"net"
	"net/http"
)

// word is what an answer of Stripe's says about the send that it answers.
type word string

const (
	// spent: there is a charge.
	spent word = "spent"
	// void: nothing was and nothing will be charged under the key, whichever
	// send is asked: Stripe has stored a failure under it.
	void word = "void"
	// nothing: this send charged nothing. It says nothing about others.
	nothing word = "nothing"
	// later: this send charged nothing, and is to be sent again.
	later word = "later"
	// doubt: nobody knows.
	doubt word = "doubt"
)

type outcome struct {
	word      word
	status    int // 0: no answer
	requestID string
	amount    int64 // what was charged, in the smallest currency unit
	chargeID  string
}

// judge reads an answer to a creating call. Whatever is not exactly what Stripe
// answers is doubt: something else between may have written it.
func judge(c creating, status int, h http.Header, body []byte, whole bool) outcome {
	out := outcome{word: doubt, status: status, requestID: h.Get("Request-Id")}
	if !whole {
		return out
	}
	if status == http.StatusOK {
		var object struct {
			Object   string `json:"object"`
			ID       string `json:"id"`
			Amount   int64  `json:"amount"`
			Currency string `json:"currency"`
		}
		want := "charge"
		if c.endpoint == CreateIntent {
			want = "payment_intent"
		}
		if json.Unmarshal(body, &object) == nil && object.Object == want && object.ID != "" &&
			object.Amount > 0 && object.Currency == c.currency {
			out.word, out.amount, out.chargeID = spent, object.Amount, object.ID
		}
		return out
	}
	var failure struct {
		Error struct {
			Type string `json:"type"`
			Code string `json:"code"`
		} `json:"error"`
	}
	if json.Unmarshal(body, &failure) != nil || failure.Error.Type == "" {
		return out
	}
	stored := h.Get("Idempotent-Replayed") == "true"
	switch status {
	case http.StatusPaymentRequired:
		out.word = void
	case http.StatusBadRequest, http.StatusNotFound:
		switch {
		case failure.Error.Code == "lock_timeout":
			out.word = later
		case stored:
			out.word = void
		default:
			out.word = nothing
		}
	case http.StatusUnauthorized, http.StatusForbidden:
		out.word = nothing
	case http.StatusConflict, http.StatusTooManyRequests:
		out.word = later
	}
	return out
}

// judgeError is the outcome of a send that got no answer.
func judgeError(err error) outcome {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return outcome{word: nothing} // it never left
	}
	return outcome{word: doubt}
}
