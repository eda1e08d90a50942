package main

import (
	"context"
	"fmt"
	"maps"
	"strconv"

	"github.com/spf13/pflag"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/leader"
)

// maxShards is as many as the chart allows; the database is at its end before.
const maxShards = 100

// shardFlags say which part of the customers a run bills.
type shardFlags struct{ shards, shard int }

func (f *shardFlags) add(flags *pflag.FlagSet) {
	flags.IntVar(&f.shards, "shards", 1, "`number` of runs that share the period's customers, each with a part of them and of --rate; 1: this run bills them all")
	flags.IntVar(&f.shard, "shard", -1, "`number` of this run among --shards, counted from 0 (default: JOB_COMPLETION_INDEX, as an Indexed Job sets it)")
}

// split is the part of the customers that this run bills, and leaves it its part
// of the rate. It refuses what needs all of them.
func (p *program) split(f *runFlags) (charges.Shard, error) {
	var all charges.Shard
	if f.shards < 1 || f.shards > maxShards {
		return all, usage("--shards %d: want from 1 to %d", f.shards, maxShards)
	}
	if f.shards == 1 {
		if f.shard > 0 {
			return all, usage("--shard %d: of how many? want --shards too", f.shard)
		}
		return all, nil
	}
	index := f.shard
	if text, ok := p.env("JOB_COMPLETION_INDEX"); ok {
		set, err := strconv.Atoi(text)
		switch {
		case err != nil:
			return all, usage("JOB_COMPLETION_INDEX=%q: want a number, as an Indexed Job sets it", text)
		case index >= 0 && index != set:
			return all, usage("--shard %d: this pod of an Indexed Job has index %d, whose customers nobody would bill; leave --shard out", index, set)
		}
		index = set
	}
	if index < 0 {
		return all, usage("--shards %d: which of them is this? want --shard, from 0 to %d, or a Job of completionMode Indexed", f.shards, f.shards-1)
	}
	if index >= f.shards {
		return all, usage("shard %d of --shards %d: want from 0 to %d; an Indexed Job's completions must be as many as the shards", index, f.shards, f.shards-1)
	}
	for flag, given := range map[string]bool{"--reopen": f.reopen, "--after-restore": f.after} {
		if given {
			return all, usage("%s needs the period alone, want --shards 1: run it once without shards; it bills what is left, too", flag)
		}
	}
	if f.vaultFlags.url != "" {
		return all, usage("--vault-url: want --shards 1: a period has one vault key, and each shard's would end its sisters'")
	}
	f.rate /= float64(f.shards) // Stripe's limit is one for all
	return charges.Shard{Index: index, Of: f.shards}, nil
}

// checkIndexes refuses an Indexed Job that has not one index for each shard: it
// would be complete with a part of the customers never billed.
func (p *program) checkIndexes(ctx context.Context, f leaderFlags, cluster *leader.Cluster, s charges.Shard) error {
	_, indexed := p.env("JOB_COMPLETION_INDEX")
	name := p.lookup("JOB_NAME")
	switch {
	case !s.Split() || !indexed:
		return nil
	case name == "" || cluster == nil:
		return usage("--shards %d in an Indexed Job: JOB_NAME must name the pod's Job, in its cluster, to see that it has completions: %[1]d", s.Of)
	}
	completions, err := cluster.Indexes(ctx, name, f.renewDeadline, f.retryEvery)
	if err != nil {
		return err
	}
	if completions != s.Of {
		return usage("--shards %d: Job %s has completions: %d; want as many, or some customers are never billed", s.Of, name, completions)
	}
	return nil
}

// leadShard makes the lock's and the Lease's settings those of one shard.
func leadShard(ledger *charges.Ledger, lock *leader.Config, lease *leaderFlags) (task string) {
	task = ledger.Namespace + ":" + ledger.Period.String()
	if !ledger.Shard.Split() {
		return task
	}
	index, of := ledger.Shard.Index, ledger.Shard.Of
	lock.Shard = &leader.Shard{Index: index, Of: of, LockID: ledger.ShardLockID(), SistersID: ledger.SistersLockID()}
	// By the index alone, so that shards of another number meet at it too.
	lease.leaseName = fmt.Sprintf("%s-shard-%d", lease.leaseName, index)
	return fmt.Sprintf("%s:shard-%d-of-%d", task, index, of)
}

// ofShard lets a shard's figures stand beside its sisters' at the Pushgateway.
func (w *watch) ofShard(s charges.Shard) {
	if s.Split() {
		w.group = maps.Clone(w.group)
		if w.group == nil {
			w.group = map[string]string{}
		}
		w.group["shard"] = strconv.Itoa(s.Index)
	}
}
