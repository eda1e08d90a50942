package stripesim_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/internal/stripesim"
)

func TestParameters(t *testing.T) {
	s := start(t, stripesim.Options{})
	form := func(pairs ...string) url.Values {
		v := chargeForm("cus_1")
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i+1] == "" {
				v.Del(pairs[i])
			} else {
				v.Set(pairs[i], pairs[i+1])
			}
		}
		return v
	}
	many := form()
	for i := range 51 {
		many.Set(fmt.Sprintf("metadata[k%d]", i), "v")
	}
	double := form()
	double.Add("amount", "1300")
	tests := []struct {
		name   string
		params url.Values
		code   string // "": 200
	}{
		{"as usual", form(), ""},
		{"least in dollars", form("amount", "50"), ""},
		{"less in dollars", form("amount", "49"), "amount_too_small"},
		{"one yen", form("amount", "1", "currency", "jpy"), ""},
		{"zero", form("amount", "0", "currency", "jpy"), "parameter_invalid_integer"},
		{"negative", form("amount", "-5"), "parameter_invalid_integer"},
		{"most", form("amount", "99999999"), ""},
		{"more", form("amount", "100000000"), "amount_too_large"},
		{"beyond 64 bits", form("amount", "99999999999999999999"), "parameter_invalid_integer"},
		{"no amount", form("amount", ""), "parameter_missing"},
		{"no currency", form("currency", ""), "parameter_missing"},
		{"upper case", form("currency", "USD"), "400"},
		{"two currencies", form("currency", "usd eur"), "400"},
		{"dinar that ends in 0", form("amount", "12340", "currency", "kwd"), ""},
		{"dinar that does not", form("amount", "12345", "currency", "kwd"), "invalid_charge_amount"},
		{"krona with cents", form("amount", "1250", "currency", "isk"), "invalid_charge_amount"},
		{"nobody to charge", form("customer", ""), "parameter_missing"},
		{"unknown parameter", form("colour", "red"), "parameter_unknown"},
		{"given twice", double, "400"},
		{"metadata name of 40", form("metadata["+strings.Repeat("k", 40)+"]", "v"), ""},
		{"metadata name of 41", form("metadata["+strings.Repeat("k", 41)+"]", "v"), "400"},
		{"metadata value of 500", form("metadata[k]", strings.Repeat("é", 500)), ""},
		{"metadata value of 501", form("metadata[k]", strings.Repeat("v", 501)), "400"},
		{"nested metadata", form("metadata[a][b]", "v"), "400"},
		{"51 keys", many, "400"},
	}
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := len(s.sim.Bank())
			got := post(t, s, testKey, "/v1/charges", fmt.Sprint(i), tt.params)
			if tt.code == "" {
				require.Equal(t, 200, got.status, got.body)
				return
			}
			require.Equal(t, 400, got.status)
			require.Contains(t, got.body, `"type":"invalid_request_error"`)
			require.Equal(t, tt.code != "400", strings.Contains(got.body, fmt.Sprintf(`"code":%q`, tt.code)), got.body)
			require.Len(t, s.sim.Bank(), before)
		})
	}
	require.Equal(t, 404, post(t, s, testKey, "/v1/refunds", "r", nil).status)
	require.Equal(t, 404, post(t, s, testKey, "/v2/charges", "r", nil).status)
}

func TestRequests_areBoundedAndBankIsACopy(t *testing.T) {
	s := start(t, stripesim.Options{LogLimit: 3})
	for i := range 5 {
		post(t, s, testKey, "/v1/charges", fmt.Sprint(i), chargeForm("cus_1"))
	}
	log := s.sim.Requests()
	require.Len(t, log, 3)
	require.Equal(t, []string{"2", "3", "4"}, []string{log[0].Key, log[1].Key, log[2].Key})
	require.Equal(t, 200, log[0].Status)
	require.Equal(t, 5, s.sim.Stats().ByEndpoint["POST /v1/charges 200"])

	s.sim.Plant(stripesim.Charge{ID: "ch_x", Metadata: map[string]string{"a": "b"}})
	s.sim.Bank()[5].Metadata["a"] = "c"
	require.Equal(t, "b", s.sim.Bank()[5].Metadata["a"])
}

func TestOnCommit_isAfterTheBookAndBeforeTheAnswer(t *testing.T) {
	s := start(t, stripesim.Options{})
	var seen, bank []stripesim.Charge
	var finished int
	s.sim.OnCommit(func(c stripesim.Charge) {
		seen, bank, finished = append(seen, c), s.sim.Bank(), s.sim.Stats().Requests
	})
	post(t, s, testKey, "/v1/charges", "key-1", chargeForm("cus_1"))
	require.Equal(t, bank, seen)
	require.Zero(t, finished)
	post(t, s, testKey, "/v1/charges", "key-1", chargeForm("cus_1"))
	require.Len(t, seen, 1, "a replay commits nothing")
}

// BenchmarkCharge is the simulator alone, without the network; it must not
// slow down as the books grow.
func BenchmarkCharge(b *testing.B) {
	sim := stripesim.New(stripesim.Options{})
	for n := 0; b.Loop(); n++ {
		form := chargeForm(fmt.Sprintf("cus_%d", n))
		form.Set("metadata[duesday_key]", fmt.Sprint(n))
		req := httptest.NewRequest(http.MethodPost, "/v1/charges", strings.NewReader(form.Encode()))
		req.Header.Set("Authorization", "Bearer "+testKey)
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		req.Header.Set("Idempotency-Key", fmt.Sprint(n))
		sim.ServeHTTP(httptest.NewRecorder(), req)
	}
	require.Len(b, sim.Succeeded(), b.N)
}

// BenchmarkChargeOverHTTP includes the real client.
func BenchmarkChargeOverHTTP(b *testing.B) {
	s := start(b, stripesim.Options{})
	for n := 0; b.Loop(); n++ {
		_, err := s.stripe.Charges.New(chargeParams(fmt.Sprintf("cus_%d", n), fmt.Sprint(n)))
		require.NoError(b, err)
	}
}
