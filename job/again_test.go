package job_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/job"
)

// Who signs up, leaves or changes price after the opening is next month's
// business, also for a run that has something left to do.
func TestRun_readsTheCustomersOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Lead = b.lead(t)
	b.sim.SetAuth(401)
	_, err := job.Run(context.Background(), b.Config)
	require.ErrorIs(t, err, job.ErrRefused)
	b.sim.SetAuth(0)
	b.db.Exec(t, `INSERT INTO duesday.customers (id, stripe_customer_id, amount, currency) VALUES ('cust_99', 'cus_99', 5, 'usd')`)
	b.db.Exec(t, `UPDATE duesday.customers SET amount = 7, active = id <> 'cust_20'`)
	b.requireFinished(t)
	b.requireFinished(t)
}
