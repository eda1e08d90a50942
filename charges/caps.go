package charges

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/duesday/duesday/internal/exitcode"
	"github.com/duesday/duesday/internal/money"
)

// Caps reads the period's spend caps, by currency in its smallest unit.
func (l *Ledger) Caps(ctx context.Context, db Querier) (map[string]int64, error) {
	rows, err := db.Query(ctx, `SELECT currency, cap FROM duesday.totals WHERE billing_period = $1`, l.Period.String())
	if err != nil {
		return nil, fmt.Errorf("read the caps: %w", err)
	}
	var (
		caps     = map[string]int64{}
		currency string
		cap      int64
	)
	if _, err := pgx.ForEachRow(rows, []any{&currency, &cap}, func() error {
		caps[currency] = cap
		return nil
	}); err != nil {
		return nil, fmt.Errorf("read the caps: %w", err)
	}
	return caps, nil
}

// RaiseCaps sets the period's spend caps, by currency in its smallest unit, and
// records it in the run's row. A cap is only ever raised; all or none are. It
// runs on the lock's connection. Errors exit with 2.
func (l *Ledger) RaiseCaps(ctx context.Context, conn *pgx.Conn, runID int64, caps map[string]int64) error {
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if err := l.checkHeld(ctx, tx); err != nil {
			return err
		}
		for _, currency := range slices.Sorted(maps.Keys(caps)) {
			const raise = `
				WITH before AS (
					SELECT cap FROM duesday.totals WHERE billing_period = $1 AND currency = $2 FOR UPDATE
				), raised AS (
					UPDATE duesday.totals SET cap = $3
					WHERE billing_period = $1 AND currency = $2 AND cap <= $3
				)
				SELECT cap FROM before`
			var before int64
			err := tx.QueryRow(ctx, raise, l.Period.String(), currency, caps[currency]).Scan(&before)
			switch {
			case errors.Is(err, pgx.ErrNoRows):
				return exitcode.With(exitcode.Misconfigured, fmt.Errorf("--raise-cap-to %s: period %s has no dues in that currency", currency, l.Period))
			case err != nil:
				return fmt.Errorf("raise the cap: %w", err)
			case before > caps[currency]:
				return exitcode.With(exitcode.Misconfigured, fmt.Errorf("--raise-cap-to %s=%d: the cap is %s already, and is never lowered", currency, caps[currency], money.Both(before, currency)))
			}
			const record = `
				UPDATE duesday.runs SET raised_caps = coalesce(raised_caps, '{}') ||
					jsonb_build_object($2::text, jsonb_build_object('from', $3::bigint, 'to', $4::bigint, 'role', session_user))
				WHERE id = $1`
			if _, err := tx.Exec(ctx, record, runID, currency, before, caps[currency]); err != nil {
				return fmt.Errorf("record the raised cap: %w", err)
			}
		}
		return nil
	})
}
