package charttest

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Program is the real duesday, asked what it makes of a container's arguments
// and environment: it would ignore a misspelt setting in silence.
type Program struct{ path string }

// Build builds the program of the repository in dir.
func Build(ctx context.Context, repository, dir string) (Program, error) {
	path, err := filepath.Abs(filepath.Join(dir, "duesday"))
	if err != nil {
		return Program{}, err
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-o", path, "./cmd/duesday")
	cmd.Dir = repository
	if said, err := cmd.CombinedOutput(); err != nil {
		return Program{}, fmt.Errorf("build duesday: %w: %s", err, said)
	}
	return Program{path}, nil
}

var flagLine = regexp.MustCompile(`^ +(?:-h, )?--([a-z-]+)[ \[].*?(?:\(default "?([^"]*?)"?\))?$`)

// Flags returns the flags of a command with their defaults, as its help tells
// them.
func (p Program) Flags(ctx context.Context, command string) (map[string]string, error) {
	help, err := exec.CommandContext(ctx, p.path, command, "--help").Output()
	if err != nil {
		return nil, fmt.Errorf("duesday %s --help: %w", command, err)
	}
	if !strings.Contains(string(help), "duesday "+command+" [flags]\n") { // the root's help
		return nil, fmt.Errorf("duesday has no command %q", command)
	}
	flags := map[string]string{}
	for line := range strings.Lines(string(help)) {
		if m := flagLine.FindStringSubmatch(strings.TrimSuffix(line, "\n")); m != nil {
			flags[m[1]] = m[2]
		}
	}
	return flags, nil
}

// Unknown returns the container's arguments and DUESDAY_ variables that its
// command does not read.
func (p Program) Unknown(ctx context.Context, c corev1.Container) ([]string, error) {
	if len(c.Args) == 0 {
		return nil, errors.New("want a command")
	}
	flags, err := p.Flags(ctx, c.Args[0])
	if err != nil {
		return nil, err
	}
	var unknown []string
	for _, arg := range c.Args[1:] {
		name, isFlag := strings.CutPrefix(arg, "--")
		name, _, _ = strings.Cut(name, "=")
		if _, ok := flags[name]; !ok || !isFlag {
			unknown = append(unknown, arg)
		}
	}
	for _, e := range c.Env {
		name, ok := Setting(e.Name)
		if !ok {
			continue
		}
		_, known := flags[name]
		if name == "admin-token-file" { // no flag: a secret's
			_, known = flags["vault-url"]
			known = known || c.Args[0] == "proxy"
		}
		if !known {
			unknown = append(unknown, e.Name)
		}
	}
	return unknown, nil
}

// Setting returns the flag that an environment variable sets, if it is named
// like one that does.
func Setting(variable string) (string, bool) {
	name, ok := strings.CutPrefix(variable, "DUESDAY_")
	return strings.ToLower(strings.ReplaceAll(name, "_", "-")), ok
}

// Try runs the container's command with the variables that the manifest itself
// gives, and without those that a cluster would: the command looks at its
// settings and ends, with exit code 2, at the first thing that it lacks.
// Returned is what it said.
func (p Program) Try(ctx context.Context, c corev1.Container, env ...string) (string, error) {
	cmd := exec.CommandContext(ctx, p.path, c.Args...)
	cmd.Env = env
	for _, e := range c.Env {
		if e.ValueFrom == nil {
			cmd.Env = append(cmd.Env, e.Name+"="+e.Value)
		}
	}
	said, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 2 {
		return "", fmt.Errorf("want exit code 2, got %w: %s", err, said)
	}
	return string(said), nil
}
