package spendcap

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"go.uber.org/zap"
)

// Server serves the two sides of the proxy, each on its own listener.
type Server struct {
	Proxy *Proxy
	Admin *AdminHandler
	// Drain is how long requests that are under way may take after a stop.
	Drain time.Duration
	Log   *zap.Logger
}

// ErrNotDrained says that requests were under way when the time to drain was
// over. Their amounts stay reserved.
var ErrNotDrained = errors.New("requests were given up while draining")

// Serve serves until ctx ends; then it takes no more requests, lets those under
// way finish, and returns once no handler runs. It closes the listeners, and
// not the proxy.
func (s *Server) Serve(ctx context.Context, stripe, admin net.Listener) error {
	var handlers sync.WaitGroup
	counted := func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			handlers.Add(1)
			defer handlers.Done()
			h.ServeHTTP(w, r)
		})
	}
	servers := []*http.Server{
		newServer(counted(s.Proxy), s.Proxy.timeout+2*databaseTimeout, s.Log),
		newServer(counted(s.Admin), 4*databaseTimeout, s.Log),
	}
	served := make(chan error, len(servers))
	for i, l := range []net.Listener{stripe, admin} {
		go func() { served <- servers[i].Serve(l) }()
	}
	running := len(servers)
	var failed error
	select {
	case <-ctx.Done():
		s.Log.Info("draining")
	case err := <-served:
		running--
		failed = fmt.Errorf("serve: %w", err)
	}

	s.Admin.Drain()
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.Drain)
	defer cancel()
	for _, srv := range servers { // the admin side last: it is asked how this goes
		if err := srv.Shutdown(drain); err != nil {
			failed = errors.Join(failed, ErrNotDrained)
			s.Proxy.stop()
			_ = srv.Close() // Shutdown has said what matters
		}
	}
	for range running {
		<-served
	}
	handlers.Wait()
	return failed
}

func newServer(h http.Handler, longest time.Duration, log *zap.Logger) *http.Server {
	const slowClient = 30 * time.Second
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       slowClient,
		WriteTimeout:      slowClient + longest,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    32 << 10,
		// OPTIONS * is refused like the rest.
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     zap.NewStdLog(log.WithOptions(zap.IncreaseLevel(zap.WarnLevel))),
	}
}
