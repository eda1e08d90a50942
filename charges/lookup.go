package charges

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// RestoreCommand is what a run that looks up before it sends calls itself in runs.
const RestoreCommand = "run --after-restore"

// ErrLookUpUnfinished is returned by LookUpFinished.
var ErrLookUpUnfinished = errors.New("a look-up after a restore was begun and not finished")

// LookUpFinished returns ErrLookUpUnfinished if the last run of the period that
// began to look up after a restore did not come to the end of it. What it has
// recorded is the newest, so UnknownAtStripe would find nothing amiss.
func (l *Ledger) LookUpFinished(ctx context.Context, db Querier) error {
	const last = `
		SELECT counts ->> 'looked_up' = 'true' FROM duesday.runs
		WHERE lock_id = $1 AND billing_period = $2 AND command = $3 AND counts ? 'looked_up'
		ORDER BY id DESC LIMIT 1`
	var done bool
	err := db.QueryRow(ctx, last, LockID(l.Namespace, l.Period.String()), l.Period.String(), RestoreCommand).Scan(&done)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return fmt.Errorf("read whether a look-up is unfinished: %w", err)
	case !done:
		return ErrLookUpUnfinished
	}
	return nil
}

// BeginLookUp marks the run as one that looks up, and has not finished. It comes
// before anything is recorded, on the lock's connection, under the lock.
func (l *Ledger) BeginLookUp(ctx context.Context, conn *pgx.Conn, runID int64) error {
	return l.markLookUp(ctx, conn, runID, false)
}

// FinishLookUp marks the run's look-up as finished, in the same way.
func (l *Ledger) FinishLookUp(ctx context.Context, conn *pgx.Conn, runID int64) error {
	return l.markLookUp(ctx, conn, runID, true)
}

func (l *Ledger) markLookUp(ctx context.Context, conn *pgx.Conn, runID int64, finished bool) error {
	if err := l.checkHeld(ctx, conn); err != nil {
		return err
	}
	const mark = `
		UPDATE duesday.runs SET counts = jsonb_build_object('looked_up', $2::boolean) WHERE id = $1`
	if _, err := conn.Exec(ctx, mark, runID, finished); err != nil {
		return fmt.Errorf("mark the look-up: %w", err)
	}
	return nil
}
