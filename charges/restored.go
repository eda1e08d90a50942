package charges

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jackc/pgx/v5"

	"github.com/duesday/duesday/internal/exitcode"
)

// Finding is a charge of the period that Stripe has: what a slot can be made of.
type Finding struct {
	CustomerID       string
	StripeCustomerID string // whose money it is; empty: not said
	Attempt          int
	Key              string
	ChargeID         string
	Amount           int64
	Currency         string
	Status           Status // Claimed: not even Stripe knows yet
	FailureCode      string
	FailureMessage   string
	NeedsCustomer    bool
	Created          time.Time
}

// EachFound lists everything of the method that was created since then, the
// newest first and page by page, and calls each with what is this ledger's. It
// holds one page in memory. A page that fails is asked for again, as often as a
// charge is sent; after that the error ends it, since nothing is known then of
// what was not read. A refused key exits with 3.
func (l *Ledger) EachFound(ctx context.Context, s *Sender, method Method, since time.Time, each func([]Finding) error) error {
	for after := ""; ; {
		var (
			page []listed
			more bool
		)
		w := &wire{}
		_, err := backoff.Retry(ctx, func() (struct{}, error) {
			if err := s.Pacer.Wait(ctx); err != nil {
				return struct{}{}, backoff.Permanent(err)
			}
			var err error
			*w = wire{}
			if page, more, err = s.Gateway.listPage(withWire(ctx, w), method, "", since, after); err == nil {
				return struct{}{}, nil
			}
			out := judgeError(err, w)
			if out.Throttled {
				s.Pacer.Throttled()
			}
			if out.Verdict == Forbidden {
				return struct{}{}, backoff.Permanent(exitcode.With(exitcode.Stopped, out.Err))
			}
			return struct{}{}, out.Err
		},
			backoff.WithBackOff(&jitter{policy: s.Retry, random: s.Random}),
			backoff.WithMaxTries(uint(s.Retry.MaxSends)),
			backoff.WithMaxElapsedTime(0))
		if err != nil {
			return fmt.Errorf("list the %s: %w", method, err)
		}
		if err := each(l.findings(page)); err != nil {
			return err
		}
		if !more {
			return nil
		}
		after = page[len(page)-1].id
	}
}

// findings are those objects that were sent under one of this ledger's keys.
func (l *Ledger) findings(page []listed) []Finding {
	var out []Finding
	for _, o := range page {
		f := Finding{
			CustomerID: o.metadata[metaCustomer], StripeCustomerID: o.customer, Key: o.metadata[metaKey],
			ChargeID: o.id, Amount: o.amount, Currency: o.currency, Created: o.created,
		}
		if o.intent != "" {
			f.ChargeID = o.intent // which is what is looked at and cancelled
		}
		if o.metadata[metaPeriod] != l.Period.String() {
			continue
		}
		if f.Attempt = l.attemptOf(f.CustomerID, f.Key); f.Attempt == 0 {
			continue
		}
		judged := o.judge(&Slot{Key: f.Key, Amount: f.Amount, Currency: f.Currency}, &wire{})
		f.Status = Claimed
		if judged.Settles() {
			result := judged.Settlement(f.Key)
			f.Status, f.NeedsCustomer = result.Status, result.NeedsCustomer
			f.FailureCode, f.FailureMessage = plainText(result.FailureCode), plainText(result.FailureMessage)
		}
		out = append(out, f)
	}
	return out
}

// beats reports whether a slot is better made of f than of g: money that was
// taken before money that may be, and either before the latest attempt.
func (f *Finding) beats(g *Finding) bool {
	money := func(f *Finding) int { return slices.Index([]Status{Processing, Succeeded}, f.Status) }
	switch {
	case money(f) != money(g):
		return money(f) > money(g)
	case f.Attempt != g.Attempt:
		return money(f) < 0 && f.Attempt > g.Attempt
	}
	return slices.Index(statusRank, string(f.Status)) > slices.Index(statusRank, string(g.Status))
}

// Restored is what RecordFound made of findings.
type Restored struct {
	Slots int // made, or changed
	Paid  int // of them, those that are paid, or may be yet
	// NotOwed are charges of customers who owe nothing here: left alone.
	NotOwed []string
	// Elsewhere are those of them that took money, or may yet: see Renamed.
	Elsewhere []Finding
	// Twice are charges beside another that was taken of the same customer.
	Twice []string
}

// RecordFound makes the ledger agree with what Stripe has: whoever was charged
// gets the slot that the lost ledger had, with attempt, key, charge, amount and
// currency as at Stripe. Of several attempts the one that took money counts,
// whatever its number. What the ledger knows better stays.
//
// Money that was taken counts towards the spend cap, and is never refused by it:
// the cap is moved up to it, and then nothing more fits.
//
// It is one transaction on the lock's connection, may be repeated, and returns
// ErrFenced without the lock. A crash after it leaves the findings recorded; the
// look-up as a whole is unfinished then, and must be done again.
func (l *Ledger) RecordFound(ctx context.Context, conn *pgx.Conn, found []Finding) (Restored, error) {
	var out Restored
	if len(found) == 0 {
		return out, nil
	}
	err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if err := l.checkHeld(ctx, tx); err != nil {
			return err
		}
		have, err := l.slotsOf(ctx, tx, found)
		if err != nil {
			return err
		}
		r := restoring{ledger: l, tx: tx, have: have, best: map[string]*Finding{}, spent: map[string]int64{}}
		for i := range found {
			r.weigh(&found[i], &out)
		}
		return r.write(ctx, found, &out)
	})
	if err != nil {
		return Restored{}, fmt.Errorf("record what Stripe has: %w", err)
	}
	return out, nil
}

// Renamed returns those findings that took money of a Stripe customer whom the
// period is still to charge, under another id. Most likely it is the same
// customer, whose id was changed after it was charged.
func (l *Ledger) Renamed(ctx context.Context, db Querier, elsewhere []Finding) ([]Finding, error) {
	customers := make([]string, len(elsewhere))
	for i := range elsewhere {
		customers[i] = elsewhere[i].StripeCustomerID
	}
	const unpaid = `
		WITH due AS MATERIALIZED (
			SELECT customer_id, coalesce(stripe_customer_id, customer_id) AS stripe_customer_id
			FROM duesday.dues
			WHERE billing_period = $1 AND coalesce(stripe_customer_id, customer_id) IN (SELECT unnest($2::text[]))
		)
		SELECT DISTINCT stripe_customer_id FROM due
		WHERE NOT EXISTS (
			SELECT FROM duesday.charges AS slot
			WHERE slot.billing_period = $1 AND slot.customer_id = due.customer_id
				AND slot.status IN ('succeeded', 'processing'))`
	rows, err := db.Query(ctx, unpaid, l.Period.String(), customers)
	if err == nil {
		customers, err = pgx.CollectRows(rows, pgx.RowTo[string])
	}
	if err != nil {
		return nil, fmt.Errorf("look for customers whose id was changed: %w", err)
	}
	still := make(map[string]bool, len(customers))
	for _, c := range customers {
		still[c] = true
	}
	return slices.DeleteFunc(slices.Clone(elsewhere), func(f Finding) bool { return !still[f.StripeCustomerID] }), nil
}

// heldSlot is a slot as it is on record; Attempt is 0 where there is none.
type heldSlot struct {
	Finding
	counted int64 // its part of the claimed total
}

// slotsOf reads the slots of the customers that are found. Who owes nothing is
// not among them.
func (l *Ledger) slotsOf(ctx context.Context, tx pgx.Tx, found []Finding) (map[string]heldSlot, error) {
	customers := make([]string, len(found))
	for i := range found {
		customers[i] = found[i].CustomerID
	}
	const lock = `
		SELECT FROM duesday.charges WHERE billing_period = $1 AND customer_id = ANY($2)
		ORDER BY idempotency_key FOR UPDATE`
	if _, err := tx.Exec(ctx, lock, l.Period.String(), customers); err != nil {
		return nil, fmt.Errorf("lock the slots: %w", err)
	}
	const read = `
		SELECT due.customer_id, coalesce(slot.attempt, 0), coalesce(slot.idempotency_key, ''), coalesce(slot.charge_id, ''),
			coalesce(slot.amount, 0), coalesce(slot.currency, ''), coalesce(slot.status, ''), coalesce(slot.failure_code, '')
		FROM duesday.dues AS due LEFT JOIN duesday.charges AS slot USING (billing_period, customer_id)
		WHERE due.billing_period = $1 AND due.customer_id = ANY($2)`
	rows, err := tx.Query(ctx, read, l.Period.String(), customers)
	if err != nil {
		return nil, fmt.Errorf("read the slots: %w", err)
	}
	have := map[string]heldSlot{}
	var s heldSlot
	_, err = pgx.ForEachRow(rows, []any{&s.CustomerID, &s.Attempt, &s.Key, &s.ChargeID,
		&s.Amount, &s.Currency, &s.Status, &s.FailureCode}, func() error {
		s.counted = 0
		if s.Status != Rejected || s.FailureCode == "idempotency_error" {
			s.counted = s.Amount
		}
		have[s.CustomerID] = s
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the slots: %w", err)
	}
	return have, nil
}

// restoring is one page on its way into the ledger.
type restoring struct {
	ledger *Ledger
	tx     pgx.Tx
	have   map[string]heldSlot
	best   map[string]*Finding // by customer: what the slot becomes
	spent  map[string]int64    // by currency: what the claimed total grows by
}

func (r *restoring) weigh(f *Finding, out *Restored) {
	slot, owed := r.have[f.CustomerID]
	if !owed {
		out.NotOwed = append(out.NotOwed, f.ChargeID)
		if f.Status == Succeeded || f.Status == Processing {
			out.Elsewhere = append(out.Elsewhere, *f)
		}
		return
	}
	now := &slot.Finding
	if b := r.best[f.CustomerID]; b != nil {
		now = b
	}
	if f.Status == Succeeded && now.Status == Succeeded && now.ChargeID != f.ChargeID {
		out.Twice = append(out.Twice, f.ChargeID)
	}
	if now.Attempt == 0 || f.beats(now) {
		r.best[f.CustomerID] = f
	}
}

// columns are findings as one array a column.
type columns struct {
	customers, keys, ids, currencies, statuses, codes, messages []string
	attempts                                                    []int
	amounts                                                     []int64
	needCustomer                                                []bool
	created                                                     []time.Time
}

func (c *columns) add(f *Finding) {
	c.customers, c.keys, c.ids = append(c.customers, f.CustomerID), append(c.keys, f.Key), append(c.ids, f.ChargeID)
	c.currencies, c.statuses = append(c.currencies, f.Currency), append(c.statuses, string(f.Status))
	c.codes, c.messages = append(c.codes, f.FailureCode), append(c.messages, f.FailureMessage)
	c.attempts, c.amounts = append(c.attempts, f.Attempt), append(c.amounts, f.Amount)
	c.needCustomer, c.created = append(c.needCustomer, f.NeedsCustomer), append(c.created, f.Created)
}

// foundSQL is the columns as a relation; they are $2 to $12.
const foundSQL = `unnest($2::text[], $3::integer[], $4::text[], $5::text[], $6::bigint[], $7::text[],
	$8::text[], $9::text[], $10::text[], $11::boolean[], $12::timestamptz[])
	AS found (customer_id, attempt, idempotency_key, charge_id, amount, currency,
		status, failure_code, failure_message, needs_customer, created)`

func (c *columns) args(period string) []any {
	return []any{period, c.customers, c.attempts, c.keys, c.ids, c.amounts, c.currencies,
		c.statuses, c.codes, c.messages, c.needCustomer, c.created}
}

func (r *restoring) write(ctx context.Context, found []Finding, out *Restored) error {
	var slots, seen columns
	for i := range found {
		f := &found[i]
		slot, owed := r.have[f.CustomerID]
		switch {
		case !owed:
		case r.best[f.CustomerID] == f:
			slots.add(f)
			r.spent[slot.Currency] -= slot.counted
			r.spent[f.Currency] += f.Amount
			out.Slots++
			if f.Status == Succeeded || f.Status == Processing {
				out.Paid++
			}
		case f.Status != Succeeded:
			seen.add(f)
		}
	}
	period := r.ledger.Period.String()
	// What came of other attempts, for whoever looks at the slot later: before
	// a new one an open intent must be closed, and a key that is on record is
	// no sign of an older ledger any more.
	const attempts = `
		INSERT INTO duesday.attempts (customer_id, billing_period, attempt, idempotency_key,
			amount, currency, status, charge_id, failure_code, failure_message, settled_at)
		SELECT customer_id, $1, attempt, idempotency_key, amount, currency, status, charge_id,
			nullif(failure_code, ''), nullif(failure_message, ''), created
		FROM ` + foundSQL + `
		WHERE NOT EXISTS (
			SELECT FROM duesday.attempts AS known
			WHERE known.billing_period = $1 AND known.customer_id = found.customer_id
				AND known.idempotency_key = found.idempotency_key AND known.status = found.status
				AND known.status <> 'succeeded')`
	if len(seen.keys) > 0 {
		if _, err := r.tx.Exec(ctx, attempts, seen.args(period)...); err != nil {
			return fmt.Errorf("write the attempts: %w", err)
		}
	}
	if len(slots.keys) > 0 { // after the others, most of which were before
		if err := r.writeSlots(ctx, slots.args(period)); err != nil {
			return err
		}
	}
	return r.writeTotals(ctx)
}

// writeSlots makes the slots, and changes those that are there. A slot that
// stays in doubt is looked for before it is sent: its window is that of its
// charge.
func (r *restoring) writeSlots(ctx context.Context, args []any) error {
	const slots = `
		WITH slot AS (
			INSERT INTO duesday.charges AS slot (customer_id, billing_period, attempt, idempotency_key,
				amount, currency, status, charge_id, failure_code, failure_message, needs_customer,
				claimed_at, key_window_at, settled_at)
			SELECT customer_id, $1, attempt, idempotency_key, amount, currency, status, charge_id,
				nullif(failure_code, ''), nullif(failure_message, ''), needs_customer, created, created,
				CASE WHEN status NOT IN ('claimed', 'processing') THEN created END
			FROM ` + foundSQL + `
			ON CONFLICT (customer_id, billing_period) DO UPDATE SET
				attempt = excluded.attempt, idempotency_key = excluded.idempotency_key,
				amount = excluded.amount, currency = excluded.currency, status = excluded.status,
				charge_id = excluded.charge_id, failure_code = excluded.failure_code,
				failure_message = excluded.failure_message, needs_customer = excluded.needs_customer,
				claimed_at = least(slot.claimed_at, excluded.claimed_at),
				key_window_at = least(slot.key_window_at, excluded.key_window_at), settled_at = excluded.settled_at
			RETURNING slot.*
		), unsettled AS (
			UPDATE duesday.periods SET settled_at = NULL
			WHERE billing_period = $1 AND EXISTS (SELECT FROM slot WHERE status = 'claimed')
		)
		INSERT INTO duesday.attempts (customer_id, billing_period, attempt, idempotency_key,
			amount, currency, status, charge_id, failure_code, failure_message, settled_at)
		SELECT customer_id, billing_period, attempt, idempotency_key,
			amount, currency, status, charge_id, failure_code, failure_message, coalesce(settled_at, claimed_at)
		FROM slot WHERE status <> 'claimed'`
	if _, err := r.tx.Exec(ctx, slots, args...); err != nil {
		return fmt.Errorf("write the slots: %w", err)
	}
	return nil
}

func (r *restoring) writeTotals(ctx context.Context) error {
	const total = `
		INSERT INTO duesday.totals AS t (billing_period, currency, expected_total, cap, claimed_total)
		VALUES ($1, $2, 0, greatest($3, 0), greatest($3, 0))
		ON CONFLICT (billing_period, currency) DO UPDATE SET
			claimed_total = greatest(t.claimed_total + $3, 0),
			cap = greatest(t.cap, t.claimed_total + $3)`
	for currency, grown := range r.spent {
		if grown == 0 || currency == "" {
			continue
		}
		if _, err := r.tx.Exec(ctx, total, r.ledger.Period.String(), currency, grown); err != nil {
			return fmt.Errorf("count it towards the spend cap: %w", err)
		}
	}
	return nil
}
