package stripesim

import "time"

// Tally is what the books come to. It is small where Bank is not: a month of a
// million customers.
type Tally struct {
	Succeeded int `json:"succeeded"` // charges and intents that moved money
	Customers int `json:"customers"` // of whom
	// MostOfOne is the most that any customer was charged: 1 if all is well.
	MostOfOne int `json:"most_of_one"`
	// First is when the first POST arrived, Last when the last was answered:
	// look-ups may come long before the first charge.
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
}

// Duplicates are the successful charges beyond each customer's first.
func (t Tally) Duplicates() int { return t.Succeeded - t.Customers }

// Tally counts what [Sim.Succeeded] lists.
func (s *Sim) Tally() Tally {
	s.mu.Lock()
	defer s.mu.Unlock()
	paid := make(map[string]int)
	out := Tally{First: s.first, Last: s.last}
	for _, b := range []*book{&s.charges, &s.intents} {
		for _, e := range b.all {
			if e.cur.intent == "" && e.cur.Status == StatusSucceeded {
				out.Succeeded++
				paid[e.cur.Customer]++
				out.MostOfOne = max(out.MostOfOne, paid[e.cur.Customer])
			}
		}
	}
	out.Customers = len(paid)
	return out
}
