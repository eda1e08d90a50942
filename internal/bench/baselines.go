package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stripe/stripe-go/v76"
	"github.com/stripe/stripe-go/v76/client"
)

// baselines are this program in the place of Duesday: the first argument names
// one.
var baselines = map[string]func(context.Context, []string) error{
	"baseline-bare":    bareLoop,
	"baseline-writeup": writeUpLoop,
}

// stripeClient is stripe-go with the settings that Duesday gives it.
func stripeClient(base string, connections int) *client.API {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConns = 0
	transport.MaxIdleConnsPerHost = connections
	transport.MaxConnsPerHost = connections
	backend := stripe.GetBackendWithConfig(stripe.APIBackend, &stripe.BackendConfig{
		URL:               stripe.String(base),
		HTTPClient:        &http.Client{Timeout: 80 * time.Second, Transport: transport},
		LeveledLogger:     &stripe.LeveledLogger{Level: stripe.LevelNull},
		MaxNetworkRetries: stripe.Int64(0),
		EnableTelemetry:   stripe.Bool(false),
	})
	return client.New(apiKey, &stripe.Backends{API: backend, Connect: backend, Uploads: backend})
}

// chargeParams asks for what Duesday asks for, byte for byte as long.
func chargeParams(n int64, key string) *stripe.ChargeParams {
	p := &stripe.ChargeParams{
		Amount:      stripe.Int64(900 + 100*(n%40)),
		Currency:    stripe.String([]string{"usd", "eur", "jpy"}[n%3]),
		Customer:    stripe.String(fmt.Sprintf("cus_%09d", n)),
		Description: stripe.String("Billing period " + period),
	}
	p.SetIdempotencyKey(key)
	p.AddMetadata("duesday_customer", fmt.Sprintf("cust_%09d", n))
	p.AddMetadata("duesday_period", period)
	p.AddMetadata("duesday_key", key)
	return p
}

// bareLoop charges and remembers nothing: no ledger, no lock, no pace, no retry.
func bareLoop(_ context.Context, args []string) error {
	flags := flag.NewFlagSet("baseline-bare", flag.ContinueOnError)
	base := flags.String("stripe", "", "`URL` of Stripe")
	customers := flags.Int64("customers", 0, "how many")
	if err := flags.Parse(args); err != nil {
		return err
	}
	api := stripeClient(*base, workers)
	var (
		next   atomic.Int64
		failed atomic.Pointer[error]
		group  sync.WaitGroup
	)
	for range workers {
		group.Go(func() {
			for n := next.Add(1); n <= *customers && failed.Load() == nil; n = next.Add(1) {
				if _, err := api.Charges.New(chargeParams(n, fmt.Sprintf("%032x", n))); err != nil {
					failed.Store(&err)
				}
			}
		})
	}
	group.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

// writeUpLoop is the job of the write-ups, with their mistakes left out: one
// customer after the other is inserted, charged under a stable key, and updated.
func writeUpLoop(ctx context.Context, args []string) (err error) {
	flags := flag.NewFlagSet("baseline-writeup", flag.ContinueOnError)
	base := flags.String("stripe", "", "`URL` of Stripe")
	if err := flags.Parse(args); err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	const table = `
		CREATE TABLE bills (
			customer text, period text, status text NOT NULL, charge_id text, at timestamptz NOT NULL DEFAULT now(),
			PRIMARY KEY (customer, period)
		)`
	if _, err := conn.Exec(ctx, table); err != nil {
		return err
	}
	rows, err := conn.Query(ctx, `SELECT right(id, 9)::bigint FROM duesday.customers WHERE active ORDER BY id`)
	if err != nil {
		return err
	}
	numbers, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return err
	}
	api := stripeClient(*base, 1)
	for _, n := range numbers {
		customer := fmt.Sprintf("cust_%09d", n)
		if _, err := conn.Exec(ctx, `INSERT INTO bills (customer, period, status) VALUES ($1, $2, 'pending')`, customer, period); err != nil {
			return err
		}
		charge, err := api.Charges.New(chargeParams(n, fmt.Sprintf("%032x", n)))
		if err != nil {
			return err
		}
		if _, err := conn.Exec(ctx, `UPDATE bills SET status = 'paid', charge_id = $3 WHERE customer = $1 AND period = $2`, customer, period, charge.ID); err != nil {
			return err
		}
	}
	return nil
}
