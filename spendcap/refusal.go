package spendcap

import (
	"encoding/json"
	"net/http"
)

// refusal is an answer of the proxy itself, in the shape of Stripe's errors.
type refusal struct {
	status  int
	kind    string // Stripe's error type
	code    string
	param   string
	message string
}

// Codes of the proxy's own refusals.
const (
	codeCap         = "spend_cap_exceeded"
	codeKeyInvalid  = "vault_key_invalid"
	codeKeyRevoked  = "vault_key_revoked"
	codeKeyReplaced = "vault_key_superseded"
	codeKeyExpired  = "vault_key_expired"
	codeForbidden   = "vault_endpoint_forbidden"
	codeNotPlain    = "vault_request_not_plain"
	codeUnavailable = "vault_unavailable"
)

const (
	typeInvalid     = "invalid_request_error"
	typeIdempotency = "idempotency_error"
	typeAPI         = "api_error"
)

func badRequest(message string) *refusal { return badParam("", message) }

func badParam(param, message string) *refusal {
	return &refusal{http.StatusBadRequest, typeInvalid, codeNotPlain, param, message}
}

func forbidden(message string) *refusal {
	return &refusal{http.StatusForbidden, typeInvalid, codeForbidden, "", message}
}

func unauthorized(code, message string) *refusal {
	return &refusal{http.StatusUnauthorized, typeInvalid, code, "", message}
}

// unavailable is the answer when nothing was forwarded because the proxy could
// not do its part.
func unavailable() *refusal {
	return &refusal{http.StatusServiceUnavailable, typeAPI, codeUnavailable, "",
		"The spend-cap proxy cannot reach its database; nothing was sent to Stripe."}
}

func (r *refusal) send(w http.ResponseWriter) {
	var body struct {
		Error struct {
			Type    string `json:"type"`
			Code    string `json:"code,omitempty"`
			Param   string `json:"param,omitempty"`
			Message string `json:"message"`
		} `json:"error"`
	}
	body.Error.Type, body.Error.Code, body.Error.Param, body.Error.Message = r.kind, r.code, r.param, r.message
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(r.status)
	_ = json.NewEncoder(w).Encode(body) // a client that has gone is its own affair
}
