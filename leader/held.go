package leader

import "strings"

// onLock is true of the row of pg_locks, here named l, that says that somebody
// holds the lock $lock. Postgres shows a bigint key as two halves.
const onLock = `l.locktype = 'advisory'
	AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
	AND l.classid = (($lock::bigint >> 32) & 4294967295)::oid
	AND l.objid = ($lock::bigint & 4294967295)::oid
	AND l.objsubid = 1
	AND l.granted`

// HeldSQL returns the SQL condition that the backend which evaluates it holds
// the lock whose id the parameter gives, such as "$3". In the WHERE clause of
// a claim it makes holding the lock and claiming one act: should the session
// end in between, the claim is rolled back with it.
func HeldSQL(parameter string) string {
	return withLock(`EXISTS (SELECT FROM pg_locks l WHERE `+onLock+`
	AND l.mode = 'ExclusiveLock' AND l.pid = pg_backend_pid())`, parameter)
}

func withLock(sql, parameter string) string {
	return strings.ReplaceAll(sql, "$lock", parameter)
}
