// Package leader decides which process may bill a period.
//
// It promises three things about the period's Postgres advisory lock:
//
//   - at most one process holds it, and that process learns within
//     Config.RenewDeadline that it can no longer prove so ([Lock.Context]);
//     before each send it can ask without delay ([Lock.Fresh]);
//   - a silent holder loses it: the server ends a session that has not beaten
//     for Config.LeaseDuration, and where the server cannot, the next candidate
//     does;
//   - a candidate reports that another leads ([HeldError]) only after it has
//     seen that other one alive. A lock that is merely taken proves nothing: the
//     process behind it may be frozen, or its machine gone.
//
// It gives no fencing. Between the server's ending a session and its process
// noticing, a rival may lead already; so every claim must be made on the
// lock's own connection ([Lock.Do]), in one statement with the
// condition of package fence.
//
// The package knows runs, the table it beats on, and nothing else of the
// schema. What a run does, and what became of it, is for others to write.
//
// The Kubernetes [Lease] is a layer of its own, tried before the lock, and keeps
// replicas from running side by side at all. It promises the same: one holder,
// whose context ends before a rival may take over; proof of life before another
// is said to lead ([LeaseHeldError]). client-go's LeaderElector runs it, and its
// record and rules are client-go's, so any other candidate may be one of
// client-go's. [Elect] takes both and makes one [Leadership] of them.
//
// A [Cluster] also tells the time that a Job was scheduled for, from which the
// period follows.
package leader
