package stripesim

import (
	"cmp"
	"encoding/binary"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"time"
)

// What a [Charge] of the bank is.
const (
	KindCharge = "charge"
	KindIntent = "payment_intent"
)

// States of charges and payment intents, as Stripe spells them.
const (
	StatusSucceeded             = "succeeded"
	StatusPending               = "pending" // a charge's "not yet"
	StatusFailed                = "failed"  // a charge that was declined
	StatusProcessing            = "processing"
	StatusRequiresPaymentMethod = "requires_payment_method"
	StatusRequiresConfirmation  = "requires_confirmation"
	StatusCanceled              = "canceled"
)

// Charge is one entry of the bank's books: a charge, or a payment intent.
type Charge struct {
	ID             string            `json:"id"`
	Kind           string            `json:"kind"`
	Customer       string            `json:"customer"`
	Amount         int64             `json:"amount"` // smallest currency unit
	Currency       string            `json:"currency"`
	Status         string            `json:"status"`
	Description    string            `json:"description"`
	Source         string            `json:"source"` // source or payment method; empty is the customer's default
	Metadata       map[string]string `json:"metadata"`
	IdempotencyKey string            `json:"idempotency_key"`
	Created        time.Time         `json:"created"`
	// Decline is set on what was declined.
	Decline *Decline `json:"decline,omitempty"`
	// LatestCharge is the charge that an intent made.
	LatestCharge string `json:"latest_charge,omitempty"`
	// intent is set on the charge that an intent made. Such charges are in
	// lists, as at Stripe, but not in Bank: the money moves once.
	intent string
}

// entry is one line of a book. cur is replaced, never written to, so a *Charge
// may be read without the lock once it is out.
type entry struct {
	created int64 // Unix seconds, the precision that lists see
	seq     uint64
	cur     *Charge
}

func (e *entry) compare(o *entry) int {
	if c := cmp.Compare(e.created, o.created); c != 0 {
		return c
	}
	return cmp.Compare(e.seq, o.seq)
}

// book is an append-mostly ledger, ordered by creation and indexed by customer.
type book struct {
	byID       map[string]*entry
	all        []*entry
	byCustomer map[string][]*entry
}

func newBook() book {
	return book{byID: make(map[string]*entry), byCustomer: make(map[string][]*entry)}
}

func (b *book) add(e *entry) {
	b.byID[e.cur.ID] = e
	b.all = insert(b.all, e)
	if c := e.cur.Customer; c != "" {
		b.byCustomer[c] = insert(b.byCustomer[c], e)
	}
}

// insert appends, except for what was planted in the past.
func insert(es []*entry, e *entry) []*entry {
	if n := len(es); n == 0 || es[n-1].compare(e) < 0 {
		return append(es, e)
	}
	i, _ := slices.BinarySearchFunc(es, e, (*entry).compare)
	return slices.Insert(es, i, e)
}

// of returns the entries of a customer, or all, oldest first.
func (b *book) of(customer string) []*entry {
	if customer == "" {
		return b.all
	}
	return b.byCustomer[customer]
}

func (s *Sim) book(kind string) *book {
	if kind == KindIntent {
		return &s.intents
	}
	return &s.charges
}

// write enters a charge; the caller holds the lock.
func (s *Sim) write(c Charge) *Charge {
	s.seq++
	if c.ID == "" {
		prefix := "ch_"
		if c.Kind == KindIntent {
			prefix = "pi_"
		}
		c.ID = prefix + s.newID(s.seq)
	}
	if c.Created.IsZero() {
		c.Created = s.now()
	}
	e := &entry{created: c.Created.Unix(), seq: s.seq, cur: &c}
	s.book(c.Kind).add(e)
	return &c
}

const base62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// newID returns 24 characters that only the seed and n decide.
func (s *Sim) newID(n uint64) string {
	var id [24]byte
	for half := range 2 {
		x := mix(s.opts.Seed, "id", n*2+uint64(half))
		for i := range 10 {
			id[half*10+i] = base62[x%62]
			x /= 62
		}
	}
	for i := 20; i < 24; i++ { // the number itself, so that no two are equal
		id[43-i] = base62[n%62]
		n /= 62
	}
	return string(id[:])
}

// mix hashes its arguments to a number that looks random.
func mix(seed uint64, text string, n uint64) uint64 {
	h := fnv.New64a()
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], seed)
	binary.BigEndian.PutUint64(b[8:], n)
	_, _ = h.Write(b[:])
	_, _ = h.Write([]byte(text))
	x := h.Sum64() // FNV alone leaves the high bits of near inputs alike
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// Bank returns what truly happened, oldest first: every charge and intent ever
// written, paid or not. A charge that an intent made is not listed beside it.
func (s *Sim) Bank() []Charge {
	return s.truth(func(*Charge) bool { return true })
}

// Succeeded returns the part of [Sim.Bank] that moved money.
func (s *Sim) Succeeded() []Charge {
	return s.truth(func(c *Charge) bool { return c.Status == StatusSucceeded })
}

func (s *Sim) truth(keep func(*Charge) bool) []Charge {
	s.mu.Lock()
	found := make([]*entry, 0, len(s.charges.all)+len(s.intents.all))
	for _, es := range [][]*entry{s.charges.all, s.intents.all} {
		for _, e := range es {
			if e.cur.intent == "" && keep(e.cur) {
				found = append(found, &entry{e.created, e.seq, e.cur})
			}
		}
	}
	s.mu.Unlock()
	slices.SortFunc(found, (*entry).compare)
	out := make([]Charge, len(found))
	for i, e := range found {
		out[i] = e.cur.clone()
	}
	return out
}

func (c *Charge) clone() Charge {
	out := *c
	out.Metadata = maps.Clone(c.Metadata)
	if c.Decline != nil {
		d := *c.Decline
		out.Decline = &d
	}
	return out
}

// Plant enters a charge or an intent as if it had been made outside of the
// test. Empty fields get an identifier, KindCharge, StatusSucceeded and the
// present time. It returns the entry.
func (s *Sim) Plant(c Charge) Charge {
	s.mu.Lock()
	defer s.mu.Unlock()
	c = c.clone()
	if c.Kind == "" {
		c.Kind = KindCharge
		if strings.HasPrefix(c.ID, "pi_") {
			c.Kind = KindIntent
		}
	}
	if c.Status == "" {
		c.Status = StatusSucceeded
	}
	return s.write(c).clone()
}

// Resolve settles everything of the customer that is pending or processing, as
// a bank debit does days later, and returns how many entries that were.
func (s *Sim) Resolve(customer string, succeeded bool) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, b := range []*book{&s.charges, &s.intents} {
		for _, e := range b.byCustomer[customer] {
			if e.cur.Status != StatusPending && e.cur.Status != StatusProcessing {
				continue
			}
			c := e.cur.clone()
			switch {
			case succeeded:
				c.Status = StatusSucceeded
			case c.Kind == KindIntent:
				c.Status = StatusRequiresPaymentMethod
			default:
				c.Status = StatusFailed
			}
			if !succeeded {
				c.Decline = &Decline{Code: "payment_method_provider_decline", Message: "The bank returned the debit."}
			}
			e.cur = &c
			if c.intent == "" {
				n++
			}
		}
	}
	return n
}
