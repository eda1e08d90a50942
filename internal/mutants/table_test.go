package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAll_areTheMistakesThatCanBeMade(t *testing.T) {
	t.Parallel()
	var (
		listed []string
		found  = map[string]bool{}
		use    = regexp.MustCompile(`(?:mutant\.Is|replace)\("([a-z0-9-]+)"`)
	)
	for _, m := range all() {
		listed = append(listed, m.name)
	}
	root := filepath.Join("..", "..")
	for _, folder := range []string{"charges", "job", "leader", "cmd", "internal/fence"} {
		require.NoError(t, filepath.WalkDir(filepath.Join(root, folder), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") {
				return err
			}
			source, err := os.ReadFile(path)
			for _, match := range use.FindAllSubmatch(source, -1) {
				found[string(match[1])] = true
			}
			return err
		}))
	}
	var made []string
	for name := range found {
		made = append(made, name)
	}
	require.ElementsMatch(t, made, listed)
}
