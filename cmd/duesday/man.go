package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// manCommand writes the man pages. It is for who packages duesday.
func (p *program) manCommand() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:    "man",
		Short:  "Write the man pages",
		Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return usage("--dir: %w", err)
			}
			head := doc.GenManHeader{Section: "1", Date: builtFrom(), Source: "duesday " + version, Manual: "Duesday"}
			root := cmd.Root()
			root.DisableAutoGenTag = true
			for _, c := range append(root.Commands(), root) {
				c.Long = keepLines(c.Long)
			}
			if err := doc.GenManTree(root, &head, dir); err != nil {
				return fmt.Errorf("write the man pages: %w", err)
			}
			pages, err := filepath.Glob(filepath.Join(dir, "duesday*.1"))
			if err != nil {
				return err
			}
			p.say("wrote %d man pages to %s\n", len(pages), dir)
			return nil
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "dist/man", "`folder` to write them to")
	return cmd
}

// builtFrom is the time of the commit; nil, which is now or SOURCE_DATE_EPOCH,
// if the binary does not know it.
func builtFrom() *time.Time {
	info, _ := debug.ReadBuildInfo()
	if info == nil {
		return nil
	}
	for _, s := range info.Settings {
		if at, err := time.Parse(time.RFC3339, s.Value); s.Key == "vcs.time" && err == nil {
			return &at
		}
	}
	return nil
}

// keepLines makes blocks of Markdown of indented lines, for a man page would
// else run them together.
func keepLines(long string) string {
	var out []string
	block := false
	for line := range strings.SplitSeq(long, "\n") {
		indented := strings.HasPrefix(line, "  ")
		if indented != block && line != "" {
			out = append(out, "")
			block = indented
		}
		if indented {
			line = "    " + strings.TrimPrefix(line, "  ")
		}
		out = append(out, line)
	}
	return strings.Join(out, "\n")
}
