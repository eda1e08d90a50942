// Package subproc is what a program needs to run others for a while, in a demo, a
// benchmark or a test: they leave no log unread, and do not outlive it.
package subproc

import (
	"bytes"
	"sync"
)

// Log keeps what a process says. It may be written and read at once.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write is io.Writer's.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String is all that was said.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Tail is the end of it, at most n bytes.
func (l *Log) Tail(n int) string {
	s := l.String()
	return s[max(0, len(s)-n):]
}
