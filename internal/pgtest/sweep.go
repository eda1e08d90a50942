package pgtest

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// sweep clears up after owners that died together with their supervisor. It
// touches a folder only if the account owns it and its owner is gone, and ends
// a process only if that folder's pid file names it and its command line names
// that folder. What it cannot clear it leaves to the next sweep.
func sweep(acct account) {
	base, err := folderBase(acct)
	if err != nil {
		return
	}
	paths, _ := filepath.Glob(filepath.Join(base, folderPrefix+"*"))
	for _, path := range paths {
		sweepFolder(acct, path)
	}
}

func sweepFolder(acct account, path string) {
	info, err := os.Lstat(path)
	if err != nil || !info.IsDir() {
		return
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); !ok || int(stat.Uid) != acct.uid {
		return
	}
	who, ok := parseOwner(strings.TrimPrefix(filepath.Base(path), folderPrefix), "_")
	if !ok || who.alive() {
		return
	}
	lock, err := lockFile(filepath.Join(path, "owner"), syscall.LOCK_EX|syscall.LOCK_NB)
	if err != nil {
		return // it lives in another container, or someone else is sweeping
	}
	defer func() { _ = lock.Close() }()
	endLeftover(filepath.Join(path, "data", "postmaster.pid"), path, syscall.SIGQUIT)
	endLeftover(filepath.Join(path, "pgbouncer.pid"), path, syscall.SIGKILL)
	removeMemory(path)
	_ = os.RemoveAll(path)
}

// endLeftover ends the process that pidFile names, if it is one that runs in
// folder, and waits until it is gone. Postgres takes its children along.
func endLeftover(pidFile, folder string, sig syscall.Signal) {
	pid, ok := readPID(pidFile)
	if !ok || !runsIn(pid, folder) {
		return
	}
	_ = syscall.Kill(pid, sig)
	// Nothing tells of the end of a process that is not our child.
	for deadline := time.Now().Add(10 * time.Second); runsIn(pid, folder); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			return
		}
	}
}

// readPID reads the first line of a pid file.
func readPID(path string) (int, bool) {
	f, err := os.Open(path)
	if err != nil {
		return 0, false
	}
	defer func() { _ = f.Close() }()
	line, _ := bufio.NewReader(f).ReadString('\n')
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	return pid, err == nil && pid > 1
}

// runsIn reports whether a process's command line names the folder.
func runsIn(pid int, folder string) bool {
	if _, err := os.Stat("/proc/self/cmdline"); err == nil {
		line, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
		return err == nil && strings.Contains(string(line), folder+"/")
	}
	line, err := exec.Command("ps", "-o", "command=", "-p", strconv.Itoa(pid)).Output()
	return err == nil && strings.Contains(string(line), folder+"/")
}
