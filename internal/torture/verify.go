package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/duesday/duesday/internal/stripesim"
)

// keyOf is the key by the formula of the contract, written down here a second
// time so that no change to the first goes unnoticed.
func keyOf(customer string, attempt int) string {
	s := customer + ":" + period + ":monthly-billing"
	if attempt > 1 {
		s += fmt.Sprintf(":attempt-%d", attempt)
	}
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:16])
}

const maxAttempts = 8

// verify compares the bank's books with the month as it was when it was opened,
// and then the ledger with the bank.
func (w *world) verify() {
	paid := w.verifyBank()
	w.verifyRequests()
	if err := w.verifyLedger(paid); err != nil {
		w.problem("torture: read the ledger: %v", err)
	}
}

// payment is what matters of a charge.
type payment struct {
	customer, source, description, metaCustomer, metaPeriod, currency, kind string
	amount                                                                  int64
}

func (w *world) verifyBank() map[string]stripesim.Charge {
	byID := map[string]customer{}
	for _, c := range w.customers {
		byID[c.id] = c
	}
	paid := map[string]stripesim.Charge{} // by customer id
	executed := map[string]string{}       // by key
	duplicates := 0
	for _, ch := range w.sim.Bank() {
		id, key := ch.Metadata["duesday_customer"], ch.Metadata["duesday_key"]
		if first, again := executed[key]; again {
			w.problem("the bank executed a key twice: %s: %s and %s (%s)", id, first, ch.ID, ch.Status)
		}
		executed[key] = ch.ID
		c, known := byID[id]
		if !known {
			w.problem("charged, but not in the month: %q", id)
			continue
		}
		if attemptOf(id, key) == 0 || ch.IdempotencyKey != key {
			w.problem("%s: charged under the key %q with %q in its metadata, want the formula's", id, ch.IdempotencyKey, key)
		}
		kind := stripesim.KindCharge
		if w.method == "payment_intents" {
			kind = stripesim.KindIntent
		}
		want := payment{c.atStripe(), c.paymentMethod, "Billing period " + period, id, period, c.currency, kind, c.amount}
		got := payment{ch.Customer, ch.Source, ch.Description, id, ch.Metadata["duesday_period"], ch.Currency, ch.Kind, ch.Amount}
		if want != got {
			w.problem("%s: charged %+v, want %+v", id, got, want)
		}
		if ch.Status != stripesim.StatusSucceeded {
			continue
		}
		if first, again := paid[id]; again {
			duplicates++
			w.problem("CHARGED TWICE: %s: %s at %s under %s, and %s at %s under %s", id,
				first.ID, first.Created, first.IdempotencyKey, ch.ID, ch.Created, ch.IdempotencyKey)
		}
		paid[id] = ch
	}
	missed := 0
	for _, c := range w.customers {
		_, got := paid[c.id]
		switch want := c.behaves == pays || c.behaves == declinesOnce || c.behaves == pendingPays; {
		case want && !got:
			missed++
			w.problem("MISSED: %s (%s)", c.id, c.behaves)
		case got && !want:
			w.problem("charged, but is not payable: %s (%s)", c.id, c.behaves)
		}
	}
	w.count("charges", len(paid)+duplicates)
	w.count("duplicates", duplicates)
	w.count("missed", missed)
	return paid
}

func attemptOf(customer, key string) int {
	for n := 1; n <= maxAttempts; n++ {
		if keyOf(customer, n) == key {
			return n
		}
	}
	return 0
}

// verifyRequests looks for what Stripe must never see.
func (w *world) verifyRequests() {
	stats := w.sim.Stats()
	if stats.IdempotencyErrors > 0 {
		w.problem("%d requests with other parameters under a known key", stats.IdempotencyErrors)
	}
	if n := len(w.sim.Keyless()); n > 0 {
		w.problem("%d requests without a key", n)
	}
	owners := map[string]string{} // of all keys that there may be
	for _, c := range w.customers {
		for n := 1; n <= maxAttempts; n++ {
			owners[keyOf(c.id, n)] = c.id
		}
	}
	for _, r := range w.sim.Requests() {
		if r.Method != "POST" {
			continue
		}
		key := r.Key
		if strings.HasSuffix(r.Path, "/cancel") {
			key = strings.TrimSuffix(key, "-cancel")
		}
		// A request that was cut by a kill names nobody, and neither does a cancelling.
		owner, id := owners[key], r.Params.Get("metadata[duesday_customer]")
		if owner == "" || id != "" && id != owner {
			w.problem("a request for %q under the key %q of %q", id, r.Key, owner)
		}
	}
	for kind, n := range stats.Faults {
		w.count("fault "+string(kind), n)
	}
	w.count("requests", stats.Requests)
}

type ledgerSlot struct {
	Customer, Status, Key string
	Attempt               int
	ChargeID              string
	Amount                int64
	Currency              string
}

func (w *world) verifyLedger(paid map[string]stripesim.Charge) error {
	slots, err := query[ledgerSlot](w, `
		SELECT customer_id, status, idempotency_key, attempt, coalesce(charge_id, ''), coalesce(amount, 0), coalesce(currency, '')
		FROM duesday.charges`)
	if err != nil {
		return err
	}
	statuses := map[string]string{
		pays: "succeeded", declinesOnce: "succeeded", pendingPays: "succeeded",
		declines: "declined", expired: "declined", pendingFails: "declined", unpayable: "rejected", missing: "rejected",
	}
	byCustomer := map[string]ledgerSlot{}
	for _, s := range slots {
		byCustomer[s.Customer] = s
	}
	claimed := map[string]int64{}
	for _, c := range w.customers {
		s := byCustomer[c.id]
		if s.Status != statuses[c.behaves] {
			w.problem("the ledger says %s (%s) is %q, want %q", c.id, c.behaves, s.Status, statuses[c.behaves])
		}
		if s.Key != keyOf(c.id, s.Attempt) {
			w.problem("the ledger has the key %s for attempt %d of %s", s.Key, s.Attempt, c.id)
		}
		if ch, ok := paid[c.id]; ok && (ch.ID != s.ChargeID || ch.IdempotencyKey != s.Key || ch.Amount != s.Amount || ch.Currency != s.Currency) {
			w.problem("the ledger has %+v, the bank %+v", s, ch)
		}
		if c.behaves != unpayable {
			claimed[c.currency] += c.amount
		}
	}
	if len(slots) != len(w.customers) {
		w.problem("the ledger has %d slots for %d customers", len(slots), len(w.customers))
	}
	type total struct {
		Currency string
		Claimed  int64
	}
	totals, err := query[total](w, `SELECT currency, claimed_total FROM duesday.totals`)
	if err != nil {
		return err
	}
	for _, t := range totals {
		if claimed[t.Currency] != t.Claimed {
			w.problem("claimed_total is %d %s, want %d", t.Claimed, t.Currency, claimed[t.Currency])
		}
		delete(claimed, t.Currency)
	}
	if len(claimed) > 0 {
		w.problem("totals lack %v", claimed)
	}
	return w.verifyAttempts(byCustomer)
}

// verifyAttempts reads the append-only history: it must lead to the slots.
func (w *world) verifyAttempts(slots map[string]ledgerSlot) error {
	type row struct {
		Customer, Status, Key string
		Attempt               int
	}
	rows, err := query[row](w, `SELECT customer_id, status, idempotency_key, attempt FROM duesday.attempts ORDER BY id`)
	if err != nil {
		return err
	}
	last := map[string]row{}
	for _, r := range rows {
		before := last[r.Customer]
		final := before.Status == "succeeded" || before.Status == "declined" || before.Status == "rejected"
		switch {
		case r.Attempt < before.Attempt || r.Attempt > before.Attempt+1:
			w.problem("attempts of %s: %d follows %d", r.Customer, r.Attempt, before.Attempt)
		case r.Attempt == before.Attempt && final && !(before.Status != "succeeded" && r.Status == "succeeded"):
			w.problem("attempts of %s: %s follows %s in attempt %d", r.Customer, r.Status, before.Status, r.Attempt)
		case r.Attempt == before.Attempt+1 && before.Attempt > 0 && before.Status != "declined":
			w.problem("attempts of %s: attempt %d follows one that is %s", r.Customer, r.Attempt, before.Status)
		}
		if r.Key != keyOf(r.Customer, r.Attempt) {
			w.problem("attempts of %s: attempt %d has the key %s", r.Customer, r.Attempt, r.Key)
		}
		last[r.Customer] = r
	}
	for id, s := range slots {
		if r := last[id]; r.Status != s.Status || r.Attempt != s.Attempt {
			w.problem("the last of the attempts of %s is %+v, its slot %+v", id, r, s)
		}
	}
	return nil
}
