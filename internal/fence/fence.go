// Package fence is the SQL with which a statement makes sure that the database
// session it runs in holds an advisory lock. Claiming and leading must mean the
// same lock by it, so it stands in one place.
package fence

import (
	"strings"

	"github.com/duesday/duesday/internal/mutant"
)

// OnLock is true of the row of pg_locks, named l, that says that somebody holds
// the advisory lock whose bigint id the parameter gives, such as "$3". Postgres
// shows the id as two halves.
func OnLock(parameter string) string {
	return strings.ReplaceAll(`l.locktype = 'advisory'
		AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
		AND l.classid = (($lock::bigint >> 32) & 4294967295)::oid
		AND l.objid = ($lock::bigint & 4294967295)::oid
		AND l.objsubid = 1
		AND l.granted`, "$lock", parameter)
}

// Held is the condition that the backend which evaluates it holds the lock. In
// the WHERE clause of a claim it makes holding the lock and claiming one act:
// should the session end in between, the claim is rolled back with it.
func Held(parameter string) string { return held(parameter, "ExclusiveLock") }

// HeldShared is Held for a lock that the backend shares with others.
func HeldShared(parameter string) string { return held(parameter, "ShareLock") }

func held(parameter, mode string) string {
	if mutant.Is("skip-fence") {
		return parameter + "::bigint IS NOT NULL"
	}
	return `EXISTS (
		SELECT FROM pg_locks AS l WHERE ` + OnLock(parameter) + `
		AND l.mode = '` + mode + `' AND l.pid = pg_backend_pid())`
}
