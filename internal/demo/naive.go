package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stripe/stripe-go/v76"
	"github.com/stripe/stripe-go/v76/client"

	"github.com/duesday/duesday/internal/subproc"
)

// naiveReplica is the argument that makes this program one replica of the job.
const naiveReplica = "naive-replica"

// runNaive is the billing job of the write-ups, with their three mistakes: each
// replica runs the schedule, "already billed?" is asked before the charge and
// answered after it, and a retry makes a new idempotency key.
func runNaive(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	backend := stripe.GetBackendWithConfig(stripe.APIBackend, &stripe.BackendConfig{
		URL:               stripe.String(os.Getenv("STRIPE_API_BASE")),
		LeveledLogger:     &stripe.LeveledLogger{Level: stripe.LevelNull},
		MaxNetworkRetries: stripe.Int64(0),
	})
	api := client.New(os.Getenv("STRIPE_API_KEY"), &stripe.Backends{API: backend, Connect: backend, Uploads: backend})

	rows, err := conn.Query(ctx, `SELECT stripe_customer_id, amount, currency FROM duesday.customers WHERE active ORDER BY id`)
	if err != nil {
		return err
	}
	type customer struct {
		ID       string
		Amount   int64
		Currency string
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[customer])
	if err != nil {
		return err
	}
	for _, c := range all {
		var billed bool
		if err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM naive_bills WHERE customer = $1)`, c.ID).Scan(&billed); err != nil {
			return err
		}
		if billed {
			continue
		}
		for range 3 { // the retry annotation around the method
			_, err = api.Charges.New(&stripe.ChargeParams{ // no key: stripe-go makes a random one
				Amount: stripe.Int64(c.Amount), Currency: stripe.String(c.Currency), Customer: stripe.String(c.ID),
			})
			var declined *stripe.Error
			if err == nil || errors.As(err, &declined) && declined.Type == stripe.ErrorTypeCard {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		if err != nil {
			continue // logged, and forgotten
		}
		if _, err := conn.Exec(ctx, `INSERT INTO naive_bills (customer) VALUES ($1)`, c.ID); err != nil {
			return err
		}
	}
	return nil
}

func (s *stage) naive(ctx context.Context) (result, error) {
	m, err := s.month(ctx, "naive")
	if err != nil {
		return result{}, err
	}
	defer m.close()
	if _, err := m.conn.Exec(ctx, `CREATE TABLE naive_bills (customer text)`); err != nil {
		return result{}, err
	}
	self, err := os.Executable()
	if err != nil {
		return result{}, err
	}
	began := time.Now()
	show := watch("the write-ups' job", m.bank)
	var replicas []*exec.Cmd
	for range 3 {
		cmd := exec.CommandContext(ctx, self, naiveReplica)
		cmd.Env, cmd.Stderr = m.env(), os.Stderr
		subproc.DieWithUs(cmd)
		if err := cmd.Start(); err != nil {
			return result{}, err
		}
		replicas = append(replicas, cmd)
	}
	for _, cmd := range replicas {
		err = errors.Join(err, cmd.Wait())
	}
	show.stop()
	if err != nil {
		return result{}, err
	}
	return count("the write-ups' job", m.bank, 0, time.Since(began)), nil
}
