// Package exitcode attaches to an error what the process must exit with when
// it ends because of it. The code is chosen where the error is made, since only
// there is it known whether trying again can help, and read once, in main.
package exitcode

import "errors"

// The exit codes that the Job's podFailurePolicy relies on.
const (
	OK            = 0 // settled, or settled before, or another replica leads
	Unfinished    = 1 // worth another try
	Misconfigured = 2 // can never work as configured
	Stopped       = 3 // stopped on purpose; a person must act
)

type coded struct {
	err  error
	code int
}

func (c *coded) Error() string { return c.err.Error() }
func (c *coded) Unwrap() error { return c.err }

// With returns err carrying code; nil stays nil.
func With(code int, err error) error {
	if err == nil {
		return nil
	}
	return &coded{err, code}
}

// Of returns the code that err carries, outermost first: OK for nil,
// Unfinished for an error that carries none.
func Of(err error) int {
	if err == nil {
		return OK
	}
	var c *coded
	if errors.As(err, &c) {
		return c.code
	}
	return Unfinished
}
