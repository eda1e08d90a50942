package charges

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/duesday/duesday/internal/mutant"
)

// ErrCap is returned by Claim if the next due does not fit under the spend cap.
var ErrCap = errors.New("the spend cap is reached")

// ClaimCursor is how far claiming has come: every due up to and with After has
// a slot, or every one of a shard's. Valid false: none has.
type ClaimCursor struct {
	After string
	Valid bool
}

// Page is what one Claim did.
type Page struct {
	Slots    []Slot // claimed, and to be sent
	Rejected int    // slots recorded as rejected, never to be sent
	Dues     int    // dues that were gone through, also those that had a slot
	Next     ClaimCursor
}

// claimSQL goes through a page of dues and gives each a slot, in one statement:
// the fence, the slots, the cap and the cursor stand or fall together.
//
// A crash after it leaves slots in doubt that nobody sent; recovery sends them.
//
// Parameters: $1 period, $2 cursor (null: the start), $3 page size, $4 lock id,
// $5 key namespace. The session plans it anew each time (force_custom_plan), so
// the null test costs nothing and no plan outlives the size that it was made for.
//
// The claims of sister shards meet at the totals, for as long as a page takes.
func (l *Ledger) claimSQL() string {
	totals, cursor := ``, `
		UPDATE duesday.periods SET claim_cursor = (SELECT max(customer_id) FROM page)
		WHERE billing_period = $1 AND EXISTS (SELECT FROM page)`
	if l.Shard.Split() {
		// In one order, or two pages of two currencies would deadlock.
		totals = ` JOIN (
			SELECT currency FROM duesday.totals WHERE billing_period = $1 ORDER BY currency FOR UPDATE) AS locked USING (currency)`
		if !mutant.Is("shard-moves-the-cursor") {
			cursor = fmt.Sprintf(`
		INSERT INTO duesday.shard_cursors AS c (billing_period, shards, shard, claim_cursor)
		SELECT $1::text, %d, %d, max(customer_id) FROM page HAVING count(*) > 0
		ON CONFLICT (billing_period, shards, shard) DO UPDATE SET claim_cursor = excluded.claim_cursor`, l.Shard.Of, l.Shard.Index)
		}
	}
	return `
	WITH fence AS MATERIALIZED (
		SELECT ` + l.held("$4") + ` AS held
	), page AS MATERIALIZED (
		SELECT due.*
		FROM duesday.dues AS due
		WHERE (SELECT held FROM fence)
			AND due.billing_period = $1 AND ($2::text IS NULL OR due.customer_id > $2)` + l.mine("due.customer_id") + `
		ORDER BY due.customer_id
		LIMIT $3
	), slot AS (
		INSERT INTO duesday.charges AS slot (customer_id, billing_period, idempotency_key,
			amount, currency, status, failure_code, settled_at)
		SELECT customer_id, billing_period, ` + keySQL("customer_id", "billing_period", "$5::text", "1") + `,
			amount, currency,
			CASE WHEN reject_code IS NULL THEN 'claimed' ELSE 'rejected' END, reject_code,
			CASE WHEN reject_code IS NOT NULL THEN clock_timestamp() END
		FROM page
		ON CONFLICT (customer_id, billing_period) DO NOTHING
		RETURNING slot.customer_id, slot.billing_period, slot.attempt, slot.idempotency_key,
			slot.amount, slot.currency, slot.status, slot.failure_code, slot.claimed_at
	), total AS (
		UPDATE duesday.totals AS t SET claimed_total = t.claimed_total + claimed.amount
		FROM (SELECT currency, sum(amount) AS amount FROM slot WHERE status = 'claimed' GROUP BY currency) AS claimed` + totals + `
		WHERE t.billing_period = $1 AND t.currency = claimed.currency
	), attempt AS (
		INSERT INTO duesday.attempts (customer_id, billing_period, attempt, idempotency_key,
			amount, currency, status, failure_code)
		SELECT customer_id, billing_period, attempt, idempotency_key, amount, currency, status, failure_code
		FROM slot WHERE status = 'rejected'
	), cursor AS (` + cursor + `
	)
	SELECT (SELECT held FROM fence), (SELECT count(*) FROM page), (SELECT max(customer_id) FROM page),
		(SELECT count(*) FROM slot WHERE status = 'rejected'),
		NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
	UNION ALL
	SELECT NULL, NULL, NULL, NULL, slot.customer_id, coalesce(page.stripe_customer_id, slot.customer_id),
		coalesce(page.payment_method, ''), slot.amount, slot.currency,
		page.description, page.stripe_method, slot.idempotency_key, slot.claimed_at
	FROM slot JOIN page USING (customer_id)
	WHERE slot.status = 'claimed'`
}

// Claim gives the next dues after the cursor a slot, at most limit of them, and
// returns those to be sent. It runs on the lock's connection. When Page.Dues is
// below limit there are no more.
//
// If the page does not fit under the spend cap it is cut to what fits; if not
// even one due does, the error is ErrCap. Without the lock it is ErrFenced.
func (l *Ledger) Claim(ctx context.Context, conn *pgx.Conn, from ClaimCursor, limit int) (Page, error) {
	for size := limit; ; size /= 2 {
		page, err := l.claim(ctx, conn, from, size)
		var pgErr *pgconn.PgError
		if !errors.As(err, &pgErr) || pgErr.ConstraintName != "spend_cap" {
			if err == nil && size < limit && page.Dues == size {
				page.Dues = limit // cut by the cap, not by the end of the dues
			}
			return page, err
		}
		// The database refused the page as a whole, and nothing of it is
		// there. Half of it may fit; one due that does not is the end.
		if size == 1 {
			return Page{}, fmt.Errorf("claim a page: %w", ErrCap)
		}
	}
}

func (l *Ledger) claim(ctx context.Context, conn *pgx.Conn, from ClaimCursor, limit int) (Page, error) {
	var (
		readAt = l.now()
		page   = Page{Next: from}
		held   bool
		row    struct {
			held                                    *bool
			dues, rejected                          *int
			last                                    *string
			customer, stripeCustomer, paymentMethod *string
			amount                                  *int64
			currency, description, method, key      *string
			claimedAt                               *time.Time
		}
	)
	read := func(rows pgx.Rows) error {
		_, err := pgx.ForEachRow(rows, []any{&row.held, &row.dues, &row.last, &row.rejected,
			&row.customer, &row.stripeCustomer, &row.paymentMethod, &row.amount, &row.currency,
			&row.description, &row.method, &row.key, &row.claimedAt,
		}, func() error {
			if row.customer == nil { // the row about the page
				if *row.dues > 0 {
					page.Slots = make([]Slot, 0, *row.dues)
				}
				held, page.Dues, page.Rejected = *row.held, *row.dues, *row.rejected
				if row.last != nil {
					page.Next = ClaimCursor{*row.last, true}
				}
				return nil
			}
			page.Slots = append(page.Slots, Slot{
				Period: l.Period, CustomerID: *row.customer, StripeCustomerID: *row.stripeCustomer,
				PaymentMethod: *row.paymentMethod, Amount: *row.amount, Currency: *row.currency,
				Description: *row.description, Method: Method(*row.method),
				Attempt: 1, Key: *row.key, ClaimedAt: *row.claimedAt, ReadAt: readAt,
			})
			return nil
		})
		return err
	}
	err := queryPlanned(ctx, conn, inIndexOrder, read, mutated(l.claimSQL()), l.Period.String(), from.parameter(), limit, l.lockID(), l.Namespace)
	if err != nil {
		return Page{}, fmt.Errorf("claim a page: %w", err)
	}
	if !held {
		return Page{}, fmt.Errorf("claim a page: %w", ErrFenced)
	}
	return page, nil
}

// Cursor reads how far claiming has come, for the ledger's shard.
func (l *Ledger) Cursor(ctx context.Context, db Querier) (ClaimCursor, error) {
	read, args := `
		SELECT claim_cursor FROM duesday.periods WHERE billing_period = $1`, []any{l.Period.String()}
	if l.Shard.Split() {
		read, args = `
		SELECT greatest(claim_cursor, (
			SELECT claim_cursor FROM duesday.shard_cursors
			WHERE billing_period = $1 AND shards = $2 AND shard = $3))
		FROM duesday.periods WHERE billing_period = $1`, append(args, l.Shard.Of, l.Shard.Index)
	}
	var after *string
	if err := db.QueryRow(ctx, read, args...).Scan(&after); err != nil {
		return ClaimCursor{}, fmt.Errorf("read the claim cursor: %w", err)
	}
	if after == nil {
		return ClaimCursor{}, nil
	}
	return ClaimCursor{*after, true}, nil
}
