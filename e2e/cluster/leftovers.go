package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

// prefix of the names of clusters, which are those of their folders in the
// folder for temporary files and of their cgroups.
const prefix = "duesday-cluster-"

// newFolder makes a cluster's folder. A lock on it tells others that its
// process lives.
func newFolder() (dir string, lock *os.File, err error) {
	dir, err = os.MkdirTemp("", prefix)
	if err != nil {
		return "", nil, err
	}
	lock, err = os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil {
		err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	if err != nil {
		return "", nil, errors.Join(err, os.RemoveAll(dir))
	}
	return dir, lock, nil
}

// sweep removes what clusters have left whose processes were killed.
func sweep() error {
	dirs, err := filepath.Glob(filepath.Join(os.TempDir(), prefix+"*"))
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		if !abandoned(dir) {
			continue
		}
		if err := remove(dir); err != nil {
			return fmt.Errorf("clear up after %s: %w", dir, err)
		}
	}
	return nil
}

func abandoned(dir string) bool {
	f, err := os.Open(filepath.Join(dir, "lock"))
	if err != nil {
		// Either just made, or its process was killed before it made a lock.
		info, err := os.Stat(dir)
		return err == nil && info.IsDir() && time.Since(info.ModTime()) > time.Minute
	}
	defer f.Close()
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
}

// remove removes a cluster's cgroups and then its folder, which stays if that
// fails, so that the next sweep tries again.
func remove(dir string) error {
	if err := removeCgroups(filepath.Base(dir)); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// removeCgroups removes a cgroup and those below it from every hierarchy. What
// was killed may take a moment to leave them.
func removeCgroups(name string) error {
	const patience, pause = 20 * time.Second, 20 * time.Millisecond
	for start := time.Now(); ; time.Sleep(pause) {
		var busy error
		for _, root := range cgroups(name) {
			busy = errors.Join(busy, removeTree(root))
		}
		if busy == nil || time.Since(start) > patience {
			return busy
		}
	}
}

// cgroups are the folders of a cgroup: one in version 2, one in each hierarchy
// in version 1.
func cgroups(name string) []string {
	var found []string
	for _, pattern := range []string{"/sys/fs/cgroup/" + name, "/sys/fs/cgroup/*/" + name} {
		some, _ := filepath.Glob(pattern) // fails on a bad pattern only
		found = append(found, some...)
	}
	return found
}

// removeTree removes folders only: a cgroup's files go with it.
func removeTree(root string) error {
	var dirs []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return err
	})
	if err != nil {
		return err
	}
	slices.Reverse(dirs)
	for _, dir := range dirs {
		if err := syscall.Rmdir(dir); err != nil && !errors.Is(err, syscall.ENOENT) {
			return fmt.Errorf("remove cgroup %s: %w", dir, err)
		}
	}
	return nil
}
