//go:build !linux

package promtest

import "syscall"

func dieWithUs() *syscall.SysProcAttr { return nil }
