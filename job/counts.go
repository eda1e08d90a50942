package job

import (
	"sync/atomic"

	"go.uber.org/zap/zapcore"

	"github.com/duesday/duesday/charges"
)

// Counts is what one run has done so far.
type Counts struct {
	Succeeded  int64 `json:"succeeded"`
	Declined   int64 `json:"declined"`
	Rejected   int64 `json:"rejected"`
	Processing int64 `json:"processing"`
	// InDoubt slots were taken up by this run and not settled by it.
	InDoubt int64 `json:"in_doubt"`
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

// counter counts slots as they are taken up and as their results are on record,
// not before.
type counter struct {
	open, succeeded, declined, rejected, processing atomic.Int64
}

func (c *counter) takenUp(n int) { c.open.Add(int64(n)) }

func (c *counter) settled(results []charges.Settlement) {
	for _, r := range results {
		switch r.Status {
		case charges.Succeeded:
			c.succeeded.Add(1)
		case charges.Declined:
			c.declined.Add(1)
		case charges.Rejected:
			c.rejected.Add(1)
		case charges.Processing:
			c.processing.Add(1)
		}
	}
	c.open.Add(-int64(len(results)))
}

// again forgets the slots in doubt, since they are all about to be taken up
// once more.
func (c *counter) again() { c.open.Store(0) }

func (c *counter) inDoubt() int64 { return c.open.Load() }

func (c *counter) snapshot() Counts {
	return Counts{
		Succeeded: c.succeeded.Load(), Declined: c.declined.Load(), Rejected: c.rejected.Load(),
		Processing: c.processing.Load(), InDoubt: c.open.Load(),
	}
}
