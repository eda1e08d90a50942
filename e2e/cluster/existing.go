package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os/exec"
)

func useExisting(ctx context.Context, o Options) (*Cluster, error) {
	kubectl, err := exec.LookPath("kubectl")
	if err != nil {
		return nil, fmt.Errorf("a cluster of your own needs your own kubectl: %w", err)
	}
	c := &Cluster{Kubeconfig: o.Kubeconfig, kubectl: kubectl, load: o.LoadCommand, hostIP: o.HostIP}
	if err := c.connect(); err != nil {
		return nil, err
	}
	if _, err := c.Kubectl(ctx, "get", "nodes"); err != nil {
		return nil, err
	}
	if c.hostIP == "" {
		if c.hostIP, err = hostIP(c.rest.Host); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// hostIP is this machine's address on the way to the API server, or its first
// if the server is on loopback, as kind's is.
func hostIP(server string) (string, error) {
	if u, err := url.Parse(server); err == nil {
		// Nothing is sent: a UDP socket that is connected has a route.
		if conn, err := net.Dial("udp", net.JoinHostPort(u.Hostname(), "443")); err == nil {
			defer conn.Close()
			if ip := conn.LocalAddr().(*net.UDPAddr).IP; !ip.IsLoopback() {
				return ip.String(), nil
			}
		}
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return "", err
	}
	for _, a := range addrs {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.To4() != nil && ip.IP.IsGlobalUnicast() {
			return ip.IP.String(), nil
		}
	}
	return "", errors.New("this machine has no address that pods could reach")
}
