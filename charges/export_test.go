package charges

import (
	"context"

	"github.com/cenkalti/backoff/v5"
	"github.com/jackc/pgx/v5"
)

// What tests must see of the inside, and nobody else.
var (
	ClaimSQL    = (&Ledger{}).claimSQL()
	KeySQL      = keySQL
	ShardSQL    = shardSQL
	CheckStripe = checkStripe
	Currencies  = currencies
	EndpointOf  = endpointOf
)

// RejectedAtOnce is how many dues an opening rejects at once.
const RejectedAtOnce = rejectedAtOnce

// GatherSQL is the statement that gathers the shards' cursors.
func (l *Ledger) GatherSQL() string { return l.gatherSQL() }

// MigrationNames are the embedded migrations in order.
func MigrationNames() ([]string, error) {
	ms, err := migrations()
	var names []string
	for _, m := range ms {
		names = append(names, m.name)
	}
	return names, err
}

// NewJitter returns the pauses of a sender with the policy.
func NewJitter(policy RetryPolicy, random func() float64) backoff.BackOff {
	return &jitter{policy: policy, random: random}
}

// Rate is how many requests a second the pacer allows now, were there
// no headroom.
func (p *Pacer) Rate() float64 { return float64(p.limiter.Limit()) / headroom }

// Limit is how many it does allow.
func (p *Pacer) Limit() float64 { return float64(p.limiter.Limit()) }

// StandingPlan is how Postgres would go about Standing.
func (l *Ledger) StandingPlan(ctx context.Context, db Querier) (plan []string, err error) {
	err = queryPlanned(ctx, db, atOnce, func(rows pgx.Rows) (err error) {
		plan, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	}, "EXPLAIN "+l.standingSQL(), l.Period.String())
	return plan, err
}
