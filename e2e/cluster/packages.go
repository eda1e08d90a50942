package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

// tools are what the distribution provides.
type tools struct {
	containerd string
	cni        string // folder of the CNI plugins
}

// packages are Debian's names of what the tools are in.
var packages = []string{"containerd", "runc", "containernetworking-plugins", "iptables", "iproute2", "util-linux"}

// ensureTools finds the tools, and installs Debian's packages of them if some
// are missing and this is a Debian.
func ensureTools(ctx context.Context, progress io.Writer) (tools, error) {
	t, missing := findTools()
	if missing == nil {
		return t, nil
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return t, fmt.Errorf("%w; install %s (there is no apt-get to do it with)", missing, strings.Join(packages, ", "))
	}
	fmt.Fprintf(progress, "installing %s: %v\n", strings.Join(packages, ", "), missing)
	if err := install(ctx); err != nil {
		return t, fmt.Errorf("%w; installing them failed: %w", missing, err)
	}
	t, missing = findTools()
	return t, missing
}

func findTools() (t tools, missing error) {
	var gone []error
	for _, name := range []string{"containerd", "ctr", "containerd-shim-runc-v2", "runc", "iptables", "iptables-save", "ip", "nsenter"} {
		path, err := exec.LookPath(name)
		if err != nil {
			gone = append(gone, errors.New("no "+name))
		}
		if name == "containerd" {
			t.containerd = path
		}
	}
	for _, dir := range []string{"/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni"} {
		if _, err := os.Stat(dir + "/bridge"); err == nil {
			t.cni = dir
			break
		}
	}
	if t.cni == "" {
		gone = append(gone, errors.New("no CNI plugin bridge"))
	}
	return t, errors.Join(gone...)
}

// install installs the packages without starting what they bring along.
func install(ctx context.Context) error {
	allow, err := forbidServices()
	if err != nil {
		return err
	}
	defer allow()
	for _, args := range [][]string{
		{"update", "-q"},
		append([]string{"install", "-q", "-y", "--no-install-recommends"}, packages...),
	} {
		cmd := exec.CommandContext(ctx, "apt-get", args...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if said, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("apt-get %s: %w\n%s", args[0], err, said)
		}
	}
	return nil
}

// forbidServices makes Debian's packages start no service, unless the machine
// has a rule of its own.
func forbidServices() (allow func(), err error) {
	const policy = "/usr/sbin/policy-rc.d"
	f, err := os.OpenFile(policy, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if errors.Is(err, os.ErrExist) {
		return func() {}, nil
	}
	if err != nil {
		return nil, err
	}
	_, err = io.WriteString(f, "#!/bin/sh\nexit 101\n")
	if err = errors.Join(err, f.Close()); err != nil {
		os.Remove(policy)
		return nil, err
	}
	return func() { os.Remove(policy) }, nil
}
