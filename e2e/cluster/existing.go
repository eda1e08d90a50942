package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
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
		if c.hostIP, err = firstAddress(); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func firstAddress() (string, error) {
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
