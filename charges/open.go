package charges

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/duesday/duesday/internal/exitcode"
	"github.com/duesday/duesday/internal/money"
)

// Opening is what a period is opened, or reopened, with.
type Opening struct {
	Customers   Relation
	Description string // the same text for every charge
	Method      Method
	CapFactor   string // a decimal, at least 1: cap = expected total × factor, rounded down
	AllowEmpty  bool
	Guards      Guards
	// Timeout bounds the statement that reads the customers relation, so that
	// a view that never ends does not hold the lock for ever.
	Timeout time.Duration
	// Opened is told where the period stands once Open has opened it; nil: it
	// need not be.
	Opened *Standing
}

// ErrEmpty is returned if the customers relation has no active row.
var ErrEmpty = errors.New("no active customer")

// Open freezes who owes what, and the totals and caps, in one transaction on
// the lock's connection. A crash before its commit leaves nothing, and the next
// run opens; a crash after it leaves a period that the next run goes on with.
//
// Errors: ErrFenced; ErrEmpty and ErrGuard, exit with 3; what the relation
// raises, exits with 2. Nothing is opened then.
func (l *Ledger) Open(ctx context.Context, conn *pgx.Conn, o Opening) error {
	err := l.inOpening(ctx, conn, o, func(tx pgx.Tx) error {
		const period = `
			INSERT INTO duesday.periods (billing_period, key_namespace, opened_at)
			VALUES ($1, $2, clock_timestamp())`
		if _, err := tx.Exec(ctx, period, l.Period.String(), l.Namespace); err != nil {
			return fmt.Errorf("insert the period: %w", err)
		}
		// One statement, so one snapshot: what changes meanwhile is not seen.
		dues := `
			INSERT INTO duesday.dues (billing_period, customer_id, stripe_customer_id, payment_method,
				amount, currency, description, stripe_method, reject_code)
			SELECT $1, * FROM (` + o.Customers.selectDues(2, rejectTooLongSQL) + `) AS due`
		tag, err := tx.Exec(ctx, dues, l.Period.String(), o.Description, string(o.Method))
		if err != nil {
			return relationError(o.Customers, err)
		}
		if tag.RowsAffected() == 0 && !o.AllowEmpty {
			return emptyRelation(o.Customers)
		}
		if _, err := tx.Exec(ctx, written); err != nil {
			return fmt.Errorf("plan for what was written: %w", err)
		}
		if err := l.rejectFrozen(ctx, tx); err != nil {
			return err
		}
		w, err := o.weigh(ctx, tx, l.frozenDues())
		if err != nil {
			return err
		}
		if err := l.guard(ctx, tx, &o, l.frozenDues(), w); err != nil {
			return err
		}
		const total = `
			INSERT INTO duesday.totals (billing_period, currency, expected_total, cap)
			VALUES ($1, $2, $3, $4)`
		for _, t := range w.totals {
			if _, err := tx.Exec(ctx, total, l.Period.String(), t.Currency, t.Expected, t.Cap); err != nil {
				return fmt.Errorf("total the dues: %w", err)
			}
		}
		if o.Opened != nil {
			*o.Opened = w.opened()
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("open period %s: %w", l.Period, err)
	}
	return nil
}

// written lets workers share the scans of the dues that were just frozen, which
// Postgres knows nothing of by its statistics. In a ledger that was never analysed
// it takes them for a few thousand on a disk, so a read costs nothing here. Where
// it knows the periods before, it takes a new one for a single row unless it plans
// without looking at which. And nothing is read in the order of ids, which is none
// on the disk.
const written = `
	SELECT set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_indexscan', 'off', true)
	UNION ALL
	SELECT set_config(name, '0', true), '' FROM unnest(ARRAY['seq_page_cost', 'random_page_cost',
		'parallel_setup_cost', 'parallel_tuple_cost', 'min_parallel_table_scan_size']) AS name`

// Reopen reads the customers relation again for everyone who has no slot yet or
// whose slot was rejected: new customers are added, those that left and have no
// slot are dropped, and a rejected slot that can be sent now becomes a new
// attempt under a new key. All others stay as they were frozen.
//
// A slot rejected with idempotency_error stays: what is at Stripe under its key
// must be looked at by a person first, since a new key could charge twice.
//
// It is guarded as an opening is: single amounts, in what is read again; shared
// Stripe customers, since one whose id was changed is new here; rejected dues, if
// they become more; and, within the same limit, dropped ones, since a view that
// lost its rows must not settle a month. The caps bound its growth.
//
// The caps stay; a reopening that would pass one exits with 3 and changes
// nothing. A currency that is new to the period gets its own.
func (l *Ledger) Reopen(ctx context.Context, conn *pgx.Conn, o Opening) error {
	err := l.inOpening(ctx, conn, o, func(tx pgx.Tx) error {
		period := l.Period.String()
		const reread = `
			UPDATE duesday.periods SET settled_at = NULL, claim_cursor = NULL WHERE billing_period = $1`
		if tag, err := tx.Exec(ctx, reread, period); err != nil {
			return err
		} else if tag.RowsAffected() == 0 {
			return errors.New("it was never opened")
		}
		const shards = `
			DELETE FROM duesday.shard_cursors WHERE billing_period = $1`
		if _, err := tx.Exec(ctx, shards, period); err != nil {
			return err
		}
		before, err := o.weigh(ctx, tx, l.frozenDues())
		if err != nil {
			return err
		}
		const noSlot = `NOT EXISTS (
			SELECT FROM duesday.charges AS slot
			WHERE slot.customer_id = due.customer_id AND slot.billing_period = due.billing_period
				AND (slot.status <> 'rejected' OR slot.failure_code = 'idempotency_error'))`
		dues := `
			INSERT INTO duesday.dues AS due (billing_period, customer_id, stripe_customer_id, payment_method,
				amount, currency, description, stripe_method, reject_code)
			SELECT $1, * FROM (` + o.Customers.selectDues(2, rejectSQL) + `) AS customer
			ON CONFLICT (billing_period, customer_id) DO UPDATE SET
				stripe_customer_id = excluded.stripe_customer_id, payment_method = excluded.payment_method,
				amount = excluded.amount, currency = excluded.currency, description = excluded.description,
				stripe_method = excluded.stripe_method, reject_code = excluded.reject_code
			WHERE ` + noSlot
		if _, err := tx.Exec(ctx, dues, period, o.Description, string(o.Method)); err != nil {
			return relationError(o.Customers, err)
		}
		var any bool
		if err := tx.QueryRow(ctx, `SELECT EXISTS `+o.Customers.activeIDs()).Scan(&any); err != nil {
			return relationError(o.Customers, err)
		}
		if !any && !o.AllowEmpty {
			return emptyRelation(o.Customers)
		}
		left := `
			DELETE FROM duesday.dues AS due
			WHERE due.billing_period = $1
				AND NOT EXISTS (
					SELECT FROM ` + o.Customers.activeIDs() + ` AS active WHERE active.customer_id = due.customer_id)
				AND NOT EXISTS (
					SELECT FROM duesday.charges AS slot
					WHERE slot.customer_id = due.customer_id AND slot.billing_period = due.billing_period)`
		dropped, err := tx.Exec(ctx, left, period)
		if err != nil {
			return relationError(o.Customers, err)
		}
		if err := l.guardReopening(ctx, tx, &o, before, int(dropped.RowsAffected()), frozen{
			`(SELECT * FROM duesday.dues AS due WHERE billing_period = $1 AND ` + noSlot + `)`, l.frozenDues().args}); err != nil {
			return err
		}
		// The old attempt is on record in attempts since it was settled. The
		// new one is claimed here, and sent as any slot in doubt is.
		again := `
			UPDATE duesday.charges AS slot SET
				status = 'claimed', attempt = slot.attempt + 1,
				idempotency_key = ` + keySQL("slot.customer_id", "slot.billing_period", "$2::text", "(slot.attempt + 1)") + `,
				amount = due.amount, currency = due.currency,
				claimed_at = clock_timestamp(), key_window_at = clock_timestamp(),
				charge_id = NULL, failure_code = NULL, failure_message = NULL, settled_at = NULL
			FROM duesday.dues AS due
			WHERE slot.billing_period = $1 AND slot.status = 'rejected'
				AND slot.failure_code IS DISTINCT FROM 'idempotency_error'
				AND due.billing_period = slot.billing_period AND due.customer_id = slot.customer_id
				AND due.reject_code IS NULL
				AND due.customer_id IN ` + o.Customers.activeIDs()
		if _, err := tx.Exec(ctx, again, period, l.Namespace); err != nil {
			return fmt.Errorf("open new attempts of rejected slots: %w", err)
		}
		return l.retotal(ctx, tx, o.CapFactor)
	})
	if err != nil {
		return fmt.Errorf("reopen period %s: %w", l.Period, err)
	}
	return nil
}

// retotal makes totals agree with the dues and slots again, under the caps that
// are there.
func (l *Ledger) retotal(ctx context.Context, tx pgx.Tx, capFactor string) error {
	// A currency that nobody owes in any more keeps its cap.
	const none = `
		UPDATE duesday.totals SET expected_total = 0 WHERE billing_period = $1`
	if _, err := tx.Exec(ctx, none, l.Period.String()); err != nil {
		return fmt.Errorf("total the dues: %w", err)
	}
	const expected = `
		INSERT INTO duesday.totals AS t (billing_period, currency, expected_total, cap)
		SELECT billing_period, currency, sum(amount), floor(sum(amount) * $2::numeric)
		FROM duesday.dues
		WHERE billing_period = $1 AND reject_code IS NULL
		GROUP BY billing_period, currency
		ON CONFLICT (billing_period, currency) DO UPDATE SET expected_total = excluded.expected_total
		RETURNING currency, expected_total, cap`
	rows, err := tx.Query(ctx, expected, l.Period.String(), capFactor)
	if err != nil {
		return fmt.Errorf("total the dues: %w", err)
	}
	var (
		currency    string
		total, cap  int64
		over, raise []string
	)
	if _, err := pgx.ForEachRow(rows, []any{&currency, &total, &cap}, func() error {
		if total > cap {
			over = append(over, fmt.Sprintf("%s, with a cap of %s", money.Format(total, currency), money.Format(cap, currency)))
			raise = append(raise, fmt.Sprintf("%s=%d", currency, total))
		}
		return nil
	}); err != nil {
		return fmt.Errorf("total the dues: %w", err)
	}
	if len(over) > 0 {
		slices.Sort(over)
		slices.Sort(raise)
		return exitcode.With(exitcode.Stopped, fmt.Errorf(
			"the spend cap would be passed, nothing was changed: the dues would come to %s; if that is meant, --raise-cap-to %s lets them through", strings.Join(over, "; "), strings.Join(raise, ",")))
	}
	// What an idempotency_error stands for may have been paid.
	const claimed = `
		UPDATE duesday.totals AS t SET claimed_total = (
			SELECT coalesce(sum(amount), 0) FROM duesday.charges AS slot
			WHERE slot.billing_period = t.billing_period AND slot.currency = t.currency
				AND (slot.status <> 'rejected' OR slot.failure_code = 'idempotency_error'))
		WHERE billing_period = $1`
	if _, err := tx.Exec(ctx, claimed, l.Period.String()); err != nil {
		return fmt.Errorf("total the slots: %w", err)
	}
	return nil
}

func emptyRelation(r Relation) error {
	return exitcode.With(exitcode.Stopped, fmt.Errorf(
		"--customers %s: %w, nothing was changed; if that is meant, say --allow-empty", r.name, ErrEmpty))
}

// inOpening runs f in a transaction that holds the fence and sees one snapshot.
func (l *Ledger) inOpening(ctx context.Context, conn *pgx.Conn, o Opening, f func(pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
		if err := l.checkHeld(ctx, tx); err != nil {
			return err
		}
		if err := o.bound(ctx, tx); err != nil {
			return err
		}
		return f(tx)
	})
}

// bound bounds the statements of tx.
func (o *Opening) bound(ctx context.Context, tx pgx.Tx) error {
	const set = `
		SELECT set_config('statement_timeout', $1, true), set_config('jit', 'off', true)`
	if _, err := tx.Exec(ctx, set, fmt.Sprintf("%dms", o.Timeout.Milliseconds())); err != nil {
		return fmt.Errorf("set the statement timeout: %w", err)
	}
	return nil
}
