package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/duesday/duesday/internal/pgtest"
)

// built is the binary under test. Like pgtest's server it belongs to the test
// process, since nothing smaller could own it.
var built binary

func TestMain(m *testing.M) { pgtest.Main(cleaner{m}, pgtest.CheckLeaks()) }

type cleaner struct{ tests *testing.M }

func (c cleaner) Run() int {
	defer built.remove()
	return c.tests.Run()
}

// binary builds the command on first use, with the race detector.
type binary struct {
	mu     sync.Mutex
	folder string
	err    error
}

func (b *binary) path() (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.folder == "" && b.err == nil {
		b.folder, b.err = os.MkdirTemp("", "duesday-e2e-")
		if b.err == nil {
			b.err = b.build()
		}
	}
	return filepath.Join(b.folder, "duesday"), b.err
}

func (b *binary) build() error {
	build := exec.Command("go", "build", "-race", "-o", filepath.Join(b.folder, "duesday"), ".")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the command: %w\n%s", err, out)
	}
	return nil
}

func (b *binary) remove() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.folder != "" {
		_ = os.RemoveAll(b.folder) // a temporary folder
	}
}
