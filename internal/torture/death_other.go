//go:build !linux

package main

import "os/exec"

// dieWithUs is for the kernels that can kill a child with its parent.
func dieWithUs(*exec.Cmd) {}
