package cluster

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// hold tells the test binary to hold a cluster until it is killed.
const hold = "DUESDAY_E2E_HOLD"

func TestMain(m *testing.M) {
	if os.Getenv(hold) == "" {
		os.Exit(m.Run())
	}
	c, err := Start(context.Background(), Options{Progress: os.Stderr})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(c.local.process.Process.Pid, c.local.name, c.local.link.name)
	select {}
}

func TestClose_leavesTheMachineAsItWas(t *testing.T) {
	_, err := ensureTools(t.Context(), os.Stderr)
	require.NoError(t, err)
	before := lookAround(t)

	start := time.Now()
	c, err := Start(t.Context(), Options{Progress: os.Stderr})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	t.Logf("node ready after %v", time.Since(start))
	runPause(t, c)

	own := []string{c.local.name, c.local.link.name}
	during := lookAround(t, own...)
	require.Equal(t, before.rules, during.rules, "firewall rules")
	require.Equal(t, before.mounts, during.mounts, "mounts")
	require.Equal(t, before.sysctls, during.sysctls, "settings")
	require.Equal(t, append(before.links, own[1]), during.links, "interfaces")
	require.Greater(t, len(during.cgroups), len(before.cgroups), "without the pod's cgroups the test proves little")
	processes := processesOf(t, c.local.process.Process.Pid)
	require.Greater(t, len(processes()), len(built))

	start = time.Now()
	require.NoError(t, c.Close())
	t.Logf("gone after %v", time.Since(start))
	require.Empty(t, processes())
	require.Equal(t, before, lookAround(t, own...))
	require.NoError(t, c.Close())
}

func TestStart_clearsUpAfterAKilledProcess(t *testing.T) {
	_, err := ensureTools(t.Context(), os.Stderr)
	require.NoError(t, err)
	before := lookAround(t)

	holder := exec.Command(os.Args[0])
	holder.Env = append(os.Environ(), hold+"=1")
	holder.Stderr = os.Stderr
	out, err := holder.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, holder.Start())
	t.Cleanup(func() { holder.Process.Kill() })
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	var pid int
	var name, link string
	_, err = fmt.Sscan(line, &pid, &name, &link)
	require.NoError(t, err)
	processes := processesOf(t, pid)
	require.Greater(t, len(processes()), len(built))
	require.NoError(t, sweep())
	require.DirExists(t, filepath.Join(os.TempDir(), name), "a living cluster must not be swept away")

	require.NoError(t, holder.Process.Kill())
	holder.Wait()
	require.Eventually(t, func() bool {
		_, err := net.InterfaceByName(link)
		return len(processes()) == 0 && err != nil
	}, 20*time.Second, 50*time.Millisecond, "what the killed process started must die with it")
	require.NotEqual(t, before, lookAround(t, name, link), "without leftovers the test proves nothing")
	require.NoError(t, sweep())
	require.Equal(t, before, lookAround(t, name, link))
}

func runPause(t *testing.T, c *Cluster) {
	client, err := c.Client()
	require.NoError(t, err)
	_, err = client.CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "pause"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "pause", Image: pauseImage, ImagePullPolicy: corev1.PullNever,
			Ports: []corev1.ContainerPort{{ContainerPort: 80, HostPort: 18080}},
		}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	said, err := c.Kubectl(t.Context(), "wait", "--for=condition=Ready", "--timeout=60s", "pod/pause")
	require.NoError(t, err, said)
}

// machine is what a cluster could leave behind.
type machine struct {
	rules, mounts           string
	links, folders, cgroups []string
	sysctls                 map[string]string
}

// lookAround leaves out what is a cluster's whose name and interface are not
// given: other tests may run beside this one.
func lookAround(t *testing.T, own ...string) machine {
	m := machine{sysctls: map[string]string{}}
	add := func(to *[]string, paths ...string) {
		for _, path := range paths {
			if name := filepath.Base(path); !strings.HasPrefix(name, "duesday") || slices.Contains(own, name) {
				*to = append(*to, path)
			}
		}
	}
	var err error
	for _, command := range []string{"iptables-save", "ip6tables-save"} {
		rules, err := run(t.Context(), nil, command)
		require.NoError(t, err)
		m.rules += rules
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(t, err)
	m.mounts = string(mounts)
	links, err := net.Interfaces()
	require.NoError(t, err)
	for _, l := range links {
		add(&m.links, l.Name)
	}
	folders, err := filepath.Glob(filepath.Join(os.TempDir(), prefix+"*"))
	require.NoError(t, err)
	add(&m.folders, folders...)
	// What others on the machine make meanwhile is below their own cgroups.
	for _, pattern := range []string{"/sys/fs/cgroup/*/*", "/sys/fs/cgroup/*"} {
		paths, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, path := range paths {
			if info, err := os.Stat(path); err == nil && info.IsDir() {
				add(&m.cgroups, path)
			}
		}
	}
	for _, path := range []string{
		"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops",
		"kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes", "kernel/hostname",
		"net/ipv4/ip_forward", "net/ipv4/conf/all/route_localnet", "net/netfilter/nf_conntrack_max",
	} {
		value, err := os.ReadFile("/proc/sys/" + path)
		if err == nil {
			m.sysctls[path] = string(value)
		}
	}
	for _, dir := range []string{"/var/lib/kubelet", "/var/lib/cni", "/var/log/pods", "/var/log/containers", "/usr/libexec/kubernetes", "/etc/cni", "/run/containerd", "/opt/containerd", "/opt/cni", "/run/netns"} {
		if _, err := os.Stat(dir); err == nil {
			m.folders = append(m.folders, dir)
		}
	}
	return m
}

// processesOf returns a function that lists the processes in the pid namespace
// of a process, also after its death.
func processesOf(t *testing.T, pid int) func() []string {
	namespace, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid))
	require.NoError(t, err)
	return func() []string {
		all, err := filepath.Glob("/proc/[0-9]*/ns/pid")
		require.NoError(t, err)
		var found []string
		for _, path := range all {
			if its, err := os.Readlink(path); err == nil && its == namespace {
				found = append(found, path)
			}
		}
		return found
	}
}
