package leader

import (
	"io"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// A blackHole forwards TCP until it is opened; then it swallows what either
// side sends and keeps the connections, as a pulled cable does.
type blackHole struct {
	url       string
	target    string
	listener  net.Listener
	opened    atomic.Bool
	swallowed atomic.Int64 // bytes

	mu     sync.Mutex
	conns  []net.Conn
	ended  bool
	copies sync.WaitGroup
}

func newBlackHole(t *testing.T, databaseURL string) *blackHole {
	t.Helper()
	u, err := url.Parse(databaseURL)
	require.NoError(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	h := &blackHole{target: u.Host, listener: listener}
	u.Host = listener.Addr().String()
	h.url = u.String()
	h.copies.Go(h.serve)
	t.Cleanup(func() {
		_ = listener.Close()
		h.mu.Lock()
		h.ended = true
		for _, conn := range h.conns {
			_ = conn.Close()
		}
		h.mu.Unlock()
		h.copies.Wait()
	})
	return h
}

func (h *blackHole) open()  { h.opened.Store(true) }
func (h *blackHole) close() { h.opened.Store(false) }

func (h *blackHole) serve() {
	for {
		client, err := h.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", h.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		h.mu.Lock()
		h.conns = append(h.conns, client, server)
		if h.ended {
			_, _ = client.Close(), server.Close()
		}
		h.mu.Unlock()
		h.copies.Go(func() { h.forward(server, client) })
		h.copies.Go(func() { h.forward(client, server) })
	}
}

func (h *blackHole) forward(to, from net.Conn) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if h.opened.Load() {
			h.swallowed.Add(int64(n))
			n = 0
		}
		if n > 0 {
			_, _ = to.Write(buffer[:n])
		}
		if err == nil {
			continue
		}
		if err == io.EOF && !h.opened.Load() {
			_ = to.Close()
		}
		return
	}
}
