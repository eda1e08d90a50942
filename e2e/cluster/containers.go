package cluster

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// LoadImage puts the image of a docker archive on every node, so that pods with
// imagePullPolicy Never or IfNotPresent run it.
//
// A foreign cluster needs Options.LoadCommand, or nodes that are containers of
// an engine whose command is docker, as kind's are; else ErrForeign.
func (c *Cluster) LoadImage(ctx context.Context, archive string) error {
	if len(c.load) > 0 {
		_, err := run(ctx, nil, c.load[0], append(c.load[1:len(c.load):len(c.load)], archive)...)
		return err
	}
	nodes, err := c.nodes(ctx)
	if err != nil {
		return err
	}
	for _, node := range nodes {
		f, err := os.Open(archive)
		if err != nil {
			return err
		}
		_, err = c.ctr(ctx, node, f, "images", "import", "-")
		f.Close()
		if err != nil {
			return fmt.Errorf("load image %s: %w", archive, err)
		}
	}
	return nil
}

// KillContainer kills a pod's first container with signal 9, as the kernel does
// when memory runs out: the kubelet finds out afterwards. On a foreign cluster
// nodes must be containers, as for LoadImage; else ErrForeign.
func (c *Cluster) KillContainer(ctx context.Context, namespace, pod string) error {
	client, err := c.Client()
	if err != nil {
		return err
	}
	p, err := client.CoreV1().Pods(namespace).Get(ctx, pod, metav1.GetOptions{})
	if err != nil {
		return err
	}
	id, err := runningContainer(p)
	if err != nil {
		return err
	}
	_, err = c.ctr(ctx, p.Spec.NodeName, nil, "tasks", "kill", "--signal", "SIGKILL", id)
	return err
}

func runningContainer(p *corev1.Pod) (string, error) {
	for _, s := range p.Status.ContainerStatuses {
		if id, ok := strings.CutPrefix(s.ContainerID, "containerd://"); ok && s.State.Running != nil {
			return id, nil
		}
	}
	return "", fmt.Errorf("pod %s/%s has no container running on containerd", p.Namespace, p.Name)
}

// ctr runs containerd's command on a node.
func (c *Cluster) ctr(ctx context.Context, node string, stdin io.Reader, args ...string) (string, error) {
	args = append([]string{"ctr", "--namespace", "k8s.io"}, args...)
	if c.local != nil {
		return c.local.inside(ctx, stdin, args...)
	}
	if _, err := exec.LookPath("docker"); err != nil {
		return "", fmt.Errorf("node %s: %w: %w", node, ErrForeign, err)
	}
	said, err := run(ctx, stdin, "docker", append([]string{"exec", "-i", node}, args...)...)
	if err != nil {
		return "", fmt.Errorf("node %s: %w: %w", node, ErrForeign, err)
	}
	return said, nil
}

func (c *Cluster) nodes(ctx context.Context) ([]string, error) {
	if c.local != nil {
		return []string{""}, nil
	}
	said, err := c.Kubectl(ctx, "get", "nodes", "-o", "jsonpath={.items[*].metadata.name}")
	return strings.Fields(said), err
}
