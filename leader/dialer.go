package leader

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

var errShut = errors.New("connection given up")

// A dialer keeps the sockets it opens, so that they can be closed under a
// statement that waits on one: the only thing that unblocks it at once. (Under
// TLS, pgx's own Close would first write to the dead peer.)
type dialer struct {
	net.Dialer

	mu      sync.Mutex
	sockets []net.Conn
	closed  bool
}

// newDialer returns a dialer whose sockets fail once the peer has been silent
// at the TCP level for about limit: a statement in flight has no deadline on
// this side.
func newDialer(probe, limit time.Duration) *dialer {
	probe = max(probe, time.Second)
	return &dialer{Dialer: net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{
			Enable:   true,
			Idle:     probe,
			Interval: probe,
			Count:    max(1, int(limit/probe)-1),
		},
		Control: limitUnacknowledged(limit),
	}}
}

func (d *dialer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if d.isShut() {
		return nil, errShut
	}
	conn, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		_ = conn.Close()
		return nil, errShut
	}
	d.sockets = append(d.sockets, conn)
	return conn, nil
}

func (d *dialer) isShut() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.closed
}

// shut closes every socket, and those yet to be opened: pgx dials once more,
// to cancel what runs, when it finds its connection broken.
func (d *dialer) shut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	for _, conn := range d.sockets {
		_ = conn.Close() // what was to be said has been said, or cannot be
	}
	d.sockets = nil
}
