//go:build !linux

package stripesim

import "syscall"

// dieWithParent has no kernel to help it here: stripesim itself watches for its
// parent's end.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
