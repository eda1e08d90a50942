package chartdocs_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/internal/chartdocs"
)

const chart = "../../helm/duesday/"

func TestReadme_agreesWithValues(t *testing.T) {
	readme, err := os.ReadFile(chart + "README.md")
	require.NoError(t, err)
	values, err := os.ReadFile(chart + "values.yaml")
	require.NoError(t, err)
	want, err := chartdocs.Update(readme, values)
	require.NoError(t, err)
	require.Equal(t, string(want), string(readme), "run: go run ./internal/chartdocs/cmd/chartdocs")
}

func TestValues(t *testing.T) {
	got, err := chartdocs.Values([]byte(`# The file's own words.

# How many
count: 0
group:
  # A text
  # in two lines
  text: "1.10"
  # Nothing
  none: null
  # As a whole
  whole:
    a: {b: [1]}
`))
	require.NoError(t, err)
	require.Equal(t, []chartdocs.Value{
		{Path: "count", Default: "0", Meaning: "How many"},
		{Path: "group.text", Default: `"1.10"`, Meaning: "A text in two lines"},
		{Path: "group.none", Default: "null", Meaning: "Nothing"},
		{Path: "group.whole", Default: `{"a":{"b":[1]}}`, Meaning: "As a whole"},
	}, got)
}

func TestValues_wantsAComment(t *testing.T) {
	for _, content := range []string{"a: 1\n", "a:\n  # x\n  b: 1\n  c: 2\n", "a: {}\n"} {
		_, err := chartdocs.Values([]byte(content))
		require.ErrorContains(t, err, "no comment", content)
	}
}

func TestUpdate_wantsItsMarks(t *testing.T) {
	_, err := chartdocs.Update([]byte("# no marks\n"), []byte("# x\na: 1\n"))
	require.Error(t, err)
}
