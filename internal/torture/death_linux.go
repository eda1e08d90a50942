package main

import (
	"os/exec"
	"syscall"
)

// dieWithUs makes the kernel kill the child should this process die first. A
// Ctrl-C is for this process alone: the child is in a group of its own.
func dieWithUs(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}
