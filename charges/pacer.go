package charges

import (
	"context"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Pacer keeps all requests to Stripe under a rate. A 429 halves it, at most
// once a second since one overload answers many requests at once, and every
// second without a 429 gives back a twentieth of the full rate. It may be used
// by many goroutines.
type Pacer struct {
	full    rate.Limit
	now     func() time.Time
	limiter *rate.Limiter

	// Observe is told how long each Wait took that ended with leave to send, by
	// many goroutines at once. Nil: nobody is. It is set before the first Wait.
	Observe func(time.Duration)

	mu     sync.Mutex
	halved time.Time // when the rate was last halved
	quiet  time.Time // since when no 429 came that is not yet rewarded
}

// headroom is the part of the rate that is used. Requests leave evenly and arrive
// less so: what is left lets a second's worth of them come 8 ms closer together
// without being more in a second of Stripe's than the rate says.
const headroom = 0.992

// NewPacer allows a little less than perSecond requests a second, one at a time:
// no burst.
func NewPacer(perSecond float64, now func() time.Time) *Pacer {
	full := rate.Limit(perSecond * headroom)
	return &Pacer{full: full, now: now, limiter: rate.NewLimiter(full, 1)}
}

// Wait returns when the next request may be sent, or ctx's error.
func (p *Pacer) Wait(ctx context.Context) error {
	p.recover()
	if p.Observe == nil {
		return p.limiter.Wait(ctx)
	}
	began := p.now()
	err := p.limiter.Wait(ctx)
	if err == nil {
		p.Observe(p.now().Sub(began))
	}
	return err
}

// Throttled tells the pacer that Stripe answered 429.
func (p *Pacer) Throttled() {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	p.quiet = now
	if now.Sub(p.halved) < time.Second {
		return
	}
	p.halved = now
	p.limiter.SetLimitAt(now, max(p.limiter.Limit()/2, min(headroom, p.full)))
}

func (p *Pacer) recover() {
	if p.limiter.Limit() == p.full {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	seconds := int(now.Sub(p.quiet) / time.Second)
	if seconds < 1 {
		return
	}
	p.quiet = p.quiet.Add(time.Duration(seconds) * time.Second)
	p.limiter.SetLimitAt(now, min(p.limiter.Limit()+p.full*rate.Limit(seconds)/20, p.full))
}
