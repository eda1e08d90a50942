package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/internal/exitcode"
)

func (p *program) migrateCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Create or upgrade the schema",
		Long: `Create schema duesday, or upgrade it to what this binary needs. It is one
transaction, and may be run again at any time. The role needs CREATE on the
database the first time.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			applied, err := p.migrate(cmd.Context())
			if err != nil {
				return databaseError(err)
			}
			if output == "json" {
				return writeJSON(p.out, struct {
					Applied []string `json:"applied"`
					Schema  int      `json:"schema_version"`
				}{append([]string{}, applied...), charges.SchemaVersion()})
			}
			for _, name := range applied {
				p.say("applied %s\n", name)
			}
			p.say("schema duesday is at version %d\n", charges.SchemaVersion())
			return nil
		},
	}
	addOutput(cmd, &output)
	return cmd
}

func (p *program) migrate(ctx context.Context) ([]string, error) {
	url, err := p.databaseURL()
	if err != nil {
		return nil, err
	}
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, exitcode.With(exitcode.Misconfigured, errors.New("DATABASE_URL: want postgres://user:password@host:5432/database"))
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return charges.Migrate(ctx, conn)
}

func (p *program) keyCommand() *cobra.Command {
	var (
		f        periodFlags
		customer string
		attempt  int
		output   string
	)
	cmd := &cobra.Command{
		Use:   "key",
		Short: "Print the stable key and lock id for --customer, --period",
		Long: `Print the idempotency key under which a customer is charged for a period, and
the id of the period's advisory lock. It asks nobody: the key depends on these
alone.`,
		Example: "  duesday key --customer cust_123 --period 2026-10",
		RunE: func(*cobra.Command, []string) error {
			if customer == "" {
				return usage("--customer: want the customer's id, got nothing")
			}
			if err := charges.CheckCustomerID(customer); err != nil {
				return usage("--customer %q: %w: such a customer is never charged, and has no key", customer, err)
			}
			if err := checkOutput(output); err != nil {
				return err
			}
			if attempt < 1 {
				return usage("--attempt %d: want 1 or more", attempt)
			}
			ledger, err := f.ledger(p.clock())
			if err != nil {
				return err
			}
			key, lock := charges.Key(customer, ledger.Period, ledger.Namespace, attempt), charges.LockID(ledger.Namespace, ledger.Period.String())
			if output == "json" {
				return writeJSON(p.out, struct {
					Key  string `json:"idempotency_key"`
					Lock int64  `json:"lock_id,string"` // as a number, most readers of JSON would round it
				}{key, lock})
			}
			fmt.Fprintf(p.out, "idempotency_key %s\n", key)
			fmt.Fprintf(p.out, "lock_id         %d\n", lock)
			return nil
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&customer, "customer", "", "the customer's `id`, as in the customers table")
	f.add(flags)
	flags.IntVar(&attempt, "attempt", 1, "`number` of the attempt")
	addOutput(cmd, &output)
	return cmd
}

func (p *program) versionCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		RunE: func(*cobra.Command, []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			if output == "json" {
				return writeJSON(p.out, struct {
					Version string `json:"version"`
					Schema  int    `json:"schema_version"`
					Go      string `json:"go"`
				}{version, charges.SchemaVersion(), runtime.Version()})
			}
			fmt.Fprintf(p.out, "duesday %s (schema %d, %s)\n", version, charges.SchemaVersion(), runtime.Version())
			return nil
		},
	}
	addOutput(cmd, &output)
	return cmd
}
