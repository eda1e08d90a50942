package spendcap

import (
	"crypto/sha256"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxBody is more than Stripe's own limits on metadata can fill.
const maxBody = 256 << 10

// form is a body that every parser reads alike.
type form struct {
	params []param // in the order of the body
}

type param struct{ name, rawName, value, rawValue string }

// parseForm reads a body. It refuses what frameworks are known to read in more
// than one way: semicolons (Rack once took them for &), names that begin with a
// bracket (Rack reads [amount as amount), a parameter given twice, options in
// parameters that begin with an underscore.
func parseForm(body []byte) (form, *refusal) {
	var f form
	if len(body) == 0 {
		return f, nil
	}
	seen := make(map[string]bool)
	for pair := range strings.SplitSeq(string(body), "&") {
		rawName, rawValue, found := strings.Cut(pair, "=")
		name, nameErr := url.QueryUnescape(rawName)
		value, valueErr := url.QueryUnescape(rawValue)
		if !found || nameErr != nil || valueErr != nil || !plain(pair) || strings.ContainsRune(value, 0) || !utf8.ValidString(value) {
			return form{}, badRequest("The body is not plainly form-encoded.")
		}
		if root(name) == "_method" {
			return form{}, forbidden("The method cannot be overridden.")
		}
		if !allowedName(name) {
			return form{}, badRequest("The body has a parameter that is not plain.")
		}
		if seen[name] && !strings.HasSuffix(name, "[]") {
			return form{}, badRequest("The body has a parameter twice.")
		}
		seen[name] = true
		f.params = append(f.params, param{name, rawName, value, rawValue})
	}
	return f, nil
}

// plain reports whether s holds only bytes that clients leave in form-encoded
// text.
func plain(s string) bool {
	for _, c := range []byte(s) {
		switch {
		case c >= '0' && c <= '9', c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z':
		case strings.IndexByte("-_.~*+%[]=!'(),:/@$", c) >= 0:
		default:
			return false
		}
	}
	return true
}

// parameter is a name, perhaps with keys in brackets.
var parameter = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_]*(?:\[[^\[\]\x00-\x1f\x7f]*\])*$`)

// allowedName refuses malformed names, and the ones that carry what belongs in
// a header: credentials, the account, the method.
func allowedName(name string) bool {
	if !parameter.MatchString(name) || !utf8.ValidString(name) {
		return false
	}
	switch strings.ToLower(root(name)) {
	case "key", "api_key", "stripe_account", "stripe_version":
		return false
	}
	return true
}

// root is the name before the first bracket, as the laxest parser finds it.
func root(name string) string {
	name = strings.TrimLeft(name, "[] ")
	if i := strings.IndexAny(name, "[] "); i >= 0 {
		name = name[:i]
	}
	return name
}

var (
	plainAmount   = regexp.MustCompile(`^[1-9][0-9]{0,11}$`)
	plainCurrency = regexp.MustCompile(`^[a-z]{3}$`)
)

// money returns what the body asks to be charged. Both fields must be there
// once, spelled without escapes: no sign, no exponent, no leading zero (some
// read it as octal), no brackets.
func (f form) money() (amount int64, currency string, bad *refusal) {
	for _, p := range f.params {
		switch strings.ToLower(root(p.name)) {
		case "amount":
			if p.rawName != "amount" || !plainAmount.MatchString(p.rawValue) {
				return 0, "", badParam("amount", "The amount must be given once, as plain decimal digits.")
			}
			n, err := strconv.ParseInt(p.rawValue, 10, 64)
			if err != nil {
				return 0, "", badParam("amount", "The amount must be given once, as plain decimal digits.")
			}
			amount = n
		case "currency":
			if p.rawName != "currency" || !plainCurrency.MatchString(p.rawValue) {
				return 0, "", badParam("currency", "The currency must be given once, as three lower-case letters.")
			}
			currency = p.rawValue
		}
	}
	if amount == 0 {
		return 0, "", badParam("amount", "Missing required param: amount.")
	}
	if currency == "" {
		return 0, "", badParam("currency", "Missing required param: currency.")
	}
	return amount, currency, nil
}

// fingerprint tells one request from another under the same idempotency key.
// The order of parameters and their escaping do not matter, as they do not to
// Stripe; the account does, since keys are per account.
func (f form) fingerprint(e Endpoint, h http.Header) []byte {
	lines := make([]string, 0, len(f.params)+3)
	for _, p := range f.params {
		lines = append(lines, url.QueryEscape(p.name)+"="+url.QueryEscape(p.value))
	}
	slices.Sort(lines)
	lines = append(lines, string(e),
		url.QueryEscape(strings.Join(h.Values("Stripe-Account"), ",")),
		url.QueryEscape(strings.Join(h.Values("Stripe-Context"), ",")))
	sum := sha256.Sum256([]byte(strings.Join(lines, "\n")))
	return sum[:]
}

// formEncoded checks that the body is what its bytes say, and nothing else.
func formEncoded(h http.Header) *refusal {
	switch types := h.Values("Content-Type"); {
	case len(types) != 1:
		return badRequest("Want one Content-Type, application/x-www-form-urlencoded.")
	default:
		kind, rest, _ := strings.Cut(strings.ToLower(types[0]), ";")
		rest = strings.TrimSpace(rest)
		if strings.TrimSpace(kind) != "application/x-www-form-urlencoded" || (rest != "" && rest != "charset=utf-8") {
			return badRequest("The content type must be application/x-www-form-urlencoded.")
		}
	}
	if h["Content-Encoding"] != nil {
		return badRequest("The body must not be compressed.")
	}
	return nil
}
