package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/duesday/duesday/e2e/cluster"
	"github.com/duesday/duesday/e2e/image"
	"github.com/duesday/duesday/e2e/programs"
	"github.com/duesday/duesday/internal/pgtest"
)

const probeImage = "localhost/duesday/probe:e2e"

// shared is the cluster of all tests of the package, set once before they run.
var shared *cluster.Cluster

func TestMain(m *testing.M) { pgtest.Main(onSharedCluster{m}) }

// onSharedCluster runs the tests while the cluster is up.
type onSharedCluster struct{ tests *testing.M }

func (o onSharedCluster) Run() int {
	code, err := withCluster(o.tests.Run)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

func withCluster(run func() int) (code int, err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	start := time.Now()
	shared, err = cluster.Start(ctx, cluster.Options{
		Kubeconfig:  os.Getenv("KUBECONFIG"),
		HostIP:      os.Getenv("DUESDAY_E2E_HOST_IP"),
		LoadCommand: strings.Fields(os.Getenv("DUESDAY_E2E_LOAD")),
		LogDir:      os.Getenv("DUESDAY_E2E_LOGS"),
		Progress:    os.Stderr,
	})
	if err != nil {
		return 1, err
	}
	fmt.Printf("cluster up after %v\n", time.Since(start).Round(time.Millisecond))
	defer func() {
		start := time.Now()
		err = errors.Join(err, shared.Close())
		fmt.Printf("cluster gone after %v\n", time.Since(start).Round(time.Millisecond))
	}()
	if err := loadProbe(ctx); err != nil {
		return 1, err
	}
	done := make(chan int, 1)
	go func() { done <- run() }()
	select {
	case code := <-done:
		return code, nil
	case <-ctx.Done():
		return 1, errors.New("interrupted")
	}
}

func loadProbe(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "duesday-probe-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	binary, archive := filepath.Join(dir, "probe"), filepath.Join(dir, "probe.tar")
	if err := programs.Static(ctx, "./cmd/probe", binary); err != nil {
		return err
	}
	if err := (image.Image{Tag: probeImage, Binary: binary, User: "65532:65532"}).WriteFile(archive); err != nil {
		return err
	}
	return shared.LoadImage(ctx, archive)
}

// onCluster returns the cluster and a client of it.
func onCluster(t *testing.T) (*cluster.Cluster, *kubernetes.Clientset) {
	t.Helper()
	client, err := shared.Client()
	require.NoError(t, err)
	return shared, client
}

// newNamespace makes a namespace that takes only pods of the restricted Pod
// Security level, and removes it when the test has ended.
func newNamespace(t *testing.T, client kubernetes.Interface) string {
	t.Helper()
	ns, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		GenerateName: "e2e-",
		Labels: map[string]string{
			"pod-security.kubernetes.io/enforce": "restricted",
			"pod-security.kubernetes.io/warn":    "restricted", // of what makes pods: Jobs, CronJobs
		},
	}}, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		// t.Context has ended by now.
		require.NoError(t, client.CoreV1().Namespaces().Delete(context.Background(), ns.Name, metav1.DeleteOptions{}))
	})
	eventually(t, "the default service account", func() bool {
		_, err := client.CoreV1().ServiceAccounts(ns.Name).Get(t.Context(), "default", metav1.GetOptions{})
		return err == nil
	})
	return ns.Name
}

// patience: after half a minute without an API server, controllers may take one
// more to watch it again; a schedule is by the minute.
const patience = 3 * time.Minute

// eventually asks until what is so.
func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	const pause = 100 * time.Millisecond
	for deadline := time.Now().Add(patience); !so(); time.Sleep(pause) {
		require.True(t, time.Now().Before(deadline), "waited %v for %s", patience, what)
	}
}
