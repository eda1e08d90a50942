package spendcap

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"
)

// AdminHandler serves the admin API. Its listener is another than the proxy's,
// and its token opens nothing there.
type AdminHandler struct {
	mux      *http.ServeMux
	vault    *Vault
	token    [sha256.Size]byte
	log      *zap.Logger
	draining atomic.Bool
}

// MinToken is the length of the shortest admin token that is taken.
const MinToken = 32

// NewAdminHandler returns the admin API of the vault. Its errors never show the
// token.
//
//	POST   /keys                create a vault key; the secret is shown this once
//	GET    /keys?period=        list
//	GET    /keys/{id}           show
//	DELETE /keys/{id}           revoke
//	GET    /periods/{period}    limits, and what is reserved and held of them
//	PUT    /periods/{period}    replace limits
//	GET    /reservations        ?period=&after=&limit=: held ones, in flight or in doubt
//	GET    /healthz /readyz /metrics, without a token
func NewAdminHandler(vault *Vault, token string, proxy *Proxy, log *zap.Logger) (*AdminHandler, error) {
	if len(token) < MinToken {
		return nil, fmt.Errorf("want an admin token of at least %d characters", MinToken)
	}
	h := &AdminHandler{mux: http.NewServeMux(), vault: vault, token: sha256.Sum256([]byte(token)), log: log}
	h.mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	h.mux.HandleFunc("GET /readyz", h.ready)
	registry := prometheus.NewRegistry()
	if err := registry.Register(proxy); err != nil {
		return nil, fmt.Errorf("register the proxy's metrics: %w", err)
	}
	h.mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	h.handle("POST /keys", h.create)
	h.handle("GET /keys", h.list)
	h.handle("GET /keys/{id}", func(r *http.Request) (any, error) { return h.vault.Show(r.Context(), r.PathValue("id")) })
	h.handle("DELETE /keys/{id}", h.revoke)
	h.handle("GET /periods/{period}", h.limits)
	h.handle("PUT /periods/{period}", h.setCaps)
	h.handle("GET /reservations", h.held)
	return h, nil
}

func (h *AdminHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) { h.mux.ServeHTTP(w, r) }

// Drain makes /readyz say no, so that no new connections come.
func (h *AdminHandler) Drain() { h.draining.Store(true) }

func (h *AdminHandler) ready(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), databaseTimeout)
	defer cancel()
	switch err := h.vault.Ready(ctx); {
	case h.draining.Load():
		http.Error(w, "draining", http.StatusServiceUnavailable)
	case err != nil:
		h.log.Warn("not ready: the database does not answer", zap.Error(err))
		http.Error(w, "the database does not answer", http.StatusServiceUnavailable)
	default:
		fmt.Fprintln(w, "ok")
	}
}

func (h *AdminHandler) create(r *http.Request) (any, error) {
	var req KeyRequest
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	key, err := h.vault.Create(r.Context(), req)
	if err != nil {
		return nil, err
	}
	h.log.Info("vault key created", zap.String("vault_key_id", key.ID), zap.String("billing_period", key.Period),
		zap.Time("expires_at", key.ExpiresAt), zap.String("max_amount", describe(key.Caps)))
	return key, nil
}

func (h *AdminHandler) list(r *http.Request) (any, error) {
	keys, err := h.vault.List(r.Context(), r.URL.Query().Get("period"))
	return struct {
		Keys []Key `json:"keys"`
	}{keys}, err
}

func (h *AdminHandler) revoke(r *http.Request) (any, error) {
	key, err := h.vault.Revoke(r.Context(), r.PathValue("id"))
	if err != nil {
		return nil, err
	}
	h.log.Info("vault key revoked", zap.String("vault_key_id", key.ID), zap.String("billing_period", key.Period))
	return key, nil
}

// periodAnswer is a period as the admin API shows it.
type periodAnswer struct {
	Period string           `json:"period"`
	Limits map[string]Limit `json:"limits"`
}

func (h *AdminHandler) limits(r *http.Request) (any, error) {
	period := r.PathValue("period")
	found, err := h.vault.Limits(r.Context(), period)
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("period %q: %w", period, ErrNotFound)
	}
	return periodAnswer{period, found}, err
}

// capsCall is what PUT /periods/{period} takes.
type capsCall struct {
	Caps map[string]int64 `json:"max_amount"`
}

func (h *AdminHandler) setCaps(r *http.Request) (any, error) {
	var call capsCall
	if err := decode(r, &call); err != nil {
		return nil, err
	}
	period := r.PathValue("period")
	if err := h.vault.SetCaps(r.Context(), period, call.Caps); err != nil {
		return nil, err
	}
	h.log.Warn("spend cap changed", zap.String("billing_period", period), zap.String("max_amount", describe(call.Caps)))
	return h.limits(r)
}

// heldAnswer is a page of reservations; Next is the after of the next one.
type heldAnswer struct {
	Reservations []Reservation `json:"reservations"`
	Next         int64         `json:"next,omitempty"`
}

const maxPage = 1000

func (h *AdminHandler) held(r *http.Request) (any, error) {
	q := r.URL.Query()
	number := func(name string, fallback int64) (int64, error) {
		if q.Get(name) == "" {
			return fallback, nil
		}
		n, err := strconv.ParseInt(q.Get(name), 10, 64)
		if err != nil || n < 0 {
			return 0, fmt.Errorf("%w: %s: want a number", ErrInvalid, name)
		}
		return n, nil
	}
	after, err := number("after", 0)
	if err != nil {
		return nil, err
	}
	limit, err := number("limit", 100)
	if err != nil || limit < 1 || limit > maxPage || !periodShape.MatchString(q.Get("period")) {
		return nil, fmt.Errorf("%w: want period=YYYY-MM and limit from 1 to %d", ErrInvalid, maxPage)
	}
	found, err := h.vault.Held(r.Context(), q.Get("period"), after, int(limit))
	out := heldAnswer{Reservations: found}
	if len(found) == int(limit) {
		out.Next = found[len(found)-1].ID
	}
	return out, err
}

const maxAdminBody = 64 << 10

func decode(r *http.Request, into any) error {
	d := json.NewDecoder(http.MaxBytesReader(nil, r.Body, maxAdminBody))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("%w: body: want a JSON object of known fields: %w", ErrInvalid, err)
	}
	return nil
}

// handle serves f to who has the token.
func (h *AdminHandler) handle(pattern string, f func(*http.Request) (any, error)) {
	h.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		if !h.authorized(r) {
			w.WriteHeader(http.StatusUnauthorized)
			writeAdmin(w, adminError{Code: "unauthorized", Message: "want the admin token as Authorization: Bearer"})
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), databaseTimeout)
		defer cancel()
		out, err := f(r.WithContext(ctx))
		if err == nil {
			if r.Method == http.MethodPost {
				w.WriteHeader(http.StatusCreated)
			}
			writeAdmin(w, out)
			return
		}
		e := adminError{Message: err.Error()}
		status := http.StatusServiceUnavailable
		for _, known := range adminErrors {
			if errors.Is(err, known.err) {
				status, e.Code = known.status, known.code
			}
		}
		if e.Code == "" {
			h.log.Error("admin call failed", zap.String("endpoint", pattern), zap.Error(err))
			e = adminError{Code: "unavailable", Message: "the database does not answer as it should"}
		}
		w.WriteHeader(status)
		writeAdmin(w, e)
	})
}

type adminError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// adminErrors are the errors that the admin API tells apart.
var adminErrors = []struct {
	err    error
	status int
	code   string
}{
	{ErrInvalid, http.StatusBadRequest, "invalid"},
	{ErrNotFound, http.StatusNotFound, "not_found"},
	{ErrKeyExists, http.StatusConflict, "key_exists"},
	{ErrCapsDiffer, http.StatusConflict, "caps_differ"},
	{ErrSpent, http.StatusConflict, "spent"},
}

func (h *AdminHandler) authorized(r *http.Request) bool {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	sum := sha256.Sum256([]byte(token))
	return subtle.ConstantTimeCompare(sum[:], h.token[:]) == 1 && strings.EqualFold(scheme, "Bearer")
}

func writeAdmin(w http.ResponseWriter, v any) {
	_ = json.NewEncoder(w).Encode(v) // a client that has gone is its own affair
}
