package chart

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/e2e/programs"
	"github.com/duesday/duesday/internal/chartdocs"
	"github.com/duesday/duesday/internal/charttest"
)

const (
	repository = "../.."
	chart      = repository + "/helm/duesday"
)

// helmCommand builds Helm, unless the cache has it.
var helmCommand = sync.OnceValues(func() (string, error) {
	return programs.Helm(context.Background(), os.Stderr)
})

// helm runs helm; the error carries what it said.
func helm(t *testing.T, args ...string) (string, error) {
	path, err := helmCommand()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+t.TempDir(), "HELM_CONFIG_HOME="+t.TempDir(), "HELM_DATA_HOME="+t.TempDir())
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%w: %s", err, complaint.String())
	}
	return out.String(), nil
}

// template renders the chart as release duesday.
func template(t *testing.T, args ...string) (string, error) {
	return helm(t, append([]string{"template", "duesday", chart, "--kube-version", "1.36.3"}, args...)...)
}

// render renders and decodes; each setting is a path and its JSON.
func render(t *testing.T, settings ...setting) []charttest.Object {
	manifest, err := template(t, flags(settings)...)
	require.NoError(t, err)
	return decode(t, manifest)
}

func decode(t *testing.T, manifest string) []charttest.Object {
	all, err := charttest.Decode([]byte(manifest))
	require.NoError(t, err)
	return all
}

type setting struct{ path, json string }

func flags(settings []setting) []string {
	var args []string
	for _, s := range settings {
		args = append(args, "--set-json", s.path+"="+s.json)
	}
	return args
}

func find[T charttest.Object](t *testing.T, all []charttest.Object, name string) T {
	found, err := charttest.Find[T](all, name)
	require.NoError(t, err)
	return found
}

// values are the documented values.
func values(t *testing.T) []chartdocs.Value {
	content, err := os.ReadFile(chart + "/values.yaml")
	require.NoError(t, err)
	all, err := chartdocs.Values(content)
	require.NoError(t, err)
	return all
}

// shell runs a command line with an input.
func shell(t *testing.T, command, input string) string {
	cmd := exec.CommandContext(t.Context(), "sh", "-c", command)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		require.NoError(t, err, string(exit.Stderr))
	}
	require.NoError(t, err)
	return string(out)
}

func marshal(t *testing.T, object any) string {
	content, err := json.Marshal(object)
	require.NoError(t, err)
	return string(content)
}
