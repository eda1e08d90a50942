package charges

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/duesday/duesday/internal/mutant"
)

// A Shard is the part of a period's customers that one of several runs bills.
// Index counts from 0. Of 0 or 1 is all of them.
type Shard struct{ Index, Of int }

// Split reports whether there is more than one shard.
func (s Shard) Split() bool { return s.Of > 1 }

func (s Shard) String() string { return fmt.Sprintf("%d of %d", s.Index, s.Of) }

// ShardOf is the index of the shard that bills the customer: the first four
// bytes, big-endian, of SHA-256 over the id, modulo the number of shards. It is
// the same in all releases and in all versions of Postgres.
func ShardOf(customer string, of int) int {
	sum := sha256.Sum256([]byte(customer))
	return int(binary.BigEndian.Uint32(sum[:4]) % uint32(of))
}

// shardSQL is ShardOf in SQL. The arguments are SQL expressions, of text and
// integer.
func shardSQL(customer, of string) string {
	return fmt.Sprintf(`mod(('x' || left(encode(sha256(convert_to(%s, 'UTF8')), 'hex'), 8))::bit(32)::bigint, %s)`, customer, of)
}

// mine is the condition, to follow others, that the customer is of the ledger's
// shard. It is empty if that is all of them.
func (l *Ledger) mine(customer string) string {
	if !l.Shard.Split() || mutant.Is("shard-has-all") {
		return ""
	}
	return fmt.Sprintf(` AND %s = %d`, shardSQL(customer, fmt.Sprint(l.Shard.Of)), l.Shard.Index)
}

// ShardLockID is the id of the shard's own lock: as LockID, over
// "namespace:period:shard-i-of-n".
func (l *Ledger) ShardLockID() int64 {
	return LockID(l.Namespace, fmt.Sprintf("%s:shard-%d-of-%d", l.Period, l.Shard.Index, l.Shard.Of))
}

// SistersLockID is the id of the lock that all shards of one number share: as
// LockID, over "namespace:period:of-n".
func (l *Ledger) SistersLockID() int64 {
	return LockID(l.Namespace, fmt.Sprintf("%s:of-%d", l.Period, l.Shard.Of))
}

// openLockID is the id of the lock under which shards open a period, one after
// the other.
func (l *Ledger) openLockID() int64 { return LockID(l.Namespace, l.Period.String()+":open") }

// AwaitOpening waits until no sister shard is opening the period, and keeps the
// others from it until EndOpening. What a sister has opened meanwhile, the next
// reading of State shows.
func (l *Ledger) AwaitOpening(ctx context.Context, conn *pgx.Conn) error {
	if _, err := conn.Exec(ctx, `SELECT pg_advisory_lock($1)`, l.openLockID()); err != nil {
		return fmt.Errorf("wait for a sister's opening: %w", err)
	}
	return nil
}

// EndOpening lets the next one look. It ends by itself with the session.
func (l *Ledger) EndOpening(ctx context.Context, conn *pgx.Conn) error {
	if _, err := conn.Exec(ctx, `SELECT pg_advisory_unlock($1)`, l.openLockID()); err != nil {
		return fmt.Errorf("end the opening: %w", err)
	}
	return nil
}

// GatherCursors raises the period's claim cursor to what earlier shards have
// come to together, whatever their number was. It runs on the lock's connection.
func (l *Ledger) GatherCursors(ctx context.Context, conn *pgx.Conn) error {
	const numbers = `
		SELECT DISTINCT shards FROM duesday.shard_cursors WHERE billing_period = $1`
	rows, err := conn.Query(ctx, numbers, l.Period.String())
	if err != nil {
		return fmt.Errorf("gather the claim cursors: %w", err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		return fmt.Errorf("gather the claim cursors: %w", err)
	}
	for _, of := range all {
		if err := l.gather(ctx, conn, of); err != nil {
			return err
		}
	}
	return nil
}

// gather finds the first due that no shard of this number has come to: all
// before it have a slot. It begins at the shard that has come least far, and so
// finds one, or the end, within a few dues.
//
// Without the fence a deposed shard could undo what a reopening has set back.
func (l *Ledger) gather(ctx context.Context, db Querier, of int) error {
	const floor = `
		SELECT greatest(claim_cursor, (
			SELECT CASE WHEN count(*) = $2 THEN min(claim_cursor) END
			FROM duesday.shard_cursors WHERE billing_period = $1 AND shards = $2))
		FROM duesday.periods WHERE billing_period = $1`
	var after *string
	if err := db.QueryRow(ctx, floor, l.Period.String(), of).Scan(&after); err != nil {
		return fmt.Errorf("gather the claim cursors: %w", err)
	}
	err := queryPlanned(ctx, db, inIndexOrder, func(rows pgx.Rows) error {
		rows.Close()
		return rows.Err()
	}, l.gatherSQL(), l.Period.String(), l.lockID(), of, after)
	if err != nil {
		return fmt.Errorf("gather the claim cursors: %w", err)
	}
	return nil
}

// gatherSQL has the parameters: $1 period, $2 lock id, $3 number of shards, $4 a
// due up to which all are known to have slots (null: none).
func (l *Ledger) gatherSQL() string {
	return `
		WITH shard AS MATERIALIZED (
			SELECT shard, claim_cursor FROM duesday.shard_cursors WHERE billing_period = $1 AND shards = $3
		), unclaimed AS MATERIALIZED (
			SELECT due.customer_id
			FROM duesday.dues AS due
			WHERE due.billing_period = $1 AND ($4::text IS NULL OR due.customer_id > $4)
				AND (SELECT claim_cursor FROM shard
					WHERE shard.shard = ` + shardSQL("due.customer_id", "$3") + `) >= due.customer_id IS NOT TRUE
			ORDER BY due.customer_id
			LIMIT 1
		)
		UPDATE duesday.periods SET claim_cursor = greatest(claim_cursor, CASE
			WHEN EXISTS (SELECT FROM unclaimed) THEN (
				SELECT max(customer_id) FROM duesday.dues
				WHERE billing_period = $1 AND customer_id < (SELECT customer_id FROM unclaimed))
			ELSE (SELECT max(customer_id) FROM duesday.dues WHERE billing_period = $1) END)
		WHERE billing_period = $1 AND ` + l.held("$2")
}

// ShardDone reports whether all dues of the ledger's shard have a slot and none
// of them is claimed. It runs on the lock's connection.
func (l *Ledger) ShardDone(ctx context.Context, conn *pgx.Conn) (done bool, err error) {
	cursor, err := l.Cursor(ctx, conn)
	if err != nil {
		return false, err
	}
	look := `
		SELECT NOT EXISTS (
				SELECT FROM duesday.dues AS due
				WHERE due.billing_period = $1 AND ($2::text IS NULL OR due.customer_id > $2)` + l.mine("due.customer_id") + `)
			AND NOT EXISTS (
				SELECT FROM duesday.charges AS slot
				WHERE slot.billing_period = $1 AND slot.status = 'claimed'` + l.mine("slot.customer_id") + `)`
	if err := conn.QueryRow(ctx, look, l.Period.String(), cursor.parameter()).Scan(&done); err != nil {
		return false, fmt.Errorf("look whether the shard is done: %w", err)
	}
	return done, nil
}

// parameter is the cursor as a statement takes it.
func (c ClaimCursor) parameter() *string {
	if !c.Valid {
		return nil
	}
	return &c.After
}
