package charges_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/internal/exitcode"
	"github.com/duesday/duesday/internal/stripesim"
)

func TestCharge_whatIsOnTheWire(t *testing.T) {
	t.Parallel()
	meta := func(s *charges.Slot, v url.Values) url.Values {
		v.Set("metadata[duesday_customer]", s.CustomerID)
		v.Set("metadata[duesday_period]", "2026-10")
		v.Set("metadata[duesday_key]", s.Key)
		v.Set("amount", "1999")
		v.Set("currency", "usd")
		v.Set("customer", "cus_1")
		v.Set("description", "Billing period 2026-10")
		return v
	}
	own := slotFor(charges.MethodCharges, "cus_1")
	source := slotFor(charges.MethodCharges, "cus_1")
	source.PaymentMethod = "card_1"
	intent := slotFor(charges.MethodPaymentIntents, "cus_1")
	for name, tc := range map[string]struct {
		slot *charges.Slot
		path string
		want url.Values
	}{
		"charge":               {own, "/v1/charges", meta(own, url.Values{})},
		"charge with a source": {source, "/v1/charges", meta(source, url.Values{"source": {"card_1"}})},
		"intent": {intent, "/v1/payment_intents", meta(intent, url.Values{
			"payment_method": {"pm_card_visa"}, "off_session": {"true"}, "confirm": {"true"},
			"automatic_payment_methods[enabled]": {"true"}, "automatic_payment_methods[allow_redirects]": {"never"},
		})},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sim := stripesim.New(stripesim.Options{})
			t.Cleanup(sim.Close)
			server := serve(t, sim)
			g := newGateway(t, server.url+"/") // a slash at the end is forgiven
			for range 3 {
				out := g.Charge(t.Context(), tc.slot)
				require.Equal(t, charges.Paid, out.Verdict, "%v", out.Err)
			}
			require.Len(t, sim.Bank(), 1)
			seen := server.seen()
			require.Len(t, seen, 3)
			for _, r := range seen {
				require.Equal(t, http.MethodPost, r.method)
				require.Equal(t, tc.path, r.path)
				require.Equal(t, tc.want, r.form)
				require.Equal(t, seen[0].body, r.body, "byte-identical")
				require.Equal(t, []string{tc.slot.Key}, r.header["Idempotency-Key"])
				require.Equal(t, "Bearer "+apiKey, r.header.Get("Authorization"))
				require.Equal(t, "2023-10-16", r.header.Get("Stripe-Version"))
				require.NotContains(t, r.header, "X-Stripe-Client-Telemetry")
			}
		})
	}
}

func TestCharge_neverWithoutAKey(t *testing.T) {
	t.Parallel()
	server := serve(t, answer{status: 200})
	g := newGateway(t, server.url)
	for _, method := range methods() {
		for _, key := range []string{"", " ", "short", strings.Repeat("k", 33)} {
			slot := slotFor(method, "cus_1")
			slot.Key = key
			out := g.Charge(t.Context(), slot)
			require.Equal(t, charges.Forbidden, out.Verdict)
			require.ErrorContains(t, out.Err, "no idempotency key")
		}
	}
	require.Empty(t, server.seen())
}

func TestGateway_keepsItsConnections(t *testing.T) {
	t.Parallel()
	const workers = 5
	sim := stripesim.New(stripesim.Options{Latency: time.Millisecond})
	t.Cleanup(sim.Close)
	server := serve(t, sim)
	g := configured(t, charges.GatewayConfig{APIKey: apiKey, BaseURL: server.url, Workers: workers, Timeout: 10 * time.Second})
	var wg sync.WaitGroup
	for i := range 4 * workers { // more goroutines than connections
		wg.Go(func() {
			for j := range 10 {
				out := g.Charge(context.Background(), slotFor(methods()[j%2], fmt.Sprintf("cus_%d_%d", i, j)))
				if out.Verdict != charges.Paid {
					t.Errorf("%v", out.Err)
				}
			}
		})
	}
	wg.Wait()
	require.Len(t, server.seen(), 200)
	require.LessOrEqual(t, server.connections(), workers)
}

// plantOthers enters n charges of the customer that are not the slot's.
func plantOthers(sim *stripesim.Sim, slot *charges.Slot, n int) {
	for i := range n {
		c := stripesim.Charge{Customer: slot.StripeCustomerID, Amount: slot.Amount, Currency: slot.Currency, Metadata: map[string]string{
			"duesday_customer": slot.CustomerID, "duesday_period": "2026-10", "duesday_key": fmt.Sprintf("%032x", i)}}
		if slot.Method == charges.MethodPaymentIntents {
			c.Kind = stripesim.KindIntent
		}
		sim.Plant(c)
	}
}

func plantOwn(sim *stripesim.Sim, slot *charges.Slot, status string) stripesim.Charge {
	c := stripesim.Charge{Customer: slot.StripeCustomerID, Amount: slot.Amount, Currency: slot.Currency, Status: status,
		Metadata: map[string]string{"duesday_key": slot.Key}}
	if slot.Method == charges.MethodPaymentIntents {
		c.Kind = stripesim.KindIntent
	}
	return sim.Plant(c)
}

func TestFind_readsEveryPage(t *testing.T) {
	t.Parallel()
	for _, method := range methods() {
		t.Run(string(method), func(t *testing.T) {
			t.Parallel()
			sim := stripesim.New(stripesim.Options{})
			t.Cleanup(sim.Close)
			server := serve(t, sim)
			g := newGateway(t, server.url)
			slot := slotFor(method, "cus_1")
			plantOthers(sim, slotFor(method, "cus_2"), 3)
			plantOthers(sim, slot, 20)
			own := plantOwn(sim, slot, "")
			plantOthers(sim, slot, 229) // newest first: the own one is on page 3

			paced := 0
			out, found, err := g.Find(t.Context(), slot, func(context.Context) error { paced++; return nil })
			require.NoError(t, err)
			require.True(t, found)
			require.Equal(t, charges.Paid, out.Verdict)
			require.Equal(t, own.ID, out.ChargeID)
			require.Equal(t, 3, paced)
			seen := server.seen()
			require.Len(t, seen, 3)
			since := fmt.Sprint(slot.ClaimedAt.Add(-time.Hour).Unix())
			for i, r := range seen {
				require.Equal(t, http.MethodGet, r.method)
				require.Equal(t, "cus_1", r.query.Get("customer"))
				require.Equal(t, "100", r.query.Get("limit"))
				require.Equal(t, since, r.query.Get("created[gte]"))
				require.Equal(t, i > 0, r.query.Has("starting_after"))
			}

			other := slotFor(method, "cus_1")
			other.Key = strings.Repeat("f", 32)
			_, found, err = g.Find(t.Context(), other, noPace)
			require.NoError(t, err)
			require.False(t, found)
			require.Len(t, server.seen(), 6)
		})
	}
}

func TestFind_aCustomerWithNoCharges(t *testing.T) {
	t.Parallel()
	sim := stripesim.Start(t, stripesim.Options{})
	for _, method := range methods() {
		out, found, err := newGateway(t, sim.URL).Find(t.Context(), slotFor(method, "cus_1"), noPace)
		require.NoError(t, err)
		require.False(t, found)
		require.Zero(t, out)
	}
}

func TestFind_saysWhatBecameOfIt(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		method charges.Method
		status string
		want   charges.Verdict
	}{
		{charges.MethodCharges, stripesim.StatusSucceeded, charges.Paid},
		{charges.MethodCharges, stripesim.StatusPending, charges.Pending},
		{charges.MethodCharges, stripesim.StatusFailed, charges.Refused},
		{charges.MethodPaymentIntents, stripesim.StatusSucceeded, charges.Paid},
		{charges.MethodPaymentIntents, stripesim.StatusProcessing, charges.Pending},
		{charges.MethodPaymentIntents, stripesim.StatusRequiresPaymentMethod, charges.Refused},
	} {
		sim := stripesim.Start(t, stripesim.Options{})
		slot := slotFor(tc.method, "cus_1")
		own := plantOwn(sim.Sim, slot, tc.status)
		out, found, err := newGateway(t, sim.URL).Find(t.Context(), slot, noPace)
		require.NoError(t, err)
		require.True(t, found)
		require.Equal(t, tc.want, out.Verdict, "%s %s", tc.method, tc.status)
		require.Equal(t, own.ID, out.ChargeID)
	}
}

// A decline that is newer, or on an earlier page, must not hide the money.
func TestFind_ofSeveralThePaidOneCounts(t *testing.T) {
	t.Parallel()
	for _, method := range methods() {
		failed, pending := stripesim.StatusFailed, stripesim.StatusPending
		if method == charges.MethodPaymentIntents {
			failed, pending = stripesim.StatusCanceled, stripesim.StatusProcessing
		}
		sim := stripesim.Start(t, stripesim.Options{})
		slot := slotFor(method, "cus_1")
		find := func() charges.Outcome {
			out, found, err := newGateway(t, sim.URL).Find(t.Context(), slot, noPace)
			require.NoError(t, err)
			require.True(t, found)
			return out
		}
		paid := plantOwn(sim.Sim, slot, stripesim.StatusSucceeded)
		plantOwn(sim.Sim, slot, failed)
		plantOthers(sim.Sim, slot, 150)
		plantOwn(sim.Sim, slot, failed)
		out := find()
		require.Equal(t, charges.Paid, out.Verdict)
		require.Equal(t, paid.ID, out.ChargeID)

		slot.Key = strings.Repeat("e", 32)
		waits := plantOwn(sim.Sim, slot, pending)
		plantOwn(sim.Sim, slot, failed)
		out = find()
		require.Equal(t, charges.Pending, out.Verdict)
		require.Equal(t, waits.ID, out.ChargeID)
	}
}

// What is on a page that could not be read may be the charge.
func TestFind_aListThatFailsIsNotNotFound(t *testing.T) {
	t.Parallel()
	bad := map[string]answer{
		"429":               {status: 429, body: stripeErr(`"type":"invalid_request_error","code":"rate_limit"`)},
		"500":               {status: 500, body: stripeErr(`"type":"api_error"`)},
		"404":               {status: 404, body: stripeErr(`"type":"invalid_request_error","code":"resource_missing"`)},
		"402":               {status: 402, body: stripeErr(`"type":"card_error","code":"card_declined"`)},
		"403":               {status: 403},
		"cut":               {status: 200, body: `{"object":"list","url":"/v1/x","has_more":false,"data":[`, cut: true},
		"half a document":   {status: 200, body: `{"object":"list","url":"/v1/x","has_more":false,"data":[`},
		"{}":                {status: 200, body: `{}`},
		"null":              {status: 200, body: `null`},
		"HTML":              {status: 200, body: `<html>`},
		"empty":             {status: 200},
		"an object":         {status: 200, body: `{"id":"ch_1","object":"charge"}`},
		"more, but nothing": {status: 200, body: `{"object":"list","url":"/v1/x","has_more":true,"data":[]}`},
		"a redirect":        {status: 302, header: header("Location", "/v1/x"), body: `{}`},
		"closed":            {},
		"null in the list":  {status: 200, body: `{"object":"list","url":"/v1/x","has_more":false,"data":[null]}`},
		"no list at all":    {status: 200, body: `{"object":"list","url":"/v1/x","has_more":false}`},
	}
	for _, method := range methods() {
		for _, failing := range []int{1, 2, 3} {
			for name, a := range bad {
				t.Run(fmt.Sprintf("%s/page %d/%s", method, failing, name), func(t *testing.T) {
					t.Parallel()
					sim := stripesim.New(stripesim.Options{})
					t.Cleanup(sim.Close)
					var page atomic.Int32
					server := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						if page.Add(1) >= int32(failing) { // net/http repeats a GET
							a.ServeHTTP(w, r)
							return
						}
						sim.ServeHTTP(w, r)
					}))
					slot := slotFor(method, "cus_1")
					plantOwn(sim, slot, "")
					plantOthers(sim, slot, 249)
					out, found, err := newGateway(t, server.url).Find(t.Context(), slot, noPace)
					require.Error(t, err)
					require.False(t, found)
					require.Equal(t, a.status == 429, out.Throttled)
					require.Equal(t, a.status == 403, out.Verdict == charges.Forbidden)
					require.False(t, out.Settles(), "an unread list settles nothing: %s", out.Verdict)
				})
			}
		}
	}
}

func TestFind_endsWhenThePaceSaysSo(t *testing.T) {
	t.Parallel()
	server := serve(t, answer{status: 200})
	stop := errors.New("stop")
	_, found, err := newGateway(t, server.url).Find(t.Context(), slotFor(charges.MethodCharges, "cus_1"), func(context.Context) error { return stop })
	require.ErrorIs(t, err, stop)
	require.False(t, found)
	require.Empty(t, server.seen())
}

func TestCheckStripe(t *testing.T) {
	t.Parallel()
	const live, restricted, test = "sk_live_51Secret", "rk_live_51Secret", "sk_test_51Secret"
	for _, ok := range [][2]string{
		{live, "https://api.stripe.com"}, {live, "https://api.stripe.com/"}, {restricted, "https://api.stripe.com"},
		{test, "https://api.stripe.com"}, {test, "http://127.0.0.1:12111"}, {"rk_test_51Secret", "http://stripe-mock:12111/"},
		{"vk_abc-DEF_1", "http://duesday-proxy:8080"}, {"vk_abc", "https://proxy.internal"}, {test, "http://network-proxy:8080"},
	} {
		require.NoError(t, charges.CheckStripe(ok[0], ok[1]), "%v", ok)
	}
	for name, tc := range map[string]struct{ key, base, want string }{
		"no key":                 {"", "https://api.stripe.com", "got none"},
		"publishable":            {"pk_live_51Secret", "https://api.stripe.com", "want a secret or restricted key"},
		"a newline":              {live + "\n", "https://api.stripe.com", "want a secret or restricted key"},
		"quotes":                 {`"` + live + `"`, "https://api.stripe.com", "want a secret or restricted key"},
		"a space before":         {" " + live, "https://api.stripe.com", "want a secret or restricted key"},
		"a URL for a key":        {"https://api.stripe.com", live, "want a secret or restricted key"},
		"live, plain HTTP":       {live, "http://api.stripe.com", "a live key goes to https://api.stripe.com only"},
		"live, typed wrong":      {live, "https://api.stirpe.com", "a live key goes to https://api.stripe.com only"},
		"live, as a prefix":      {live, "https://api.stripe.com.evil.example", "a live key goes to https://api.stripe.com only"},
		"live, another port":     {live, "https://api.stripe.com:8443", "a live key goes to https://api.stripe.com only"},
		"live, loopback":         {restricted, "http://127.0.0.1:12111", "a live key goes to https://api.stripe.com only"},
		"live, two slashes":      {live, "https://api.stripe.com//", "STRIPE_API_BASE"},
		"no scheme":              {test, "api.stripe.com", "want a URL like"},
		"another scheme":         {test, "ftp://api.stripe.com", "want a URL like"},
		"nothing":                {test, "https://", "want a URL like"},
		"nonsense":               {test, "://", "want a URL like"},
		"a vault key to Stripe":  {"vk_51Secret", "https://api.stripe.com/", "a vault key is for the spend-cap proxy"},
		"a path":                 {test, "https://api.stripe.com/v1", "scheme and host alone"},
		"a query":                {test, "https://api.stripe.com?x=1", "scheme and host alone"},
		"a fragment":             {test, "https://api.stripe.com#x", "scheme and host alone"},
		"a user":                 {test, "https://user:51Secret@api.stripe.com", "scheme and host alone"},
		"a user, and a bad port": {test, "https://user:51Secret@host:port", "want a URL like"},
		"the key for a base":     {live, live, "want a URL like"},
		"the key as a host":      {live, "https://" + strings.ReplaceAll(live, "_", "-") + ".example", "a live key"},
		"a key in the path":      {test, "https://api.stripe.com/" + live, "scheme and host alone"},
		"a live key for a user":  {live, "https://" + live + "@api.stripe.com", "scheme and host alone"},
		"a live key as a host":   {live, "https://" + live, "a live key"},
		"another key for a base": {test, "rk_live_51Secret", "want a URL like"},
	} {
		err := charges.CheckStripe(tc.key, tc.base)
		require.ErrorContains(t, err, tc.want, name)
		require.NotContains(t, err.Error(), "51Secret", name)

		_, err = charges.NewGateway(charges.GatewayConfig{APIKey: tc.key, BaseURL: tc.base, Workers: 1})
		require.Equal(t, exitcode.Misconfigured, exitcode.Of(err), name)
	}
}
