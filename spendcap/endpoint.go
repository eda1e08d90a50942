package spendcap

import (
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// Endpoint names a call of Stripe's API, as in "POST /v1/charges". A vault key
// carries the ones that it may make.
type Endpoint string

// The endpoints that a vault key can be allowed. There are no others: nothing
// that captures, confirms, refunds or pays out.
const (
	CreateCharge   Endpoint = "POST /v1/charges"
	ListCharges    Endpoint = "GET /v1/charges"
	SearchCharges  Endpoint = "GET /v1/charges/search"
	RetrieveCharge Endpoint = "GET /v1/charges/{id}"
	CreateIntent   Endpoint = "POST /v1/payment_intents"
	ListIntents    Endpoint = "GET /v1/payment_intents"
	SearchIntents  Endpoint = "GET /v1/payment_intents/search"
	RetrieveIntent Endpoint = "GET /v1/payment_intents/{id}"
	CancelIntent   Endpoint = "POST /v1/payment_intents/{id}/cancel"
)

// Endpoints returns all endpoints, what a vault key is allowed by default.
func Endpoints() []Endpoint {
	return []Endpoint{CreateCharge, ListCharges, SearchCharges, RetrieveCharge,
		CreateIntent, ListIntents, SearchIntents, RetrieveIntent, CancelIntent}
}

// creates reports whether the endpoint makes a new charge.
func (e Endpoint) creates() bool { return e == CreateCharge || e == CreateIntent }

// target is what may stand in a request's first line. No byte in it can be
// escaped, repeated or resolved to something else by a server further on.
var target = regexp.MustCompile(`^/v1/(?:charges|payment_intents)(?:/[A-Za-z0-9_]+)?(?:/cancel)?$`)

// An identifier that Stripe makes. "search" and "cancel" are none.
var objectID = regexp.MustCompile(`^(?:ch|py|pi)_[A-Za-z0-9_]{1,250}$`)

// endpointOf reads the request line as the client wrote it. ok is false for
// everything that is not exactly one of the endpoints: other paths, but also
// other spellings of theirs.
func endpointOf(method, requestURI string) (e Endpoint, query string, ok bool) {
	path, query, _ := strings.Cut(requestURI, "?")
	if !target.MatchString(path) {
		return "", "", false
	}
	parts := strings.Split(strings.TrimPrefix(path, "/v1/"), "/")
	switch e = Endpoint(method + " /v1/" + parts[0]); len(parts) {
	case 2:
		switch {
		case parts[1] == "search":
			e += "/search"
		case objectID.MatchString(parts[1]):
			e += "/{id}"
		default:
			return "", "", false
		}
	case 3:
		if !objectID.MatchString(parts[1]) {
			return "", "", false
		}
		e += "/{id}/cancel"
	}
	return e, query, slices.Contains(Endpoints(), e)
}

// overrides are headers by which frameworks let a request be another than its
// first line says.
var overrides = []string{
	"X-Http-Method-Override", "X-Http-Method", "X-Method-Override", "X-Method",
	"X-Original-Url", "X-Rewrite-Url", "X-Original-Method",
}

// overridden reports whether the request asks to be read as another one.
func overridden(h http.Header) bool {
	return slices.ContainsFunc(overrides, func(name string) bool { return h[name] != nil })
}

// checkQuery refuses a query string that two parsers could read differently,
// and options that belong in headers.
func checkQuery(query string) *refusal {
	if len(query) > maxQuery {
		return badRequest("The query string is too long.")
	}
	for _, pair := range strings.Split(query, "&") {
		raw, value, _ := strings.Cut(pair, "=")
		name, err := url.QueryUnescape(raw)
		if err != nil || !plain(pair) {
			return badRequest("The query string is not plainly form-encoded.")
		}
		if _, err := url.QueryUnescape(value); err != nil {
			return badRequest("The query string is not plainly form-encoded.")
		}
		if root(name) == "_method" {
			return forbidden("The method cannot be overridden.")
		}
		if name != "" && !allowedName(name) {
			return badRequest("The query string has a parameter that is not plain.")
		}
	}
	return nil
}

const maxQuery = 8 << 10
