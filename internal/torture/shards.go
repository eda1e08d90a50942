package main

import (
	"fmt"
	"math/rand/v2"
)

// drawShards draws, for a share of the schedules, how many shards have the
// period between them, from one rerun to the next. Its own random numbers leave
// the rest of a seed's schedule as it was.
func drawShards(seed uint64) []int {
	r := rand.New(rand.NewPCG(seed, 20261002))
	if r.IntN(3) > 0 {
		return nil
	}
	return []int{2 + r.IntN(3), 1 + r.IntN(4), 1 + r.IntN(4), 2 + r.IntN(3)}
}

// runs are the processes that bill the month now: replicas, or the shards of
// this generation. The caller holds the mutex.
func (w *world) runs() (all [][]string) {
	n := 1
	if len(w.shards) > 0 {
		n = w.shards[w.generation%len(w.shards)]
	}
	if n == 1 {
		for range 3 {
			all = append(all, w.runArgs())
		}
		return all
	}
	for i := range n {
		all = append(all, append(w.runArgs(), fmt.Sprintf("--shards=%d", n), fmt.Sprintf("--shard=%d", i)))
	}
	return all
}

// replacements are what takes the place of a run that failed: another like it,
// as its Job would make, or once the processes of the generation after it.
func (w *world) replacements(p *replica) [][]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case len(w.shards) == 0, p.generation == w.generation:
		return [][]string{p.args}
	case w.renewed < w.generation:
		w.renewed = w.generation
		return w.runs()
	}
	return nil
}

// rerun is the next generation's: it ends when all its processes have, and has
// settled the period if all exit with 0.
func (w *world) rerun() bool {
	if len(w.shards) == 0 {
		return w.once(w.runArgs()...) == 0
	}
	w.mu.Lock()
	w.generation++
	w.renewed = w.generation
	args := w.runs()
	w.mu.Unlock()
	var all []*replica
	for _, a := range args {
		p, err := w.start(a...)
		if err != nil {
			w.problem("%v", err)
			return false
		}
		all = append(all, p)
	}
	done := true
	for _, p := range all {
		w.await(p)
		w.checkExit(p)
		done = done && p.code() == 0
	}
	if done {
		settled, err := query[struct{ Settled bool }](w, `SELECT settled_at IS NOT NULL FROM duesday.periods`)
		if err != nil || len(settled) != 1 || !settled[0].Settled {
			w.problem("all %d shards exit with 0, and the period is not settled (%v)", len(all), err)
		}
	}
	w.count("reruns of shards", 1)
	return done
}
