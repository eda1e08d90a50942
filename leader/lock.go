package leader

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap"

	"github.com/duesday/duesday/internal/exitcode"
)

// ErrLost is in the cause of Lock.Context, and in what Lock.Do returns, once
// the lock can no longer be proven ours.
var ErrLost = errors.New("advisory lock lost")

var errReleased = errors.New("advisory lock released")

// A Lock is the period's advisory lock, held: alone, or as a shard. Its methods may be called from
// any goroutine. Whoever acquired it must Release it, lost or not.
type Lock struct {
	*session
	cfg Config
	pid uint32
	run int64

	ctx    context.Context
	cancel context.CancelCauseFunc

	// turn holds one token while the connection is in use, and with it:
	turn     chan struct{}
	deadline time.Time // when the lock counts as lost, unless a beat is confirmed

	watchdog  *time.Timer
	confirmed atomic.Pointer[time.Time]
	heartDone chan struct{}
	release   sync.Once
	ended     sync.Once // lost or released, and told
	released  error
}

// Acquire takes the lock, once, and starts its heart. If the lock is taken it
// keeps trying until it has the lock, has seen its holder alive (*HeldError),
// or Config.Patience has run out. Errors that no retry can mend carry exit
// code 2, all others 1.
//
// ctx bounds Acquire alone, not the life of the Lock.
func Acquire(ctx context.Context, cfg Config) (*Lock, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("leader election: %w", err)
	}
	cfg = cfg.withDefaults()
	s, err := connect(ctx, cfg)
	if err != nil {
		return nil, err
	}
	lock, err := acquire(ctx, cfg, s)
	if err != nil {
		s.close()
		return nil, err
	}
	return lock, nil
}

func acquire(ctx context.Context, cfg Config, s *session) (*Lock, error) {
	if err := refusePooler(ctx, cfg, s); err != nil {
		return nil, err
	}
	if err := s.prepare(ctx, cfg); err != nil {
		return nil, fmt.Errorf("prepare the lock's session: %w", err)
	}
	c := &candidate{cfg: cfg, session: s}
	if err := c.campaign(ctx); err != nil {
		return nil, withSchemaHint(err)
	}
	lock, err := start(ctx, cfg, s)
	if err != nil {
		return nil, withSchemaHint(err)
	}
	return lock, nil
}

const beginRun = `
	INSERT INTO duesday.runs (command, billing_period, holder, lock_id, shard, shards, backend_pid)
	VALUES ($1, $2, $3, $4, $5, $6, pg_backend_pid())
	RETURNING id, backend_pid`

// start writes the run down and starts the heart.
func start(ctx context.Context, cfg Config, s *session) (*Lock, error) {
	l := &Lock{session: s, cfg: cfg, turn: make(chan struct{}, 1), heartDone: make(chan struct{})}
	step, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	sent := cfg.Now()
	var shard, shards *int
	if cfg.Shard != nil {
		shard, shards = &cfg.Shard.Index, &cfg.Shard.Of
	}
	err := s.conn.QueryRow(step, beginRun, cfg.Command, cfg.Period, cfg.Holder, cfg.LockID, shard, shards).Scan(&l.run, &l.pid)
	if err != nil {
		return nil, fmt.Errorf("write down the run: %w", err)
	}
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	l.confirmed.Store(&sent)
	l.deadline = sent.Add(cfg.RenewDeadline)
	l.watchdog = time.AfterFunc(l.deadline.Sub(cfg.Now()), l.timeUp)
	go l.heart()
	cfg.Log.Info("advisory lock acquired", append(shardFields(shard, shards), zap.Int64("lock_id", cfg.LockID),
		zap.Int64("run_id", l.run), zap.Uint32("backend_pid", l.pid))...)
	cfg.Observe(Transition{AdvisoryLock, Acquired})
	return l, nil
}

// withSchemaHint gives exit code 2 to errors that only another schema or other
// rights can mend.
func withSchemaHint(err error) error {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return err
	}
	switch pgErr.Code {
	case "42P01", "3F000", "42703": // undefined table, schema, column
		return exitcode.With(exitcode.Misconfigured, fmt.Errorf("%w: the schema is missing or old: run duesday migrate", err))
	case "42501": // insufficient privilege
		return exitcode.With(exitcode.Misconfigured, err)
	}
	return err
}

// RunID is the id of this run's row in runs.
func (l *Lock) RunID() int64 { return l.run }

// ID is the id of the period's lock.
func (l *Lock) ID() int64 { return l.cfg.LockID }

// BackendPID is the process id of the Postgres backend that holds the lock.
func (l *Lock) BackendPID() uint32 { return l.pid }

// Context ends when the lock can no longer be proven ours, with a cause that
// wraps ErrLost, or when it is released. It derives from no other context.
func (l *Lock) Context() context.Context { return l.ctx }

// Fresh reports whether a beat was confirmed less than Config.RenewDeadline
// ago. It waits for nothing and relies on no timer, so a process that was
// frozen gets the right answer in its first instruction awake: ask it before
// every send.
//
// While a DoLong runs the heart is still, and Fresh turns false although the
// lock is held; it is true again when DoLong returns.
func (l *Lock) Fresh() bool {
	confirmed, now := *l.confirmed.Load(), l.cfg.Now()
	// The monotonic clock stands still while a machine is suspended, the wall
	// clock may be set back: the longer of the two counts.
	age := max(now.Sub(confirmed), now.Round(0).Sub(confirmed.Round(0)))
	return l.ctx.Err() == nil && age < l.cfg.RenewDeadline
}

// Do runs fn on the lock's connection, alone, when its turn has come; ctx
// bounds the wait for the turn only. The context that fn gets is never
// cancelled, since that would close the connection and lose the lock: the
// server bounds each statement by RenewDeadline - RetryPeriod instead, and the
// lock is lost if fn takes longer than RenewDeadline. fn must not keep the
// connection, nor leave a transaction open.
//
// Do returns what fn returned, or an error that wraps ErrLost if the lock is
// lost; fn may have taken effect all the same.
func (l *Lock) Do(ctx context.Context, fn func(ctx context.Context, conn *pgx.Conn) error) error {
	return l.do(ctx, l.cfg.quickTimeout(), l.cfg.RenewDeadline, fn)
}

// DoLong is Do for statements that take minutes, such as opening a period. The
// server bounds each by Config.StatementTimeout, and the lock is lost if fn
// takes longer than that and RenewDeadline together.
//
// The heart cannot beat meanwhile, which costs no safety. The statement and the
// lock live and die with one session, so what fn does is done under the lock or
// rolled back; a candidate sees the backend at work; and nobody sends, since
// Fresh is false. A dead peer is noticed by TCP.
func (l *Lock) DoLong(ctx context.Context, fn func(ctx context.Context, conn *pgx.Conn) error) error {
	return l.do(ctx, l.cfg.StatementTimeout, l.cfg.StatementTimeout+l.cfg.RenewDeadline, fn)
}

func (l *Lock) do(ctx context.Context, statement, limit time.Duration, fn func(context.Context, *pgx.Conn) error) error {
	if err := l.takeTurn(ctx); err != nil {
		return err
	}
	defer l.endTurn()

	began := l.cfg.Now()
	l.watchdog.Reset(limit)
	err := l.undisturbed(context.WithoutCancel(ctx), statement, fn)
	// What fn took does not count against the heart, which had to wait for it.
	l.deadline = l.deadline.Add(l.cfg.Now().Sub(began))
	l.watchdog.Reset(l.deadline.Sub(l.cfg.Now()))

	if l.conn.IsClosed() {
		l.lose(fmt.Errorf("connection closed: %w", err))
	}
	// Beating here keeps the lock fresh when one Do follows another.
	l.beatIfDue()
	if cause := context.Cause(l.ctx); errors.Is(cause, ErrLost) {
		return cause
	}
	return err
}

// undisturbed runs fn with the statement timeout and leaves the session as it was.
func (l *Lock) undisturbed(ctx context.Context, statement time.Duration, fn func(context.Context, *pgx.Conn) error) error {
	usual := l.cfg.quickTimeout()
	if statement != usual {
		if err := l.set(ctx, "statement_timeout", milliseconds(statement)); err != nil {
			return err
		}
	}
	err := fn(ctx, l.conn)
	if l.conn.IsClosed() {
		return err
	}
	if l.conn.PgConn().TxStatus() != 'I' {
		_, rollbackErr := l.conn.Exec(ctx, `ROLLBACK`)
		err = errors.Join(err, errors.New("a transaction was left open on the lock's connection"), rollbackErr)
	}
	if statement != usual {
		err = errors.Join(err, l.set(ctx, "statement_timeout", milliseconds(usual)))
	}
	return err
}

// takeTurn waits until the connection is the caller's.
func (l *Lock) takeTurn(ctx context.Context) error {
	select {
	case l.turn <- struct{}{}:
	case <-l.ctx.Done():
		return context.Cause(l.ctx)
	case <-ctx.Done():
		return ctx.Err()
	}
	if l.ctx.Err() != nil {
		l.endTurn()
		return context.Cause(l.ctx)
	}
	return nil
}

func (l *Lock) endTurn() { <-l.turn }

// Release ends Context, waits for the heart and for a Do in progress, gives
// the lock back and closes the connection. If ctx ends first, or RenewDeadline
// passes, the socket is closed: the server then frees the lock when it notices.
// Release of a lost lock returns nil. A second call waits for the first, and
// returns what it returned.
//
// It leaves the run's row alone: its outcome is for the caller to write.
func (l *Lock) Release(ctx context.Context) error {
	l.release.Do(func() { l.released = l.giveBack(ctx) })
	return l.released
}

func (l *Lock) giveBack(ctx context.Context) error {
	l.cancel(errReleased)
	lost := errors.Is(context.Cause(l.ctx), ErrLost)
	ctx, cancel := context.WithTimeout(ctx, l.limit)
	defer cancel()
	stop := context.AfterFunc(ctx, l.dialer.shut)
	defer stop()

	<-l.heartDone
	l.turn <- struct{}{} // kept: nobody's turn comes after
	l.watchdog.Stop()
	defer l.close()
	if lost {
		return nil
	}
	if err := l.unlock(ctx, l.cfg.locks()); err != nil {
		return err
	}
	l.cfg.Log.Info("advisory lock released", zap.Int64("lock_id", l.cfg.LockID), zap.Int64("run_id", l.run))
	l.ended.Do(func() { l.cfg.Observe(Transition{AdvisoryLock, Released}) })
	return nil
}
