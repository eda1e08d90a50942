package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/internal/exitcode"
	"github.com/duesday/duesday/leader"
)

// program is one invocation. The end-to-end tests run it in process too.
type program struct {
	out, err io.Writer
	env      func(string) (string, bool)
	terminal bool             // err is one
	screened bool             // out is a terminal
	quiet    bool             // warnings and errors only
	bar      *bar             // what err is, if it is a terminal
	now      func() time.Time // nil: the clock
	environ  func() []string  // all that env knows; nil: nobody looks for slips

	// inCluster finds the cluster that the process runs in; nil: leader.InCluster.
	inCluster func(namespace string) (*leader.Cluster, error)
}

func (p *program) clock() time.Time {
	if p.now != nil {
		return p.now()
	}
	return time.Now()
}

// run runs the command that args name and returns the exit code.
func (p *program) run(ctx context.Context, args []string) int {
	if p.terminal {
		p.bar = &bar{out: p.err}
		p.err = p.bar
	}
	root := p.command()
	root.SetArgs(args)
	root.SetOut(p.out)
	root.SetErr(p.err)
	refuseUnknown(root)
	ran, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitcode.OK
	}
	var said errSaid
	if out, ok := p.out.(*pipe); !errors.As(err, &said) && !(ok && out.broken.Load()) {
		fmt.Fprintf(p.err, "%s: %s\n", ran.CommandPath(), oneLine(err.Error()))
	}
	return exitcode.Of(err)
}

// pipe notices when nobody reads it any more, like `duesday report | head` when
// head has enough: that is no news to anybody.
type pipe struct {
	io.Writer
	broken atomic.Bool
}

func (p *pipe) Write(b []byte) (int, error) {
	n, err := p.Writer.Write(b)
	if errors.Is(err, syscall.EPIPE) {
		p.broken.Store(true)
	}
	return n, err
}

// errSaid marks an error that the log has already told.
type errSaid struct{ error }

func (e errSaid) Unwrap() error { return e.error }

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// say writes what a command did, and not what it was asked for.
func (p *program) say(format string, args ...any) {
	if !p.quiet {
		fmt.Fprintf(p.out, format, args...)
	}
}

// aSwitch is the switch that was given, if there was one alone.
func aSwitch(cmd *cobra.Command) string {
	given := []string{}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if f.Value.Type() == "bool" {
			given = append(given, "--"+f.Name)
		}
	})
	if len(given) != 1 {
		return "--some-switch"
	}
	return given[0]
}

// usage is an error of the command line or the environment: exit code 2.
func usage(format string, args ...any) error {
	return exitcode.With(exitcode.Misconfigured, fmt.Errorf(format, args...))
}

func (p *program) command() *cobra.Command {
	root := &cobra.Command{
		Use:   "duesday",
		Short: "Charge every active customer exactly once per billing period",
		Long: `Duesday charges every active customer exactly once per billing period, through
Stripe, from customers that are kept in Postgres.

Start with:
  duesday migrate  create the schema
  duesday plan     see what a run would do; it changes nothing
  duesday run      bill the period
  duesday report   see what became of it

Every flag --some-flag can be given as DUESDAY_SOME_FLAG; a flag wins. The
secrets come from the environment alone:

  DATABASE_URL         postgres://user:password@host:5432/database
  STRIPE_API_KEY       a restricted key (rk_live_…), or
  STRIPE_API_KEY_FILE  the file that holds it
  STRIPE_API_BASE      another address for Stripe's API, for tests and proxies

Exit codes:
  0  the period is settled, or already was, or another replica leads
  1  unfinished, and worth another try: an outage, told to stop, slots in doubt
  2  can never work as configured: flags, schema, malformed credentials
  3  stopped on purpose, a person must act: spend cap, a guard, or Stripe
     refuses the key`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := p.fromEnvironment(cmd.Flags()); err != nil {
				return err
			}
			if !isCompletion(cmd) {
				p.warnUnknown(cmd)
			}
			// Most likely a variable that was to hold a month and does not.
			if f := cmd.Flags().Lookup("period"); f != nil && f.Changed && f.Value.String() == "" {
				return usage("--period: want YYYY-MM, like 2026-10, got an empty text; leave it out for the current month")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(flagError)
	root.PersistentFlags().BoolVarP(&p.quiet, "quiet", "q", false, "tell only of warnings and errors; what a command is asked for it prints all the same")
	root.AddCommand(p.runCommand(), p.planCommand(), p.statusCommand(), p.reportCommand(), p.reconcileCommand(),
		p.migrateCommand(), p.proxyCommand(), p.keyCommand(), p.versionCommand(), p.manCommand())
	for _, cmd := range root.Commands() {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			if _, err := strconv.ParseBool(args[0]); err == nil {
				return usage("unexpected argument %q: a switch takes its value with =, like %s=%[1]s", args[0], aSwitch(cmd))
			}
			return usage("unexpected argument %q: want flags only", args[0])
		}
	}
	completeFlags(root)
	root.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return unknownCommand(root, args[0])
		}
		return nil
	}
	return root
}

// fromEnvironment gives every flag that was not set its DUESDAY_ variable.
func (p *program) fromEnvironment(flags *pflag.FlagSet) error {
	var first error
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Changed || f.Name == "help" || first != nil {
			return
		}
		name := variable(f.Name)
		value, ok := p.env(name)
		if !ok {
			return
		}
		if err := flags.Set(f.Name, value); err != nil {
			first = usage("%s=%q: %w", name, value, errors.Unwrap(err))
		}
	})
	return first
}

func (p *program) lookup(name string) string {
	value, _ := p.env(name)
	return value
}

// stripeKey reads the API key. Its errors never show it.
func (p *program) stripeKey() (string, error) {
	if key := strings.TrimSpace(p.lookup("STRIPE_API_KEY")); key != "" {
		return key, nil
	}
	file := p.lookup("STRIPE_API_KEY_FILE")
	if file == "" {
		return "", usage("STRIPE_API_KEY: want a key like rk_live_…, got none (STRIPE_API_KEY_FILE names a file that holds it)")
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return "", usage("STRIPE_API_KEY_FILE: %w", err)
	}
	return strings.TrimSpace(string(content)), nil
}

func (p *program) databaseURL() (string, error) {
	url := strings.TrimSpace(p.lookup("DATABASE_URL"))
	if url == "" {
		return "", usage("DATABASE_URL: want postgres://user:password@host:5432/database, got nothing")
	}
	return url, nil
}

type dbPool = *pgxpool.Pool

// database opens a pool and looks whether the schema is the binary's.
func (p *program) database(ctx context.Context) (*pgxpool.Pool, error) {
	url, err := p.databaseURL()
	if err != nil {
		return nil, err
	}
	pool, err := charges.OpenPool(ctx, url, 4)
	if err != nil {
		return nil, err
	}
	if err := charges.CheckSchema(ctx, pool); err != nil {
		pool.Close()
		return nil, databaseError(err)
	}
	return pool, nil
}

// databaseError gives exit code 2 to a server that answered and refused us.
func databaseError(err error) error {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		switch {
		case pgErr.Code[:2] == "28", pgErr.Code == "3D000", pgErr.Code == "42501":
			return usage("DATABASE_URL: %s (SQLSTATE %s)", pgErr.Message, pgErr.Code)
		}
	}
	return err
}

func (p *program) logger(format string, debug bool) *zap.Logger {
	level := zapcore.InfoLevel
	switch {
	case debug:
		level = zapcore.DebugLevel
	case p.quiet:
		level = zapcore.WarnLevel
	}
	cfg := zap.NewProductionEncoderConfig()
	cfg.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	cfg.TimeKey = "time"
	encoder := zapcore.NewJSONEncoder(cfg)
	if format == "console" {
		cfg.EncodeTime = zapcore.TimeEncoderOfLayout("15:04:05.000")
		cfg.EncodeLevel = zapcore.CapitalLevelEncoder
		encoder = zapcore.NewConsoleEncoder(cfg)
	}
	return zap.New(zapcore.NewCore(encoder, zapcore.Lock(zapcore.AddSync(p.err)), level))
}
