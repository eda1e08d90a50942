package charges_test

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/charges"
)

// answer is what a server says. The body has %OBJECT:status% for a charge or
// intent of the slot with that status.
type answer struct {
	status int
	header http.Header
	body   string
	cut    bool // the connection ends before the body does
}

func (a answer) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	for name, values := range a.header {
		w.Header()[name] = values
	}
	w.Header().Set("Request-Id", "req_1")
	if a.status == 0 {
		panic(http.ErrAbortHandler)
	}
	if a.cut {
		w.Header().Set("Content-Length", "100000")
		w.WriteHeader(a.status)
		_, _ = io.WriteString(w, a.body)
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	w.WriteHeader(a.status)
	_, _ = io.WriteString(w, a.body)
}

func header(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(pairs); i += 2 {
		h.Set(pairs[i], pairs[i+1])
	}
	return h
}

func stripeErr(fields string) string { return `{"error":{"message":"Words.",` + fields + `}}` }

type judged struct {
	verdict charges.Verdict
	code    string
	retry   bool
	needs   bool // the customer
}

// The table "What to do with each answer", line by line, through the real
// client and over real HTTP, for both methods.
func TestCharge_judgesEveryAnswer(t *testing.T) {
	t.Parallel()
	const html = `<html><body><h1>502 Bad Gateway</h1></body></html>`
	replayed := header("Idempotent-Replayed", "true")
	paid := judged{charges.Paid, "", false, false}
	unknown := judged{charges.Unknown, "", true, false}
	stop := func(code string) judged { return judged{charges.Forbidden, code, false, false} }
	again := func(code string) judged { return judged{charges.NotExecuted, code, true, false} }
	declined := func(code string) judged { return judged{charges.Refused, code, false, false} }
	mend := func(code string) judged { return judged{charges.Refused, code, false, true} }
	never := func(code string) judged { return judged{charges.Impossible, code, false, false} }

	type row struct {
		name string
		a    answer
		want judged
	}
	rows := []row{
		{"succeeded", answer{status: 200, body: "%OBJECT:succeeded%"}, paid},
		{"succeeded, replayed", answer{status: 200, header: replayed, body: "%OBJECT:succeeded%"}, paid},
		{"not yet", answer{status: 200, body: "%OBJECT:PENDING%"}, judged{charges.Pending, "", false, false}},
		{"unknown status", answer{status: 200, body: "%OBJECT:frobnicated%"}, judged{charges.Unknown, "", false, false}},
		{"no status", answer{status: 200, body: "%OBJECT:%"}, judged{charges.Unknown, "", false, false}},

		{"200 cut off", answer{status: 200, body: `{"id":"ch_1","object":"charge","amou`, cut: true}, unknown},
		{"200 half a document", answer{status: 200, body: `{"id":"ch_1","object":"charge","amou`}, unknown},
		{"200 {}", answer{status: 200, body: `{}`}, unknown},
		{"200 null", answer{status: 200, body: `null`}, unknown},
		{"200 []", answer{status: 200, body: `[]`}, unknown},
		{"200 empty", answer{status: 200}, unknown},
		{"200 HTML", answer{status: 200, body: html}, unknown},
		{"200 a list", answer{status: 200, body: `{"object":"list","url":"/v1/charges","data":[],"has_more":false}`}, unknown},
		{"200 an error", answer{status: 200, body: stripeErr(`"type":"card_error"`)}, unknown},
		{"200 another's charge", answer{status: 200, body: `{"id":"ch_2","object":"charge","amount":1999,"currency":"usd","status":"succeeded","metadata":{"duesday_key":"0123"}}`}, unknown},
		{"200 without metadata", answer{status: 200, body: `{"id":"ch_2","object":"charge","amount":1999,"currency":"usd","status":"succeeded"}`}, unknown},
		{"200 another amount", answer{status: 200, body: "%OTHER-AMOUNT:succeeded%"}, unknown},
		{"200 another currency", answer{status: 200, body: "%OTHER-CURRENCY:succeeded%"}, unknown},
		{"200 without an id", answer{status: 200, body: `%NO-ID:succeeded%`}, unknown},
		{"202", answer{status: 202, body: html}, unknown},
		{"204", answer{status: 204}, unknown},
		{"301", answer{status: 301, header: header("Location", "/v1/elsewhere"), body: html}, unknown},
		{"302 {}", answer{status: 302, header: header("Location", "/v1/elsewhere"), body: `{}`}, unknown},
		{"307", answer{status: 307, header: header("Location", "/v1/elsewhere")}, unknown},
		{"308", answer{status: 308, header: header("Location", "/v1/elsewhere")}, unknown},

		{"401", answer{status: 401, body: stripeErr(`"type":"invalid_request_error"`)}, stop("")},
		{"401 HTML", answer{status: 401, body: html}, stop("")},
		{"401 empty", answer{status: 401}, stop("")},
		{"403", answer{status: 403, body: stripeErr(`"type":"invalid_request_error"`)}, stop("")},
		{"403 HTML", answer{status: 403, body: html}, stop("")},
		{"403 cut off", answer{status: 403, body: `{"err`, cut: true}, stop("")},
		{"spend cap", answer{status: 402, body: stripeErr(`"type":"invalid_request_error","code":"spend_cap_exceeded"`)}, stop("spend_cap_exceeded")},
		{"spend cap as a card error", answer{status: 402, body: stripeErr(`"type":"card_error","code":"spend_cap_exceeded"`)}, stop("spend_cap_exceeded")},

		{"429", answer{status: 429, body: stripeErr(`"type":"invalid_request_error","code":"rate_limit"`)}, again("rate_limit")},
		{"429 HTML", answer{status: 429, body: html}, again("")},
		{"429 lock timeout", answer{status: 429, body: stripeErr(`"type":"invalid_request_error","code":"lock_timeout"`)}, again("lock_timeout")},
		{"400 lock timeout", answer{status: 400, body: stripeErr(`"type":"invalid_request_error","code":"lock_timeout"`)}, again("lock_timeout")},
		{"409 in use", answer{status: 409, body: stripeErr(`"type":"invalid_request_error","code":"idempotency_key_in_use"`)}, again("idempotency_key_in_use")},
		{"409 in use, as an idempotency error", answer{status: 409, body: stripeErr(`"type":"idempotency_error","code":"idempotency_key_in_use"`)}, again("idempotency_key_in_use")},
		{"409 empty", answer{status: 409}, again("")},

		{"idempotency error", answer{status: 400, body: stripeErr(`"type":"idempotency_error"`)}, never("idempotency_error")},
		{"idempotency error with a code", answer{status: 400, body: stripeErr(`"type":"idempotency_error","code":"some"`)}, never("idempotency_error")},
		{"400", answer{status: 400, body: stripeErr(`"type":"invalid_request_error"`)}, never("invalid_request_error")},
		{"400 with a code", answer{status: 400, body: stripeErr(`"type":"invalid_request_error","code":"amount_too_small"`)}, never("amount_too_small")},
		{"404", answer{status: 404, body: stripeErr(`"type":"invalid_request_error","code":"resource_missing"`)}, never("resource_missing")},
		{"400 HTML", answer{status: 400, body: html}, unknown},
		{"400 {}", answer{status: 400, body: `{}`}, unknown},
		{"400 of no type", answer{status: 400, body: stripeErr(`"code":"x"`)}, judged{charges.Unknown, "x", true, false}},
		{"404 HTML", answer{status: 404, body: html}, unknown},
		{"404 empty", answer{status: 404}, unknown},
		{"405", answer{status: 405, body: html}, unknown},
		{"402 HTML", answer{status: 402, body: html}, unknown},
		{"402 cut off", answer{status: 402, body: `{"error":{"type":"card_er`, cut: true}, unknown},

		{"500", answer{status: 500, body: stripeErr(`"type":"api_error"`)}, unknown},
		{"500 with an odd type", answer{status: 500, body: stripeErr(`"type":"card_error","code":"card_declined"`)}, judged{charges.Unknown, "card_declined", true, false}},
		{"500 invalid request", answer{status: 500, body: stripeErr(`"type":"invalid_request_error"`)}, unknown},
		{"500 HTML", answer{status: 500, body: html}, unknown},
		{"500 replayed", answer{status: 500, header: replayed, body: stripeErr(`"type":"api_error"`)}, judged{charges.Unknown, "", false, false}},
		{"500 not to be retried", answer{status: 500, header: header("Stripe-Should-Retry", "false"), body: stripeErr(`"type":"api_error"`)}, judged{charges.Unknown, "", false, false}},
		{"500 to be retried", answer{status: 500, header: header("Stripe-Should-Retry", "true"), body: stripeErr(`"type":"api_error"`)}, unknown},
		{"502", answer{status: 502, body: html}, unknown},
		{"503", answer{status: 503, body: stripeErr(`"type":"api_error"`)}, unknown},
		{"504", answer{status: 504}, unknown},
		{"connection closed", answer{}, unknown},
	}
	for _, code := range []string{"insufficient_funds", "processing_error", "issuer_not_available", "try_again_later", "generic_decline", "do_not_honor"} {
		rows = append(rows, row{"402 " + code, answer{status: 402, body: stripeErr(`"type":"card_error","code":"card_declined","decline_code":"` + code + `","charge":"ch_9"`)}, declined(code)})
	}
	for _, code := range []string{"authentication_required", "lost_card", "stolen_card", "fraudulent", "pickup_card", "revocation_of_all_authorizations"} {
		rows = append(rows, row{"402 " + code, answer{status: 402, body: stripeErr(`"type":"card_error","code":"card_declined","decline_code":"` + code + `","charge":"ch_9"`)}, mend(code)})
	}
	rows = append(rows,
		row{"402 a code alone", answer{status: 402, body: stripeErr(`"type":"card_error","code":"processing_error"`)}, declined("processing_error")},
		row{"402 expired", answer{status: 402, body: stripeErr(`"type":"card_error","code":"expired_card"`)}, mend("expired_card")},
		row{"402 expired, declined for it", answer{status: 402, body: stripeErr(`"type":"card_error","code":"expired_card","decline_code":"generic_decline"`)}, mend("generic_decline")},
		row{"402 advised against", answer{status: 402, body: stripeErr(`"type":"card_error","code":"card_declined","decline_code":"do_not_honor","advice_code":"do_not_try_again"`)}, mend("do_not_honor")},
		row{"402 advised to try again", answer{status: 402, body: stripeErr(`"type":"card_error","code":"card_declined","decline_code":"do_not_honor","advice_code":"try_again_later"`)}, declined("do_not_honor")},
		row{"402 no source", answer{status: 402, body: stripeErr(`"type":"card_error","code":"missing","param":"customer"`)}, declined("missing")},
		row{"402 replayed", answer{status: 402, header: replayed, body: stripeErr(`"type":"card_error","code":"card_declined","decline_code":"do_not_honor"`)}, declined("do_not_honor")},
		row{"402 of another type", answer{status: 402, body: stripeErr(`"type":"invalid_request_error","code":"payment_intent_payment_attempt_failed"`)}, declined("payment_intent_payment_attempt_failed")},
		row{"400 card error", answer{status: 400, body: stripeErr(`"type":"card_error","code":"incorrect_number"`)}, mend("incorrect_number")},
	)

	for _, method := range methods() {
		for _, tc := range rows {
			t.Run(string(method)+"/"+tc.name, func(t *testing.T) {
				t.Parallel()
				slot := slotFor(method, "cus_1")
				a := tc.a
				a.body = fillObject(slot, a.body)
				server := serve(t, a)
				out := newGateway(t, server.url).Charge(t.Context(), slot)

				require.Equal(t, tc.want, judged{out.Verdict, out.FailureCode, out.Retry, out.NeedsCustomer}, "%v", out.Err)
				require.Equal(t, a.status == 429, out.Throttled)
				require.Equal(t, a.header.Get("Idempotent-Replayed") == "true", out.Replayed)
				if a.status != 0 {
					require.Equal(t, "req_1", out.RequestID)
				}
				ok := out.Verdict == charges.Paid || out.Verdict == charges.Pending
				require.Equal(t, ok, out.Err == nil, "%v", out.Err)
				if ok {
					require.Equal(t, "ch_1", out.ChargeID)
				} else {
					require.NotContains(t, out.Err.Error(), apiKey)
					require.NotContains(t, out.Err.Error(), "Words.", "Stripe's own text is not for logs")
				}
				if strings.Contains(a.body, `"charge":"ch_9"`) {
					require.Equal(t, "ch_9", out.ChargeID)
				}
				require.Len(t, server.seen(), 1, "one request, whatever the answer")
			})
		}
	}
}

// fillObject puts the slot's charge or intent in a body.
func fillObject(slot *charges.Slot, body string) string {
	pending := "pending"
	if slot.Method == charges.MethodPaymentIntents {
		pending = "processing"
	}
	body = strings.ReplaceAll(body, "PENDING", pending)
	other, id := *slot, "ch_1"
	for _, prefix := range []string{"%OBJECT:", "%OTHER-AMOUNT:", "%OTHER-CURRENCY:", "%NO-ID:"} {
		_, rest, ok := strings.Cut(body, prefix)
		if !ok {
			continue
		}
		switch prefix {
		case "%OTHER-AMOUNT:":
			other.Amount++
		case "%OTHER-CURRENCY:":
			other.Currency = "eur"
		case "%NO-ID:":
			id = ""
		}
		return object(&other, id, strings.TrimSuffix(rest, "%"), "")
	}
	return body
}

// The words of a refusal say which of key and address is the wrong one.
func TestCharge_aRefusedKey(t *testing.T) {
	t.Parallel()
	const toProxy, asProxy = "STRIPE_API_BASE names a spend-cap proxy: say --vault-url", "does STRIPE_API_BASE name the spend-cap proxy"
	invalid, stripes := stripeErr(`"type":"invalid_request_error","code":"vault_key_invalid"`), stripeErr(`"type":"invalid_request_error"`)
	for name, tc := range map[string]struct{ key, body, want string }{
		"Stripe's key at the proxy": {apiKey, invalid, "stripe: HTTP 401 invalid_request_error vault_key_invalid (request req_1); " + toProxy + " too, for a key that it knows"},
		"a vault key at Stripe":     {"vk_secret", stripes, "stripe: HTTP 401 invalid_request_error (request req_1); " + asProxy + ", and is the proxy's own key right?"},
		"an old vault key":          {"vk_secret", invalid, "stripe: HTTP 401 invalid_request_error vault_key_invalid (request req_1)"},
		"Stripe's key at Stripe":    {apiKey, stripes, "stripe: HTTP 401 invalid_request_error (request req_1)"},
	} {
		server := serve(t, answer{status: 401, body: tc.body})
		g := configured(t, charges.GatewayConfig{APIKey: tc.key, BaseURL: server.url, Workers: 1, Timeout: 10 * time.Second})
		out := g.Charge(t.Context(), slotFor(charges.MethodCharges, "cus_1"))
		require.Equal(t, charges.Forbidden, out.Verdict, name)
		require.EqualError(t, out.Err, tc.want, name)
	}
	server := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(401)
		_, _ = io.WriteString(w, stripes)
	}))
	out := newGateway(t, server.url).Charge(t.Context(), slotFor(charges.MethodCharges, "cus_1"))
	require.EqualError(t, out.Err, "stripe: HTTP 401 invalid_request_error", "no request id, no brackets")
}

func TestCharge_judgesAnIntentsStatus(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		status, more string
		want         judged
	}{
		"needs authentication": {"requires_action", "", judged{charges.Refused, "authentication_required", false, true}},
		"was not confirmed":    {"requires_confirmation", "", judged{charges.Refused, "authentication_required", false, true}},
		"declined": {"requires_payment_method", `,"last_payment_error":{"type":"card_error","code":"card_declined","decline_code":"insufficient_funds","message":"No money."}`,
			judged{charges.Refused, "insufficient_funds", false, false}},
		"declined, expired": {"requires_payment_method", `,"last_payment_error":{"type":"card_error","code":"expired_card","message":"Old."}`,
			judged{charges.Refused, "expired_card", false, true}},
		"declined, expired, declined for it": {"requires_payment_method", `,"last_payment_error":{"type":"card_error","code":"expired_card","decline_code":"generic_decline"}`,
			judged{charges.Refused, "generic_decline", false, true}},
		"no reason":        {"requires_payment_method", "", judged{charges.Refused, "requires_payment_method", false, false}},
		"cancelled":        {"canceled", "", judged{charges.Refused, "canceled", false, true}},
		"to be captured":   {"requires_capture", "", judged{charges.Unknown, "", false, false}},
		"still processing": {"processing", "", judged{charges.Pending, "", false, false}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			slot := slotFor(charges.MethodPaymentIntents, "cus_1")
			server := serve(t, answer{status: 200, body: object(slot, "pi_1", tc.status, tc.more)})
			out := newGateway(t, server.url).Charge(t.Context(), slot)
			require.Equal(t, tc.want, judged{out.Verdict, out.FailureCode, out.Retry, out.NeedsCustomer}, "%v", out.Err)
			require.Equal(t, "pi_1", out.ChargeID)
		})
	}
}

func TestCharge_judgesAFailedCharge(t *testing.T) {
	t.Parallel()
	slot := slotFor(charges.MethodCharges, "cus_1")
	server := serve(t, answer{status: 200, body: object(slot, "ch_1", "failed",
		`,"failure_code":"card_declined","failure_message":"No.","outcome":{"reason":"lost_card"}`)})
	out := newGateway(t, server.url).Charge(t.Context(), slot)
	require.Equal(t, judged{charges.Refused, "lost_card", false, true}, judged{out.Verdict, out.FailureCode, out.Retry, out.NeedsCustomer})
	require.Equal(t, "No.", out.FailureMessage)
}

func TestCharge_anIntentsDeclineNamesTheIntent(t *testing.T) {
	t.Parallel()
	server := serve(t, answer{status: 402, body: stripeErr(`"type":"card_error","code":"card_declined","charge":"ch_9","payment_intent":{"id":"pi_9","object":"payment_intent"}`)})
	out := newGateway(t, server.url).Charge(t.Context(), slotFor(charges.MethodPaymentIntents, "cus_1"))
	require.Equal(t, charges.Refused, out.Verdict)
	require.Equal(t, "pi_9", out.ChargeID)
	require.Equal(t, "Words.", out.FailureMessage)
}

func TestCharge_retryAfter(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]time.Duration{
		"3": 3 * time.Second, "60": time.Minute, "0": 0, "61": 0, "-1": 0, "": 0, "soon": 0, "Wed, 21 Oct 2026 07:28:00 GMT": 0,
	} {
		server := serve(t, answer{status: 429, header: header("Retry-After", value)})
		out := newGateway(t, server.url).Charge(t.Context(), slotFor(charges.MethodCharges, "cus_1"))
		require.Equal(t, want, out.RetryAfter, value)
	}
}

func TestCharge_connectionRefusedDidNothing(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	url := "http://" + l.Addr().String()
	require.NoError(t, l.Close())
	for _, method := range methods() {
		out := newGateway(t, url).Charge(t.Context(), slotFor(method, "cus_1"))
		require.Equal(t, charges.NotExecuted, out.Verdict, "%v", out.Err)
		require.True(t, out.Retry)
	}
}

func TestCharge_aResetIsInDoubt(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 1))
			_ = conn.(*net.TCPConn).SetLinger(0) // closing sends a reset
			_ = conn.Close()
		}
	}()
	for _, method := range methods() {
		out := newGateway(t, "http://"+l.Addr().String()).Charge(t.Context(), slotFor(method, "cus_1"))
		require.Equal(t, charges.Unknown, out.Verdict, "%v", out.Err)
		require.True(t, out.Retry)
	}
	require.NoError(t, l.Close())
	<-done
}

func TestCharge_aTimeoutIsInDoubt(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(http.ResponseWriter){
		"no answer": func(http.ResponseWriter) {},
		"a body that does not end": func(w http.ResponseWriter) {
			_, _ = w.Write([]byte(`{"id":`))
			_ = http.NewResponseController(w).Flush()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			release := make(chan struct{})
			server := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				begin(w)
				<-release
			}))
			t.Cleanup(func() { close(release) })
			g := configured(t, charges.GatewayConfig{APIKey: apiKey, BaseURL: server.url, Workers: 1, Timeout: 50 * time.Millisecond})
			for _, method := range methods() {
				out := g.Charge(t.Context(), slotFor(method, "cus_1"))
				require.Equal(t, charges.Unknown, out.Verdict)
				require.True(t, out.Retry)
			}
		})
	}
}

func TestOutcome_settlesOnlyWhatIsKnown(t *testing.T) {
	t.Parallel()
	for verdict, status := range map[charges.Verdict]charges.Status{
		charges.Unknown: "", charges.NotExecuted: "", charges.Forbidden: "",
		charges.Paid: charges.Succeeded, charges.Pending: charges.Processing, charges.Refused: charges.Declined, charges.Impossible: charges.Rejected,
	} {
		out := charges.Outcome{Verdict: verdict, ChargeID: "ch_1", FailureCode: "c", FailureMessage: "m", RequestID: "r", NeedsCustomer: true}
		require.Equal(t, status != "", out.Settles(), verdict.String())
		require.Equal(t, charges.Settlement{Key: "k", Status: status, ChargeID: "ch_1", FailureCode: "c", FailureMessage: "m", RequestID: "r", NeedsCustomer: true}, out.Settlement("k"))
	}
}
