package charges

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// settleSQL records a batch of results, each at the slot that still has the
// result's key, and only over a lesser status: a late answer of a deposed run
// cannot undo what another has recorded. What was recorded goes into attempts.
//
// A crash before it leaves slots in doubt; the resend is answered by Stripe
// from its memory of the key.
//
// Parameters: the results' columns, in the order of their keys, one a key; $8
// is statusRank.
const settleSQL = `
	WITH settled AS (
		UPDATE duesday.charges AS slot SET
			status = result.status,
			charge_id = coalesce(nullif(result.charge_id, ''), slot.charge_id),
			failure_code = nullif(result.failure_code, ''),
			failure_message = nullif(result.failure_message, ''),
			needs_customer = result.needs_customer,
			settled_at = CASE WHEN result.status = 'processing' THEN NULL ELSE clock_timestamp() END
		FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::boolean[])
			AS result (idempotency_key, status, charge_id, failure_code, failure_message, request_id, needs_customer)
		WHERE slot.idempotency_key = result.idempotency_key
			AND array_position($8::text[], result.status) > array_position($8::text[], slot.status)
		RETURNING slot.customer_id, slot.billing_period, slot.attempt, slot.idempotency_key, slot.amount, slot.currency,
			slot.status, slot.charge_id, slot.failure_code, slot.failure_message, result.request_id
	)
	INSERT INTO duesday.attempts (customer_id, billing_period, attempt, idempotency_key,
		amount, currency, status, charge_id, failure_code, failure_message, request_id)
	SELECT customer_id, billing_period, attempt, idempotency_key,
		amount, currency, status, charge_id, failure_code, failure_message, nullif(request_id, '')
	FROM settled`

// oneByOne makes settleSQL look its slots up in the order of the results, so
// that two batches at once lock them in the same order and do not deadlock.
const oneByOne = byIndex + `, set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true)`

// statusRank orders the statuses: a result replaces only one before it.
var statusRank = []string{
	string(Claimed), string(Processing), string(Rejected), string(Declined), string(Succeeded),
}

func rank(s Status) int { return slices.Index(statusRank, string(s)) }

// Settle records results. It needs no lock, since under a key there is only one
// result, and may be repeated. It returns how many changed their slot, and the
// charges that succeeded under a key which is no slot's any more: that money was
// taken beside the ledger, and a person must look at it.
func Settle(ctx context.Context, db Querier, results []Settlement) (changed int, stray []string, err error) {
	results = slices.SortedStableFunc(slices.Values(results), func(a, b Settlement) int {
		return cmp.Or(strings.Compare(a.Key, b.Key), rank(b.Status)-rank(a.Status))
	})
	results = slices.CompactFunc(results, func(a, b Settlement) bool { return a.Key == b.Key })

	n := len(results)
	keys, statuses, ids := make([]string, n), make([]string, n), make([]string, n)
	codes, messages, requests := make([]string, n), make([]string, n), make([]string, n)
	needCustomer := make([]bool, n)
	for i, r := range results {
		keys[i], statuses[i], ids[i] = r.Key, string(r.Status), plainText(r.ChargeID)
		codes[i], messages[i], requests[i] = plainText(r.FailureCode), plainText(r.FailureMessage), plainText(r.RequestID)
		needCustomer[i] = r.NeedsCustomer
	}
	err = queryPlanned(ctx, db, oneByOne, func(rows pgx.Rows) error {
		rows.Close()
		changed = int(rows.CommandTag().RowsAffected())
		return rows.Err()
	}, mutated(settleSQL), keys, statuses, ids, codes, messages, requests, needCustomer, statusRank)
	if err == nil && changed < n {
		stray, err = strayCharges(ctx, db, keys, statuses, ids)
	}
	if err != nil {
		return 0, nil, fmt.Errorf("settle %d slots: %w", n, err)
	}
	return changed, stray, nil
}

// strayCharges are those of the results that took money under a key that is no
// slot's.
func strayCharges(ctx context.Context, db Querier, keys, statuses, ids []string) (stray []string, err error) {
	const find = `
		SELECT charge_id
		FROM unnest($1::text[], $2::text[], $3::text[]) AS result (idempotency_key, status, charge_id)
		WHERE status = 'succeeded' AND NOT EXISTS (
			SELECT FROM duesday.charges AS slot WHERE slot.idempotency_key = result.idempotency_key)`
	err = queryPlanned(ctx, db, oneByOne, func(rows pgx.Rows) (err error) {
		stray, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	}, find, keys, statuses, ids)
	return stray, err
}

// plainText makes Stripe's words storable: valid UTF-8, no NUL, not endless.
func plainText(s string) string {
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "�"), "\x00", "")
	if r := []rune(s); len(r) > 500 {
		s = string(r[:500])
	}
	return s
}

// RefreshWindow records, before the send, that a slot which Stripe does not
// know is sent anew: from now on its key counts as known for another 24 hours.
// It runs on the lock's connection and returns ErrFenced without the lock.
//
// A crash after it leaves the slot in doubt and young: it is resent.
func (l *Ledger) RefreshWindow(ctx context.Context, conn *pgx.Conn, slot *Slot) error {
	refresh := `
		UPDATE duesday.charges SET key_window_at = clock_timestamp()
		WHERE idempotency_key = $1 AND status = 'claimed' AND ` + l.held("$2")
	readAt := l.now()
	tag, err := conn.Exec(ctx, mutated(refresh), slot.Key, l.lockID())
	if err != nil {
		return fmt.Errorf("refresh the key's window: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return fmt.Errorf("refresh the key's window: %w", ErrFenced)
	}
	slot.WindowAge, slot.ReadAt = 0, readAt
	return nil
}

// AllRejected returns how many slots Stripe has rejected if it has rejected all
// that it was sent, else 0. Up to RejectedFrom say nothing, and are 0 too.
func (l *Ledger) AllRejected(ctx context.Context, db Querier) (n int, err error) {
	const count = `
		SELECT count(*)
		FROM duesday.charges AS slot JOIN duesday.dues AS due USING (billing_period, customer_id)
		WHERE slot.billing_period = $1 AND due.reject_code IS NULL AND NOT EXISTS (
			SELECT FROM duesday.charges WHERE billing_period = $1 AND status <> 'rejected')`
	if err := db.QueryRow(ctx, count, l.Period.String()).Scan(&n); err != nil {
		return 0, fmt.Errorf("count what was rejected: %w", err)
	}
	if n <= RejectedFrom {
		return 0, nil
	}
	return n, nil
}

// SettlePeriod marks the period settled if every due has a slot and none is
// claimed, and reports whether it is. It runs on the lock's connection, and goes
// through the period's slots, which takes seconds where there are ten million.
//
// Of shards it is for the last: what a sister has not settled, or claims anew
// meanwhile, keeps the period open.
func (l *Ledger) SettlePeriod(ctx context.Context, conn *pgx.Conn) (settled bool, err error) {
	if err := l.GatherCursors(ctx, conn); err != nil {
		return false, err
	}
	settle := `
		UPDATE duesday.periods AS p SET settled_at = coalesce(settled_at, clock_timestamp())
		WHERE billing_period = $1 AND ` + l.held("$2") + `
			AND xmin = $3
			AND (p.claim_cursor IS NOT NULL OR NOT EXISTS (
				SELECT FROM duesday.dues WHERE billing_period = $1))
			AND NOT EXISTS (
				SELECT FROM duesday.dues AS due
				WHERE due.billing_period = $1 AND due.customer_id > p.claim_cursor)
			AND NOT EXISTS (
				SELECT FROM duesday.charges AS slot
				WHERE slot.billing_period = $1 AND slot.status = 'claimed')`
	// A sister's new attempts change the row. If they do after its version was
	// read, nothing is marked, and it is looked at again.
	const version = `
		SELECT xmin FROM duesday.periods WHERE billing_period = $1`
	for read, last := uint32(0), uint32(0); ; last = read {
		err := conn.QueryRow(ctx, version, l.Period.String()).Scan(&read)
		if errors.Is(err, pgx.ErrNoRows) || err == nil && read == last {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("settle period %s: %w", l.Period, err)
		}
		tag, err := conn.Exec(ctx, settle, l.Period.String(), l.lockID(), read)
		if err != nil {
			return false, fmt.Errorf("settle period %s: %w", l.Period, err)
		}
		if tag.RowsAffected() == 1 {
			return true, nil
		}
	}
}
