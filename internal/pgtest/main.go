package pgtest

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"go.uber.org/goleak"
)

// shared is package state on purpose: the tests of a process have nothing else
// in common that could own the server.
var shared sharedHost

// sharedHost starts the process's server on first use and remembers a failure,
// so that a hundred tests do not each wait for the same one.
type sharedHost struct {
	mu   sync.Mutex
	host *host
	err  error
}

func (s *sharedHost) get() (*host, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.host == nil && s.err == nil {
		s.host, s.err = startSharedHost()
	}
	return s.host, s.err
}

func startSharedHost() (*host, error) {
	if rawURL := os.Getenv("TEST_DATABASE_URL"); rawURL != "" {
		return externalHost(rawURL)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute) // a download may be needed
	defer cancel()
	server, err := StartServer(ctx)
	if err != nil {
		return nil, err
	}
	return server.host(), nil
}

func (s *sharedHost) stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.host == nil || s.host.server == nil {
		return nil
	}
	server := s.host.server
	s.host = nil
	return server.Stop(Immediate)
}

// A MainOption changes what [Main] does after the tests.
type MainOption func() error

// CheckLeaks makes [Main] fail the run if a goroutine is left after the tests
// passed and the shared server stopped.
func CheckLeaks(opts ...goleak.Option) MainOption {
	return func() error { return goleak.Find(opts...) }
}

// Main runs a package's tests, stops the shared server and exits with the
// tests' code. Packages that use [New] call it as their whole TestMain:
//
//	func TestMain(m *testing.M) { pgtest.Main(m, pgtest.CheckLeaks()) }
//
// Without it the server ends too, a moment after the process.
func Main(m interface{ Run() int }, opts ...MainOption) {
	os.Exit(run(m, opts...))
}

func run(m interface{ Run() int }, opts ...MainOption) int {
	code := m.Run()
	if err := shared.stop(); err != nil {
		fmt.Fprintf(os.Stderr, "pgtest: stop the shared server: %v\n", err)
		code = max(code, 1)
	}
	if code != 0 {
		return code // a failed test leaves goroutines behind; they would only distract
	}
	for _, check := range opts {
		if err := check(); err != nil {
			fmt.Fprintf(os.Stderr, "pgtest: %v\n", err)
			return 1
		}
	}
	return 0
}
