package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// link is the pair of interfaces that joins the node to the machine.
type link struct {
	name       string // the machine's end
	host, node string // the addresses of both ends
}

// inner is the node's end, in its own namespace.
const inner = "eth0"

// bits is the length of the prefix of both ends' addresses.
const bits = 30

// newLink makes the pair, with one end in the network namespace of a process.
func newLink(ctx context.Context, pid int) (link, error) {
	taken, err := net.InterfaceAddrs()
	if err != nil {
		return link{}, err
	}
	for i := range 64 {
		l := link{
			name: "duesday" + strconv.Itoa(i),
			host: fmt.Sprintf("10.213.%d.1", i), node: fmt.Sprintf("10.213.%d.2", i),
		}
		if overlaps(taken, l.host) {
			continue
		}
		_, err := ip(ctx, "link", "add", l.name, "type", "veth", "peer", "name", inner, "netns", strconv.Itoa(pid))
		if err != nil && strings.Contains(err.Error(), "File exists") {
			continue // somebody else's, without an address as yet
		}
		if err != nil {
			return link{}, err
		}
		for _, args := range [][]string{
			{"address", "add", fmt.Sprintf("%s/%d", l.host, bits), "dev", l.name},
			{"link", "set", l.name, "up"},
		} {
			if _, err := ip(ctx, args...); err != nil {
				return link{}, errors.Join(err, l.remove())
			}
		}
		return l, nil
	}
	return link{}, errors.New("no network of 10.213.0.0/18 is free")
}

func overlaps(taken []net.Addr, address string) bool {
	for _, a := range taken {
		if n, ok := a.(*net.IPNet); ok && n.Contains(net.ParseIP(address)) {
			return true
		}
	}
	return false
}

// remove takes the pair away; it is no error that it has gone with the node.
func (l link) remove() error {
	if l.name == "" {
		return nil
	}
	_, err := ip(context.Background(), "link", "delete", l.name)
	if err != nil && strings.Contains(err.Error(), "Cannot find device") {
		return nil
	}
	return err
}

func ip(ctx context.Context, args ...string) (string, error) {
	return run(ctx, nil, "ip", args...)
}
