package leader

import (
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/duesday/duesday/internal/exitcode"
)

// Config says which lock to take, and how long silence may last. The three
// durations mean what they mean to client-go's leader election.
type Config struct {
	// DatabaseURL must reach Postgres itself, or a pooler in session mode.
	DatabaseURL string
	LockID      int64
	// Shard makes the process one of several that have the period between them.
	// Nil: it has the period alone.
	Shard *Shard

	// Command, Period and Holder go into runs, and to whoever finds the lock
	// taken. Holder names the process: a pod's name, or host and pid.
	Command, Period, Holder string
	// WaitFor is the command of a holder that does not do this one's work: as
	// long as it lives it is waited for, and never is a *HeldError. Neither is a
	// shard then, which does a part of it only. Empty: none is waited for.
	//
	// A shard waits for every holder: it has no replica that would do its work
	// if the holder failed later.
	WaitFor string

	// LeaseDuration is how long a holder may be silent before it is ended.
	LeaseDuration time.Duration
	// RenewDeadline is how long a holder goes on without a confirmed beat.
	RenewDeadline time.Duration
	// RetryPeriod is the pause between beats, and between a candidate's tries.
	RetryPeriod time.Duration

	// Patience is how long a candidate tries against a holder that shows no
	// life. Zero: three times LeaseDuration.
	Patience time.Duration
	// StatementTimeout bounds each statement of Lock.DoLong, at the server.
	// Those of Lock.Do have RenewDeadline - RetryPeriod, so that the server
	// gives up before the lock is given up. Zero: 30 minutes.
	StatementTimeout time.Duration

	Log *zap.Logger      // nil: none
	Now func() time.Time // nil: time.Now
	// Observe is told of each transition, from any goroutine. Nil: nobody is.
	Observe func(Transition)
}

// A Shard is one of Of processes that share a period. It holds Config.LockID in
// shared mode, which keeps out whoever wants the period alone, and LockID.
type Shard struct {
	Index, Of int
	LockID    int64 // of this shard: held exclusively
	// SistersID is the lock that all shards of Of hold in shared mode. Whoever
	// shares Config.LockID without it splits the period otherwise, and excludes.
	SistersID int64
}

func (s Shard) String() string { return fmt.Sprintf("%d of %d", s.Index, s.Of) }

// Validate returns an error with exit code 2 that names every wrong field.
func (c Config) Validate() error {
	var errs []error
	must := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	must(c.DatabaseURL != "", "no database URL")
	must(c.Command != "" && c.Period != "" && c.Holder != "", "command, period and holder must be named")
	must(c.Shard == nil || c.Shard.Of > 1 && 0 <= c.Shard.Index && c.Shard.Index < c.Shard.Of, "shard %v: want one of two or more, counted from 0", c.Shard)
	must(c.LeaseDuration >= time.Second, "lease duration %s: want at least 1s", c.LeaseDuration)
	must(c.RenewDeadline < c.LeaseDuration, "renew deadline %s: want less than the lease duration %s", c.RenewDeadline, c.LeaseDuration)
	must(c.RetryPeriod < c.RenewDeadline, "retry period %s: want less than the renew deadline %s", c.RetryPeriod, c.RenewDeadline)
	must(c.RetryPeriod >= 10*time.Millisecond, "retry period %s: want at least 10ms", c.RetryPeriod)
	must(c.Patience >= 0, "patience %s: want none or more", c.Patience)
	must(c.StatementTimeout == 0 || c.StatementTimeout >= time.Millisecond, "statement timeout %s: want at least 1ms", c.StatementTimeout)
	return exitcode.With(exitcode.Misconfigured, errors.Join(errs...))
}

func (c Config) withDefaults() Config {
	if c.Patience == 0 {
		c.Patience = 3 * c.LeaseDuration
	}
	if c.StatementTimeout == 0 {
		c.StatementTimeout = 30 * time.Minute
	}
	if c.Log == nil {
		c.Log = zap.NewNop()
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Observe == nil {
		c.Observe = func(Transition) {}
	}
	return c
}

// quickTimeout is the session's statement_timeout outside DoLong.
func (c Config) quickTimeout() time.Duration { return c.RenewDeadline - c.RetryPeriod }

// endAfter is the silence after which a candidate ends the holder's session:
// later than the server itself would.
func (c Config) endAfter() time.Duration { return c.LeaseDuration + c.RetryPeriod }
