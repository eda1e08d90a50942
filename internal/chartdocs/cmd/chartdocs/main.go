// Command chartdocs makes the table of values in the chart's README.md anew.
// Run it in the module's folder.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/duesday/duesday/internal/chartdocs"
)

func main() {
	if err := run("helm/duesday"); err != nil {
		fmt.Fprintln(os.Stderr, "chartdocs:", err)
		os.Exit(1)
	}
}

func run(chart string) error {
	values, err := os.ReadFile(filepath.Join(chart, "values.yaml"))
	if err != nil {
		return err
	}
	path := filepath.Join(chart, "README.md")
	readme, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	updated, err := chartdocs.Update(readme, values)
	if err != nil {
		return err
	}
	return os.WriteFile(path, updated, 0o644)
}
