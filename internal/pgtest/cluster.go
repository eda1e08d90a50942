package pgtest

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
)

// initdbFlags are part of the template's key: change them and a new template
// is made. Small WAL segments make the copy half as big.
var initdbFlags = []string{
	"--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "--wal-segsize=1",
}

// makeCluster fills dir with a fresh data directory. initdb takes seconds, so
// its result is kept in the user's cache and copied. With fresh set the kept
// one is not trusted, but replaced.
func makeCluster(ctx context.Context, acct account, bin string, f *folder, fresh bool) error {
	data := f.join("data")
	template, err := templatePath(ctx, acct, bin)
	if err == nil && !fresh {
		if err := copyCluster(template, data, acct.give); err == nil {
			return nil
		}
	}
	cached := err == nil
	if err := os.RemoveAll(data); err != nil {
		return fmt.Errorf("clear the data directory: %w", err)
	}

	initdb := exec.CommandContext(ctx, filepath.Join(bin, "initdb"), append(initdbFlags, "--pgdata="+data)...)
	initdb.Dir = f.path
	initdb.Env = serverEnvironment(f.path)
	initdb.SysProcAttr = acct.attributes()
	if out, err := initdb.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, out)
	}
	if cached {
		_ = keepTemplate(data, template) // without it the next start is slower, no more
	}
	return nil
}

// templatePath is the kept data directory's place; it depends on all that
// initdb's result depends on.
func templatePath(ctx context.Context, acct account, bin string) (string, error) {
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	version, err := exec.CommandContext(ctx, filepath.Join(bin, "postgres"), "--version").Output()
	if err != nil {
		return "", fmt.Errorf("postgres --version: %w", err)
	}
	key := sha256.Sum256(fmt.Appendf(nil, "%s %s %d %q", version, bin, acct.uid, initdbFlags))
	return filepath.Join(cache, fmt.Sprintf("template-%x", key[:8])), nil
}

// keepTemplate copies data beside the template and renames the copy, so that
// no process ever sees half a template. If several do it, one wins.
func keepTemplate(data, template string) error {
	scratch, err := os.MkdirTemp(filepath.Dir(template), "scratch-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	fresh := filepath.Join(scratch, "fresh")
	if err := copyCluster(data, fresh, func(string) error { return nil }); err != nil {
		return err
	}
	if err := os.Rename(template, filepath.Join(scratch, "old")); err != nil && !os.IsNotExist(err) {
		return err
	}
	return os.Rename(fresh, template)
}

// copyCluster copies a data directory that no server uses, with the modes that
// Postgres insists on.
func copyCluster(from, to string, give func(string) error) error {
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		if entry.IsDir() {
			err = os.Mkdir(target, 0o700)
		} else {
			err = copyFile(path, target)
		}
		if err != nil {
			return err
		}
		return give(target)
	})
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		_ = out.Close()
		return err
	}
	return out.Close()
}
