package job_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zapcore"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/internal/stripesim"
	"github.com/duesday/duesday/job"
)

// The 50 customers of setup owe 1010 to 1059 cents.
const allOwe = 50*1000 + (10+59)*50/2

// standing compares what was counted along the way with what a count finds.
func (b *testBundle) requireStanding(t *testing.T, live *job.Live) job.Progress {
	t.Helper()
	p := live.Snapshot()
	counted, err := b.Ledger.Standing(context.Background(), b.Pool)
	require.NoError(t, err)
	require.True(t, p.Known)
	require.Equal(t, counted.Tally, p.Tally)
	require.Equal(t, b.tally(t), p.Tally)
	require.Equal(t, counted.Money, p.Money)
	return p
}

// fields are those of the log's first line with the message.
func (b *testBundle) fields(t *testing.T, message string) map[string]any {
	t.Helper()
	found := b.logs.FilterMessage(message).All()
	require.NotEmpty(t, found, message)
	enc := zapcore.NewMapObjectEncoder()
	for _, f := range found[0].Context {
		f.AddTo(enc)
	}
	return enc.Fields
}

func TestLive_countsWhatWasThereBeforeTheRun(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.db.Exec(t, `UPDATE duesday.customers SET amount = -5 WHERE id = 'cust_11'`)
	b.db.Exec(t, `UPDATE duesday.customers SET currency = 'jpy' WHERE id = 'cust_12'`)
	b.sim.Decline("cus_10", "card_declined", "insufficient_funds")
	b.Lead = b.lead(t)
	b.Rate = 10
	b.Live = new(job.Live)
	require.Zero(t, b.Live.Snapshot())

	// The first run opens, and is stopped after twenty or so.
	ctx, stop := context.WithCancelCause(context.Background())
	var commits atomic.Int64
	b.sim.OnCommit(func(stripesim.Charge) {
		if commits.Add(1) == 20 {
			stop(job.ErrStopped)
		}
	})
	_, err := job.Run(ctx, b.Config)
	require.ErrorIs(t, err, job.ErrStopped)
	first := b.requireStanding(t, b.Live)
	require.Equal(t, 50, first.Tally.Dues())
	require.NotZero(t, first.Tally.Unclaimed)
	require.Equal(t, map[string]any{
		"billing_period": "2026-10", "customers": 50, "left": 50,
		"totals":     map[string]any{"usd": "$497.02", "jpy": "¥1,012"},
		"per_second": 10.0, "time_left": "5s", "expected_end": first.StartedAt.Add(5 * time.Second).UTC().Format(time.RFC3339),
	}, b.fields(t, "run begins"))

	b.logs.TakeAll()
	b.Sender.MayCharge, b.Sender.RefreshWindow = nil, nil
	_, err = job.Run(context.Background(), b.Config)
	require.NoError(t, err)
	second := b.requireStanding(t, b.Live)
	require.Equal(t, charges.Tally{Succeeded: 48, Declined: 1, Rejected: 1}, second.Tally)
	require.Equal(t, []charges.Money{
		{Currency: "jpy", Expected: 1012, Cap: 1113, Succeeded: 1012},
		{Currency: "usd", Expected: allOwe - 1011 - 1012, Cap: 54672, Succeeded: allOwe - 1010 - 1011 - 1012, Declined: 1010},
	}, second.Money)
	begun := b.fields(t, "run begins")
	require.Equal(t, 50, begun["customers"])
	require.Equal(t, first.Left, begun["left"])
	require.Less(t, second.This.Succeeded, int64(48))
	require.Zero(t, second.Left)
	require.Zero(t, second.End)
}

// What was just claimed is on its way, and no reason to worry.
func TestLive_tellsInFlightFromInDoubt(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Lead = b.lead(t)
	b.Live = new(job.Live)
	b.sim.FaultCustomer("cus_10", stripesim.Fault{Kind: stripesim.Error500BeforeCommit})
	var flew, worth, doubted, told atomic.Int64
	b.sim.OnCommit(func(stripesim.Charge) {
		p := b.Live.Snapshot()
		flew.Store(max(flew.Load(), int64(p.InFlight)))
		worth.Store(max(worth.Load(), p.InFlightMoney["usd"]))
		enc := zapcore.NewMapObjectEncoder()
		if err := p.MarshalLogObject(enc); err == nil {
			told.Store(max(told.Load(), enc.Fields["this_run"].(map[string]any)["in_doubt"].(int64)))
		}
		doubted.Store(max(doubted.Load(), int64(p.Tally.InDoubt-p.InFlight)))
	})
	for range 2 { // the second finds it in doubt
		_, err := job.Run(context.Background(), b.Config)
		require.ErrorIs(t, err, job.ErrUnfinished)
		require.LessOrEqual(t, doubted.Load(), int64(1))
		p := b.requireStanding(t, b.Live)
		require.Equal(t, 1, p.Tally.InDoubt)
		require.Zero(t, p.InFlight)
		require.Zero(t, p.InFlightMoney["usd"])
		require.LessOrEqual(t, told.Load(), int64(1))
		require.Equal(t, 1, p.Left)
		b.Sender.MayCharge, b.Sender.RefreshWindow = nil, nil
	}
	require.NotZero(t, flew.Load())
	require.Greater(t, worth.Load(), 1000*flew.Load())
	b.db.Exec(t, `UPDATE duesday.charges SET key_window_at = key_window_at - interval '25 hours'`)
	b.sim.Advance(25 * time.Hour)
	b.requireFinished(t)
	p := b.requireStanding(t, b.Live)
	require.Zero(t, p.Tally.InDoubt+p.InFlight)
}
