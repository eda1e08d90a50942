package stripesim

import (
	"net/http/httptest"
	"testing"
)

// Server is a [Sim] that listens on loopback.
type Server struct {
	*Sim
	URL string
}

// Start serves a new simulator until the test ends. The test need not wait for
// requests that hang.
func Start(t testing.TB, opts Options) *Server {
	t.Helper()
	sim := New(opts)
	srv := httptest.NewServer(sim)
	t.Cleanup(func() {
		sim.Close()
		srv.CloseClientConnections()
		srv.Close()
	})
	return &Server{Sim: sim, URL: srv.URL}
}
