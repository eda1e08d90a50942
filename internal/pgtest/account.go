package pgtest

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"syscall"
)

// An account is who the servers run as. Postgres refuses to run as root, so
// for a root caller it is another user; else it is the caller.
type account struct {
	uid, gid int
	switched bool // the caller is root and the account is not
}

func serverAccount() (account, error) {
	if os.Geteuid() != 0 {
		return account{uid: os.Geteuid(), gid: os.Getegid()}, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.Atoi(u.Uid)
		if err != nil {
			return account{}, fmt.Errorf("user id of %s: %w", name, err)
		}
		gid, err := strconv.Atoi(u.Gid)
		if err != nil {
			return account{}, fmt.Errorf("group id of %s: %w", name, err)
		}
		return account{uid: uid, gid: gid, switched: true}, nil
	}
	return account{}, errors.New("root may not run Postgres, and there is neither a user postgres nor nobody to do it: run as another user")
}

// attributes puts a child into a session of its own, as this account: a
// Ctrl-C or a kill of the caller's group must not reach the supervisor before
// it has cleared up.
func (a account) attributes() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setsid: true}
	if a.switched {
		attr.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
	}
	return attr
}

// give hands a file or folder to the account.
func (a account) give(path string) error {
	if !a.switched {
		return nil
	}
	return os.Lchown(path, a.uid, a.gid)
}
