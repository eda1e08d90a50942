package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/internal/exitcode"
	"github.com/duesday/duesday/job"
	"github.com/duesday/duesday/spendcap"
)

// vaultFlags say where vault keys come from.
type vaultFlags struct{ url string }

func (f *vaultFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.url, "vault-url", "",
		"`url` of the spend-cap proxy's admin API: charge with the period's vault key, through the proxy that STRIPE_API_BASE names (token: DUESDAY_ADMIN_TOKEN or DUESDAY_ADMIN_TOKEN_FILE)")
}

// stripe returns the gateway, and the vault that its key will come from, if the
// flags name one. The observers are told of every exchange.
func (p *program) stripe(f vaultFlags, workers int, observers ...func(context.Context, charges.Exchange)) (*charges.Gateway, job.Vault, error) {
	cfg := charges.GatewayConfig{BaseURL: p.lookup("STRIPE_API_BASE"), Workers: workers, Timeout: stripeTimeout}
	if len(observers) > 0 {
		cfg.Observe = func(ctx context.Context, e charges.Exchange) {
			for _, observe := range observers {
				observe(ctx, e)
			}
		}
	}
	if f.url == "" {
		var err error
		if cfg.APIKey, err = p.stripeKey(); err != nil {
			return nil, nil, err
		}
		gateway, err := charges.NewGateway(cfg)
		return gateway, nil, err
	}
	if u, err := url.Parse(f.url); err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, nil, usage("--vault-url: want a URL like http://duesday-proxy:8081")
	}
	if base := strings.TrimSuffix(cfg.BaseURL, "/"); base == "" || base == charges.StripeAPI {
		return nil, nil, usage("--vault-url: STRIPE_API_BASE must name the proxy, like http://duesday-proxy:8080: only it knows vault keys")
	}
	token, err := p.adminToken()
	if err != nil {
		return nil, nil, err
	}
	cfg.KeyLater = true
	gateway, err := charges.NewGateway(cfg)
	return gateway, &vault{admin: spendcap.Admin{URL: f.url, Token: token, HTTP: &http.Client{Timeout: vaultTimeout}}}, err
}

const (
	vaultTimeout = 15 * time.Second
	// vaultKeyLife is longer than a period takes, and short enough that a key
	// which was never revoked does not matter.
	vaultKeyLife = 7 * 24 * time.Hour
)

// vault is the proxy's, as a run uses it.
type vault struct {
	admin spendcap.Admin
	id    string
}

func (v *vault) Key(ctx context.Context, period charges.Period, caps map[string]int64, raised bool) (string, error) {
	expires := time.Now().Add(vaultKeyLife)
	key, err := v.admin.EnsureKey(ctx, period.String(), caps, expires)
	if errors.Is(err, spendcap.ErrCapsDiffer) && raised {
		// The operator has set the ledger's caps in this very run.
		if err := v.admin.SetCaps(ctx, period.String(), caps); err != nil {
			return "", err
		}
		key, err = v.admin.EnsureKey(ctx, period.String(), caps, expires)
	}
	if errors.Is(err, spendcap.ErrCapsDiffer) {
		return "", exitcode.With(exitcode.Stopped, fmt.Errorf(
			"%w than the ledger's caps: if those were raised on purpose, run with --raise-cap-to, which sets both", err))
	}
	if errors.Is(err, spendcap.ErrToken) {
		return "", usage("DUESDAY_ADMIN_TOKEN: %w", err)
	}
	if err != nil {
		return "", err
	}
	v.id = key.ID
	return key.Secret, nil
}

func (v *vault) Revoke(ctx context.Context) error {
	if v.id == "" {
		return nil
	}
	return v.admin.Revoke(ctx, v.id)
}
