package job

import (
	"sync"
	"time"

	"github.com/duesday/duesday/charges"
)

// Progress is where a run stands at one moment.
type Progress struct {
	Period string
	// StartedAt is zero until the run knows where the period stands, and At is
	// the moment of this snapshot.
	StartedAt, At time.Time

	// Known is false where the period could not be counted when the run began:
	// Tally and Money then miss what was there before it.
	Known bool
	// Tally and Money are all the period's dues by status: what was there when
	// the run began, and what the run has made of it since.
	Tally charges.Tally
	Money []charges.Money
	This  Counts // this run's part
	// InFlight are those of Tally.InDoubt that this run claimed and has no
	// answer for yet, nor waited for one in vain. InFlightMoney is their amounts.
	InFlight      int
	InFlightMoney map[string]int64

	// Left is how many dues the run still has before it.
	Left int
	// PerSecond is how many results were recorded a second lately.
	PerSecond float64
	// TimeLeft and End are zero while nobody can know: nothing was recorded
	// lately, or nothing is left.
	TimeLeft time.Duration
	End      time.Time
}

// expect computes when the run ends at a rate of so many dues a second.
func (p *Progress) expect(perSecond float64) {
	p.PerSecond, p.TimeLeft, p.End = perSecond, 0, time.Time{}
	if !p.Known || p.Left <= 0 || perSecond <= 0 {
		return
	}
	// A rate that is almost zero must not overflow.
	seconds := min(float64(p.Left)/perSecond, (1000 * 24 * time.Hour).Seconds())
	p.TimeLeft = time.Duration(seconds * float64(time.Second)).Round(time.Second)
	p.End = p.At.Add(p.TimeLeft)
}

// Live is a run's progress while it runs. The zero value is ready, and may be
// given to one run after another. All methods may be called from any goroutine.
type Live struct {
	mu       sync.Mutex
	now      func() time.Time
	period   string
	started  time.Time
	known    bool
	claims   bool // the run claims dues, and not only settles what is open
	standing charges.Standing
	money    map[string]int   // where a currency is in standing.Money
	doubted  int              // slots in doubt, without those in flight
	doubts   map[string]int64 // their amounts
	this     Counts
	lately   window
}

// Snapshot is where the run stands now; the zero Progress before it began.
func (l *Live) Snapshot() Progress {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.now == nil {
		return Progress{}
	}
	p := Progress{
		Period: l.period, StartedAt: l.started, At: l.now(), Known: l.known,
		Tally: l.standing.Tally, Money: append([]charges.Money(nil), l.standing.Money...), This: l.this,
	}
	p.InFlight = max(p.Tally.InDoubt-l.doubted, 0)
	p.InFlightMoney = make(map[string]int64, len(p.Money))
	for _, m := range p.Money {
		p.InFlightMoney[m.Currency] = max(m.InDoubt-l.doubts[m.Currency], 0)
	}
	p.Left = p.Tally.InDoubt
	if l.claims {
		p.Left += p.Tally.Unclaimed
	} else {
		p.Left += p.Tally.Processing
	}
	if !l.started.IsZero() {
		p.expect(l.lately.perSecond(p.At))
	}
	return p
}

// begin forgets the run before.
func (l *Live) begin(period string, now func() time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now, l.period = now, period
	l.started, l.known, l.claims, l.this, l.lately = time.Time{}, false, false, Counts{}, window{}
	l.standing, l.money, l.doubted, l.doubts = charges.Standing{}, nil, 0, nil
}

// start is told where the period stands as the work begins, nil if that could
// not be found out.
func (l *Live) start(standing *charges.Standing, claims bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.started, l.claims = l.now(), claims
	l.lately.since = l.started
	l.money, l.doubts = map[string]int{}, map[string]int64{}
	if standing == nil {
		return
	}
	l.known, l.standing, l.doubted = true, *standing, standing.Tally.InDoubt
	for i, m := range standing.Money {
		l.money[m.Currency], l.doubts[m.Currency] = i, m.InDoubt
	}
}

// claimed counts slots that were claimed, out of dues or, for a new attempt, out
// of declined slots.
func (l *Live) claimed(slots []charges.Slot, from charges.Status) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range slots {
		l.move(from, charges.Claimed, slots[i].Currency, slots[i].Amount)
	}
	l.this.InDoubt += int64(len(slots))
}

// rejected counts dues that can never be sent.
func (l *Live) rejected(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.standing.Tally.Unclaimed -= min(n, l.standing.Tally.Unclaimed)
	l.standing.Tally.Rejected += n
	l.this.Rejected += int64(n)
	l.lately.add(l.now(), n)
}

// takenUp counts slots that were in doubt before this run.
func (l *Live) takenUp(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.this.InDoubt += int64(n)
}

// leftInDoubt counts a slot whose send came to nothing.
func (l *Live) leftInDoubt(s *charges.Slot) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.doubted++
	l.doubts[s.Currency] += s.Amount
}

// again forgets the slots in doubt of this run, since they are all about to be
// taken up once more.
func (l *Live) again() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.this.InDoubt = 0
}

// settled counts results once they are on record, not before.
func (l *Live) settled(results []result) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range results {
		r := &results[i]
		switch r.Status {
		case charges.Succeeded:
			l.this.Succeeded++
		case charges.Declined:
			l.this.Declined++
		case charges.Rejected:
			l.this.Rejected++
		case charges.Processing:
			l.this.Processing++
		}
		if r.was == charges.Claimed {
			l.this.InDoubt--
		}
		if r.doubted && l.doubted > 0 {
			l.doubted--
			l.doubts[r.currency] -= r.amount
		}
		l.move(r.was, r.Status, r.currency, r.amount)
	}
	l.lately.add(l.now(), len(results))
}

func (l *Live) inDoubt() int64 { return l.counts().InDoubt }

func (l *Live) counts() Counts {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.this
}

func (l *Live) move(from, to charges.Status, currency string, amount int64) {
	*l.standing.Tally.Of(to)++
	i, seen := l.money[currency]
	if !seen {
		i = len(l.standing.Money)
		l.money[currency] = i
		l.standing.Money = append(l.standing.Money, charges.Money{Currency: currency})
	}
	m := &l.standing.Money[i]
	*m.Of(to) += amount
	// What was there before the run is missing if it could not be counted.
	if n := l.standing.Tally.Of(from); *n > 0 {
		*n--
		*m.Of(from) -= amount
	}
}

// window counts the results of the last half minute, by the second.
type window struct {
	since   time.Time
	buckets [windowSeconds]struct{ second, n int64 }
}

const windowSeconds = 30

func (w *window) add(now time.Time, n int) {
	second := now.Unix()
	b := &w.buckets[second%windowSeconds]
	if b.second != second {
		b.second, b.n = second, 0
	}
	b.n += int64(n)
}

func (w *window) perSecond(now time.Time) float64 {
	var n int64
	for _, b := range w.buckets {
		if age := now.Unix() - b.second; age >= 0 && age < windowSeconds {
			n += b.n
		}
	}
	covered := float64(windowSeconds-1) + float64(now.Nanosecond())/1e9
	return float64(n) / max(min(now.Sub(w.since).Seconds(), covered), 1)
}
