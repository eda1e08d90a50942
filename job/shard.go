package job

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/duesday/duesday/charges"
)

// openInTurn lets sister shards open the period one after the other: the first
// does, and the others find it open. One that crashes leaves its turn to the
// next.
func (r *run) openInTurn(ctx context.Context) (err error) {
	r.Log.Debug("waiting for the turn to open the period")
	if err := r.Lead.DoLong(ctx, r.Ledger.AwaitOpening); err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, r.Lead.Do(context.WithoutCancel(ctx), r.Ledger.EndOpening))
	}()
	state, err := r.Ledger.State(ctx, r.Pool)
	if err != nil {
		return err
	}
	if !state.Opened {
		err := r.open(ctx)
		r.opened = nil // it is all the shards'
		return err
	}
	r.state = state
	if err := r.raiseCaps(ctx); err != nil {
		return err
	}
	return r.findCustomers(ctx)
}

// settleShare finds out whether the shard's own part is done, when the period's
// is not.
func (r *run) settleShare(ctx context.Context) error {
	if !r.Ledger.Shard.Split() || r.summary.Settled {
		return nil
	}
	return r.Lead.DoLong(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
		r.summary.ShardDone, err = r.Ledger.ShardDone(ctx, conn)
		return err
	})
}

// tally counts the whole period, whatever part of it the run has.
func (r *run) tally(ctx context.Context) error {
	whole := r.Ledger
	whole.Shard = charges.Shard{}
	standing, err := whole.Standing(ctx, r.Pool)
	if err != nil {
		return err
	}
	r.summary.All = &standing.Tally
	if r.Ledger.Shard.Split() {
		r.summary.Money = standing.Money
	}
	return nil
}

// name is what the run bills, for people.
func (r *run) name() string {
	if r.Ledger.Shard.Split() {
		return fmt.Sprintf("shard %v of period %s", r.Ledger.Shard, r.summary.Period)
	}
	return "period " + r.summary.Period
}

func (r *run) shardField() zap.Field {
	if r.Ledger.Shard.Split() {
		return zap.Stringer("shard", r.Ledger.Shard)
	}
	return zap.Skip()
}
