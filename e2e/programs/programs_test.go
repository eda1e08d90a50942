package programs

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestKeyOf_changesWithWhatIsBuilt(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	seen := map[string]bool{}
	record := func(flags string) {
		key, err := keyOf(dir, flags)
		require.NoError(t, err)
		again, err := keyOf(dir, flags)
		require.NoError(t, err)
		require.Equal(t, key, again)
		seen[key] = true
	}
	write("go.mod", "module a")
	write("go.sum", "sum")
	record("-s")
	record("-s -w")
	write("go.sum", "another sum")
	record("-s")
	write("go.mod", "module b")
	record("-s")
	write("go.mod", "module bgo.sum 11\n") // no file's end passes for another's start
	record("-s")
	require.Len(t, seen, 5)
}
