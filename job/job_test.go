package job_test

import (
	"context"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/internal/exitcode"
	"github.com/duesday/duesday/internal/pgtest"
	"github.com/duesday/duesday/internal/stripesim"
	"github.com/duesday/duesday/job"
	"github.com/duesday/duesday/leader"
)

// patience bounds every wait for what must come.
const patience = time.Minute

// testBundle is a run about to start: 50 customers, pages of 10, two workers.
type testBundle struct {
	job.Config
	db   *pgtest.DB
	sim  *stripesim.Server
	logs *observer.ObservedLogs
}

func setup(t *testing.T) *testBundle {
	t.Helper()
	ctx := context.Background()
	db, sim := pgtest.New(t), stripesim.Start(t, stripesim.Options{})
	_, err := charges.Migrate(ctx, db.Connect(t))
	require.NoError(t, err)
	db.Exec(t, `
		INSERT INTO duesday.customers (id, stripe_customer_id, amount, currency)
		SELECT 'cust_' || i, 'cus_' || i, 1000 + i, 'usd' FROM generate_series(10, 59) AS i`)
	gateway, err := charges.NewGateway(charges.GatewayConfig{
		APIKey: "rk_test_x", BaseURL: sim.URL, Workers: 2, Timeout: patience})
	require.NoError(t, err)
	t.Cleanup(gateway.Close)
	sender := charges.NewSender(gateway, charges.NewPacer(10_000, time.Now))
	sender.Retry = charges.RetryPolicy{MaxSends: 3, Base: time.Millisecond, Max: time.Millisecond}
	core, logs := observer.New(zapcore.DebugLevel)
	return &testBundle{db: db, sim: sim, logs: logs, Config: job.Config{
		Ledger:    charges.Ledger{Period: charges.Period{Year: 2026, Month: time.October}, Namespace: "monthly-billing"},
		Customers: "duesday.customers",
		Opening: charges.Opening{Description: "Billing period 2026-10", Method: charges.MethodCharges,
			CapFactor: "1.10", Timeout: patience},
		Workers: 2, PageSize: 10, Drain: patience, ProgressEvery: time.Millisecond,
		Sender: sender, Pool: db.Pool(t), Log: zap.New(core),
	}}
}

// lead acquires the lock until the test ends.
func (b *testBundle) lead(t *testing.T) *leader.Lock {
	t.Helper()
	lock, err := leader.Acquire(context.Background(), leader.Config{
		DatabaseURL: b.db.URL, LockID: charges.LockID(b.Ledger.Namespace, b.Ledger.Period.String()),
		Command: "run", Period: b.Ledger.Period.String(), Holder: t.Name(),
		LeaseDuration: patience, RenewDeadline: patience / 2, RetryPeriod: 100 * time.Millisecond})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, lock.Release(context.Background())) })
	return lock
}

func (b *testBundle) tally(t *testing.T) charges.Tally {
	t.Helper()
	all, err := charges.Statuses(context.Background(), b.Pool, b.Ledger.Period.String())
	require.NoError(t, err)
	require.Len(t, all, 1)
	return all[0].Tally
}

// requireFinished runs once more and compares the bank with the customers.
func (b *testBundle) requireFinished(t *testing.T) {
	t.Helper()
	b.Sender.MayCharge, b.Sender.RefreshWindow = nil, nil
	summary, err := job.Run(context.Background(), b.Config)
	require.NoError(t, err)
	require.True(t, summary.Settled)
	require.Zero(t, summary.This.InDoubt)
	b.requireEachOnce(t)
}

func (b *testBundle) requireEachOnce(t *testing.T) {
	t.Helper()
	paid := map[string]int{}
	for _, c := range b.sim.Succeeded() {
		paid[c.Metadata["duesday_customer"]]++
		require.Equal(t, charges.Key(c.Metadata["duesday_customer"], b.Ledger.Period, b.Ledger.Namespace, 1), c.IdempotencyKey)
	}
	require.Len(t, paid, 50)
	for customer, n := range paid {
		require.Equal(t, 1, n, customer)
	}
	require.Zero(t, b.sim.Stats().IdempotencyErrors)
	require.Empty(t, b.sim.Keyless())
}

func isPost(r stripesim.Request) bool { return r.Method == http.MethodPost }

// posts counts the requests that could have charged.
func (b *testBundle) posts() (n int) {
	for _, r := range b.sim.Requests() {
		if isPost(r) {
			n++
		}
	}
	return n
}

// requireRecorded looks at how the run's row ended.
func (b *testBundle) requireRecorded(t *testing.T, code int, outcome string) {
	t.Helper()
	var (
		gotCode int
		got     string
	)
	require.NoError(t, b.Pool.QueryRow(context.Background(),
		`SELECT exit_code, outcome FROM duesday.runs WHERE id = $1 AND finished_at IS NOT NULL`, b.Lead.RunID()).Scan(&gotCode, &got))
	require.Equal(t, code, gotCode)
	require.Contains(t, got, outcome)
}

func TestRun_chargesEachOnceAndCountsIt(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Lead = b.lead(t)
	b.sim.Decline("cus_10", "card_declined", "insufficient_funds")
	b.sim.Pending("cus_11")
	b.sim.Missing("cus_12")
	summary, err := job.Run(context.Background(), b.Config)
	require.NoError(t, err)
	require.Equal(t, job.Counts{Succeeded: 47, Declined: 1, Processing: 1, Rejected: 1}, summary.This)
	require.Equal(t, b.tally(t), *summary.All)
	require.Len(t, b.sim.Succeeded(), 47)
	b.requireRecorded(t, exitcode.OK, "settled")
}

func TestRun_inAnOutageGivesUpAfterAFewSlots(t *testing.T) {
	t.Parallel()
	for _, kind := range []stripesim.Kind{stripesim.Error503, stripesim.DropBefore, stripesim.Error429, stripesim.HTML200} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.Lead = b.lead(t)
			var over atomic.Bool
			b.sim.FaultNext(func(stripesim.Request) bool { return !over.Load() },
				slices.Repeat([]stripesim.Fault{{Kind: kind}}, 10_000)...)
			summary, err := job.Run(context.Background(), b.Config)
			require.ErrorIs(t, err, job.ErrOutage)
			require.Equal(t, exitcode.Unfinished, exitcode.Of(err))
			require.LessOrEqual(t, b.posts(), 3*(3*b.Workers+b.Workers))
			require.LessOrEqual(t, b.tally(t).InDoubt, 3*b.PageSize, "claimed on")
			require.EqualValues(t, b.tally(t).InDoubt, summary.This.InDoubt)
			b.requireRecorded(t, exitcode.Unfinished, "no answer from Stripe")
			over.Store(true)
			b.requireFinished(t)
		})
	}
}

// staleAfter is a leadership that is not fresh any more after so many sends.
type staleAfter struct {
	job.Leadership
	asked, sends atomic.Int64
}

func (s *staleAfter) Fresh() bool { return s.asked.Add(1) <= s.sends.Load() }

func TestRun_thatIsNotFreshSendsNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	stale := &staleAfter{Leadership: b.lead(t)}
	stale.sends.Store(7)
	b.Lead = stale
	_, err := job.Run(context.Background(), b.Config)
	require.ErrorIs(t, err, job.ErrNotFresh)
	require.Equal(t, exitcode.Unfinished, exitcode.Of(err))
	require.Equal(t, 7, b.posts())
	require.Equal(t, 7, b.tally(t).Succeeded)
	stale.sends.Store(1e6)
	b.requireFinished(t)
}

// unlocked runs what needs the lock on a session that does not hold it.
type unlocked struct {
	job.Leadership
	conn *pgx.Conn
	from int // the first call that is betrayed
}

func (u *unlocked) Do(ctx context.Context, f func(context.Context, *pgx.Conn) error) error {
	if u.from--; u.from >= 0 {
		return u.Leadership.Do(ctx, f)
	}
	return f(ctx, u.conn)
}

func (u *unlocked) DoLong(ctx context.Context, f func(context.Context, *pgx.Conn) error) error {
	return u.Do(ctx, f)
}

func TestRun_withoutTheLockOpensAndClaimsNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	lock := b.lead(t)
	// Make durable, open, read what is in doubt, claim, claim.
	for from := range 5 {
		b.Lead = &unlocked{Leadership: lock, conn: b.db.Connect(t), from: from}
		_, err := job.Run(context.Background(), b.Config)
		require.ErrorIs(t, err, charges.ErrFenced, "from call %d on", from)
		require.Equal(t, exitcode.Unfinished, exitcode.Of(err))
		var claimed int
		require.NoError(t, b.Pool.QueryRow(context.Background(), `SELECT count(*) FROM duesday.charges`).Scan(&claimed))
		require.Zero(t, claimed%b.PageSize)
		require.Equal(t, claimed, b.posts(), "sent what is not claimed")
	}
	b.Lead = lock
	b.requireFinished(t)
}

func TestRun_waitsForWhatIsInFlightNoLongerThanDrain(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Lead, b.Drain = b.lead(t), 200*time.Millisecond
	hung, release := make(chan struct{}), make(chan struct{})
	fault := stripesim.Fault{Kind: stripesim.HangUntilReleased, Hung: hung, Release: release}
	b.sim.FaultNext(isPost, fault, fault)
	ctx, stop := context.WithCancelCause(context.Background())
	go func() {
		<-hung
		<-hung
		stop(job.ErrStopped)
	}()
	summary, err := job.Run(ctx, b.Config)
	require.ErrorIs(t, err, job.ErrStopped)
	require.Equal(t, exitcode.Unfinished, exitcode.Of(err))
	require.Empty(t, b.sim.Bank())
	require.EqualValues(t, b.tally(t).InDoubt, summary.This.InDoubt)
	b.requireRecorded(t, exitcode.Unfinished, "told to stop")

	close(release) // the charges are made after all
	require.Eventually(t, func() bool { return len(b.sim.Succeeded()) == 2 }, patience, time.Millisecond)
	b.requireFinished(t)
}

func TestRun_refusedMidwayStopsAndDeclinesNobody(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Lead = b.lead(t)
	var commits atomic.Int64
	b.sim.OnCommit(func(stripesim.Charge) {
		if commits.Add(1) == 15 {
			b.sim.SetAuth(http.StatusForbidden)
		}
	})
	_, err := job.Run(context.Background(), b.Config)
	require.ErrorIs(t, err, job.ErrRefused)
	require.Equal(t, exitcode.Stopped, exitcode.Of(err))
	require.Zero(t, b.tally(t).Declined+b.tally(t).Rejected)
	b.sim.SetAuth(0)
	b.requireFinished(t)
}

// A frozen row that somebody changed is told loudly, and charged to nobody
// twice.
func TestRun_tellsOfAChangedFrozenRow(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Lead = b.lead(t)
	b.sim.FaultCustomer("cus_10", slices.Repeat([]stripesim.Fault{{Kind: stripesim.DropAfterCommit}}, 6)...)
	_, err := job.Run(context.Background(), b.Config)
	require.ErrorIs(t, err, job.ErrUnfinished)
	b.db.Exec(t, `UPDATE duesday.dues SET description = 'Something else' WHERE customer_id = 'cust_10'`)

	summary, err := job.Run(context.Background(), b.Config)
	require.NoError(t, err)
	require.EqualValues(t, 1, summary.This.Rejected)
	require.Len(t, b.logs.FilterLevelExact(zapcore.ErrorLevel).FilterMessageSnippet("frozen row").All(), 1)
	require.Len(t, b.sim.Succeeded(), 50)
}
