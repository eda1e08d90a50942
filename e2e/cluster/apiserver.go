package cluster

import (
	"context"

	"github.com/duesday/duesday/e2e/node"
)

const apiServer = "kube-apiserver"

// StopAPIServer kills the API server: connections break, new ones are refused.
// It returns ErrForeign on a foreign cluster, like the three methods below.
func (c *Cluster) StopAPIServer() error { return c.tell(node.Stop) }

// PauseAPIServer freezes the API server: connections stay open and new ones are
// accepted, but nothing is answered.
func (c *Cluster) PauseAPIServer() error { return c.tell(node.Pause) }

// ResumeAPIServer ends a pause.
func (c *Cluster) ResumeAPIServer() error { return c.tell(node.Resume) }

// StartAPIServer starts the API server after a stop, and returns once it
// answers. The controllers find out when they try again, up to a minute later
// if the stop was a long one.
func (c *Cluster) StartAPIServer(ctx context.Context) error {
	if err := c.tell(node.Start); err != nil {
		return err
	}
	client, err := c.Client()
	if err != nil {
		return err
	}
	return c.local.await(ctx, "API server", func(ctx context.Context) error { return ready(ctx, client) })
}

func (c *Cluster) tell(do string) error {
	if c.local == nil {
		return ErrForeign
	}
	return c.local.say(node.Command{Do: do, Name: apiServer})
}
