package job_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/internal/exitcode"
	"github.com/duesday/duesday/job"
)

func TestRun_onAnOlderLedgerChargesNobodyAgain(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Lead = b.lead(t)
	_, err := job.Run(context.Background(), b.Config)
	require.NoError(t, err)
	b.db.Exec(t, `TRUNCATE duesday.charges; UPDATE duesday.periods SET claim_cursor = NULL, settled_at = NULL; UPDATE duesday.totals SET claimed_total = 0`)

	posts := b.posts()
	_, err = job.Run(context.Background(), b.Config)
	require.ErrorIs(t, err, job.ErrOlderLedger)
	require.Equal(t, exitcode.Stopped, exitcode.Of(err))
	b.requireRecorded(t, exitcode.Stopped, "duesday run --period 2026-10 --after-restore")
	_, err = job.Reconcile(context.Background(), b.Config)
	require.ErrorIs(t, err, job.ErrOlderLedger)
	require.Equal(t, posts, b.posts())

	b.AfterRestore = &job.AfterRestore{Since: time.Now().AddDate(0, -1, 0)}
	summary, err := job.Run(context.Background(), b.Config)
	require.NoError(t, err)
	require.True(t, summary.This.LookedUp)
	require.Equal(t, posts, b.posts())
	require.Equal(t, 50, b.tally(t).Succeeded)
	b.AfterRestore = nil
	b.requireFinished(t)
}
