package job

import (
	"time"

	"go.uber.org/zap/zapcore"

	"github.com/duesday/duesday/charges"
)

// Summary is how a run ended.
type Summary struct {
	Period         string `json:"billing_period"`
	AlreadySettled bool   `json:"already_settled,omitempty"`
	Opened         bool   `json:"opened,omitempty"` // by this run
	Settled        bool   `json:"settled"`
	// Shard is the part of the period that the run had, like "1 of 4"; empty:
	// all of it. ShardDone says that its part is done, and the period is not.
	Shard     string         `json:"shard,omitempty"`
	ShardDone bool           `json:"shard_done,omitempty"`
	This      Counts         `json:"this_run"`
	All       *charges.Tally `json:"all_runs,omitempty"` // nil if it could not be read
	// Money is All by currency; empty if it could not be read.
	Money []charges.Money `json:"amounts,omitempty"`
	// ResendAt is when the youngest slot in doubt may be sent anew at the
	// latest; zero if none is in doubt.
	ResendAt time.Time `json:"resend_at,omitzero"`
	Seconds  float64   `json:"seconds"`
}

// MarshalLogObject writes the summary as fields.
func (s Summary) MarshalLogObject(enc zapcore.ObjectEncoder) error {
	enc.AddBool("settled", s.Settled)
	if s.Shard != "" {
		enc.AddString("shard", s.Shard)
	}
	if err := enc.AddObject("this_run", s.This); err != nil {
		return err
	}
	if s.All != nil {
		if err := enc.AddReflected("all_runs", s.All); err != nil {
			return err
		}
	}
	if s.Money != nil {
		if err := addCharged(enc, s.Money); err != nil {
			return err
		}
	}
	enc.AddFloat64("seconds", s.Seconds)
	return nil
}
