package spendcap

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
)

// keyWindow is how long a send under a known idempotency key costs nothing
// more: Stripe keeps keys for 24 hours at least from first receipt, which is
// not before the reservation.
const keyWindow = "23 hours"

// creating is a call that may charge.
type creating struct {
	vaultKey       string
	period         string
	endpoint       Endpoint
	idempotencyKey string
	amount         int64 // smallest currency unit
	currency       string
	fingerprint    []byte
}

// callID is the number of a call in the audit trail.
type callID int64

// onKey runs a statement that returns one row, alone with the idempotency key:
// the lock comes first, so the statement sees all that others did to the key.
// Both go to the server at once, in one transaction.
//
// The lock comes before the limit's row, too: one that held the row and waited
// for another's change of the same key would wait for ever.
func (v *Vault) onKey(ctx context.Context, lock string, c creating, sql string, args []any, into ...any) error {
	var batch pgx.Batch
	batch.Queue(lock, c.period+" "+c.idempotencyKey)
	batch.Queue(sql, args...)
	results := v.pool.SendBatch(ctx, &batch)
	_, lockErr := results.Exec()
	if lockErr != nil {
		return errors.Join(lockErr, results.Close())
	}
	if err := results.QueryRow().Scan(into...); err != nil {
		_ = results.Close() // says the same
		return err
	}
	// Only now it is committed.
	return results.Close()
}

// reserve makes sure that the call's amount is reserved, and writes the call
// down. Without a refusal the request may be forwarded, and then settle must be
// called with what became of it; whoever dies in between leaves the amount
// reserved.
//
// A new key reserves its amount. A key that is known costs nothing for 23 hours
// by the database's clock; after that, or when its reservation was freed, it
// reserves anew. The limit's row is raised only while the sum fits: two at once
// queue for the row, and the second looks at what the first left.
func (v *Vault) reserve(ctx context.Context, c creating) (callID, *refusal, error) {
	const lock = `
		SELECT pg_advisory_xact_lock(hashtextextended($1, 0))`
	const reserve = `
		WITH vault_key AS (
			SELECT revoked_at IS NULL AND expires_at > clock_timestamp() AS good,
				revoked_at IS NOT NULL AS revoked, superseded_by IS NOT NULL AS superseded
			FROM duesday.vault_keys WHERE id = $3
		), latest AS (
			SELECT id, generation, status, fingerprint = $7 AS same,
				status <> 'freed' AND reserved_at > clock_timestamp() - $8::text::interval AS counts
			FROM duesday.vault_reservations
			WHERE billing_period = $1 AND idempotency_key = $2
			ORDER BY generation DESC LIMIT 1
		), raised AS (
			UPDATE duesday.vault_limits SET reserved = reserved + $5
			WHERE billing_period = $1 AND currency = $6 AND reserved + $5 <= max_amount
				AND (SELECT good FROM vault_key)
				AND NOT EXISTS (SELECT FROM latest WHERE counts OR NOT same)
			RETURNING billing_period
		), reserved AS (
			INSERT INTO duesday.vault_reservations (billing_period, idempotency_key, generation, fingerprint, amount, currency)
			SELECT billing_period, $2, coalesce((SELECT generation FROM latest), 0) + 1, $7, $5, $6 FROM raised
			RETURNING id
		), again AS (
			UPDATE duesday.vault_reservations r
			SET open_sends = open_sends + 1, sent_at = clock_timestamp()
			FROM latest
			WHERE r.id = latest.id AND latest.counts AND latest.same
				AND (SELECT good FROM vault_key)
			RETURNING r.id
		), verdict AS (
			SELECT coalesce((SELECT id FROM reserved), (SELECT id FROM again)) AS reservation, CASE
				WHEN NOT EXISTS (SELECT FROM vault_key) THEN 'unknown'
				WHEN (SELECT superseded FROM vault_key) THEN 'superseded'
				WHEN (SELECT revoked FROM vault_key) THEN 'revoked'
				WHEN NOT (SELECT good FROM vault_key) THEN 'expired'
				WHEN NOT (SELECT same FROM latest) THEN 'reused'
				WHEN EXISTS (SELECT FROM reserved) OR EXISTS (SELECT FROM again) THEN 'forwarded'
				ELSE 'capped'
			END AS word
		), call AS (
			INSERT INTO duesday.vault_calls (vault_key_id, billing_period, endpoint, idempotency_key, amount, currency,
				reservation_id, outcome, finished_at)
			SELECT $3, $1, $4, $2, $5, $6, reservation,
				CASE WHEN word <> 'forwarded' THEN word END, CASE WHEN word <> 'forwarded' THEN clock_timestamp() END
			FROM verdict WHERE word <> 'unknown'
			RETURNING id
		)
		SELECT word, coalesce((SELECT id FROM call), 0) FROM verdict`
	var (
		word string
		id   callID
	)
	err := v.onKey(ctx, lock, c, reserve, []any{c.period, c.idempotencyKey, c.vaultKey, string(c.endpoint),
		c.amount, c.currency, c.fingerprint, keyWindow}, &word, &id)
	if err != nil {
		return 0, nil, fmt.Errorf("reserve: %w", err)
	}
	switch word {
	case "forwarded":
		return id, nil, nil
	case "capped":
		return 0, &refusal{http.StatusPaymentRequired, typeInvalid, codeCap, "", fmt.Sprintf(
			"The spend cap of billing period %s in %s is reached: this charge was not sent to Stripe.", c.period, c.currency)}, nil
	case "reused":
		return 0, &refusal{http.StatusBadRequest, typeIdempotency, "", "",
			"Keys for idempotent requests can only be used with the same parameters they were first used with. This request was not sent to Stripe."}, nil
	}
	return 0, badKey(word), nil
}

// badKey is the refusal of a vault key that is not good, by what it is instead.
func badKey(word string) *refusal {
	switch word {
	case "superseded":
		return unauthorized(codeKeyReplaced, "This vault key was replaced by a newer one for its billing period.")
	case "revoked":
		return unauthorized(codeKeyRevoked, "This vault key was revoked.")
	case "expired":
		return unauthorized(codeKeyExpired, "This vault key has expired.")
	}
	return unauthorized(codeKeyInvalid, "Invalid vault key provided.")
}

// good returns a refusal for a key that is revoked or expired.
func (v *Vault) good(ctx context.Context, id string) (*refusal, error) {
	const read = `
		SELECT CASE
			WHEN superseded_by IS NOT NULL THEN 'superseded'
			WHEN revoked_at IS NOT NULL THEN 'revoked'
			WHEN expires_at <= clock_timestamp() THEN 'expired'
			ELSE ''
		END
		FROM duesday.vault_keys WHERE id = $1`
	var word string
	err := v.pool.QueryRow(ctx, read, id).Scan(&word)
	if errors.Is(err, pgx.ErrNoRows) {
		return badKey("unknown"), nil
	}
	if err != nil {
		return nil, fmt.Errorf("look at a vault key: %w", err)
	}
	if word != "" {
		return badKey(word), nil
	}
	return nil, nil
}

// refused writes down a creating call that came to nothing before reserve.
func (v *Vault) refused(ctx context.Context, c creating, outcome string) error {
	const write = `
		INSERT INTO duesday.vault_calls (vault_key_id, billing_period, endpoint, idempotency_key, amount, currency, outcome, finished_at)
		VALUES ($1, $2, $3, nullif($4, ''), nullif($5, 0), nullif($6, ''), $7, clock_timestamp())`
	_, err := v.pool.Exec(ctx, write, c.vaultKey, c.period, string(c.endpoint), c.idempotencyKey, c.amount, c.currency, outcome)
	if err != nil {
		return fmt.Errorf("write down a refused call: %w", err)
	}
	return nil
}

// settle writes down what became of a forwarded call and moves its reservation.
// A settling that is lost leaves the amount reserved, until the next send of
// the same key tells. So it need not wait for the disk.
//
// odd reports what cannot be by Stripe's rules: a charge under a key that was
// known to have charged nothing, or of another amount. It is counted as far as
// the limit lets it.
func (v *Vault) settle(ctx context.Context, c creating, id callID, o outcome) (odd bool, err error) {
	const lock = `
		SELECT pg_advisory_xact_lock(hashtextextended($1, 0)), set_config('synchronous_commit', 'off', true)`
	const settle = `
		WITH call AS (
			UPDATE duesday.vault_calls
			SET outcome = $2, http_status = nullif($3::integer, 0), request_id = nullif($4, ''), finished_at = clock_timestamp()
			WHERE id = $1 AND finished_at IS NULL
			RETURNING reservation_id
		), old AS (
			SELECT r.id, r.billing_period, r.currency, r.amount, r.status, CASE
				WHEN $2 = 'spent' THEN 'spent'
				WHEN r.status = 'held' AND ($2 = 'void' OR $2 = 'nothing' AND r.open_sends <= 1) THEN 'freed'
				ELSE r.status
			END AS now
			FROM duesday.vault_reservations r JOIN call ON r.id = call.reservation_id
			FOR UPDATE OF r
		), moved AS (
			UPDATE duesday.vault_reservations r
			SET status = old.now,
				open_sends = r.open_sends - CASE WHEN $2 = 'doubt' THEN 0 ELSE 1 END,
				freed_at = CASE WHEN old.now = 'freed' AND old.status = 'held' THEN clock_timestamp() ELSE r.freed_at END,
				spent_amount = CASE WHEN old.now = 'spent' THEN coalesce(r.spent_amount, $5) END,
				spent_at = CASE WHEN old.now = 'spent' THEN coalesce(r.spent_at, clock_timestamp()) END,
				charge_id = CASE WHEN old.now = 'spent' THEN coalesce(r.charge_id, $6) END
			FROM old WHERE r.id = old.id
			RETURNING old.billing_period, old.currency, CASE
				WHEN old.status = old.now THEN 0
				WHEN old.now = 'freed' THEN -old.amount
				WHEN old.status = 'freed' THEN $5
				ELSE $5 - old.amount
			END AS delta
		), counted AS (
			UPDATE duesday.vault_limits l SET reserved = least(l.max_amount, l.reserved + moved.delta)
			FROM moved
			WHERE l.billing_period = moved.billing_period AND l.currency = moved.currency AND moved.delta <> 0
		)
		SELECT coalesce((SELECT delta <> 0 FROM moved), false) AND $2 = 'spent'`
	err = v.onKey(ctx, lock, c, settle, []any{id, string(o.word), o.status, o.requestID, o.amount, o.chargeID}, &odd)
	if err != nil {
		return false, fmt.Errorf("settle: %w", err)
	}
	return odd, nil
}

// Reservation is an amount of which nobody knows whether Stripe charged it: in
// flight, or in doubt.
type Reservation struct {
	ID             int64     `json:"id"`
	Period         string    `json:"period"`
	IdempotencyKey string    `json:"idempotency_key"`
	Amount         int64     `json:"amount"` // smallest currency unit
	Currency       string    `json:"currency"`
	OpenSends      int       `json:"open_sends"` // that may have charged
	ReservedAt     time.Time `json:"reserved_at"`
	SentAt         time.Time `json:"sent_at"` // the last of them
}

// Held returns the period's held reservations with an id above after, by id,
// limit at most: those in flight, and those in doubt. Sending the same request
// again under the same key settles one.
func (v *Vault) Held(ctx context.Context, period string, after int64, limit int) ([]Reservation, error) {
	const read = `
		SELECT id, billing_period, idempotency_key, amount, currency, open_sends, reserved_at, sent_at
		FROM duesday.vault_reservations
		WHERE billing_period = $1 AND status = 'held' AND id > $2
		ORDER BY id LIMIT $3`
	rows, err := v.pool.Query(ctx, read, period, after, limit)
	if err != nil {
		return nil, fmt.Errorf("list held reservations: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Reservation])
}
