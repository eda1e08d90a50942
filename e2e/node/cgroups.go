package node

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
)

// cgroups gives the calling goroutine, and what it starts, a cgroup namespace
// whose root is a new cgroup of that name, in each hierarchy. The kubelet and
// runc then make theirs below it, where they can be found and removed.
//
// The namespace is the thread's: the goroutine stays on it.
func cgroups(name string) error {
	roots, err := hierarchies()
	if err != nil {
		return err
	}
	for _, root := range roots {
		if err := join(filepath.Join(root, name)); err != nil {
			return err
		}
	}
	runtime.LockOSThread()
	if err := syscall.Unshare(syscall.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("new cgroup namespace: %w", err)
	}
	for _, root := range roots {
		own := filepath.Join(root, name)
		// In version 2 only leaves have processes.
		if err := join(filepath.Join(own, "node")); err != nil {
			return err
		}
		if err := syscall.Mount(own, root, "", syscall.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount cgroup %s: %w", own, err)
		}
	}
	return nil
}

// hierarchies are the folders where cgroups are mounted: one in version 2, one
// for each controller in version 1.
func hierarchies() ([]string, error) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, err
	}
	var roots []string
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 2 && (f[2] == "cgroup" || f[2] == "cgroup2") {
			roots = append(roots, f[1])
		}
	}
	return roots, nil
}

func join(cgroup string) error {
	if err := os.Mkdir(cgroup, 0o755); err != nil {
		return err
	}
	// A new cpuset of version 1 has no processor and no memory.
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		content, err := os.ReadFile(filepath.Join(cgroup, file))
		if err != nil || strings.TrimSpace(string(content)) != "" {
			continue
		}
		parent, err := os.ReadFile(filepath.Join(filepath.Dir(cgroup), file))
		if err != nil {
			continue // the root's of version 2
		}
		if err := os.WriteFile(filepath.Join(cgroup, file), parent, 0); err != nil {
			return fmt.Errorf("set %s of %s: %w", file, cgroup, err)
		}
	}
	if err := os.WriteFile(filepath.Join(cgroup, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0); err != nil {
		return fmt.Errorf("join cgroup %s: %w", cgroup, err)
	}
	return nil
}
