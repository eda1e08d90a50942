package stripesim

import (
	"encoding/json"
	"net/http"
)

// reply is an answer before the network has had its way with it.
type reply struct {
	status   int
	body     []byte
	executed bool // an endpoint ran: the key keeps this answer
	replayed bool
	why      refusal
	fault    Fault // whose headers to send
}

// refusal is why the idempotency layer answered itself.
type refusal int

const (
	notRefused refusal = iota
	otherParameters
	keyInUse
)

// apiError is the error object of API v1.
type apiError struct {
	Type          string      `json:"type"`
	Code          string      `json:"code,omitempty"`
	DeclineCode   string      `json:"decline_code,omitempty"`
	AdviceCode    string      `json:"advice_code,omitempty"`
	Message       string      `json:"message"`
	Param         string      `json:"param,omitempty"`
	Charge        string      `json:"charge,omitempty"`
	PaymentIntent *intentJSON `json:"payment_intent,omitempty"`
	DocURL        string      `json:"doc_url,omitempty"`
}

const (
	typeInvalid     = "invalid_request_error"
	typeAPI         = "api_error"
	typeCard        = "card_error"
	typeIdempotency = "idempotency_error"
)

func fail(status int, e apiError) reply {
	if e.Code != "" {
		e.DocURL = "https://stripe.com/docs/error-codes/" + e.Code
	}
	return answer(status, struct {
		Error apiError `json:"error"`
	}{e})
}

func answer(status int, v any) reply {
	body, err := json.Marshal(v)
	if err != nil { // only our own structs of strings and numbers come here
		panic("stripesim: encode answer: " + err.Error())
	}
	return reply{status: status, body: body}
}

// invalid is a parameter that does not validate.
func invalid(code, param, message string) *reply {
	r := fail(http.StatusBadRequest, apiError{Type: typeInvalid, Code: code, Param: param, Message: message})
	return &r
}

func executed(r reply) reply {
	r.executed = true
	return r
}

func unauthorized(key string) reply {
	if key == "" {
		return fail(http.StatusUnauthorized, apiError{Type: typeInvalid,
			Message: "You did not provide an API key."})
	}
	return fail(http.StatusUnauthorized, apiError{Type: typeInvalid,
		Message: "Invalid API Key provided: " + redact(key)})
}

func forbidden(r Request) reply {
	permission := "rak_charge_read"
	if r.Method == http.MethodPost {
		permission = "rak_charge_write"
	}
	return fail(http.StatusForbidden, apiError{Type: typeInvalid,
		Message: "The provided key '" + redact(r.APIKey) + "' does not have the required permissions for this endpoint. Having the '" + permission + "' permission would allow this request to continue."})
}

func redact(key string) string {
	if len(key) <= 12 {
		return "********"
	}
	return key[:8] + "********" + key[len(key)-4:]
}

func serverError() reply {
	return fail(http.StatusInternalServerError, apiError{Type: typeAPI, Message: "An unknown error occurred."})
}

// atTheDoor is the answer of faults that keep a request from being looked at.
func atTheDoor(f Fault, r Request) (reply, bool) {
	var out reply
	switch f.Kind {
	case Unauthorized401:
		out = unauthorized(r.APIKey)
	case Forbidden403:
		out = forbidden(r)
	case Error429:
		out = fail(http.StatusTooManyRequests, apiError{Type: typeInvalid, Code: "rate_limit",
			Message: "Request rate limit exceeded. You can learn more about rate limits here https://stripe.com/docs/rate-limits."})
	case LockTimeout429, Conflict409:
		status := http.StatusTooManyRequests
		if f.Kind == Conflict409 {
			status = http.StatusConflict
		}
		out = fail(status, apiError{Type: typeInvalid, Code: "lock_timeout",
			Message: "This object cannot be accessed right now because another API request or Stripe process is currently accessing it."})
	case Error503:
		out = fail(http.StatusServiceUnavailable, apiError{Type: typeAPI, Message: "Stripe is temporarily unavailable."})
	default:
		return reply{}, false
	}
	out.fault = f
	return out, true
}
