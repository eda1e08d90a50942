package charges_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/charges"
)

// fuzzedServer answers with what it was told last.
type fuzzedServer struct {
	*httptest.Server
	status   int
	body     string
	replayed bool
	requests int
}

func newFuzzedServer(f *testing.F) *fuzzedServer {
	s := &fuzzedServer{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		s.requests++
		if s.replayed {
			w.Header().Set("Idempotent-Replayed", "true")
		}
		w.WriteHeader(s.status)
		_, _ = w.Write([]byte(s.body))
	}))
	f.Cleanup(s.Close)
	return s
}

// FuzzAnswer: whatever comes back to a charge, money is taken for taken only
// when an object says so that is about this slot, and nothing but Stripe's own
// words settles.
func FuzzAnswer(f *testing.F) {
	for _, body := range []string{
		object(slotFor(charges.MethodCharges, "cus_1"), "ch_1", "succeeded", ""),
		object(slotFor(charges.MethodPaymentIntents, "cus_1"), "pi_1", "requires_action", ""),
		stripeErr(`"type":"card_error","code":"card_declined","decline_code":"insufficient_funds","charge":"ch_1"`),
		stripeErr(`"type":"card_error","advice_code":"do_not_try_again","payment_intent":{"id":"pi_1"}`),
		stripeErr(`"type":"invalid_request_error","code":"lock_timeout"`), stripeErr(`"type":"idempotency_error"`),
		stripeErr(`"type":"api_error"`), `{"error":{"code":"spend_cap_exceeded"}}`, `{"error":"no"}`, `{"error":null}`,
		`{"id":"ch_1","status":"succeeded"}`, `{}`, `null`, `[]`, `<html>`, ``, `{"id":`, `{"error":{"type":{}}}`,
	} {
		for _, status := range []int{200, 400, 402, 409, 429, 500} {
			f.Add(status, body, false, status%2 == 0)
		}
	}
	server := newFuzzedServer(f)
	gateway, err := charges.NewGateway(charges.GatewayConfig{APIKey: apiKey, BaseURL: server.URL, Workers: 1, Timeout: time.Minute})
	require.NoError(f, err)
	f.Cleanup(gateway.Close)
	f.Fuzz(func(t *testing.T, status int, body string, replayed, intents bool) {
		if status < 200 || status > 599 || status == 204 || status == 304 || status/100 == 3 {
			return
		}
		slot := slotFor(charges.MethodCharges, "cus_1")
		if intents {
			slot = slotFor(charges.MethodPaymentIntents, "cus_1")
		}
		server.status, server.body, server.replayed, server.requests = status, body, replayed, 0
		out := gateway.Charge(t.Context(), slot)
		require.Equal(t, 1, server.requests, "one send")
		var o struct {
			ID       string
			Amount   int64
			Metadata map[string]string
			Error    *struct{ Type string }
		}
		decoded := json.Unmarshal([]byte(body), &o)
		switch {
		case status == 401 || status == 403:
			require.Equal(t, charges.Forbidden, out.Verdict)
		case out.Verdict == charges.Paid || out.Verdict == charges.Pending:
			require.Less(t, status, 300)
			require.NoError(t, decoded)
			require.NotEmpty(t, out.ChargeID)
			require.Equal(t, slot.Amount, o.Amount)
			require.Equal(t, slot.Key, o.Metadata["duesday_key"])
		case status >= 500:
			require.False(t, out.Settles(), "%s of a %d", out.Verdict, status)
		case status < 300 && out.Settles():
			require.NotEmpty(t, o.ID, "a 200 that is no object")
		}
		if out.Settles() {
			require.NotEqual(t, charges.Claimed, out.Settlement(slot.Key).Status)
		} else {
			require.Error(t, out.Err)
		}
	})
}

// FuzzListPage: not found is said only of a page that is a list, has no more
// after it, and does not have the key.
func FuzzListPage(f *testing.F) {
	slot := slotFor(charges.MethodCharges, "cus_1")
	own := object(slot, "ch_1", "succeeded", "")
	for _, body := range []string{
		`{"object":"list","url":"/v1/charges","has_more":false,"data":[` + own + `]}`,
		`{"object":"list","url":"/v1/charges","has_more":false,"data":[]}`,
		`{"object":"list","url":"/v1/charges","has_more":false,"data":null}`,
		`{"object":"list","url":"/v1/charges","has_more":false,"data":[null]}`,
		`{"object":"list","url":"/v1/charges","has_more":true,"data":[]}`,
		`{"object":"list","url":"/v1/charges","has_more":false,"data":[{"id":"ch_2","metadata":{}}]}`,
		`{"object":"list","url":"/v1/charges","data":[{}]}`, `{"data":[]}`, `{"url":"x","data":[]}`, own, `{}`, `null`, `[]`, ``, `{"data":`,
	} {
		f.Add(200, body)
	}
	f.Add(503, stripeErr(`"type":"api_error"`))
	server := newFuzzedServer(f)
	gateway, err := charges.NewGateway(charges.GatewayConfig{APIKey: apiKey, BaseURL: server.URL, Workers: 1, Timeout: time.Minute})
	require.NoError(f, err)
	f.Cleanup(gateway.Close)
	f.Fuzz(func(t *testing.T, status int, body string) {
		if status < 200 || status > 599 || status == 204 || status == 304 || status/100 == 3 {
			return
		}
		server.status, server.body, server.replayed, server.requests = status, body, false, 0
		pages := 0
		out, found, err := gateway.Find(t.Context(), slot, func(ctx context.Context) error {
			if pages++; pages > 3 {
				return errors.New("a page that says forever that there is more")
			}
			return ctx.Err()
		})
		if err != nil {
			require.False(t, found)
			require.False(t, out.Settles())
			return
		}
		require.Less(t, status, 300)
		var list struct {
			HasMore bool `json:"has_more"`
			URL     string
			Data    []*struct {
				ID       string
				Metadata map[string]string
			}
		}
		require.NoError(t, json.Unmarshal([]byte(body), &list))
		if found {
			require.NotEmpty(t, list.Data)
			return
		}
		require.NotNil(t, list.Data)
		require.NotEmpty(t, list.URL)
		require.False(t, list.HasMore)
		for _, ch := range list.Data {
			require.False(t, ch.ID != "" && ch.Metadata["duesday_key"] == slot.Key, "it is there")
		}
	})
}
