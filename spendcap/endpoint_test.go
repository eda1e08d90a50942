package spendcap

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestEndpointOf(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]Endpoint{
		"POST /v1/charges":                       CreateCharge,
		"POST /v1/charges?amount=1":              CreateCharge,
		"GET /v1/charges":                        ListCharges,
		"GET /v1/charges?customer=cus_1&limit=3": ListCharges,
		"GET /v1/charges/search?query=x":         SearchCharges,
		"GET /v1/charges/ch_1Abc":                RetrieveCharge,
		"GET /v1/charges/py_1Abc":                RetrieveCharge,
		"POST /v1/payment_intents":               CreateIntent,
		"GET /v1/payment_intents":                ListIntents,
		"GET /v1/payment_intents/search?query=x": SearchIntents,
		"GET /v1/payment_intents/pi_1":           RetrieveIntent,
		"POST /v1/payment_intents/pi_1/cancel":   CancelIntent,
	} {
		method, uri, _ := strings.Cut(line, " ")
		got, _, ok := endpointOf(method, uri)
		require.True(t, ok, line)
		require.Equal(t, want, got, line)
	}
}

// foreign are request lines that no vault key may get through.
var foreign = []string{
	// other endpoints
	"POST /v1/refunds", "POST /v1/payouts", "POST /v1/transfers", "GET /v1/balance", "GET /v1/customers", "GET /",
	"POST /v1/charges/ch_1/capture", "POST /v1/charges/ch_1/refund", "POST /v1/charges/ch_1", "POST /v1/charges/search",
	"POST /v1/payment_intents/pi_1/confirm", "POST /v1/payment_intents/pi_1/capture", "POST /v1/payment_intents/pi_1",
	"POST /v1/payment_intents/cancel", "POST /v1/charges/ch_1/cancel", "GET /v1/payment_intents/pi_1/cancel",
	"POST /v1/payment_intents/search", "POST /v1/payment_intents/search/cancel", "GET /v1/charges/ch_1/refunds",
	"POST /v2/charges", "POST /v1/charge", "POST /v1/chargesx", "POST /charges", "GET /v1/charges/cancel",
	"DELETE /v1/charges/ch_1", "PUT /v1/charges", "PATCH /v1/charges", "HEAD /v1/charges", "OPTIONS /v1/charges", "post /v1/charges", "QUERY /v1/charges",
	// other spellings
	"POST //v1/charges", "POST /v1//charges", "POST /v1/charges/", "POST /v1/charges//", "POST /v1/./charges", "POST /./v1/charges",
	"POST /v1/../v1/payouts", "POST /v1/charges/../payouts", "POST /v1/payouts/../charges", "POST /v1/charges/..", "POST /v1/charges/.",
	"POST /v1%2fcharges", "POST /v1/%63harges", "POST /v1/charges%2f..%2fpayouts", "POST /v1/charges%2Fch_1%2Frefund", "POST /%76%31/charges",
	"POST /v1/charges%00", "POST /v1/charges%20", "POST /v1/charges;x=1", "POST /v1/charges;", "POST /v1/charges.json", "POST /V1/charges", "POST /v1/Charges",
	"POST /v1\\charges", "POST /v1/charges\\..\\payouts", "GET /v1/charges/ch_1%2frefunds", "GET /v1/charges/ch_1/..", "GET /v1/charges/ch-1", "GET /v1/charges/ch_",
	"POST /v1/charges#x", "POST /v1/charges%3famount=1", "POST /v1/payment_intents/pi_1/cancel/", "POST /v1/payment_intents/pi_1%2fcancel",
	// other forms
	"POST http://api.stripe.com/v1/charges", "POST https://api.stripe.com/v1/refunds", "POST http:/v1/charges", "OPTIONS *", "CONNECT api.stripe.com:443",
}

func TestEndpointOf_refusesAllElse(t *testing.T) {
	t.Parallel()
	for _, line := range foreign {
		method, uri, _ := strings.Cut(line, " ")
		_, _, ok := endpointOf(method, uri)
		require.False(t, ok, line)
	}
}

// raw sends a request as it stands, since net/http would tidy it up.
func (b *testBundle) raw(t testing.TB, request string) int {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(b.url, "http://"))
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	_, err = io.WriteString(conn, request)
	require.NoError(t, err)
	method, _, _ := strings.Cut(request, " ") // the answer to a HEAD has no body
	res, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	require.NoError(t, err, request)
	defer res.Body.Close()
	return res.StatusCode
}

// wire is a good request for what line asks.
func (b *testBundle) wire(line, headers, body string) string {
	return fmt.Sprintf("%s HTTP/1.1\r\nHost: proxy\r\nAuthorization: Bearer %s\r\nContent-Type: application/x-www-form-urlencoded\r\n"+
		"Content-Length: %d\r\n%s\r\n%s", line, b.key.Secret, len(body), headers, body)
}

const goodBody = "amount=1000&currency=usd&customer=cus_1"

func TestProxy_otherEndpointsAndOtherSpellingsAreForbidden(t *testing.T) {
	t.Parallel()
	b := setup(t, options{})
	for _, line := range foreign {
		got := b.raw(t, b.wire(line, "Idempotency-Key: k\r\n", goodBody))
		// net/http itself refuses some before the proxy sees them.
		require.Contains(t, []int{403, 400}, got, line)
		if u, err := url.ParseRequestURI(strings.SplitN(line, " ", 2)[1]); err == nil && u.Path != "" && u.Path[0] == '/' {
			require.Equal(t, 403, got, line)
		}
	}
	for _, name := range overrides {
		require.Equal(t, 403, b.raw(t, b.wire("POST /v1/charges", "Idempotency-Key: k\r\n"+name+": GET\r\n", goodBody)), name)
		require.Equal(t, 403, b.raw(t, b.wire("GET /v1/charges", strings.ToLower(name)+": /v1/refunds\r\n", "")), name)
	}
	require.Equal(t, 403, b.raw(t, b.wire("POST /v1/charges", "Idempotency-Key: k\r\n", goodBody+"&_method=DELETE")))
	require.Equal(t, 403, b.raw(t, b.wire("POST /v1/charges", "Idempotency-Key: k\r\n", goodBody+"&%5fmethod=DELETE")))
	require.Equal(t, 403, b.raw(t, b.wire("GET /v1/charges?_method=POST", "", "")))
	require.Zero(t, b.sim.Stats().Requests)
	b.requireReserved(t, 0, 0)
	require.Equal(t, 200, b.raw(t, b.wire("POST /v1/charges", "Idempotency-Key: k\r\n", goodBody)))
}

func TestProxy_requestsThatAreNotPlain(t *testing.T) {
	t.Parallel()
	b := setup(t, options{})
	const key = "Idempotency-Key: k\r\n"
	for name, request := range map[string]string{
		"no key":                     b.wire("POST /v1/charges", "", goodBody),
		"blank key":                  b.wire("POST /v1/charges", "Idempotency-Key: \r\n", goodBody),
		"two keys":                   b.wire("POST /v1/charges", key+"Idempotency-Key: k2\r\n", goodBody),
		"key with a space":           b.wire("POST /v1/charges", "Idempotency-Key: a b\r\n", goodBody),
		"key too long":               b.wire("POST /v1/charges", "Idempotency-Key: "+strings.Repeat("k", 256)+"\r\n", goodBody),
		"key under another spelling": b.wire("POST /v1/charges", key+"Idempotency_Key: k2\r\n", goodBody),
		"key dropped on the way":     b.wire("POST /v1/charges", key+"Connection: close, Idempotency-Key\r\n", goodBody),
		"account dropped":            b.wire("POST /v1/charges", key+"Stripe-Account: acct_1\r\nConnection: stripe-account\r\n", goodBody),
		"upgrade":                    b.wire("POST /v1/charges", key+"Upgrade: h2c\r\n", goodBody),
		"query":                      b.wire("POST /v1/charges?expand[]=x", key, goodBody),
		"amount in the query":        b.wire("POST /v1/charges?amount=1", key, goodBody),
		"empty query":                b.wire("POST /v1/charges?", key, goodBody),
		"compressed":                 b.wire("POST /v1/charges", key+"Content-Encoding: gzip\r\n", goodBody),
		"two types":                  b.wire("POST /v1/charges", key+"Content-Type: application/json\r\n", goodBody),
		"json":                       strings.Replace(b.wire("POST /v1/charges", key, `{"amount":1}`), "x-www-form-urlencoded", "json", 1),
		"multipart":                  strings.Replace(b.wire("POST /v1/charges", key, goodBody), "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", 1),
		"other charset":              strings.Replace(b.wire("POST /v1/charges", key, goodBody), "urlencoded", "urlencoded; charset=utf-7", 1),
		"empty":                      b.wire("POST /v1/charges", key, ""),
		"get with a body":            b.wire("GET /v1/charges", "", goodBody),
		"query with a semicolon":     b.wire("GET /v1/charges?limit=1;customer=x", "", ""),
		"query with bad escapes":     b.wire("GET /v1/charges?limit=%zz", "", ""),
		"trailers": strings.Replace(b.wire("POST /v1/charges", key+"Transfer-Encoding: chunked\r\nTrailer: Idempotency-Key\r\n",
			fmt.Sprintf("%x\r\n%s\r\n0\r\nIdempotency-Key: k2\r\n\r\n", len(goodBody), goodBody)), "Content-Length", "X-Length", 1),
	} {
		require.Equal(t, 400, b.raw(t, request), name)
	}
	require.Equal(t, 413, b.raw(t, b.wire("POST /v1/charges", key, goodBody+"&description="+strings.Repeat("x", maxBody))))
	require.Zero(t, b.sim.Stats().Requests)
	b.requireReserved(t, 0, 0)
	require.Contains(t, b.outcomes(t), "malformed", "a refused creating call is in the audit trail")

	chunked := strings.Replace(b.wire("POST /v1/charges", key+"Transfer-Encoding: chunked\r\n",
		fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(goodBody), goodBody)), "Content-Length", "X-Length", 1)
	require.Equal(t, 200, b.raw(t, chunked), "a body that is only framed otherwise is plain")
}

func FuzzEndpointOf(f *testing.F) {
	for _, line := range foreign {
		method, uri, _ := strings.Cut(line, " ")
		f.Add(method, uri)
	}
	f.Add("POST", "/v1/charges")
	f.Add("GET", "/v1/charges/ch_1?expand[]=x")
	f.Add("POST", "/v1/payment_intents/pi_1/cancel")
	f.Fuzz(func(t *testing.T, method, uri string) {
		e, query, ok := endpointOf(method, uri)
		if !ok || checkQuery(query) != nil {
			return
		}
		// Whatever reads it further on, reads the same.
		u, err := url.ParseRequestURI(uri)
		require.NoError(t, err)
		require.Empty(t, u.Host)
		require.Empty(t, u.RawPath)
		require.Equal(t, query, u.RawQuery)
		require.Equal(t, u.Path, path.Clean(u.Path))
		require.Equal(t, u.Path, u.EscapedPath())
		require.Contains(t, Endpoints(), e)
		if e.creates() {
			require.Equal(t, string(e), method+" "+u.Path)
		}
		for _, word := range []string{"refund", "payout", "capture", "confirm"} {
			rest := strings.Split(strings.TrimPrefix(u.Path, "/v1/"), "/")
			require.NotContains(t, rest, word)
			require.NotContains(t, rest, word+"s")
		}
	})
}
