package main

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/duesday/duesday/internal/pgtest"
	"github.com/duesday/duesday/internal/stripesim"
)

// act does a step to the process that sent the request. The request is held
// meanwhile.
func (w *world) act(do string, p *replica, key string) {
	w.begin()
	defer w.end()
	w.count(do, 1)
	switch do {
	case kill:
		p.kill()
	case killAll:
		w.killAll()
	case term:
		if p.terminated.Swap(true) {
			p.killed.Store(true) // a second signal means now
		}
		p.signal(syscall.SIGTERM)
	case freeze:
		w.freeze(p, 2*time.Second)
	case freezeBit:
		w.freeze(p, 300*time.Millisecond)
	case terminate:
		w.terminate(fmt.Sprintf(`SELECT pg_terminate_backend(backend_pid) FROM duesday.runs
			WHERE finished_at IS NULL AND holder LIKE '%%/%d'`, p.cmd.Process.Pid))
	case sever:
		w.terminate(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE datname = current_database() AND pid <> pg_backend_pid()`)
	case restart:
		if err := w.server.Restart(pgtest.Immediate); err != nil {
			w.problem("torture: restart Postgres: %v", err)
		}
	case outage503:
		w.outage(stripesim.Error503, 12)
	case outageDrop:
		w.outage(stripesim.DropBefore, 8)
	case outage429:
		w.outage(stripesim.Error429, 10)
	case refuse401:
		w.refuse(401, p)
	case refuse403:
		w.refuse(403, p)
	case hang:
		w.hang(stripesim.HangUntilReleased, key)
	case hangDone:
		w.hang(stripesim.HangAfterCommit, key)
	case change:
		w.changeCustomers()
	case reconcile:
		w.later(0, func() { // the gate may be shut until this request is answered
			if _, err := w.start(w.reconcileArgs("--retry-declined")...); err != nil {
				w.problem("%v", err)
			}
		})
	default:
		panic("unknown step " + do)
	}
}

// later goes on with a step when its request has been let go.
func (w *world) later(after time.Duration, f func()) {
	w.begin()
	time.AfterFunc(after, func() {
		defer w.end()
		f()
	})
}

func (w *world) freeze(p *replica, d time.Duration) {
	p.stop()
	w.later(d, p.wake)
}

// killAll kills all processes and starts none until a day has passed. Where
// that, or a start, is under way already it does nothing: waiting here would
// hold up a request whose end is being waited for.
func (w *world) killAll() {
	if !w.gate.TryLock() {
		return
	}
	w.mu.Lock()
	all := slices.Clone(w.replicas)
	w.generation++ // what comes after may be split otherwise
	w.mu.Unlock()
	for _, p := range all {
		if p.alive() {
			p.kill()
		}
	}
	w.later(0, func() {
		defer w.gate.Unlock()
		w.pass(25*time.Hour, nil)
	})
}

// terminate ends database sessions; one that cannot be asked is as good.
func (w *world) terminate(sql string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_ = execOn(ctx, w.url, sql) // it may be restarting
}

func (w *world) outage(kind stripesim.Kind, requests int) {
	w.sim.FaultNext(nil, slices.Repeat([]stripesim.Fault{{Kind: kind}}, requests)...)
}

// refuse lets Stripe refuse the API key until the process has ended over it.
func (w *world) refuse(status int, p *replica) {
	w.mu.Lock()
	w.refusing = true
	for _, q := range w.replicas {
		if q.alive() {
			q.excused.Store(true)
		}
	}
	w.mu.Unlock()
	w.sim.SetAuth(status)
	w.begin()
	go func() {
		defer w.end()
		select {
		case <-p.done:
		case <-time.After(5 * time.Second): // it may be frozen
		}
		w.sim.SetAuth(0)
		w.mu.Lock()
		w.refusing = false
		w.mu.Unlock()
	}()
}

func (w *world) hang(kind stripesim.Kind, key string) {
	release := make(chan struct{})
	w.sim.FaultNext(func(r stripesim.Request) bool { return r.Method == "POST" && r.Key == key },
		stripesim.Fault{Kind: kind, Release: release})
	w.later(1500*time.Millisecond, func() { close(release) })
}

// changeCustomers does to the relation what must not matter once the period is
// open: there are new customers, others have left, and all that is owed is
// another sum, from another account. Those that declined once stay active, or
// they would not be asked again.
func (w *world) changeCustomers() {
	err := w.exec(`
		INSERT INTO duesday.customers (id, stripe_customer_id, amount, currency)
		SELECT 'cust_' || lpad(n::text, 3, '0') || '_new', 'cus_new_' || n, 5000, 'usd'
		FROM generate_series(1, 60, 7) AS n
		ON CONFLICT DO NOTHING`)
	if err == nil {
		err = w.exec(`
			UPDATE duesday.customers SET amount = amount + 1, stripe_customer_id = 'cus_other',
				payment_method = 'pm_other', active = active AND NOT id = ANY ($1)`, w.leavers())
	}
	if err != nil {
		w.problem("torture: change the customers: %v", err)
	}
}

func (w *world) leavers() (ids []string) {
	for i, c := range w.customers {
		if i%3 == 0 && c.behaves != declinesOnce {
			ids = append(ids, c.id)
		}
	}
	return ids
}
