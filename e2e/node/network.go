package node

import (
	"fmt"
	"os/exec"
	"strings"
	"syscall"
)

// Name is the node's host name and its name in the cluster.
const Name = "node1"

// network brings up the interfaces of this network namespace. There is no
// default route: nothing in the cluster can reach the world, only the machine
// it runs on, at the other end of the interface.
func network(s Setup) error {
	if err := syscall.Sethostname([]byte(Name)); err != nil {
		return fmt.Errorf("set host name: %w", err)
	}
	for _, args := range [][]string{
		{"link", "set", "lo", "up"},
		{"address", "add", s.Address, "dev", s.Interface},
		{"link", "set", s.Interface, "up"},
		{"route", "add", s.Services, "dev", s.Interface},
	} {
		if said, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, said)
		}
	}
	return nil
}
