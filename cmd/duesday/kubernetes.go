package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"

	"go.uber.org/zap"

	"github.com/duesday/duesday/charges"
	"github.com/duesday/duesday/internal/exitcode"
	"github.com/duesday/duesday/job"
	"github.com/duesday/duesday/leader"
)

// cluster returns the cluster that the process runs in, nil if it needs none:
// outside Kubernetes, with --leader-elect=false.
func (p *program) cluster(f leaderFlags) (*leader.Cluster, error) {
	inCluster := p.inCluster
	if inCluster == nil {
		inCluster = leader.InCluster
	}
	cluster, err := inCluster(p.lookup("POD_NAMESPACE"))
	switch {
	case err == nil:
		return cluster, nil
	case f.elect:
		return nil, usage("--leader-elect=true needs Kubernetes: %w; outside say --leader-elect=false, and the advisory lock alone decides", err)
	case p.lookup("JOB_NAME") == "" || errors.Is(err, leader.ErrNoCluster):
		return nil, nil
	}
	return nil, err
}

// scheduled returns the ledger of the period that the owning Job was
// scheduled for. Without --period, and in a Job, the clock may stand in only if
// no schedule made the Job.
func (p *program) scheduled(ctx context.Context, f runFlags, cluster *leader.Cluster, ledger charges.Ledger, log *zap.Logger) (charges.Ledger, error) {
	name := p.lookup("JOB_NAME")
	if f.period != "" || name == "" || cluster == nil {
		return ledger, nil
	}
	at, scheduled, err := cluster.ScheduledTime(ctx, name, f.renewDeadline, f.retryEvery)
	if err != nil {
		return ledger, exitcode.With(exitcode.Of(err), fmt.Errorf("which period? %w; or name it with --period", err))
	}
	if !scheduled {
		return ledger, nil
	}
	if ledger, err = f.ledger(at); err != nil {
		return ledger, err
	}
	log.Info("billing the period that the Job was scheduled for", zap.String("billing_period", ledger.Period.String()),
		zap.String("job", name), zap.Time("scheduled_at", at))
	return ledger, nil
}

// leadership is what a run holds while it bills, and gives back.
type leadership interface {
	job.Leadership
	Release(context.Context) error
}

// lead takes the Lease for the task, if the flags want one, and the lock.
func (p *program) lead(ctx context.Context, f leaderFlags, cluster *leader.Cluster, task string, lock leader.Config) (leadership, error) {
	if !f.elect {
		return leader.Acquire(ctx, lock)
	}
	identity, err := p.identity()
	if err != nil {
		return nil, err
	}
	return leader.Elect(ctx, leader.LeaseConfig{
		Cluster: cluster, Namespace: cmp.Or(f.leaseNamespace, cluster.Namespace), Name: f.leaseName,
		Identity:      identity,
		Task:          task,
		Wait:          lock.Shard != nil,
		LeaseDuration: f.leaseDuration, RenewDeadline: f.renewDeadline, RetryPeriod: f.retryEvery,
		Log: lock.Log, Observe: lock.Observe,
	}, lock)
}

// identity names this process to the Lease: a pod by its name, and by something
// random, since a pod may be started twice and the Lease would take the second
// for the first.
func (p *program) identity() (string, error) {
	suffix := make([]byte, 4)
	if _, err := rand.Read(suffix); err != nil {
		return "", fmt.Errorf("make an identity: %w", err)
	}
	return cmp.Or(p.lookup("POD_NAME"), holder()) + "_" + hex.EncodeToString(suffix), nil
}
