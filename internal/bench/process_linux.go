package main

import (
	"os/exec"
	"syscall"
)

// dieWithUs makes the kernel kill the child should this process die first.
func dieWithUs(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
