package runbook_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/internal/runbook"
)

func read(t *testing.T, text string) (map[string]map[string]runbook.Block, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "doc.md")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return runbook.Read(path)
}

func TestRead_returnsTheBlocks(t *testing.T) {
	t.Parallel()
	blocks, err := read(t, "# A\n```sh test=one\nduesday status\nduesday plan\n```\ntext\n```sql\nSELECT 1\n```\n  ```sh cluster=two\n  kubectl get jobs\n  ```\n")
	require.NoError(t, err)
	require.Equal(t, map[string]map[string]runbook.Block{
		"test":    {"one": {Line: 2, On: "test", Name: "one", Text: "duesday status\nduesday plan\n"}},
		"cluster": {"two": {Line: 10, On: "cluster", Name: "two", Text: "  kubectl get jobs\n"}},
		"stripe":  {},
	}, blocks)
}

func TestRead_refusesACommandThatNoTestRuns(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"```\nduesday run\n```\n", "```sh\nduesday run\n```\n", "```sh test\nduesday run\n```\n", "```sh test=\nduesday run\n```\n",
		"```bash test=a\nduesday run\n```\n", "```sh here=a\nduesday run\n```\n",
		"```sh test=a\n```\n```sh test=a\n```\n", "```sh test=a\nduesday run\n", "```sql\nSELECT 1\n",
	} {
		_, err := read(t, text)
		require.Error(t, err, text)
	}
}
