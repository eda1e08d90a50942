// Package charges is what a charge is: a billing period, the key that makes
// charging for it repeatable, the slot that records it, and what may become of
// it. It holds the ledger, which keeps slots in Postgres, and the gateway,
// which sends them to Stripe.
//
// It promises that a (customer, period) has one slot, that a slot's parameters
// never change once it is claimed, that a send always carries the slot's own
// idempotency key, and that a recorded result is never replaced by a lesser
// one. Who may claim is left to package leader, and in what order things
// happen to package job.
package charges
