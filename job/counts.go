package job

import "go.uber.org/zap/zapcore"

// Counts is what one run has done so far.
type Counts struct {
	Succeeded  int64 `json:"succeeded"`
	Declined   int64 `json:"declined"`
	Rejected   int64 `json:"rejected"`
	Processing int64 `json:"processing"`
	// InDoubt slots were taken up by this run and not settled by it.
	InDoubt int64 `json:"in_doubt"`
	// LookedUp: the run was to look up who was charged, after a restore, and
	// came to the end of it.
	LookedUp bool `json:"looked_up,omitempty"`
}

// MarshalLogObject writes the counts as fields.
func (c Counts) MarshalLogObject(enc zapcore.ObjectEncoder) error {
	enc.AddInt64("succeeded", c.Succeeded)
	enc.AddInt64("declined", c.Declined)
	enc.AddInt64("rejected", c.Rejected)
	enc.AddInt64("processing", c.Processing)
	enc.AddInt64("in_doubt", c.InDoubt)
	return nil
}
