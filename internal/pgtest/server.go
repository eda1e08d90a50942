package pgtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A Mode says how a server shuts down, in the words of pg_ctl.
type Mode string

const (
	// Fast ends the sessions, rolls back what is open and writes a checkpoint.
	Fast Mode = "fast"
	// Immediate ends everything at once; the next start runs crash recovery.
	Immediate Mode = "immediate"
)

// startTimeout bounds a start, with crash recovery, on a busy machine.
const startTimeout = time.Minute

// An Option changes how a server is started.
type Option func(settings map[string]string)

// Set overrides a server setting, as in Set("fsync", "on").
func Set(name, value string) Option {
	return func(settings map[string]string) { settings[name] = value }
}

// defaultSettings trade safety against a power cut, which no test survives
// anyway, for speed. synchronous_commit stays on: without it a commit could
// be lost when only the server process dies, and tests crash servers to see
// that it is not.
func defaultSettings() map[string]string {
	return map[string]string{
		"fsync":                      "off",
		"full_page_writes":           "off",
		"synchronous_commit":         "on",
		"max_connections":            "200",
		"listen_addresses":           "127.0.0.1",
		"dynamic_shared_memory_type": "mmap", // in the folder, so that it goes with it
		"log_min_messages":           "warning",
	}
}

// A Server is a Postgres server in a folder of its own. Its address stays the
// same when it is restarted. Its methods may be called by several goroutines.
type Server struct {
	account account
	bin     string
	folder  *folder
	port    int
	args    []string

	mu      sync.Mutex
	process *process // nil once stopped; its server may be down
	down    bool
}

// StartServer starts a server of its own, whatever TEST_DATABASE_URL says, on
// a free port of 127.0.0.1. It first clears up after dead test processes. ctx
// bounds the start only. The caller stops the server with Stop; if the caller
// dies first, the server goes with it.
func StartServer(ctx context.Context, opts ...Option) (*Server, error) {
	acct, err := serverAccount()
	if err != nil {
		return nil, err
	}
	sweep(acct)
	bin, err := findBinaries()
	if err != nil {
		return nil, err
	}
	settings := defaultSettings()
	for _, opt := range opts {
		opt(settings)
	}

	// Another process may take the port first, and the cached data directory
	// may be broken: both are put right by starting afresh.
	const attempts = 3
	var failures []error
	for attempt := range attempts {
		s, err := startServer(ctx, acct, bin, settings, attempt == attempts-1)
		if err == nil {
			return s, nil
		}
		failures = append(failures, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, fmt.Errorf("start Postgres from %s: %w", bin, errors.Join(failures...))
}

func startServer(ctx context.Context, acct account, bin string, settings map[string]string, fresh bool) (*Server, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	f, err := newFolder(acct)
	if err != nil {
		return nil, err
	}
	s := &Server{account: acct, bin: bin, folder: f, port: port, down: true}
	s.args = []string{filepath.Join(bin, "postgres"), "-D", f.join("data"), "-p", strconv.Itoa(port), "-k", f.path}
	// The name in every child's title tells whose it is.
	s.args = append(s.args, "-c", "cluster_name="+filepath.Base(f.path))
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		s.args = append(s.args, "-c", name+"="+settings[name])
	}
	err = makeCluster(ctx, acct, bin, f, fresh)
	if err == nil {
		err = s.start(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, s.Stop(Immediate))
	}
	return s, nil
}

// NewServer starts a server that is stopped when the test ends.
func NewServer(t testing.TB, opts ...Option) *Server {
	t.Helper()
	s, err := StartServer(context.Background(), opts...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Stop(Immediate)) })
	return s
}

// NewDB creates a database on the server and drops it when the test ends.
func (s *Server) NewDB(t testing.TB) *DB {
	t.Helper()
	return newDB(t, s.host())
}

func (s *Server) host() *host {
	admin := &url.URL{
		Scheme:   "postgres",
		User:     url.User("postgres"),
		Host:     net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)),
		Path:     "/postgres",
		RawQuery: "sslmode=disable",
	}
	return &host{admin: admin, server: s}
}

// URL connects the superuser to a database. A new server has the database
// "postgres".
func (s *Server) URL(database string) string { return s.host().url(database) }

// Dir is the server's folder; its log is the file "log" in it.
func (s *Server) Dir() string { return s.folder.path }

// Running reports whether the server is up.
func (s *Server) Running() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process != nil && !s.down
}

// Down shuts the server down and keeps its data for Restart.
func (s *Server) Down(mode Mode) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.end(mode.signal())
}

// Crash kills the server process and waits until its children have gone too.
// Restart brings it back with what was committed.
func (s *Server) Crash() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.end(syscall.SIGKILL)
}

// Restart shuts the server down, unless it is down, and starts it on the same
// data and port. It returns when the server takes connections.
func (s *Server) Restart(mode Mode) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.end(mode.signal()); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	return s.start(ctx)
}

// Stop shuts the server down for good and removes its folder.
func (s *Server) Stop(mode Mode) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.end(mode.signal())
	if s.process != nil {
		s.process.release()
		s.process = nil
	}
	return errors.Join(err, s.folder.remove())
}

func (m Mode) signal() syscall.Signal {
	if m == Immediate {
		return syscall.SIGQUIT
	}
	return syscall.SIGINT
}

func (s *Server) end(sig syscall.Signal) error {
	if s.down {
		return nil
	}
	if err := s.process.end(sig); err != nil {
		return fmt.Errorf("shut Postgres down: %w", err)
	}
	s.down = true
	return nil
}

func (s *Server) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	p, err := startProcess(s.account, s.folder, "QUIT", s.args...)
	if err != nil {
		return err
	}
	if s.process != nil {
		s.process.release()
	}
	s.process, s.down = p, false
	ready := func() bool { return s.saysReady() && answers(ctx, s.URL("postgres")) }
	if err := p.awaitReady(ctx, ready); err != nil {
		return fmt.Errorf("start Postgres: %w\n%s", err, s.folder.logTail())
	}
	return nil
}

// saysReady reads the server's own word in line 8 of postmaster.pid, as pg_ctl
// does; line 1 tells whether the file is still that of an earlier start. Only
// with it is the server that answers on the port surely this one.
func (s *Server) saysReady() bool {
	content, err := os.ReadFile(s.folder.join("data/postmaster.pid"))
	if err != nil {
		return false
	}
	lines := strings.Split(string(content), "\n")
	return len(lines) >= 8 && lines[0] == strconv.Itoa(s.process.pid) && strings.TrimSpace(lines[7]) == "ready"
}

// freePort picks a port below the range from which systems choose the ports of
// outgoing connections, so that none of those has it while a server restarts.
func freePort() (int, error) {
	for range 100 {
		port := 20000 + rand.IntN(10000)
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			continue
		}
		return port, l.Close()
	}
	return 0, errors.New("found no free port on 127.0.0.1")
}
