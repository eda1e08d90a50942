package subproc

import (
	"os/exec"
	"syscall"
)

// DieWithUs makes the kernel kill the child should this process die first.
func DieWithUs(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
