package main

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// restarts is the Job's backoffLimit.
const restarts = 12

// bill lets the replicas bill the month among the schedule's steps, and
// replaces those that fail, as their Job would.
func (w *world) bill() {
	w.trouble.Store(true)
	defer w.trouble.Store(false)
	w.mu.Lock()
	first := w.runs()
	w.mu.Unlock()
	for _, args := range first {
		if _, err := w.start(args...); err != nil {
			w.problem("%v", err)
			return
		}
	}
	w.onClock()
	seen := map[*replica]bool{}
	replaced := 0
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for deadline := time.Now().Add(2 * patience); ; {
		select {
		case <-w.changed:
		case <-ticker.C:
		}
		live := 0
		for _, p := range w.all() {
			switch {
			case p.alive():
				live++
			case !seen[p]:
				seen[p] = true
				w.checkExit(p)
				if p.code() != 0 && p.args[0] == "run" && replaced < restarts {
					replaced++
					for _, args := range w.replacements(p) {
						live++
						if _, err := w.start(args...); err != nil {
							w.problem("%v", err)
							return
						}
					}
				}
			}
		}
		if live == 0 && w.busy.Load() == 0 {
			w.count("replaced", replaced)
			return
		}
		if time.Now().After(deadline) {
			for _, p := range w.all() {
				if p.alive() {
					w.problem("stuck: %v\n%s", p, p.log.Tail(2000))
				}
			}
			return
		}
	}
}

func (w *world) all() []*replica {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]*replica(nil), w.replicas...)
}

// onClock starts the steps that come at a time.
func (w *world) onClock() {
	for i, st := range w.steps {
		if st.on != onClock {
			continue
		}
		w.mu.Lock()
		w.fired[i] = true
		w.mu.Unlock()
		victim := w.all()[i%len(w.all())]
		w.later(time.Duration(st.n)*time.Millisecond, func() { w.act(st.do, victim, "") })
	}
}

// checkExit compares how a process ended with what it may end with.
func (w *world) checkExit(p *replica) {
	code, said := p.code(), false
	for _, message := range []string{`"another replica leads, nothing to do here"`, `"period settled"`,
		`"period already settled, nothing to do"`, `"shard done, the others go on"`, `"nothing is in doubt or processing"`,
		`"another process is at work on the period, it is left to it"`} {
		said = said || p.said(message)
	}
	switch {
	case p.said("DATA RACE"):
		w.problem("a data race in %v\n%s", p, p.log.Tail(5000))
	case p.killed.Load():
	case code == 0 && !said:
		w.problem("exit code 0 without a reason: %v\n%s", p, p.log.Tail(2000))
	case code == 0, code == 1:
	case code == 3 && p.excused.Load():
	default:
		w.problem("exit code %d: %v\n%s", code, p, p.log.Tail(2000))
	}
}

// once runs a command to its end.
func (w *world) once(args ...string) int {
	p, err := w.start(args...)
	if err != nil {
		w.problem("%v", err)
		return -1
	}
	w.await(p)
	w.checkExit(p)
	return p.code()
}

// until repeats a command, as cron would, until all is settled. What Stripe
// failed without telling is waited out.
func (w *world) until(what string, args ...string) bool {
	return w.repeat(what, func() bool { return w.once(args...) == 0 })
}

func (w *world) repeat(what string, try func() bool) bool {
	const rounds = 8
	for range rounds {
		if try() {
			return true
		}
		w.sim.RollForward()
		if w.once(w.reconcileArgs()...) != 0 {
			w.passTime(25 * time.Hour)
		}
	}
	w.problem("%s is not done after %d rounds:\n%s", what, rounds, w.all()[len(w.all())-1].log.Tail(1500))
	return false
}

func (w *world) passTime(d time.Duration) {
	w.gate.Lock()
	defer w.gate.Unlock()
	w.pass(d, nil)
}

// finish ends the trouble and brings the month to its end: settled, what was
// pending decided, and those that declined asked again.
func (w *world) finish() {
	w.sim.SetAuth(0)
	if !w.repeat("the period", w.rerun) {
		return
	}
	for _, c := range w.customers {
		switch c.behaves {
		case pendingPays:
			w.sim.Pays(c.atStripe())
			w.sim.Resolve(c.atStripe(), true)
		case pendingFails:
			w.sim.Decline(c.atStripe(), "card_declined", "insufficient_funds")
			w.sim.Resolve(c.atStripe(), false)
		}
	}
	if !w.until("reconciling", w.reconcileArgs()...) {
		return
	}
	w.passTime(73 * time.Hour)
	if !w.until("asking again", w.reconcileArgs("--retry-declined")...) {
		return
	}
	w.mu.Lock()
	before := w.requests
	w.mu.Unlock()
	if code := w.once(w.runArgs()...); code != 0 {
		w.problem("a rerun of the settled period exits with %d", code)
	}
	w.mu.Lock()
	after := w.requests
	w.mu.Unlock()
	if after != before {
		w.problem("a rerun of the settled period sent %d requests", after-before)
	}
	w.audit()
}

// audit asks for the binary's own opinion. It gives up at a list that fails, and
// says that it is worth another try.
func (w *world) audit() {
	for range 50 {
		p, err := w.start("reconcile", "--audit", "--rate=1000")
		if err != nil {
			w.problem("%v", err)
			return
		}
		if w.await(p); p.code() == 0 {
			return
		} else if p.code() != 1 {
			w.problem("the audit exits with %d: %s", p.code(), p.log.Tail(500))
			return
		}
	}
	w.problem("the audit never gets through")
}

// query reads rows from the ledger once all trouble is over.
func query[T any](w *world, sql string, args ...any) ([]T, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, w.url)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close(ctx) }()
	rows, err := conn.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[T])
}
