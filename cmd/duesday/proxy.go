package main

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/internal/exitcode"
	"github.com/duesday/duesday/spendcap"
)

type proxyFlags struct {
	listen      string
	adminListen string
	timeout     time.Duration
	drain       time.Duration
	connections int
	logFlags
}

func (p *program) proxyCommand() *cobra.Command {
	var f proxyFlags
	cmd := &cobra.Command{
		Use:   "proxy",
		Short: "Stand in front of Stripe and let vault keys spend no more than their period's cap",
		Long: `Stand in front of Stripe's API, alone holding the real key, and let each
billing period's vault key spend no more than the period's cap per currency.

Clients use a vault key (vk_…) where they would use Stripe's, and this proxy's
address as STRIPE_API_BASE. Before a charge is forwarded its amount is reserved
in Postgres; past the cap the answer is 402 spend_cap_exceeded, and Stripe sees
nothing. Any number of proxies may share one database.

Vault keys are made on the admin listener, by who has the admin token:

  DUESDAY_ADMIN_TOKEN       at least 32 characters, or
  DUESDAY_ADMIN_TOKEN_FILE  the file that holds it

The admin listener serves /healthz, /readyz and /metrics too.`,
		Example: "  duesday proxy --listen :8080 --admin-listen :8081",
		RunE:    func(cmd *cobra.Command, _ []string) error { return p.proxy(cmd.Context(), f) },
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.listen, "listen", ":8080", "`address` for Stripe's clients")
	flags.StringVar(&f.adminListen, "admin-listen", ":8081", "`address` for the admin API and the probes")
	flags.DurationVar(&f.timeout, "upstream-timeout", stripeTimeout, "`duration` that Stripe may take for a request")
	flags.DurationVar(&f.drain, "drain-timeout", 25*time.Second, "`duration` that requests under way may take after a stop; pods need a longer termination grace period")
	flags.IntVar(&f.connections, "database-connections", 10, "`number` of connections to Postgres, at most")
	f.logFlags.add(flags, p.terminal)
	complete(cmd, "log-format", "json", "console")
	return cmd
}

func (f *proxyFlags) check() error {
	switch {
	case f.timeout < time.Second:
		return usage("--upstream-timeout %s: want at least 1s", f.timeout)
	case f.drain < 0:
		return usage("--drain-timeout %s: want 0 or more", f.drain)
	case f.connections < 1 || f.connections > 1000:
		return usage("--database-connections %d: want from 1 to 1000", f.connections)
	}
	return f.logFlags.check()
}

func (p *program) proxy(ctx context.Context, f proxyFlags) error {
	if err := f.check(); err != nil {
		return err
	}
	key, err := p.stripeKey()
	if err != nil {
		return err
	}
	token, err := p.adminToken()
	if err != nil {
		return err
	}
	log := p.logger(f.format, f.debug)
	pool, err := p.vaultPool(ctx, f.connections)
	if err != nil {
		return err
	}
	defer pool.Close()
	vault := spendcap.NewVault(pool)
	proxy, err := spendcap.NewProxy(spendcap.ProxyConfig{
		APIKey: key, BaseURL: p.lookup("STRIPE_API_BASE"), Timeout: f.timeout, Vault: vault, Log: log,
	})
	if err != nil {
		return usage("%w", err)
	}
	defer proxy.Close()
	admin, err := spendcap.NewAdminHandler(vault, token, proxy, log)
	if err != nil {
		return usage("DUESDAY_ADMIN_TOKEN: %w", err)
	}
	stripeSide, err := net.Listen("tcp", f.listen)
	if err != nil {
		return usage("--listen: %w", err)
	}
	adminSide, err := net.Listen("tcp", f.adminListen)
	if err != nil {
		_ = stripeSide.Close() // nobody was served
		return usage("--admin-listen: %w", err)
	}
	log.Info("proxy listens", zap.Stringer("listen", stripeSide.Addr()), zap.Stringer("admin_listen", adminSide.Addr()))
	server := spendcap.Server{Proxy: proxy, Admin: admin, Drain: f.drain, Log: log}
	if err := server.Serve(ctx, stripeSide, adminSide); err != nil {
		log.Error("proxy ended", zap.Int("exit_code", exitcode.Of(err)), zap.String("error", oneLine(err.Error())))
		return errSaid{err}
	}
	log.Info("proxy ended", zap.Int("exit_code", exitcode.OK))
	return nil
}

// vaultPool opens the proxy's pool and looks whether the schema is the
// binary's.
func (p *program) vaultPool(ctx context.Context, connections int) (*pgxpool.Pool, error) {
	url, err := p.databaseURL()
	if err != nil {
		return nil, err
	}
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil { // pgx's message may show the password
		return nil, exitcode.With(exitcode.Misconfigured,
			errors.New("DATABASE_URL: want postgres://user:password@host:5432/database, or keywords as in host=… dbname=…"))
	}
	cfg.MaxConns = int32(connections)
	cfg.ConnConfig.ConnectTimeout = 10 * time.Second
	pool, err := spendcap.OpenPool(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if err := charges.CheckSchema(ctx, pool); err != nil {
		pool.Close()
		return nil, databaseError(err)
	}
	return pool, nil
}

// adminToken reads the admin API's token. Its errors never show it.
func (p *program) adminToken() (string, error) {
	if token := strings.TrimSpace(p.lookup("DUESDAY_ADMIN_TOKEN")); token != "" {
		return token, nil
	}
	file := p.lookup("DUESDAY_ADMIN_TOKEN_FILE")
	if file == "" {
		return "", usage("DUESDAY_ADMIN_TOKEN: want a random text of at least %d characters, got none (DUESDAY_ADMIN_TOKEN_FILE names a file that holds it)", spendcap.MinToken)
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return "", usage("DUESDAY_ADMIN_TOKEN_FILE: %w", err)
	}
	return strings.TrimSpace(string(content)), nil
}
