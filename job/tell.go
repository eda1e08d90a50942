package job

import (
	"context"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/internal/money"
)

// count finds out where the period stands before anything is claimed, and writes
// the line that a run begins with. A run that opened the period knows; another
// counts once, beside the lock's connection. Counting is for people: what goes
// wrong with it stops no run.
func (r *run) count(ctx context.Context, claims bool) {
	standing := r.opened
	if standing == nil {
		read, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		counted, err := r.Ledger.Standing(read, r.Pool)
		if err != nil {
			r.Log.Warn("cannot count the period's dues; the progress tells of this run alone", zap.Error(err))
		} else {
			standing = &counted
		}
	}
	r.Live.start(standing, claims)
	p := r.Live.Snapshot()
	p.expect(r.Rate)
	r.Log.Info("run begins", zap.String("billing_period", p.Period), r.shardField(), zap.Inline(plan{p, !r.Ledger.Shard.Split()}))
}

func (r *run) tellProgress(done <-chan struct{}) {
	tick := time.NewTicker(r.ProgressEvery)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
			r.Log.Info("progress", r.shardField(), zap.Inline(r.Live.Snapshot()))
		}
	}
}

// plan is what a run has before it, as fields. What is expected is counted for
// the whole period alone.
type plan struct {
	Progress
	whole bool
}

func (p plan) MarshalLogObject(enc zapcore.ObjectEncoder) error {
	if p.Known {
		enc.AddInt("customers", p.Tally.Dues())
		enc.AddInt("left", p.Left)
	}
	if p.Known && p.whole {
		if err := enc.AddObject("totals", zapcore.ObjectMarshalerFunc(func(enc zapcore.ObjectEncoder) error {
			for _, m := range p.Money {
				enc.AddString(m.Currency, money.Format(m.Expected, m.Currency))
			}
			return nil
		})); err != nil {
			return err
		}
	}
	return p.addExpectation(enc)
}

// MarshalLogObject writes the progress as fields.
func (p Progress) MarshalLogObject(enc zapcore.ObjectEncoder) error {
	this := p.This
	this.InDoubt = max(this.InDoubt-int64(p.InFlight), 0)
	if err := enc.AddObject("this_run", this); err != nil {
		return err
	}
	if p.Known {
		enc.AddInt("customers", p.Tally.Dues())
		all := p.Tally
		all.InDoubt -= p.InFlight
		if err := enc.AddReflected("all_runs", all); err != nil {
			return err
		}
		enc.AddInt("in_flight", p.InFlight)
		enc.AddInt("left", p.Left)
	}
	if err := addCharged(enc, p.Money); err != nil {
		return err
	}
	return p.addExpectation(enc)
}

// addCharged adds what was charged, by currency.
func addCharged(enc zapcore.ObjectEncoder, all []charges.Money) error {
	return enc.AddObject("charged", zapcore.ObjectMarshalerFunc(func(enc zapcore.ObjectEncoder) error {
		for _, m := range all {
			enc.AddString(m.Currency, money.Format(m.Succeeded, m.Currency))
		}
		return nil
	}))
}

func (p Progress) addExpectation(enc zapcore.ObjectEncoder) error {
	enc.AddFloat64("per_second", float64(int64(p.PerSecond*10+0.5))/10)
	if !p.End.IsZero() {
		enc.AddString("time_left", p.TimeLeft.String())
		enc.AddString("expected_end", p.End.UTC().Format(time.RFC3339))
	}
	return nil
}
