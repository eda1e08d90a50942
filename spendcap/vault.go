package spendcap

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Errors of the vault's own rules. [Admin] returns them too.
var (
	ErrNotFound  = errors.New("not found")
	ErrKeyExists = errors.New("the period has a vault key already")
	// ErrCapsDiffer says that the period's limits are others than the ones
	// asked for. Only SetCaps changes limits.
	ErrCapsDiffer = errors.New("the period's limits are others")
	ErrSpent      = errors.New("more is reserved already than the limit would allow")
	ErrInvalid    = errors.New("invalid")
)

// Limit is what may be spent of a currency, in its smallest unit.
type Limit struct {
	MaxAmount int64 `json:"max_amount"`
	// Reserved is held or spent; Held is the part of it of which nobody knows
	// yet: in flight, or in doubt.
	Reserved int64 `json:"reserved"`
	Held     int64 `json:"held"`
}

// Key is a vault key as it may be shown: without its secret.
type Key struct {
	ID           string     `json:"id"`
	Period       string     `json:"period"`
	Endpoints    []Endpoint `json:"endpoints"`
	CreatedAt    time.Time  `json:"created_at"`
	ExpiresAt    time.Time  `json:"expires_at"`
	RevokedAt    *time.Time `json:"revoked_at,omitempty"`
	SupersededBy *string    `json:"superseded_by,omitempty"`
}

// NewKey is a vault key at the only time that its secret is shown.
type NewKey struct {
	Key
	Secret string           `json:"key"` // vk_…: what Stripe's client is given
	Caps   map[string]int64 `json:"max_amount"`
}

// KeyRequest asks for a vault key.
type KeyRequest struct {
	Period    string           `json:"period"` // YYYY-MM
	Caps      map[string]int64 `json:"max_amount"`
	ExpiresAt time.Time        `json:"expires_at"`
	Endpoints []Endpoint       `json:"endpoints,omitempty"` // empty: all
	// Rotate lets the new key take the place of the period's live one, which
	// ends at once. Without it a live key is ErrKeyExists.
	Rotate bool `json:"rotate,omitempty"`
}

var (
	periodShape = regexp.MustCompile(`^[0-9]{4}-(0[1-9]|1[0-2])$`)
	errPeriod   = fmt.Errorf("%w: period: want YYYY-MM", ErrInvalid)
)

func (r KeyRequest) check() error {
	if !periodShape.MatchString(r.Period) {
		return errPeriod
	}
	if r.ExpiresAt.IsZero() {
		return fmt.Errorf("%w: expires_at: want a time", ErrInvalid)
	}
	for _, e := range r.Endpoints {
		if !slices.Contains(Endpoints(), e) {
			return fmt.Errorf("%w: endpoints: %q is none", ErrInvalid, e)
		}
	}
	return checkCaps(r.Caps)
}

func checkCaps(caps map[string]int64) error {
	if len(caps) == 0 {
		return fmt.Errorf("%w: max_amount: want at least one currency", ErrInvalid)
	}
	for currency, amount := range caps {
		if !plainCurrency.MatchString(currency) || amount < 0 {
			return fmt.Errorf("%w: max_amount: want lower-case currencies and amounts of 0 or more", ErrInvalid)
		}
	}
	return nil
}

// Vault keeps keys, limits and reservations in Postgres. Any number may work on
// one database.
type Vault struct {
	pool *pgxpool.Pool
	// known holds what never changes of a key. Whether it still is good is
	// asked of the database each time.
	known sync.Map // id to knownKey
}

type knownKey struct {
	hash      []byte
	period    string
	endpoints []Endpoint
}

// NewVault works on a pool of [OpenPool].
func NewVault(pool *pgxpool.Pool) *Vault { return &Vault{pool: pool} }

// OpenPool returns a pool for a vault. Its sessions keep their plans: every
// statement of the proxy is a handful of look-ups by index, and the plan made
// while the tables were empty must be that too.
func OpenPool(ctx context.Context, cfg *pgxpool.Config) (*pgxpool.Pool, error) {
	cfg = cfg.Copy()
	cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `
			SET application_name = 'duesday proxy';
			SET plan_cache_mode = force_generic_plan;
			SET enable_seqscan = off;
			SET jit = off;
			SET statement_timeout = '5s';
			SET idle_in_transaction_session_timeout = '10s';
			SELECT set_config('synchronous_commit', 'on', false)
			WHERE current_setting('synchronous_commit') = 'off'`)
		return err
	}
	return pgxpool.NewWithConfig(ctx, cfg)
}

// Create makes a vault key. Limits belong to the period: the first key sets
// them, and for each later key the same must be asked for.
func (v *Vault) Create(ctx context.Context, r KeyRequest) (NewKey, error) {
	if err := r.check(); err != nil {
		return NewKey{}, err
	}
	if len(r.Endpoints) == 0 {
		r.Endpoints = Endpoints()
	}
	id, secret, hash := newSecret()
	out := NewKey{Secret: secret, Caps: r.Caps}
	err := pgx.BeginFunc(ctx, v.pool, func(tx pgx.Tx) error {
		if err := lockPeriod(ctx, tx, r.Period); err != nil {
			return err
		}
		have, err := limits(ctx, tx, r.Period)
		if err != nil {
			return err
		}
		if len(have) == 0 {
			if err := writeLimits(ctx, tx, r.Period, r.Caps); err != nil {
				return err
			}
		} else if !maps.EqualFunc(have, r.Caps, func(l Limit, c int64) bool { return l.MaxAmount == c }) {
			return fmt.Errorf("%w: period %s may spend %s, asked for %s", ErrCapsDiffer, r.Period, describe(have), describe(r.Caps))
		}
		if r.Rotate {
			const supersede = `
				UPDATE duesday.vault_keys SET revoked_at = clock_timestamp(), superseded_by = $2
				WHERE billing_period = $1 AND revoked_at IS NULL`
			if _, err := tx.Exec(ctx, supersede, r.Period, id); err != nil {
				return fmt.Errorf("end the earlier key: %w", err)
			}
		}
		const insert = `
			INSERT INTO duesday.vault_keys (id, billing_period, secret_hash, endpoints, expires_at)
			SELECT $1, $2, $3, $4, $5 WHERE $5::timestamptz > clock_timestamp()
			RETURNING ` + keyColumns
		out.Key, err = scanKey(tx.QueryRow(ctx, insert, id, r.Period, hash, r.Endpoints, r.ExpiresAt))
		if errors.Is(err, pgx.ErrNoRows) {
			return fmt.Errorf("%w: expires_at: is in the past", ErrInvalid)
		}
		if constraint(err) == "vault_keys_live" {
			return fmt.Errorf("%w: %s", ErrKeyExists, r.Period)
		}
		if err != nil {
			return fmt.Errorf("write the key: %w", err)
		}
		return nil
	})
	if err != nil {
		return NewKey{}, err
	}
	return out, nil
}

// SetCaps replaces a period's limits. A currency left out keeps its own. A
// limit below what is reserved already is ErrSpent, and nothing changes.
func (v *Vault) SetCaps(ctx context.Context, period string, caps map[string]int64) error {
	if !periodShape.MatchString(period) {
		return errPeriod
	}
	if err := checkCaps(caps); err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, v.pool, func(tx pgx.Tx) error {
		if err := lockPeriod(ctx, tx, period); err != nil {
			return err
		}
		have, err := limits(ctx, tx, period)
		if err != nil {
			return err
		}
		if len(have) == 0 {
			return fmt.Errorf("period %s: %w", period, ErrNotFound)
		}
		err = writeLimits(ctx, tx, period, caps)
		if constraint(err) == "vault_spend_cap" {
			return fmt.Errorf("%w: period %s", ErrSpent, period)
		}
		return err
	})
}

// Limits returns a period's limits per currency; none if it never had a key.
func (v *Vault) Limits(ctx context.Context, period string) (map[string]Limit, error) {
	return limits(ctx, v.pool, period)
}

// Show returns a key.
func (v *Vault) Show(ctx context.Context, id string) (Key, error) {
	const read = `SELECT ` + keyColumns + ` FROM duesday.vault_keys WHERE id = $1`
	k, err := scanKey(v.pool.QueryRow(ctx, read, id))
	if errors.Is(err, pgx.ErrNoRows) {
		return Key{}, fmt.Errorf("key %s: %w", id, ErrNotFound)
	}
	return k, err
}

// List returns the keys of a period, or of all if it is empty, oldest first.
func (v *Vault) List(ctx context.Context, period string) ([]Key, error) {
	const read = `
		SELECT ` + keyColumns + ` FROM duesday.vault_keys
		WHERE billing_period = $1 OR $1 = ''
		ORDER BY billing_period, created_at`
	rows, err := v.pool.Query(ctx, read, period)
	if err != nil {
		return nil, fmt.Errorf("list vault keys: %w", err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (Key, error) { return scanKey(row) })
}

// Revoke ends a key: the next request with it is refused. Revoking it again
// changes nothing.
func (v *Vault) Revoke(ctx context.Context, id string) (Key, error) {
	const revoke = `
		UPDATE duesday.vault_keys SET revoked_at = coalesce(revoked_at, clock_timestamp())
		WHERE id = $1
		RETURNING ` + keyColumns
	k, err := scanKey(v.pool.QueryRow(ctx, revoke, id))
	if errors.Is(err, pgx.ErrNoRows) {
		return Key{}, fmt.Errorf("key %s: %w", id, ErrNotFound)
	}
	return k, err
}

// Ready returns an error if the database does not answer.
func (v *Vault) Ready(ctx context.Context) error {
	const look = `SELECT count(*) FROM duesday.vault_keys WHERE id = ''`
	_, err := v.pool.Exec(ctx, look)
	return err
}

// know finds the immutable part of a key by its id and compares the secret, in
// constant time. ok is false for a key that never was.
func (v *Vault) know(ctx context.Context, id string, hash []byte) (k knownKey, ok bool, err error) {
	known, found := v.known.Load(id)
	if !found {
		const read = `SELECT secret_hash, billing_period, endpoints FROM duesday.vault_keys WHERE id = $1`
		err := v.pool.QueryRow(ctx, read, id).Scan(&k.hash, &k.period, &k.endpoints)
		if errors.Is(err, pgx.ErrNoRows) {
			return knownKey{}, false, nil
		}
		if err != nil {
			return knownKey{}, false, fmt.Errorf("read a vault key: %w", err)
		}
		known, _ = v.known.LoadOrStore(id, k)
	}
	k = known.(knownKey)
	if subtle.ConstantTimeCompare(k.hash, hash) != 1 {
		return knownKey{}, false, nil
	}
	return k, true, nil
}

// lockPeriod lets one change of a period's keys and limits happen at a time.
func lockPeriod(ctx context.Context, tx pgx.Tx, period string) error {
	const lock = `SELECT pg_advisory_xact_lock(hashtextextended('duesday vault ' || $1, 0))`
	if _, err := tx.Exec(ctx, lock, period); err != nil {
		return fmt.Errorf("lock the period's vault: %w", err)
	}
	return nil
}

type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

func limits(ctx context.Context, db querier, period string) (map[string]Limit, error) {
	const read = `
		SELECT l.currency, l.max_amount, l.reserved, coalesce((
			SELECT sum(r.amount) FROM duesday.vault_reservations r
			WHERE r.billing_period = l.billing_period AND r.currency = l.currency AND r.status = 'held'), 0)::bigint
		FROM duesday.vault_limits l WHERE l.billing_period = $1`
	rows, err := db.Query(ctx, read, period)
	if err != nil {
		return nil, fmt.Errorf("read the period's limits: %w", err)
	}
	found := make(map[string]Limit)
	var (
		currency string
		l        Limit
	)
	_, err = pgx.ForEachRow(rows, []any{&currency, &l.MaxAmount, &l.Reserved, &l.Held}, func() error {
		found[currency] = l
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the period's limits: %w", err)
	}
	return found, nil
}

func writeLimits(ctx context.Context, tx pgx.Tx, period string, caps map[string]int64) error {
	const write = `
		INSERT INTO duesday.vault_limits (billing_period, currency, max_amount)
		VALUES ($1, $2, $3)
		ON CONFLICT (billing_period, currency) DO UPDATE SET max_amount = excluded.max_amount`
	for _, currency := range slices.Sorted(maps.Keys(caps)) {
		if _, err := tx.Exec(ctx, write, period, currency, caps[currency]); err != nil {
			return fmt.Errorf("write the limit in %s: %w", currency, err)
		}
	}
	return nil
}

const keyColumns = `id, billing_period, endpoints, created_at, expires_at, revoked_at, superseded_by`

func scanKey(row pgx.Row) (k Key, err error) {
	return k, row.Scan(&k.ID, &k.Period, &k.Endpoints, &k.CreatedAt, &k.ExpiresAt, &k.RevokedAt, &k.SupersededBy)
}

func constraint(err error) string {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return pgErr.ConstraintName
	}
	return ""
}

// describe writes amounts the same way each time.
func describe[T any](amounts map[string]T) string {
	var parts []string
	for _, currency := range slices.Sorted(maps.Keys(amounts)) {
		switch a := any(amounts[currency]).(type) {
		case Limit:
			parts = append(parts, fmt.Sprintf("%s=%d", currency, a.MaxAmount))
		default:
			parts = append(parts, fmt.Sprintf("%s=%d", currency, a))
		}
	}
	return strings.Join(parts, ",")
}
