package charttest_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/duesday/duesday/internal/chartdocs"
)

const chart = "../../helm/duesday"

// schema is what the test reads of a JSON schema.
type schema struct {
	Type                 any               `json:"type"`
	Ref                  string            `json:"$ref"`
	Properties           map[string]schema `json:"properties"`
	AdditionalProperties any               `json:"additionalProperties"`
	Items                *schema           `json:"items"`
	Defs                 map[string]schema `json:"$defs"`
}

func readSchema(t *testing.T) schema {
	content, err := os.ReadFile(chart + "/values.schema.json")
	require.NoError(t, err)
	var s schema
	require.NoError(t, json.Unmarshal(content, &s))
	return s
}

func readValues(t *testing.T) []chartdocs.Value {
	content, err := os.ReadFile(chart + "/values.yaml")
	require.NoError(t, err)
	values, err := chartdocs.Values(content)
	require.NoError(t, err)
	return values
}

// Every documented value is in the schema, and the schema has nothing else.
func TestSchema_hasTheValues(t *testing.T) {
	documented := map[string]bool{}
	for _, v := range readValues(t) {
		documented[v.Path] = true
		at := readSchema(t)
		for _, part := range strings.Split(v.Path, ".") {
			require.Contains(t, at.Properties, part, v.Path)
			at = at.Properties[part]
		}
	}
	var walk func(path string, s schema)
	walk = func(path string, s schema) {
		if documented[path] || path == "global" { // Helm's own, for subcharts
			return
		}
		require.NotEmpty(t, s.Properties, "%s is not in values.yaml", path)
		for name, inner := range s.Properties {
			walk(strings.TrimPrefix(path+"."+name, "."), inner)
		}
	}
	walk("", readSchema(t))
}

// A map that says what keys it has takes no others.
func TestSchema_refusesUnknownKeys(t *testing.T) {
	checked := 0
	var walk func(path string, s schema)
	walk = func(path string, s schema) {
		require.True(t, s.Type != nil || s.Ref != "", "%s has no type", path)
		if s.Properties != nil && path != ".extraVolumes[]" { // a volume may be of two dozen kinds
			require.Equal(t, false, s.AdditionalProperties, path)
			checked++
		}
		for name, inner := range s.Properties {
			walk(path+"."+name, inner)
		}
		if s.Items != nil {
			walk(path+"[]", *s.Items)
		}
	}
	all := readSchema(t)
	walk("", all)
	for name, def := range all.Defs {
		walk("$defs."+name, def)
	}
	require.Greater(t, checked, 15)
}
