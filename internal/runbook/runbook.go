// Package runbook reads the commands out of a document, so that tests can run
// them. A fenced block of shell commands names its test after the language,
// where no reader sees it:
//
//	```sh test=missing      run by the tests of cmd/duesday
//	```sh cluster=rerun     run by the tests of e2e, on a real cluster
//	```sh stripe=customers  needs Stripe itself: no test can run it
package runbook

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// Block is one fenced block of commands.
type Block struct {
	Line int    // of the document, where it begins
	On   string // "test", "cluster" or "stripe"
	Name string
	Text string
}

// Read returns the document's blocks by where they run and by name. Every block
// of commands must say that, and no two may say the same.
func Read(path string) (map[string]map[string]Block, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	blocks := map[string]map[string]Block{"test": {}, "cluster": {}, "stripe": {}}
	var (
		block *Block
		open  bool // in a block of another language
	)
	for i, line := range strings.Split(string(content), "\n") {
		info, fence := strings.CutPrefix(strings.TrimSpace(line), "```")
		switch {
		case fence && block != nil:
			block = nil
		case fence && open:
			open = false
		case fence:
			language, name, _ := strings.Cut(info, " ")
			switch language {
			case "sql", "json", "yaml", "text":
				open = true
				continue
			}
			on, name, _ := strings.Cut(name, "=")
			if language != "sh" || blocks[on] == nil || name == "" {
				return nil, fmt.Errorf("%s:%d: %q: want ```sh test=NAME, cluster=NAME or stripe=NAME", path, i+1, line)
			}
			if other, twice := blocks[on][name]; twice {
				return nil, fmt.Errorf("%s:%d: %s is the block of line %d", path, i+1, name, other.Line)
			}
			block = &Block{Line: i + 1, On: on, Name: name}
			blocks[on][name] = *block
		case block != nil:
			block.Text += line + "\n"
			blocks[block.On][block.Name] = *block
		}
	}
	if block != nil || open {
		return nil, errors.New(path + ": the last block has no end")
	}
	return blocks, nil
}
