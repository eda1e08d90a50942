package pgtest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// removeMemory removes the System V segment, a few bytes, that a killed server
// leaves in the kernel. The next start on the same data would do it, but there
// will be none. Line 7 of postmaster.pid is the segment's key and id; a server
// that ended in order has removed both the file and the segment.
func removeMemory(folder string) {
	content, err := os.ReadFile(filepath.Join(folder, "data", "postmaster.pid"))
	if err != nil {
		return
	}
	lines := strings.Split(string(content), "\n")
	if len(lines) < 7 {
		return
	}
	var key, id int
	if _, err := fmt.Sscan(lines[6], &key, &id); err != nil {
		return
	}
	var segment unix.SysvShmDesc
	if _, err := unix.SysvShmCtl(id, unix.IPC_STAT, &segment); err != nil || segment.Nattch != 0 {
		return
	}
	_, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil)
}
