package spendcap

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Admin is a client of the admin API. Its methods may be called concurrently,
// and each sends one request; the errors of [Vault] come through [errors.Is].
type Admin struct {
	URL   string // of the admin listener
	Token string
	HTTP  *http.Client // nil: http.DefaultClient
}

// EnsureKey returns a good vault key for the period. It may be called as often
// as there is a new process to use it: the period has one key, and each call
// gives it a new secret, so a key that a dead or deposed process still holds
// ends with it. What was spent and reserved under earlier keys stays counted.
//
// The first call sets the period's limits, in the currencies' smallest units.
// ErrCapsDiffer says that they were set to others since: [Admin.SetCaps] is for
// who has decided that.
func (a Admin) EnsureKey(ctx context.Context, period string, caps map[string]int64, expires time.Time) (NewKey, error) {
	return a.Create(ctx, KeyRequest{Period: period, Caps: caps, ExpiresAt: expires, Rotate: true})
}

// Create makes a vault key.
func (a Admin) Create(ctx context.Context, r KeyRequest) (out NewKey, err error) {
	return out, a.call(ctx, http.MethodPost, "/keys", r, &out)
}

// Revoke ends a key. Revoking it again is no error.
func (a Admin) Revoke(ctx context.Context, id string) error {
	return a.call(ctx, http.MethodDelete, "/keys/"+url.PathEscape(id), nil, nil)
}

// Show returns a key.
func (a Admin) Show(ctx context.Context, id string) (out Key, err error) {
	return out, a.call(ctx, http.MethodGet, "/keys/"+url.PathEscape(id), nil, &out)
}

// List returns the keys of a period, or of all if it is empty.
func (a Admin) List(ctx context.Context, period string) ([]Key, error) {
	var out struct {
		Keys []Key `json:"keys"`
	}
	return out.Keys, a.call(ctx, http.MethodGet, "/keys?period="+url.QueryEscape(period), nil, &out)
}

// Limits returns a period's limits; ErrNotFound if it never had a key.
func (a Admin) Limits(ctx context.Context, period string) (map[string]Limit, error) {
	var out periodAnswer
	err := a.call(ctx, http.MethodGet, "/periods/"+url.PathEscape(period), nil, &out)
	return out.Limits, err
}

// SetCaps replaces the limits of a period that has some: up, or down to what is
// reserved (below it, ErrSpent). A currency left out keeps its limit.
func (a Admin) SetCaps(ctx context.Context, period string, caps map[string]int64) error {
	return a.call(ctx, http.MethodPut, "/periods/"+url.PathEscape(period), capsCall{caps}, nil)
}

// Held returns all reservations of which nobody knows whether Stripe charged
// them: in flight, or in doubt.
func (a Admin) Held(ctx context.Context, period string) ([]Reservation, error) {
	var all []Reservation
	for after := int64(0); ; {
		var page heldAnswer
		q := url.Values{"period": {period}, "after": {strconv.FormatInt(after, 10)}, "limit": {strconv.Itoa(maxPage)}}
		if err := a.call(ctx, http.MethodGet, "/reservations?"+q.Encode(), nil, &page); err != nil {
			return nil, err
		}
		all = append(all, page.Reservations...)
		if after = page.Next; after == 0 {
			return all, nil
		}
	}
}

func (a Admin) call(ctx context.Context, method, path string, in, out any) error {
	if err := a.roundTrip(ctx, method, path, in, out); err != nil {
		return fmt.Errorf("spend-cap proxy, %s %s: %w", method, strings.SplitN(path, "?", 2)[0], err)
	}
	return nil
}

func (a Admin) roundTrip(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(a.URL, "/")+path, body)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+a.Token)
	client := a.HTTP
	if client == nil {
		client = http.DefaultClient
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, 8<<20))
	if err != nil {
		return err
	}
	if res.StatusCode/100 == 2 {
		if out == nil {
			return nil
		}
		return json.Unmarshal(text, out)
	}
	var e adminError
	if json.Unmarshal(text, &e) == nil {
		for _, known := range adminErrors {
			if known.code == e.Code {
				return &adminRefusal{known.err, e.Message}
			}
		}
	}
	if res.StatusCode == http.StatusUnauthorized {
		return ErrToken
	}
	return fmt.Errorf("HTTP status %d %s", res.StatusCode, e.Message)
}

// ErrToken is returned by [Admin] if the proxy refuses its token.
var ErrToken = errors.New("the proxy refuses the admin token")

// adminRefusal is one of the vault's errors, in the words of the other side.
type adminRefusal struct {
	err     error
	message string
}

func (e *adminRefusal) Error() string { return e.message }
func (e *adminRefusal) Unwrap() error { return e.err }
