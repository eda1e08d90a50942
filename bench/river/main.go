// Command river bills a month as jobs of riverqueue/river: the baseline of
// `make bench BENCH=river`. It is a module of its own, so that Duesday does not
// depend on River.
//
// It does what River's documentation advises: jobs are unique by their
// arguments (customer and month), inserted many at once, and completed in
// batches. The pauses between fetches are those of River's own benchmark.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/stripe/stripe-go/v76"
	"github.com/stripe/stripe-go/v76/client"
)

const period = "2026-10"

// charge is a job: one customer's month.
type charge struct {
	Customer       string `json:"customer" river:"unique"`
	Period         string `json:"period" river:"unique"`
	StripeCustomer string `json:"stripe_customer"`
	Amount         int64  `json:"amount"`
	Currency       string `json:"currency"`
}

// Kind names the job.
func (charge) Kind() string { return "charge" }

// InsertOpts makes a second job for the same customer and month impossible.
func (charge) InsertOpts() river.InsertOpts {
	return river.InsertOpts{UniqueOpts: river.UniqueOpts{ByArgs: true}}
}

type charger struct {
	river.WorkerDefaults[charge]
	stripe *client.API
	stable bool // the key depends on customer and month alone, not on the attempt
}

// Work charges, under a random key as stripe-go makes one by itself, or under a
// stable one.
func (c *charger) Work(ctx context.Context, job *river.Job[charge]) error {
	args := job.Args
	p := &stripe.ChargeParams{
		Params:      stripe.Params{Context: ctx},
		Amount:      stripe.Int64(args.Amount),
		Currency:    stripe.String(args.Currency),
		Customer:    stripe.String(args.StripeCustomer),
		Description: stripe.String("Billing period " + args.Period),
	}
	key := stripe.NewIdempotencyKey()
	if c.stable {
		key = args.Customer + ":" + args.Period
	}
	p.SetIdempotencyKey(key)
	p.AddMetadata("duesday_customer", args.Customer)
	p.AddMetadata("duesday_period", args.Period)
	p.AddMetadata("duesday_key", key)
	_, err := c.stripe.Charges.New(p)
	return err
}

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "river:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	var (
		migrate = flag.Bool("migrate", false, "create River's schema, and end")
		workers = flag.Int("workers", 64, "jobs at once")
		stable  = flag.Bool("stable-key", false, "an idempotency key from customer and month, not a random one")
		rescue  = flag.Duration("rescue-after", time.Hour, "when a job whose worker has died is taken up again")
	)
	flag.Parse()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer pool.Close()
	driver := riverpgxv5.New(pool)
	if *migrate {
		migrator, err := rivermigrate.New(driver, nil)
		if err != nil {
			return err
		}
		_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
		return err
	}

	kinds := river.NewWorkers()
	river.AddWorker(kinds, &charger{stripe: stripeClient(*workers), stable: *stable})
	jobs, err := river.NewClient(driver, &river.Config{
		Queues:               map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: *workers}},
		Workers:              kinds,
		FetchCooldown:        2 * time.Millisecond,
		FetchPollInterval:    20 * time.Millisecond,
		JobTimeout:           min(time.Minute, *rescue/2),
		RescueStuckJobsAfter: *rescue,
		Logger:               slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return err
	}
	if err := insert(ctx, pool, jobs); err != nil {
		return fmt.Errorf("insert the jobs: %w", err)
	}
	if err := jobs.Start(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, jobs.Stop(ctx)) }()
	return await(ctx, pool)
}

// insert makes a job for each customer who has none yet.
func insert(ctx context.Context, pool *pgxpool.Pool, jobs *river.Client[pgx.Tx]) error {
	rows, err := pool.Query(ctx, `SELECT id, stripe_customer_id, amount, currency FROM duesday.customers WHERE active ORDER BY id`)
	if err != nil {
		return err
	}
	const batch = 5000
	var many []river.InsertManyParams
	c := charge{Period: period}
	if _, err := pgx.ForEachRow(rows, []any{&c.Customer, &c.StripeCustomer, &c.Amount, &c.Currency}, func() error {
		many = append(many, river.InsertManyParams{Args: c})
		if len(many) < batch {
			return nil
		}
		_, err := jobs.InsertMany(ctx, many)
		many = many[:0]
		return err
	}); err != nil {
		return err
	}
	if len(many) == 0 {
		return nil
	}
	_, err = jobs.InsertMany(ctx, many)
	return err
}

// await returns when no job is left to do.
func await(ctx context.Context, pool *pgxpool.Pool) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		var left bool
		if err := pool.QueryRow(ctx, `
			SELECT EXISTS (SELECT FROM river_job WHERE state IN ('available', 'pending', 'retryable', 'running', 'scheduled'))`).Scan(&left); err != nil {
			return err
		}
		if !left {
			return nil
		}
		<-tick.C
	}
}

// stripeClient has the settings that Duesday gives stripe-go.
func stripeClient(connections int) *client.API {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConns = 0
	transport.MaxIdleConnsPerHost = connections
	transport.MaxConnsPerHost = connections
	backend := stripe.GetBackendWithConfig(stripe.APIBackend, &stripe.BackendConfig{
		URL:               stripe.String(os.Getenv("STRIPE_API_BASE")),
		HTTPClient:        &http.Client{Timeout: 80 * time.Second, Transport: transport},
		LeveledLogger:     &stripe.LeveledLogger{Level: stripe.LevelNull},
		MaxNetworkRetries: stripe.Int64(0),
		EnableTelemetry:   stripe.Bool(false),
	})
	return client.New(os.Getenv("STRIPE_API_KEY"), &stripe.Backends{API: backend, Connect: backend, Uploads: backend})
}
