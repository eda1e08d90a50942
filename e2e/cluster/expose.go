package cluster

import (
	"io"
	"net"
	"net/url"
	"sync"
)

// Expose makes what listens at target, an address like 127.0.0.1:5432, reachable
// for pods, and returns the address that they are to use. It lasts until Close.
func (c *Cluster) Expose(target string) (string, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(c.hostIP, "0"))
	if err != nil {
		return "", err
	}
	if !c.proxies.run(func() { serve(l, target) }, l) {
		l.Close()
		return "", net.ErrClosed
	}
	return l.Addr().String(), nil
}

// ExposeURL is Expose for what a URL with a port names, and returns the URL that
// pods are to use.
func (c *Cluster) ExposeURL(raw string) (string, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return "", err
	}
	if u.Host, err = c.Expose(u.Host); err != nil {
		return "", err
	}
	return u.String(), nil
}

// proxies are the listeners that Expose opened, and who serves them.
type proxies struct {
	mu     sync.Mutex
	open   []io.Closer
	closed bool
	done   sync.WaitGroup
}

func (p *proxies) run(f func(), until io.Closer) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.open = append(p.open, until)
	p.done.Go(f)
	return true
}

func (p *proxies) close() {
	p.mu.Lock()
	p.closed = true
	for _, c := range p.open {
		c.Close()
	}
	p.open = nil
	p.mu.Unlock()
	p.done.Wait()
}

// serve forwards each connection until l is closed, and then ends those that
// are left.
func serve(l net.Listener, target string) {
	var conns proxies
	defer conns.close()
	for {
		in, err := l.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", target)
		if err != nil {
			in.Close() // as the pod would see it: nobody listens
			continue
		}
		conns.run(func() { join(in.(*net.TCPConn), out.(*net.TCPConn)) }, closers{in, out})
	}
}

// join copies both ways, each end's half-close included.
func join(a, b *net.TCPConn) {
	defer a.Close()
	defer b.Close()
	var there sync.WaitGroup
	there.Go(func() {
		io.Copy(b, a)
		b.CloseWrite()
	})
	io.Copy(a, b)
	a.CloseWrite()
	there.Wait()
}

type closers []io.Closer

func (c closers) Close() error {
	for _, one := range c {
		one.Close()
	}
	return nil
}
