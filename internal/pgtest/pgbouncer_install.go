package pgtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// installPgBouncer has apt install the package, and has Debian's policy-rc.d
// keep the package from starting a service of its own. The policy is taken
// back by the shell that made it, which a kill of the test process does not
// reach. See invoke-rc.d(8).
const installPgBouncer = `
set -e
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
	trap 'rm -f "$policy"' EXIT
	printf '#!/bin/sh\nexit 101\n' >"$policy"
	chmod 755 "$policy"
fi
install() { apt-get install -y --no-install-recommends pgbouncer; }
install || { apt-get update && install; }
`

// pgbouncerBinary finds pgbouncer, or installs it if that can be done without
// asking anyone. Test processes that want it at the same time take turns.
func pgbouncerBinary() (string, error) {
	if bin, ok := findPgBouncer(); ok {
		return bin, nil
	}
	if _, err := exec.LookPath("apt-get"); err != nil || os.Geteuid() != 0 {
		return "", errors.New("no pgbouncer in /usr/sbin or PATH: install it (apt-get install pgbouncer, brew install pgbouncer)")
	}
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	lock, err := lockFile(filepath.Join(cache, "apt.lock"), syscall.LOCK_EX)
	if err != nil {
		return "", err
	}
	defer func() { _ = lock.Close() }()
	if bin, ok := findPgBouncer(); ok {
		return bin, nil
	}

	apt := exec.Command("/bin/sh", "-c", installPgBouncer)
	apt.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	apt.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := apt.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("install pgbouncer: %w\n%s", err, out)
	}
	bin, ok := findPgBouncer()
	if !ok {
		return "", fmt.Errorf("installed pgbouncer, but it is not there\n%s", out)
	}
	return bin, nil
}
