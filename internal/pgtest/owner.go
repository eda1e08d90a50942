package pgtest

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// An owner is the process that a folder or database was made for. The start
// time tells it from a later process with the same id; it is 0 where there is
// no /proc.
type owner struct {
	pid   int
	start uint64
}

// self is this process as an owner, in the form that parseOwner reads.
func self() string {
	pid := os.Getpid()
	start, _ := startTime(pid)
	return fmt.Sprintf("%d_%d", pid, start)
}

// parseOwner reads the owner that begins a name: pid, start time, anything.
func parseOwner(name, separator string) (owner, bool) {
	parts := strings.Split(name, separator)
	if len(parts) != 3 {
		return owner{}, false
	}
	pid, err := strconv.Atoi(parts[0])
	if err != nil || pid <= 0 {
		return owner{}, false
	}
	start, err := strconv.ParseUint(parts[1], 10, 64)
	if err != nil {
		return owner{}, false
	}
	return owner{pid: pid, start: start}, true
}

// alive reports whether the owner may still run; in doubt it says yes.
func (o owner) alive() bool {
	if err := syscall.Kill(o.pid, 0); err != nil && !errors.Is(err, syscall.EPERM) {
		return false
	}
	start, ok := startTime(o.pid)
	return !ok || start == o.start
}

// startTime is field 22 of /proc/<pid>/stat: when the process started, in
// clock ticks since boot; 0 once it is a zombie. See proc(5).
func startTime(pid int) (uint64, bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	// Field 2, the command, may hold spaces and parentheses.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) < 20 {
		return 0, false
	}
	if fields[0] == "Z" {
		return 0, true
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	return start, err == nil
}
