// Package programs builds the programs that the tests run against (Kubernetes'
// own, etcd, Helm) from their Go modules, and keeps them in a cache outside the
// checkout: some ten minutes on two cores the first time, nothing after that.
//
// What a program is built from is pinned by the go.mod and go.sum of the
// modules kube and helmbuild; the cache's key is made of these files, the Go
// version and the flags, so that a change of any of them builds anew.
package programs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

// Kubernetes returns a folder with the named programs of Kubernetes and etcd,
// built if they are not in the cache. The names are kube-apiserver,
// kube-controller-manager, kube-scheduler, kube-proxy, kubelet, kubectl, etcd.
func Kubernetes(ctx context.Context, progress io.Writer, names ...string) (string, error) {
	return build(ctx, progress, "kube", "k8s.io/kubernetes", func(version string) string {
		major, minor, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
		minor, _, _ = strings.Cut(minor, ".")
		const in = " -X k8s.io/component-base/version."
		return "-s -w" + in + "gitVersion=" + version + in + "gitMajor=" + major + in + "gitMinor=" + minor
	}, func(name string) string {
		if name == "etcd" {
			return "go.etcd.io/etcd/server/v3"
		}
		return "k8s.io/kubernetes/cmd/" + name
	}, names)
}

// Helm returns the path of Helm's command, built if it is not in the cache.
func Helm(ctx context.Context, progress io.Writer) (string, error) {
	const module = "helm.sh/helm/v4"
	dir, err := build(ctx, progress, "helmbuild", module, func(version string) string {
		return "-s -w -X " + module + "/internal/version.version=" + version
	}, func(string) string { return module + "/cmd/helm" }, []string{"helm"})
	return filepath.Join(dir, "helm"), err
}

// build builds names from the module in the folder of that name beside e2e's
// go.mod into a folder of the cache, one after the other, each put in its place
// only when it is whole, so that a build that was broken off goes on where it
// stopped. One process builds at a time.
func build(ctx context.Context, progress io.Writer, folder, module string,
	ldflags, pkg func(string) string, names []string) (string, error) {
	root, err := Root(ctx)
	if err != nil {
		return "", err
	}
	source := filepath.Join(root, folder)
	said, err := goCommand(ctx, source, "list", "-m", "-f", "{{.Version}}", module)
	if err != nil {
		return "", err
	}
	version := strings.TrimSpace(said)
	flags := ldflags(version)
	key, err := keyOf(source, flags)
	if err != nil {
		return "", err
	}
	base, err := cacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(base, folder+"-"+version+"-"+key)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	unlock, err := lock(filepath.Join(dir, ".lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	for _, name := range names {
		final := filepath.Join(dir, name)
		if _, err := os.Stat(final); err == nil {
			continue
		} else if !errors.Is(err, os.ErrNotExist) {
			return "", err
		}
		fmt.Fprintf(progress, "building %s %s (once; kept in %s)\n", name, version, dir)
		part := filepath.Join(dir, "."+name)
		if _, err := goCommand(ctx, source, "build", "-trimpath", "-buildvcs=false",
			"-ldflags", flags, "-o", part, pkg(name)); err != nil {
			return "", err
		}
		if err := os.Rename(part, final); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// Static builds a package of the e2e module as a static program into the file
// out.
func Static(ctx context.Context, pkg, out string) error {
	root, err := Root(ctx)
	if err != nil {
		return err
	}
	_, err = goCommand(ctx, root, "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", out, pkg)
	return err
}

// Root is the folder of the e2e module, in which or below which the test runs.
func Root(ctx context.Context) (string, error) {
	said, err := goCommand(ctx, ".", "list", "-m", "-f", "{{.Dir}}", "github.com/duesday/duesday/e2e")
	return strings.TrimSpace(said), err
}

func goCommand(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("go %s in %s: %w\n%s", strings.Join(args, " "), dir, err, complaint.Bytes())
	}
	return out.String(), nil
}

func keyOf(source, flags string) (string, error) {
	sum := sha256.New()
	fmt.Fprintln(sum, runtime.Version(), runtime.GOARCH, flags)
	for _, name := range []string{"go.mod", "go.sum"} {
		content, err := os.ReadFile(filepath.Join(source, name))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(sum, "%s %d\n%s", name, len(content), content)
	}
	return hex.EncodeToString(sum.Sum(nil)[:8]), nil
}

// cacheDir is ${XDG_CACHE_HOME:-~/.cache}/duesday/e2e.
func cacheDir() (string, error) {
	base, err := os.UserCacheDir()
	return filepath.Join(base, "duesday", "e2e"), err
}

func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { f.Close() }, nil
}
