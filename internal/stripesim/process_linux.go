package stripesim

import "syscall"

// dieWithParent puts a child into a process group of its own, which a Ctrl-C at
// the test's terminal does not reach, and has the kernel kill it with us.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
