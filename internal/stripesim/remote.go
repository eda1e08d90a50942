package stripesim

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"
)

// Remote steers a simulator in another process. Its methods do what those of
// [Sim] with the same name do.
type Remote struct {
	// URL is the simulator's base URL.
	URL string
	// HTTP is the client to use; nil opens a connection for each call.
	HTTP *http.Client
}

// Bank returns what truly happened, oldest first.
func (r Remote) Bank(ctx context.Context) (out []Charge, err error) {
	return out, r.call(ctx, http.MethodGet, "bank", nil, &out)
}

// Tally counts what the books hold.
func (r Remote) Tally(ctx context.Context) (out Tally, err error) {
	return out, r.call(ctx, http.MethodGet, "tally", nil, &out)
}

// Stats returns the counters.
func (r Remote) Stats(ctx context.Context) (out Stats, err error) {
	return out, r.call(ctx, http.MethodGet, "stats", nil, &out)
}

// Requests returns the last requests, oldest first.
func (r Remote) Requests(ctx context.Context) (out []Request, err error) {
	return out, r.call(ctx, http.MethodGet, "requests", nil, &out)
}

// Fault plans n faults for the next requests that name the customer, or for
// any if it is empty. delay is that of [Latency].
func (r Remote) Fault(ctx context.Context, customer string, kind Kind, n int, delay time.Duration) error {
	return r.call(ctx, http.MethodPost, "fault", faultCall{customer, kind, n, delay}, nil)
}

// Advance moves the simulator's clock.
func (r Remote) Advance(ctx context.Context, d time.Duration) error {
	return r.call(ctx, http.MethodPost, "advance", secondsCall{d.Seconds()}, nil)
}

// SetLatency sets the time spent in each endpoint.
func (r Remote) SetLatency(ctx context.Context, d time.Duration) error {
	return r.call(ctx, http.MethodPost, "latency", secondsCall{d.Seconds()}, nil)
}

// SetAuth makes every call fail with status 401 or 403; 0 ends that.
func (r Remote) SetAuth(ctx context.Context, status int) error {
	return r.call(ctx, http.MethodPost, "auth", authCall{status}, nil)
}

// SetSearchLag hides younger objects from Search.
func (r Remote) SetSearchLag(ctx context.Context, d time.Duration) error {
	return r.call(ctx, http.MethodPost, "search-lag", secondsCall{d.Seconds()}, nil)
}

// RefuseSearch makes Search unavailable; empty ends that.
func (r Remote) RefuseSearch(ctx context.Context, how string) error {
	return r.call(ctx, http.MethodPost, "refuse-search", refuseCall{how}, nil)
}

// Behave says how a customer behaves from now on.
func (r Remote) Behave(ctx context.Context, customer string, b Behaviour) error {
	return r.call(ctx, http.MethodPost, "customer", customerCall{customer, b}, nil)
}

// Resolve settles what is pending or processing of a customer.
func (r Remote) Resolve(ctx context.Context, customer string, succeeded bool) (int, error) {
	var out countAnswer
	err := r.call(ctx, http.MethodPost, "resolve", resolveCall{customer, succeeded}, &out)
	return out.N, err
}

// Plant enters a charge as if it had been made elsewhere.
func (r Remote) Plant(ctx context.Context, c Charge) (out Charge, err error) {
	return out, r.call(ctx, http.MethodPost, "plant", c, &out)
}

// RollForward executes what [Error500CommitLater] held back.
func (r Remote) RollForward(ctx context.Context) (int, error) {
	var out countAnswer
	err := r.call(ctx, http.MethodPost, "rollforward", struct{}{}, &out)
	return out.N, err
}

func (r Remote) call(ctx context.Context, method, what string, in, out any) error {
	if err := r.roundTrip(ctx, method, what, in, out); err != nil {
		return fmt.Errorf("simulator %s: %w", what, err)
	}
	return nil
}

func (r Remote) roundTrip(ctx context.Context, method, what string, in, out any) error {
	body := &bytes.Buffer{}
	if in != nil {
		if err := json.NewEncoder(body).Encode(in); err != nil {
			return err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, r.URL+controlPrefix+what, body)
	if err != nil {
		return err
	}
	client := r.HTTP
	if client == nil {
		client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1024))
		return fmt.Errorf("status %d: %s", resp.StatusCode, bytes.TrimSpace(text))
	}
	if out == nil {
		_, err = io.Copy(io.Discard, resp.Body)
		return err
	}
	return json.NewDecoder(resp.Body).Decode(out)
}
