// Package job bills one period: it opens it, recovers what earlier runs left in
// doubt, claims and charges what is due, settles the results, and says how it
// ended.
//
// It promises that nothing is sent to Stripe before its claim is durable, that
// it stops claiming the moment it is told to stop or can no longer prove that
// it leads, and that what is in flight then is still settled. It relies on
// package leader for there being one leader, and on package charges for what a
// claim, a send and a settlement are.
package job
