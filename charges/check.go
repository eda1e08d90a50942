package charges

import (
	"errors"
	"strings"
	"unicode/utf8"
)

// MaxAmount is the largest amount that Stripe takes in most currencies, in the
// currency's smallest unit.
const MaxAmount = 99_999_999

// currencies are those that Stripe charges in.
const currencies = `aed afn all amd ang aoa ars aud awg azn bam bbd bdt bgn bhd bif bmd bnd bob brl bsd bwp byn bzd
	cad cdf chf clp cny cop crc cve czk djf dkk dop dzd egp etb eur fjd fkp gbp gel gip gmd gnf gtq gyd hkd hnl htg
	huf idr ils inr isk jmd jod jpy kes kgs khr kmf krw kwd kyd kzt lak lbp lkr lrd lsl mad mdl mga mkd mmk mnt mop
	mur mvr mwk mxn myr mzn nad ngn nio nok npr nzd omr pab pen pgk php pkr pln pyg qar ron rsd rub rwf sar sbd scr
	sek sgd shp sle sos srd std szl thb tjs tnd top try ttd twd tzs uah ugx usd uyu uzs vnd vuv wst xaf xcd xcg xof
	xpf yer zar zmw`

var currencyList = "'" + strings.Join(strings.Fields(currencies), "','") + "'"

// Reject codes: why a due is never sent. They stand in dues.reject_code and in
// charges.failure_code.
const (
	rejectCustomerIDMissing     = "customer_id_missing"
	rejectCustomerIDInvalid     = "customer_id_invalid"
	rejectCustomerIDTooLong     = "customer_id_too_long"
	rejectStripeCustomerInvalid = "stripe_customer_id_invalid"
	rejectPaymentMethodInvalid  = "payment_method_invalid"
	rejectPaymentMethodMissing  = "payment_method_missing"
	rejectAmountMissing         = "amount_missing"
	rejectAmountNotPositive     = "amount_not_positive"
	rejectAmountTooLarge        = "amount_too_large"
	rejectCurrencyMissing       = "currency_missing"
	rejectCurrencyNotLower      = "currency_not_lower_case"
	rejectCurrencyUnknown       = "currency_unknown"
)

// RejectReasons explains each reject code to a person.
var rejectReasons = map[string]string{
	rejectCustomerIDMissing:     "id is null or empty",
	rejectCustomerIDInvalid:     "id has a character other than printable ASCII, or a space, quote, colon or backslash",
	rejectCustomerIDTooLong:     "id is longer than 254 characters",
	rejectStripeCustomerInvalid: "stripe_customer_id is not a plain id like cus_NffrFeUfNV2Hib",
	rejectPaymentMethodInvalid:  "payment_method is not a plain id like pm_1MqLiJLkdIwHu7ixUEgbFdYF",
	rejectPaymentMethodMissing:  "payment_method is null, and PaymentIntents need one",
	rejectAmountMissing:         "amount is null",
	rejectAmountNotPositive:     "amount is zero or negative",
	rejectAmountTooLarge:        "amount is above 99999999, Stripe's maximum",
	rejectCurrencyMissing:       "currency is null or empty",
	rejectCurrencyNotLower:      "currency is not in lower case",
	rejectCurrencyUnknown:       "currency is not one that Stripe charges in",
}

// RejectReason explains a reject code, or returns it as it is.
func RejectReason(code string) string {
	if reason, ok := rejectReasons[code]; ok {
		return reason
	}
	return code
}

// plainID is a condition on a text: 1 to 254 printable ASCII characters, no
// space, quote, colon or backslash. Stripe's ids keep to that, and so do those
// that a team gave its customers at Stripe. A colon would make a key ambiguous.
func plainID(column string) string {
	return idLength(column) + " AND " + plainChars(column)
}

func idLength(column string) string { return "octet_length(" + column + ") BETWEEN 1 AND 254" }

// plainChars looks at the characters alone: one expression with {1,254} would
// cost fifty times as much.
func plainChars(column string) string {
	return "(" + column + `) COLLATE "C" !~ '[^!#-&(-9;-[\]-_a-~]'`
}

// CheckCustomerID returns why no customer with this id would ever be charged,
// as rejectSQL decides it; nil if one could be.
func CheckCustomerID(id string) error {
	code := ""
	switch {
	case id == "":
		code = rejectCustomerIDMissing
	case utf8.RuneCountInString(id) > 254:
		code = rejectCustomerIDTooLong
	case strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune("\"':\\`", r) }):
		code = rejectCustomerIDInvalid
	default:
		return nil
	}
	return errors.New(RejectReason(code))
}

// fineSQL is true of a due that can be sent, which nearly all can: one look at
// each column, where the reasons against it take three. The ids' characters are
// looked at together, since a regular expression costs most before its first.
var fineSQL = idLength("id") + `
	AND (stripe_customer_id IS NULL OR ` + idLength("stripe_customer_id") + `)
	AND (CASE WHEN payment_method IS NULL THEN stripe_method <> '` + string(MethodPaymentIntents) + `' ELSE ` + idLength("payment_method") + ` END)
	AND ` + plainChars("id || coalesce(stripe_customer_id || payment_method, stripe_customer_id, payment_method, '')") + `
	AND amount BETWEEN 1 AND 99999999
	AND currency IN (` + currencyList + `)`

// tooLongSQL is true of an id that is too long to be sent. Octets are counted
// first since that takes no time.
const tooLongSQL = `octet_length(id) > 254 AND length(id) > 254`

// rejectTooLongSQL is the part of rejectSQL that cannot be decided any more once
// a due is frozen; see storedID.
const rejectTooLongSQL = `CASE WHEN ` + tooLongSQL + ` THEN '` + rejectCustomerIDTooLong + `' END`

// rejectSQL decides about a due, the same way for plan, opening and reopening:
// null if it can be sent, else a reject code. It reads the columns id,
// stripe_customer_id, payment_method, amount, currency and stripe_method.
var rejectSQL = `CASE
	WHEN ` + fineSQL + ` THEN NULL
	WHEN coalesce(id, '') = '' THEN '` + rejectCustomerIDMissing + `'
	WHEN ` + tooLongSQL + ` THEN '` + rejectCustomerIDTooLong + `'
	WHEN NOT (` + plainID("id") + `) THEN '` + rejectCustomerIDInvalid + `'
	WHEN NOT (` + plainID("coalesce(stripe_customer_id, id)") + `) THEN '` + rejectStripeCustomerInvalid + `'
	WHEN NOT (` + plainID("payment_method") + `) THEN '` + rejectPaymentMethodInvalid + `'
	WHEN payment_method IS NULL AND stripe_method = '` + string(MethodPaymentIntents) + `' THEN '` + rejectPaymentMethodMissing + `'
	WHEN amount IS NULL THEN '` + rejectAmountMissing + `'
	WHEN amount <= 0 THEN '` + rejectAmountNotPositive + `'
	WHEN amount > 99999999 THEN '` + rejectAmountTooLarge + `'
	WHEN coalesce(currency, '') = '' THEN '` + rejectCurrencyMissing + `'
	WHEN currency <> lower(currency COLLATE "C") THEN '` + rejectCurrencyNotLower + `'
	WHEN currency NOT IN (` + currencyList + `) THEN '` + rejectCurrencyUnknown + `'
END`
