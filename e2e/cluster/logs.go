package cluster

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// lastWords are the ends of all programs' outputs.
func (l *local) lastWords() string {
	const lines = 15
	files, _ := filepath.Glob(filepath.Join(l.logs, "*.log")) // fails on a bad pattern only
	var out strings.Builder
	for _, path := range files {
		content, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		all := bytes.Split(bytes.TrimSpace(content), []byte("\n"))
		fmt.Fprintf(&out, "--- %s\n%s\n", filepath.Base(path), bytes.Join(all[max(0, len(all)-lines):], []byte("\n")))
	}
	return out.String()
}
