// Package chartdocs makes the chart's table of values from the comments in its
// values.yaml, so that the two cannot differ.
package chartdocs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Value is one documented value: a leaf of values.yaml, or a map or list that
// is given as a whole.
type Value struct {
	Path    string // dotted
	Default string // JSON
	Meaning string
}

// Values reads values.yaml. Each value needs a comment above it; a map whose
// keys have none is one value.
func Values(content []byte) ([]Value, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(content, &doc); err != nil {
		return nil, err
	}
	if len(doc.Content) != 1 || doc.Content[0].Kind != yaml.MappingNode {
		return nil, errors.New("want one map")
	}
	return under("", doc.Content[0])
}

func under(prefix string, node *yaml.Node) ([]Value, error) {
	var all []Value
	for i := 0; i < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		path := prefix + key.Value
		meaning := comment(key)
		if meaning == "" {
			if value.Kind != yaml.MappingNode || len(value.Content) == 0 {
				return nil, fmt.Errorf("line %d: %s has no comment", key.Line, path)
			}
			inner, err := under(path+".", value)
			if err != nil {
				return nil, err
			}
			all = append(all, inner...)
			continue
		}
		var plain any
		if err := value.Decode(&plain); err != nil {
			return nil, fmt.Errorf("line %d: %s: %w", key.Line, path, err)
		}
		usual, err := json.Marshal(plain)
		if err != nil {
			return nil, fmt.Errorf("line %d: %s: %w", key.Line, path, err)
		}
		all = append(all, Value{Path: path, Default: string(usual), Meaning: meaning})
	}
	return all, nil
}

// comment is the last paragraph above the key: the ones before it belong to
// the file.
func comment(key *yaml.Node) string {
	paragraphs := strings.Split(key.HeadComment, "\n\n")
	lines := strings.Split(paragraphs[len(paragraphs)-1], "\n")
	for i, line := range lines {
		lines[i] = strings.TrimSpace(strings.TrimPrefix(line, "#"))
	}
	return strings.Join(lines, " ")
}

// Table is the values as a Markdown table.
func Table(values []Value) []byte {
	var out bytes.Buffer
	out.WriteString("| value | default | meaning |\n|---|---|---|\n")
	cell := strings.NewReplacer("|", `\|`, "\n", " ")
	for _, v := range values {
		fmt.Fprintf(&out, "| `%s` | `%s` | %s |\n", v.Path, cell.Replace(v.Default), cell.Replace(v.Meaning))
	}
	return out.Bytes()
}

const (
	begin = "<!-- values: made of values.yaml, do not edit -->\n"
	end   = "<!-- /values -->\n"
)

// Update returns the readme with the table between its two marks made anew.
func Update(readme, values []byte) ([]byte, error) {
	all, err := Values(values)
	if err != nil {
		return nil, fmt.Errorf("values.yaml: %w", err)
	}
	before, rest, found := bytes.Cut(readme, []byte(begin))
	if !found {
		return nil, fmt.Errorf("the readme has no line %q", strings.TrimSpace(begin))
	}
	_, after, found := bytes.Cut(rest, []byte(end))
	if !found {
		return nil, fmt.Errorf("the readme has no line %q", strings.TrimSpace(end))
	}
	return bytes.Join([][]byte{before, []byte(begin), Table(all), []byte(end), after}, nil), nil
}
