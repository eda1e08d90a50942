package main

import "syscall"

// ownGroup makes a child the leader of a process group, and ends it with the
// test.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
