package leader

// A Transition is what has happened to the Lease, or to the advisory lock, of
// this process.
type Transition struct {
	Lock  string // LeaseLock or AdvisoryLock
	Event string // Acquired, and then Lost or Released
}

// What a Transition is of.
const (
	LeaseLock    = "lease"
	AdvisoryLock = "advisory_lock"
	Acquired     = "acquired"
	Lost         = "lost"
	Released     = "released"
)
