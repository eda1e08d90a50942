// Package spendcap is the hard stop in front of Stripe: a reverse proxy that
// alone holds the real key, and hands out vault keys that can spend no more
// than a billing period's limit per currency.
//
// It promises that the charges made through it in a period never add up to more
// than the period's limits, whatever its clients do, over any number of
// replicas, and whichever of them dies. For that it reserves an amount in
// Postgres before it forwards the request that may charge it, keeps it reserved
// while anyone could doubt whether Stripe charged it, and reads requests more
// strictly than Stripe does: what is not plain is refused.
//
// It leaves to others that a customer is charged once (the ledger's claim and
// Stripe's idempotency do that), and which sums are right.
package spendcap
