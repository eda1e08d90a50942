//go:build !linux

package main

import "syscall"

// ownGroup makes a child the leader of a process group. A child of a killed
// test is left behind here.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
