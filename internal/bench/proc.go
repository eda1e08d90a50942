package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// ticks is how /proc counts CPU time, on every Linux that Go runs on.
const ticks = 100

// postgresCPU is the CPU seconds of the server and of all its children, also of
// those that have ended; 0 where there is no /proc.
func (s *stage) postgresCPU() float64 {
	content, err := os.ReadFile(filepath.Join(s.server.Dir(), "data", "postmaster.pid"))
	if err != nil {
		return 0
	}
	pid, _, _ := strings.Cut(string(content), "\n")
	sum := 0.0
	processes, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, name := range processes {
		stat := readStat(name)
		switch {
		case stat == nil: // it has ended
		case stat[0] == pid:
			sum += stat.seconds(13, 17)
		case stat[3] == pid:
			sum += stat.seconds(13, 15)
		}
	}
	return sum
}

type stat []string

// readStat returns the fields of proc(5)'s stat, the first being number 0. A
// name with spaces in it is one field.
func readStat(name string) stat {
	content, err := os.ReadFile(name)
	if err != nil {
		return nil
	}
	text := string(content)
	open, end := strings.IndexByte(text, '('), strings.LastIndexByte(text, ')')
	if open < 0 || end < open {
		return nil
	}
	fields := append(stat{strings.TrimSpace(text[:open]), text[open : end+1]}, strings.Fields(text[end+1:])...)
	if len(fields) < 17 {
		return nil
	}
	return fields
}

// seconds adds the fields from first up to end: 13 is user, 14 system, 15 and 16
// the same of children that have ended.
func (f stat) seconds(first, end int) float64 {
	sum := 0
	for _, field := range f[first:end] {
		n, _ := strconv.Atoi(field)
		sum += n
	}
	return float64(sum) / ticks
}

// peakMemory is the most memory that a process has had resident so far, in
// bytes.
func peakMemory(pid int) (int64, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(content)) {
		if text, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kilobytes, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(text), "kB")), 10, 64)
			return kilobytes << 10, err
		}
	}
	return 0, fmt.Errorf("process %d has no VmHWM: it has ended", pid)
}
