package leader

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
)

// The beat proves two things at once: to this process that its backend still
// holds the lock, to others that this process lives.
const beatSQL = `
	UPDATE duesday.runs SET beats = beats + 1, beat_at = clock_timestamp()
	WHERE id = $1 AND `

// heart beats every RetryPeriod until the lock's context ends. It is the
// Lock's one goroutine, and Release waits for it.
func (l *Lock) heart() {
	defer close(l.heartDone)
	ticker := time.NewTicker(l.cfg.RetryPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-l.ctx.Done():
			return
		case <-ticker.C:
		}
		if err := l.takeTurn(l.ctx); err != nil {
			return
		}
		l.beat()
		l.endTurn()
	}
}

func (l *Lock) beatIfDue() {
	if l.ctx.Err() == nil && l.cfg.Now().Sub(*l.confirmed.Load()) >= l.cfg.RetryPeriod {
		l.beat()
	}
}

// beat must be called in turn; what it finds, the lock's context says. No
// deadline is set on the statement: the watchdog closes the socket under it.
func (l *Lock) beat() {
	// The moment of sending counts, not that of the answer: an answer may wait
	// in the socket of a frozen process for as long as it is frozen.
	sent := l.cfg.Now()
	held, args := l.cfg.held()
	tag, err := l.conn.Exec(context.Background(), beatSQL+held, append([]any{l.run}, args...)...)
	switch {
	case err == nil && tag.RowsAffected() == 1:
		l.confirmed.Store(&sent)
		l.deadline = sent.Add(l.cfg.RenewDeadline)
		l.watchdog.Reset(l.deadline.Sub(l.cfg.Now()))
	case err == nil:
		l.lose(fmt.Errorf("backend %d no longer holds it, or run %d is gone", l.pid, l.run))
	case l.conn.IsClosed():
		l.lose(fmt.Errorf("beat: %w", err))
	default:
		// The server is there but refuses, say because runs is locked. The next
		// beat may do better; if none does, the watchdog decides.
		l.cfg.Log.Warn("beat refused", zap.Int64("run_id", l.run), zap.Error(err))
	}
}

func (l *Lock) timeUp() {
	l.lose(errors.New("no beat was confirmed within the renew deadline"))
}

// lose ends the context and then the connection, and with it whatever waits on
// it. The first reason stands.
func (l *Lock) lose(why error) {
	l.cancel(fmt.Errorf("%w: %w", ErrLost, why))
	if errors.Is(context.Cause(l.ctx), ErrLost) { // and not released
		l.ended.Do(func() { l.cfg.Observe(Transition{AdvisoryLock, Lost}) })
	}
	l.dialer.shut()
}
