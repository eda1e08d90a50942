package e2e

import (
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// weather is what a gate does to what passes it.
type weather string

const (
	open   weather = "open"
	cut    weather = "cut"     // connections end, and new ones do at once
	hung   weather = "hung"    // they stay, and what is said is held back until it changes
	oneWay weather = "one-way" // the same, of answers alone
)

// A gate is a way to a TCP server through which one client goes.
type gate struct {
	listener net.Listener
	target   string
	done     sync.WaitGroup

	mu      sync.Mutex
	weather weather
	changed chan struct{} // closed when the weather changes
	conns   map[net.Conn]struct{}
	ended   bool
}

// newGate opens a gate at an address of its own on the host's.
func newGate(t *testing.T, host, target string) *gate {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	require.NoError(t, err)
	g := &gate{listener: l, target: target, weather: open, changed: make(chan struct{}), conns: map[net.Conn]struct{}{}}
	g.done.Go(g.serve)
	t.Cleanup(func() {
		l.Close()
		g.mu.Lock()
		g.ended = true
		g.mu.Unlock()
		g.set(cut)
		g.done.Wait()
	})
	return g
}

func (g *gate) address() string { return g.listener.Addr().String() }

func (g *gate) set(w weather) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.weather = w
	close(g.changed)
	g.changed = make(chan struct{})
	if w == cut {
		for c := range g.conns {
			c.Close()
		}
	}
}

func (g *gate) serve() {
	for {
		in, err := g.listener.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", g.target)
		if err != nil {
			in.Close()
			continue
		}
		if !g.keep(in, out) {
			continue
		}
		var both sync.WaitGroup
		both.Go(func() { g.forward(out, in, false) })
		both.Go(func() { g.forward(in, out, true) })
		g.done.Go(func() {
			both.Wait()
			g.forget(in, out)
		})
	}
}

// keep takes a pair of connections, unless they are cut.
func (g *gate) keep(conns ...net.Conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range conns {
		if g.weather == cut {
			c.Close()
			continue
		}
		g.conns[c] = struct{}{}
	}
	return g.weather != cut
}

func (g *gate) forget(conns ...net.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range conns {
		delete(g.conns, c)
	}
}

// forward copies one direction, and ends both when it has ended.
func (g *gate) forward(to, from net.Conn, answers bool) {
	defer to.Close()
	defer from.Close()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		g.await(answers)
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// await returns when what was said may pass.
func (g *gate) await(answers bool) {
	for {
		g.mu.Lock()
		w, changed, ended := g.weather, g.changed, g.ended
		g.mu.Unlock()
		if ended || w == open || w == cut || w == oneWay && !answers {
			return
		}
		<-changed
	}
}
