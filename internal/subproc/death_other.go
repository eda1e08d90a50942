//go:build !linux

package subproc

import "os/exec"

// DieWithUs is for the kernels that can kill a child with its parent.
func DieWithUs(*exec.Cmd) {}
