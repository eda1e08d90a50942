package stripesim

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

const (
	maxAmount        = 99_999_999
	minAmountUSD     = 50
	maxMetadata      = 50
	maxMetadataName  = 40
	maxMetadataValue = 500
	maxText          = 5000
)

// form validates parameters; the first that does not validate is its answer.
type form struct {
	values url.Values
	bad    *reply
}

// newForm checks the names: top-level ones against known, and those in brackets
// against nested (nil: any).
func newForm(values url.Values, known []string, nested map[string][]string) *form {
	f := &form{values: values}
	for name, vs := range values {
		top, sub, bracketed := strings.Cut(name, "[")
		sub = strings.TrimSuffix(sub, "]")
		subs, isMap := nested[top]
		switch {
		case !slices.Contains(known, top),
			isMap && bracketed && subs != nil && !slices.Contains(subs, sub):
			f.refuse("parameter_unknown", name, "Received unknown parameter: %s", name)
		case isMap && !bracketed && vs[0] != "" && top != "created": // which takes a number, too
			f.refuse("", name, "Invalid object: %s", name)
		case !isMap && bracketed:
			f.refuse("", name, "Invalid string: %s", name)
		case len(vs) > 1 && !bracketed:
			f.refuse("", name, "Parameter given more than once: %s", name)
		}
	}
	return f
}

// collections are the bracketed parameters of all endpoints.
func collections(more ...string) map[string][]string {
	m := map[string][]string{"metadata": nil, "expand": nil}
	for _, name := range more {
		m[name] = nil
	}
	return m
}

func (f *form) refuse(code, param, format string, args ...any) {
	if f.bad == nil {
		f.bad = invalid(code, param, fmt.Sprintf(format, args...))
	}
}

func (f *form) text(name string, limit int) string {
	v := f.values.Get(name)
	if len(v) > limit {
		f.refuse("", name, "Invalid string: %s must be at most %d characters", name, limit)
	}
	return v
}

func (f *form) boolean(name string) bool {
	switch v := f.values.Get(name); v {
	case "true":
		return true
	case "", "false":
	default:
		f.refuse("", name, "Invalid boolean: %s", v)
	}
	return false
}

func (f *form) integer(name string, fallback int64) int64 {
	v := f.values.Get(name)
	if v == "" {
		return fallback
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil {
		f.refuse("parameter_invalid_integer", name, "Invalid integer: %s", v)
	}
	return n
}

// amount returns amount and currency.
func (f *form) amount() (int64, string) {
	for _, name := range []string{"amount", "currency"} {
		if f.values.Get(name) == "" {
			f.refuse("parameter_missing", name, "Missing required param: %s.", name)
		}
	}
	n, currency := f.integer("amount", 0), f.values.Get("currency")
	switch {
	case !strings.Contains(currencies, " "+currency+" "):
		f.refuse("", "currency", "Invalid currency: %s.", currency)
	case n < 1:
		f.refuse("parameter_invalid_integer", "amount", "This value must be greater than or equal to 1.")
	case n > maxAmount:
		f.refuse("amount_too_large", "amount", "Amount must be no more than 99999999.")
	case currency == "usd" && n < minAmountUSD:
		f.refuse("amount_too_small", "amount", "Amount must be at least $0.50 usd.")
	case n%roundTo(currency) != 0:
		f.refuse("invalid_charge_amount", "amount", "Invalid amount for %s: must be a multiple of %d.", currency, roundTo(currency))
	}
	return n, currency
}

// roundTo is what amounts must be a multiple of. Stripe bills ISK and UGX as
// if they had cents, and three-decimal currencies to two decimals.
func roundTo(currency string) int64 {
	switch currency {
	case "isk", "ugx":
		return 100
	case "bhd", "jod", "kwd", "omr", "tnd":
		return 10
	}
	return 1
}

func (f *form) metadata() map[string]string {
	m := make(map[string]string)
	for name, vs := range f.values {
		key, ok := strings.CutPrefix(name, "metadata[")
		if !ok {
			continue
		}
		key = strings.TrimSuffix(key, "]")
		switch {
		case key == "" || len([]rune(key)) > maxMetadataName || strings.ContainsAny(key, "[]"):
			f.refuse("", name, "Invalid metadata key: at most %d characters, no brackets.", maxMetadataName)
		case len([]rune(vs[0])) > maxMetadataValue:
			f.refuse("", name, "Metadata values can have up to %d characters.", maxMetadataValue)
		case vs[0] != "": // an empty value means: no such key
			m[key] = vs[0]
		}
	}
	if len(m) > maxMetadata {
		f.refuse("", "metadata", "Metadata can have up to %d keys.", maxMetadata)
	}
	return m
}

// customer checks a customer that is to pay; the caller holds no lock.
func (f *form) customer(s *Sim) string {
	id := f.values.Get("customer")
	if id == "" {
		return ""
	}
	s.mu.Lock()
	missing := s.behaviour(id).Missing
	s.mu.Unlock()
	if missing || !sane(id) {
		f.refuse("resource_missing", "customer", "No such customer: '%s'", id)
	}
	return id
}

// sane is the shape of identifiers that Stripe or a team of old might use.
func sane(id string) bool {
	if len(id) > 255 {
		return false
	}
	for _, c := range []byte(id) {
		if !strings.ContainsRune("_-.@", rune(c)) && !(c >= '0' && c <= '9') && !(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z') {
			return false
		}
	}
	return true
}

// currencies are the presentment currencies of Stripe.
const currencies = " usd aed afn all amd ang aoa ars aud awg azn bam bbd bdt bgn bhd bif bmd bnd bob brl bsd bwp byn bzd" +
	" cad cdf chf clp cny cop crc cve czk djf dkk dop dzd egp etb eur fjd fkp gbp gel gip gmd gnf gtq gyd" +
	" hkd hnl hrk htg huf idr ils inr isk jmd jod jpy kes kgs khr kmf krw kwd kyd kzt lak lbp lkr lrd lsl" +
	" mad mdl mga mkd mmk mnt mop mur mvr mwk mxn myr mzn nad ngn nio nok npr nzd omr pab pen pgk php pkr pln pyg" +
	" qar ron rsd rub rwf sar sbd scr sek sgd shp sle sos srd std szl thb tjs tnd top try ttd twd tzs" +
	" uah ugx uyu uzs vnd vuv wst xaf xcd xof xpf yer zar zmw "
