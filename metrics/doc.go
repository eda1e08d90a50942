// Package metrics tells Prometheus what a run or a reconcile does, and where the
// billing stands.
//
// There are two groups. The state is the ledger's: it is the same whoever tells
// it, so that all commands push it to one place and the last word counts. The
// rest is this process's own, by command.
//
// It promises that no label can take more values than a small, fixed number,
// that a scrape never goes through the slots of a period, and that whatever
// fails here is the metrics' trouble alone.
package metrics
