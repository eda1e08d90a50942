// Command torture tries to make Duesday break its promise. Each schedule is a
// small month, billed by three replicas of the real binary on a Postgres of its
// own, while processes are killed and frozen, the database is restarted and
// Stripe lies. When the trouble has ended and the job has run again, the books
// of the simulated bank are compared with what the month should have cost.
//
// A schedule is drawn from its seed alone: what happens, and at which request
// or commit. How the processes interleave meanwhile is not: a seed that fails
// is worth trying several times.
//
//	make torture                                   25 schedules from seed 1
//	make torture TORTURE_SCHEDULES=1000
//	make torture TORTURE_SEED=17                   one of them again, with its log
package main
