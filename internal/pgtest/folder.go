package pgtest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

const folderPrefix = "duesday-pg_"

// A folder holds everything of one server: data, socket, log. Its name tells
// its owner, and the owner holds a lock on the file "owner" in it for as long
// as it lives: proof of life that also holds between containers that share a
// temporary directory but no process ids.
type folder struct {
	path string
	lock *os.File
}

// newFolder makes a folder that the account owns and can reach.
func newFolder(acct account) (*folder, error) {
	base, err := folderBase(acct)
	if err != nil {
		return nil, err
	}
	// Short, because a socket's path may have no more than 103 bytes.
	path := filepath.Join(base, fmt.Sprintf("%s%s_%s", folderPrefix, self(), randomHex(3)))
	if err := os.Mkdir(path, 0o700); err != nil {
		return nil, fmt.Errorf("make the server's folder: %w", err)
	}
	lock, err := lockFile(filepath.Join(path, "owner"), syscall.LOCK_EX)
	if err == nil {
		err = acct.give(path)
	}
	if err != nil {
		_ = os.RemoveAll(path)
		return nil, fmt.Errorf("prepare the server's folder: %w", err)
	}
	return &folder{path: path, lock: lock}, nil
}

func (f *folder) join(name string) string { return filepath.Join(f.path, name) }

func (f *folder) remove() error {
	defer func() { _ = f.lock.Close() }()
	removeMemory(f.path)
	return os.RemoveAll(f.path)
}

// logTail is the end of the server's log, for error messages.
func (f *folder) logTail() string {
	log, err := os.ReadFile(f.join("log"))
	if err != nil {
		return "no log: " + err.Error()
	}
	const most = 2000
	return strings.TrimSpace(string(log[max(0, len(log)-most):]))
}

// folderBase is a directory in which the account can keep, and its supervisor
// remove, a folder.
func folderBase(acct account) (string, error) {
	for _, base := range []string{os.TempDir(), "/tmp"} {
		if !acct.switched || reachable(base) {
			return base, nil
		}
	}
	return "", fmt.Errorf("neither %s nor /tmp can be reached by other users, as a server started by root needs", os.TempDir())
}

// reachable reports whether every user can write to dir.
func reachable(dir string) bool {
	need := os.FileMode(0o003)
	for {
		info, err := os.Stat(dir)
		if err != nil || info.Mode().Perm()&need != need {
			return false
		}
		if dir == filepath.Dir(dir) {
			return true
		}
		dir, need = filepath.Dir(dir), 0o001
	}
}

// lockFile opens a file, made if need be, and locks it until it is closed or
// the process ends. Children do not inherit it.
func lockFile(path string, how int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err = syscall.Flock(int(f.Fd()), how)
		if err != syscall.EINTR {
			break
		}
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}
