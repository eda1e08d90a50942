//go:build !linux

package leader

import (
	"syscall"
	"time"
)

// limitUnacknowledged does nothing where TCP_USER_TIMEOUT is unknown.
func limitUnacknowledged(time.Duration) func(network, address string, raw syscall.RawConn) error {
	return nil
}
