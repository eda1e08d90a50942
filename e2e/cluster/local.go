package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/duesday/duesday/e2e/image"
	"github.com/duesday/duesday/e2e/node"
	"github.com/duesday/duesday/e2e/programs"
)

// local is a cluster that we started.
type local struct {
	name, dir string
	logs      string
	bin       string // folder of the programs that were built
	tools     tools
	lock      *os.File
	link      link
	process   *exec.Cmd

	mu      sync.Mutex // one message at a time
	stdin   io.WriteCloser
	to      *json.Encoder
	from    *json.Decoder
	closing sync.Once
	closed  error
}

func startLocal(ctx context.Context, o Options) (c *Cluster, err error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("a cluster needs root: it makes namespaces and mounts; or name one that is there by KUBECONFIG")
	}
	if err := sweep(); err != nil {
		return nil, err
	}
	l := &local{}
	if l.tools, err = ensureTools(ctx, o.Progress); err != nil {
		return nil, err
	}
	if l.bin, err = programs.Kubernetes(ctx, o.Progress, built...); err != nil {
		return nil, err
	}
	kubectl, err := findKubectl(ctx, o.Progress)
	if err != nil {
		return nil, err
	}
	if l.dir, l.lock, err = newFolder(); err != nil {
		return nil, err
	}
	l.name, l.logs = filepath.Base(l.dir), o.LogDir
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close())
		}
	}()
	if l.logs == "" {
		l.logs = l.path("logs")
	}
	if err := os.MkdirAll(l.logs, 0o755); err != nil {
		return nil, err
	}
	if err := l.startNode(ctx); err != nil {
		return nil, err
	}
	c = &Cluster{Kubeconfig: l.path("kubeconfig"), kubectl: kubectl, hostIP: l.link.host, local: l}
	if err := c.connect(); err != nil {
		return nil, err
	}
	if err := c.bringUp(ctx); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, l.lastWords())
	}
	return c, nil
}

func findKubectl(ctx context.Context, progress io.Writer) (string, error) {
	if path, err := exec.LookPath("kubectl"); err == nil {
		return path, nil
	}
	dir, err := programs.Kubernetes(ctx, progress, "kubectl")
	return filepath.Join(dir, "kubectl"), err
}

func (l *local) path(name string) string { return filepath.Join(l.dir, name) }

// startNode starts the node's first process and everything that it needs to
// start others.
func (l *local) startNode(ctx context.Context) error {
	binary := l.path("node")
	if err := programs.Static(ctx, "./cmd/node", binary); err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(l.logs, "node.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	// Not CommandContext: a cluster outlives the context that it was started
	// with.
	l.process = exec.Command(binary)
	l.process.Stderr = log
	l.process.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
		Setsid:     true, // an interrupt from the terminal is for the test process alone
	}
	if l.stdin, err = l.process.StdinPipe(); err != nil {
		return err
	}
	stdout, err := l.process.StdoutPipe()
	if err != nil {
		return err
	}
	if err := l.process.Start(); err != nil {
		l.process = nil
		return fmt.Errorf("start the node: %w", err)
	}
	l.to, l.from = json.NewEncoder(l.stdin), json.NewDecoder(stdout)
	if l.link, err = newLink(ctx, l.process.Process.Pid); err != nil {
		return err
	}
	if err := l.writeFiles(); err != nil {
		return err
	}
	return l.say(node.Setup{
		Dir: l.dir, Cgroup: l.name, LogDir: l.logs, Interface: inner,
		Address: l.link.node + "/" + strconv.Itoa(bits), Services: services,
	})
}

// say sends one message to the node and waits for its reply.
func (l *local) say(message any) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.to.Encode(message); err != nil {
		return fmt.Errorf("tell the node: %w", err)
	}
	var r node.Reply
	if err := l.from.Decode(&r); err != nil {
		return fmt.Errorf("hear from the node: %w", err)
	}
	if r.Error != "" {
		return errors.New(r.Error)
	}
	return nil
}

func (l *local) start(names ...string) error {
	for _, name := range names {
		if err := l.say(node.Command{Do: node.Start, Name: name, Program: l.program(name)}); err != nil {
			return err
		}
	}
	return nil
}

// inside runs a program of the machine in the cluster's namespaces.
func (l *local) inside(ctx context.Context, stdin io.Reader, args ...string) (string, error) {
	pid := strconv.Itoa(l.process.Process.Pid)
	return run(ctx, stdin, "nsenter", append([]string{"--target", pid, "--mount", "--net", "--pid", "--uts", "--ipc", "--"}, args...)...)
}

// bringUp starts the programs in the order of their needs and waits until the
// node takes pods.
func (c *Cluster) bringUp(ctx context.Context) error {
	l := c.local
	if err := l.start("containerd", "etcd", "kube-apiserver"); err != nil {
		return err
	}
	if err := l.loadPause(ctx, c); err != nil {
		return err
	}
	client, err := c.Client()
	if err != nil {
		return err
	}
	if err := l.await(ctx, "API server", func(ctx context.Context) error { return ready(ctx, client) }); err != nil {
		return err
	}
	if err := l.start("kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy"); err != nil {
		return err
	}
	if err := l.await(ctx, "node", func(ctx context.Context) error { return nodeReady(ctx, client) }); err != nil {
		return err
	}
	return l.await(ctx, "default service account", func(ctx context.Context) error {
		_, err := client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

// loadPause loads the image that holds pods' namespaces.
func (l *local) loadPause(ctx context.Context, c *Cluster) error {
	binary, archive := l.path("pause"), l.path("pause.tar")
	if err := programs.Static(ctx, "./cmd/pause", binary); err != nil {
		return err
	}
	if err := (image.Image{Tag: pauseImage, Binary: binary, User: "65535:65535"}).WriteFile(archive); err != nil {
		return err
	}
	if err := l.await(ctx, "containerd", func(ctx context.Context) error {
		_, err := c.ctr(ctx, "", nil, "version")
		return err
	}); err != nil {
		return err
	}
	return c.LoadImage(ctx, archive)
}

// await asks until the answer is nil, for some minutes at most, and gives up at
// once if one of the programs has ended.
func (l *local) await(ctx context.Context, what string, ask func(context.Context) error) error {
	const patience, pause = 5 * time.Minute, 100 * time.Millisecond
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := ask(ctx)
		if err == nil {
			return nil
		}
		if dead := l.say(node.Command{Do: node.Check}); dead != nil {
			return fmt.Errorf("wait for %s: %w", what, dead)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w: %w", what, ctx.Err(), err)
		case <-time.After(pause):
		}
	}
}

func ready(ctx context.Context, client kubernetes.Interface) error {
	_, err := client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
	return err
}

func nodeReady(ctx context.Context, client kubernetes.Interface) error {
	n, err := client.CoreV1().Nodes().Get(ctx, node.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
			return nil
		}
	}
	return fmt.Errorf("node %s is not ready", node.Name)
}

// close may find a cluster that is only half there.
func (l *local) close() error {
	l.closing.Do(func() {
		if l.process != nil {
			l.stdin.Close()
			// It is told to end, not killed, and how it ends does not matter:
			// with it end all others. Wait returns when they have.
			l.process.Wait()
		}
		l.closed = errors.Join(l.link.remove(), remove(l.dir), l.lock.Close())
	})
	return l.closed
}
