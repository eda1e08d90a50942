package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Options say what cluster to use.
type Options struct {
	// Kubeconfig names a cluster that is already there; empty: bring one up.
	Kubeconfig string
	// HostIP is the address by which that cluster's pods reach this machine.
	// Empty: this machine's on the way to the API server.
	HostIP string
	// LoadCommand puts the docker archive whose path is appended on that
	// cluster's nodes, like {"kind", "load", "image-archive"}. Empty: its nodes
	// are containers of an engine whose command is docker, as kind's are.
	LoadCommand []string
	// LogDir keeps each program's output; empty: removed by Close.
	LogDir string
	// Progress is told what takes long; nil: nobody.
	Progress io.Writer
}

// ErrForeign is returned for what cannot be done to a cluster that was there
// before.
var ErrForeign = errors.New("not possible on a cluster that the tests did not start")

// Cluster is a running cluster. Its methods may be called concurrently.
type Cluster struct {
	Kubeconfig string // path of a file; the user may do everything
	kubectl    string
	load       []string
	hostIP     string
	rest       *rest.Config
	local      *local // nil: foreign
	proxies    proxies
}

// Start brings a cluster up and returns once its node is ready for pods, or
// uses the one that is there. Nothing is left behind on an error.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	if o.Kubeconfig != "" {
		return useExisting(ctx, o)
	}
	return startLocal(ctx, o)
}

// Close ends the cluster, or leaves a foreign one alone. The machine is then as
// it was. Close may be called again.
func (c *Cluster) Close() error {
	c.proxies.close()
	if c.local == nil {
		return nil
	}
	return c.local.close()
}

// Own tells whether Start brought the cluster up.
func (c *Cluster) Own() bool { return c.local != nil }

// HostIP is the address by which pods reach this machine. What listens there,
// or on all addresses, can be used by pods; see Expose for the rest.
func (c *Cluster) HostIP() string { return c.hostIP }

// REST returns a new configuration of a client that may do everything.
func (c *Cluster) REST() *rest.Config { return rest.CopyConfig(c.rest) }

// Client returns a new client that may do everything.
func (c *Cluster) Client() (*kubernetes.Clientset, error) { return kubernetes.NewForConfig(c.REST()) }

// KubectlPath is the kubectl that the cluster is used with.
func (c *Cluster) KubectlPath() string { return c.kubectl }

// Kubectl runs kubectl and returns what it printed on stdout; the error carries
// what it printed on stderr.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	return c.KubectlInput(ctx, "", args...)
}

// KubectlInput is Kubectl with something on stdin, as `apply -f -` wants it.
func (c *Cluster) KubectlInput(ctx context.Context, input string, args ...string) (string, error) {
	own := []string{"--kubeconfig", c.Kubeconfig}
	if c.local != nil {
		own = append(own, "--cache-dir", c.local.path("kubectl"))
	}
	return run(ctx, strings.NewReader(input), c.kubectl, append(own, args...)...)
}

func (c *Cluster) connect() error {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		return fmt.Errorf("read %s: %w", c.Kubeconfig, err)
	}
	// Tests poll; they are not to be slowed down by the client.
	config.QPS = -1
	c.rest = config
	return nil
}

func run(ctx context.Context, stdin io.Reader, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	var out, complaint bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &out, &complaint
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, bytes.TrimSpace(complaint.Bytes()))
	}
	return out.String(), nil
}
