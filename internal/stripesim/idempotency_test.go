package stripesim_test

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/internal/stripesim"
)

// sent is a raw answer, for what the client hides.
type sent struct {
	status   int
	body     string
	replayed bool
}

func post(t testing.TB, s setup, apiKey, path, key string, params url.Values) sent {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, s.sim.URL+path, strings.NewReader(params.Encode()))
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer "+apiKey)
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Idempotency-Key", key)
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NotEmpty(t, resp.Header.Get("Request-Id"))
	return sent{resp.StatusCode, string(body), resp.Header.Get("Idempotent-Replayed") == "true"}
}

func chargeForm(customer string) url.Values {
	return url.Values{"amount": {"1200"}, "currency": {"usd"}, "customer": {customer}}
}

// TestIdempotency has one case for each rule: what a first request leaves under
// its key, seen from the second.
func TestIdempotency(t *testing.T) {
	const charges = "/v1/charges"
	type call struct {
		apiKey, path, key string
		params            url.Values
	}
	normal := call{testKey, charges, "key-1", chargeForm("cus_1")}
	fault := func(k stripesim.Kind) func(setup) {
		return func(s setup) { s.sim.FaultNext(nil, stripesim.Fault{Kind: k}) }
	}
	tests := []struct {
		name    string
		before  func(setup)
		first   call
		status  int
		between func(setup)
		second  call
		again   int
		replay  bool
		paid    int
	}{
		{name: "200 is replayed", first: normal, status: 200, second: normal, again: 200, replay: true, paid: 1},
		{name: "402 is replayed though the customer could pay now",
			before: func(s setup) { s.sim.DeclineOnce("cus_1") },
			first:  normal, status: 402, second: normal, again: 402, replay: true},
		{name: "402 without a source is replayed",
			before: func(s setup) { s.sim.NoSource("cus_1") }, between: func(s setup) { s.sim.Pays("cus_1") },
			first: normal, status: 402, second: normal, again: 402, replay: true},
		{name: "500 before commit is replayed", before: fault(stripesim.Error500BeforeCommit),
			first: normal, status: 500, second: normal, again: 500, replay: true},
		{name: "500 after commit is replayed", before: fault(stripesim.Error500AfterCommit),
			first: normal, status: 500, second: normal, again: 500, replay: true, paid: 1},
		{name: "401 is not stored", before: fault(stripesim.Unauthorized401),
			first: normal, status: 401, second: normal, again: 200, paid: 1},
		{name: "403 is not stored", before: fault(stripesim.Forbidden403),
			first: normal, status: 403, second: normal, again: 200, paid: 1},
		{name: "409 lock_timeout is not stored", before: fault(stripesim.Conflict409),
			first: normal, status: 409, second: normal, again: 200, paid: 1},
		{name: "429 is not stored", before: fault(stripesim.Error429),
			first: normal, status: 429, second: normal, again: 200, paid: 1},
		{name: "503 is not stored", before: fault(stripesim.Error503),
			first: normal, status: 503, second: normal, again: 200, paid: 1},
		{name: "400 validation is not stored",
			first: call{testKey, charges, "key-1", url.Values{"amount": {"x"}}}, status: 400, second: normal, again: 200, paid: 1},
		{name: "an unknown customer is not stored",
			before: func(s setup) { s.sim.Missing("cus_1") }, between: func(s setup) { s.sim.Pays("cus_1") },
			first: normal, status: 400, second: normal, again: 200, paid: 1},
		{name: "429 on a resend says nothing about the first", first: normal, status: 200,
			between: fault(stripesim.Error429), second: normal, again: 429, paid: 1},
		{name: "other parameters are refused", first: normal, status: 200,
			second: call{testKey, charges, "key-1", chargeForm("cus_2")}, again: 400, paid: 1},
		{name: "other parameters that do not validate are refused as such", first: normal, status: 200,
			second: call{testKey, charges, "key-1", url.Values{"amount": {"x"}}}, again: 400, paid: 1},
		{name: "another endpoint is refused", first: normal, status: 200,
			second: call{testKey, "/v1/payment_intents", "key-1", chargeForm("cus_1")}, again: 400, paid: 1},
		{name: "another API key has its own keys", first: normal, status: 200,
			second: call{"rk_test_other", charges, "key-1", chargeForm("cus_1")}, again: 200, paid: 2},
		{name: "another key is another charge", first: normal, status: 200,
			second: call{testKey, charges, "key-2", chargeForm("cus_1")}, again: 200, paid: 2},
		{name: "one second before 24 hours the key is known", first: normal, status: 200,
			between: func(s setup) { s.clock.Advance(24*time.Hour - time.Second) }, second: normal, again: 200, replay: true, paid: 1},
		{name: "after 24 hours the key is a second charge", first: normal, status: 200,
			between: func(s setup) { s.clock.Advance(24 * time.Hour) }, second: normal, again: 200, paid: 2},
		{name: "a blank key is no key",
			first: call{testKey, charges, "", chargeForm("cus_1")}, status: 200,
			second: call{testKey, charges, "", chargeForm("cus_1")}, again: 200, paid: 2},
		{name: "255 characters are a key",
			first: call{testKey, charges, strings.Repeat("k", 255), chargeForm("cus_1")}, status: 200,
			second: call{testKey, charges, strings.Repeat("k", 255), chargeForm("cus_1")}, again: 200, replay: true, paid: 1},
		{name: "256 characters are not",
			first: call{testKey, charges, strings.Repeat("k", 256), chargeForm("cus_1")}, status: 400,
			second: call{testKey, charges, strings.Repeat("k", 256), chargeForm("cus_1")}, again: 400},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := start(t, stripesim.Options{})
			if tt.before != nil {
				tt.before(s)
			}
			first := post(t, s, tt.first.apiKey, tt.first.path, tt.first.key, tt.first.params)
			require.Equal(t, tt.status, first.status, first.body)
			require.False(t, first.replayed)
			if tt.between != nil {
				tt.between(s)
			}
			second := post(t, s, tt.second.apiKey, tt.second.path, tt.second.key, tt.second.params)
			require.Equal(t, tt.again, second.status, second.body)
			require.Equal(t, tt.replay, second.replayed)
			if tt.replay {
				require.Equal(t, first.body, second.body)
			}
			require.Len(t, s.sim.Succeeded(), tt.paid)

			stats := s.sim.Stats()
			require.Equal(t, 2, stats.Requests)
			mismatch := tt.again == 400 && tt.first.key == tt.second.key && tt.status == 200
			require.Equal(t, mismatch, stats.IdempotencyErrors == 1)
			require.Equal(t, mismatch, strings.Contains(second.body, `"type":"idempotency_error"`))
			require.Equal(t, tt.first.key == "", len(s.sim.Keyless()) == 2)
			require.Equal(t, len(s.sim.Keyless()), stats.Keyless)
			require.Equal(t, tt.replay, stats.Replays == 1)
		})
	}
}

func TestIdempotency_keyInFlightIs409(t *testing.T) {
	s := start(t, stripesim.Options{})
	release, hung := make(chan struct{}), make(chan struct{})
	s.sim.FaultCustomer("cus_1", stripesim.Fault{Kind: stripesim.HangUntilReleased, Release: release, Hung: hung})
	first := make(chan sent, 1)
	go func() { first <- post(t, s, testKey, "/v1/charges", "key-1", chargeForm("cus_1")) }()
	<-hung
	second := post(t, s, testKey, "/v1/charges", "key-1", chargeForm("cus_1"))
	require.Empty(t, s.sim.Bank())
	close(release)
	require.Equal(t, http.StatusOK, (<-first).status)
	require.Equal(t, http.StatusConflict, second.status)
	require.Contains(t, second.body, `"code":"idempotency_key_in_use"`)
	require.Equal(t, 1, s.sim.Stats().InFlight)
	require.Len(t, s.sim.Succeeded(), 1)
}

func TestIdempotency_holdsUnderConcurrency(t *testing.T) {
	s := start(t, stripesim.Options{})
	const keys, senders = 50, 8
	var wg sync.WaitGroup
	for range senders {
		c := newClient(t, s.sim.URL)
		wg.Go(func() {
			for k := range keys {
				for {
					_, err := c.Charges.New(chargeParams(fmt.Sprintf("cus_%d", k), fmt.Sprintf("key-%d", k)))
					if err == nil {
						break
					}
					if e := stripeError(t, err); e.HTTPStatusCode != http.StatusConflict {
						t.Errorf("key-%d: %v", k, err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	seen := make(map[string]int)
	for _, c := range s.sim.Succeeded() {
		seen[c.IdempotencyKey]++
	}
	require.Len(t, seen, keys)
	require.Len(t, s.sim.Bank(), keys)
	stats := s.sim.Stats()
	require.Equal(t, keys*(senders-1), stats.Replays)
	require.Zero(t, stats.IdempotencyErrors)
}
