package node

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// mounts makes the file system of this mount namespace such that nothing a
// cluster writes reaches the machine's.
func mounts(dir string) error {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	state := State(dir)
	if err := os.MkdirAll(state, 0o755); err != nil {
		return err
	}
	// Sockets and network namespaces are kept in /run, pods' logs in /var/log;
	// no flag moves them.
	for _, at := range []string{state, "/run", "/var/log"} {
		if err := syscall.Mount("tmpfs", at, "tmpfs", 0, "mode=755"); err != nil {
			return fmt.Errorf("mount tmpfs on %s: %w", at, err)
		}
	}
	// CNI and the kubelet write below /var/lib whatever they are told; what is
	// there must stay readable, for programs may be there too.
	upper, work := state+"/var-lib", state+"/var-lib-work"
	for _, d := range []string{upper, work} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return err
		}
	}
	if err := syscall.Mount("overlay", "/var/lib", "overlay", 0, "lowerdir=/var/lib,upperdir="+upper+",workdir="+work); err != nil {
		return fmt.Errorf("mount overlay on /var/lib: %w", err)
	}
	if err := syscall.Mount("proc", "/proc", "proc", syscall.MS_NOSUID|syscall.MS_NODEV|syscall.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount proc: %w", err)
	}
	return pretendSysctls(state)
}

// pretendSysctls covers the settings of the whole machine that a kubelet
// insists on by files that hold what it wants to see: it reads them, is
// content, and changes nothing. (setupKernelTunables in
// k8s.io/kubernetes/pkg/kubelet/cm.)
func pretendSysctls(state string) error {
	for name, value := range map[string]string{
		"vm/overcommit_memory":      "1",
		"vm/panic_on_oom":           "0",
		"kernel/panic":              "10",
		"kernel/panic_on_oops":      "1",
		"kernel/keys/root_maxkeys":  "1000000",
		"kernel/keys/root_maxbytes": "25000000",
	} {
		cover := filepath.Join(state, "sysctl", name)
		if err := os.MkdirAll(filepath.Dir(cover), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(cover, []byte(value+"\n"), 0o444); err != nil {
			return err
		}
		if err := syscall.Mount(cover, "/proc/sys/"+name, "", syscall.MS_BIND, ""); err != nil {
			return fmt.Errorf("cover sysctl %s: %w", name, err)
		}
	}
	return nil
}
