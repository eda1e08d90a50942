package metrics

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/duesday/duesday/charges"
)

const (
	// keepFor is how long a scrape is told what was read before.
	keepFor = 10 * time.Second
	// scrapeRead bounds what a scrape waits for the database.
	scrapeRead = 2 * time.Second
	// edgeRead bounds what the begin and the end of a run do.
	edgeRead = 5 * time.Second
)

// state collects what the ledger says.
type state struct {
	cfg   Config
	descs stateDescs

	mu     sync.Mutex
	db     charges.Querier // nil: none is open
	books  *books          // nil: not read yet
	readAt time.Time
}

// Describe is prometheus.Collector's.
func (s *state) Describe(ch chan<- *prometheus.Desc) { sendAll(ch, s.descs.all()) }

func sendAll(ch chan<- *prometheus.Desc, all []*prometheus.Desc) {
	for _, d := range all {
		ch <- d
	}
}

// attach reads all, and lets scrapes read what is small again until detach.
func (s *state) attach(ctx context.Context, db charges.Querier) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.db = db
	s.readAll(ctx)
}

// detach reads all once more, and keeps it.
func (s *state) detach(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readAll(ctx)
	s.db = nil
}

func (s *state) readAll(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), edgeRead)
	defer cancel()
	if s.read(ctx) {
		if err := s.books.readDoubt(ctx, s.db); err != nil {
			s.cfg.Log.Warn("cannot read all that the metrics tell; billing is not affected", zap.Error(err))
		}
	}
}

// read must be called with mu held.
func (s *state) read(ctx context.Context) bool {
	fresh := &books{}
	if err := fresh.read(ctx, s.db); err != nil {
		s.cfg.Log.Warn("cannot read what the metrics tell; billing is not affected", zap.Error(err))
		s.readAt = s.cfg.Now() // no haste
		return false
	}
	if s.books != nil {
		fresh.doubt = s.books.doubt
	}
	s.books, s.readAt = fresh, s.cfg.Now()
	return true
}

// refresh must be called with mu held.
func (s *state) refresh() {
	if s.db != nil && s.cfg.Now().Sub(s.readAt) >= keepFor {
		ctx, cancel := context.WithTimeout(context.Background(), scrapeRead)
		defer cancel()
		s.read(ctx)
	}
}

// Collect is prometheus.Collector's. What is not known is not told: a push then
// leaves what was pushed before.
func (s *state) Collect(ch chan<- prometheus.Metric) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refresh()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(s.descs.build, 1, s.cfg.Version)
	if s.books == nil {
		return
	}
	s.collectPeriods(gauge)
	if s.books.doubt.known {
		gauge(s.descs.inDoubt, float64(s.books.doubt.slots))
		gauge(s.descs.oldest, unix(s.books.doubt.oldest))
	}
	for _, sp := range s.books.spend {
		gauge(s.descs.expected, float64(sp.expected), sp.currency)
		gauge(s.descs.cap, float64(sp.cap), sp.currency)
		gauge(s.descs.claimed, float64(sp.claimed), sp.currency)
	}
}

func (s *state) collectPeriods(gauge func(*prometheus.Desc, float64, ...string)) {
	var (
		open, settled int
		newest        time.Time
	)
	for _, p := range s.books.periods {
		if !p.settled {
			open++
			continue
		}
		settled++
		newest = begin(p.Period, time.UTC)
	}
	current := charges.PeriodOf(s.cfg.Now(), s.cfg.Zone).Add(s.cfg.Offset)
	gauge(s.descs.periods, float64(open), "open")
	gauge(s.descs.periods, float64(settled), "settled")
	gauge(s.descs.periods, float64(s.books.missing(current)), "missing")
	if settled > 0 {
		gauge(s.descs.lastSettled, unix(newest))
	}
	if len(s.books.periods) > 0 {
		gauge(s.descs.nextDue, unix(begin(s.books.next().Add(-s.cfg.Offset), s.cfg.Zone)))
	}
}

func begin(p charges.Period, zone *time.Location) time.Time {
	return time.Date(p.Year, p.Month, 1, 0, 0, 0, 0, zone)
}

// ends are the ledger's.
func (s *state) ends() []end {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refresh()
	if s.books == nil {
		return nil
	}
	return append([]end(nil), s.books.ends...)
}

// unix is 0 for the zero time.
func unix(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMicro()) / 1e6
}
