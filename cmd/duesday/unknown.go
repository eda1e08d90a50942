package main

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/duesday/duesday/internal/exitcode"
)

// variable is the environment's name for a flag.
func variable(flag string) string {
	return "DUESDAY_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// notFlags are variables that are right without a flag of their name.
var notFlags = []string{"DUESDAY_ADMIN_TOKEN", "DUESDAY_ADMIN_TOKEN_FILE", "DUESDAY_MUTANT"}

// unprefixed are variables that are no flags, and have no prefix.
var unprefixed = []string{"DATABASE_URL", "STRIPE_API_KEY", "STRIPE_API_KEY_FILE", "STRIPE_API_BASE"}

// serviceLink is what Kubernetes sets in every pod for a Service, which may well
// be called duesday-something.
var serviceLink = regexp.MustCompile(`_SERVICE_(HOST|PORT)(_|$)|_PORT$|_PORT_\d+_(TCP|UDP|SCTP)(_|$)`)

// warnUnknown says which DUESDAY_ variables have no flag: a slip there would go
// unnoticed. It never fails: one that is a flag of another command is no slip,
// and one that is left over from another version must not stop a month.
func (p *program) warnUnknown(cmd *cobra.Command) {
	if p.environ == nil {
		return
	}
	known := map[string]string{}
	for _, c := range append(cmd.Root().Commands(), cmd.Root()) {
		for _, set := range []*pflag.FlagSet{c.Flags(), c.PersistentFlags()} {
			set.VisitAll(func(f *pflag.Flag) { known[variable(f.Name)] = f.Name })
		}
	}
	var unknown []string
	for _, pair := range p.environ() {
		name, _, _ := strings.Cut(pair, "=")
		if strings.HasPrefix(name, "DUESDAY_") && known[name] == "" && !slices.Contains(notFlags, name) &&
			!strings.HasPrefix(name, "DUESDAY_BENCH_") && !serviceLink.MatchString(name) {
			unknown = append(unknown, name)
		}
	}
	slices.Sort(unknown)
	for _, name := range unknown {
		near, hint := nearest(name, maps.Keys(known)), ""
		if bare := strings.TrimPrefix(name, "DUESDAY_"); slices.Contains(unprefixed, bare) {
			near, hint = bare, fmt.Sprintf(": did you mean %s, without the prefix?", bare)
		} else if near != "" {
			hint = fmt.Sprintf(": did you mean %s?", near)
		}
		format := cmd.Flags().Lookup("log-format")
		if format == nil {
			fmt.Fprintf(p.err, "%s: warning: no flag has the name of the variable %s%s\n", cmd.CommandPath(), name, hint)
			continue
		}
		fields := []zap.Field{zap.String("variable", name)}
		if hint != "" {
			fields = append(fields, zap.String("did_you_mean", near))
		}
		p.logger(format.Value.String(), false).Warn("no flag has the name of this variable", fields...)
	}
}

// nearest is the name that a slip may have been meant as, if any is near.
func nearest(slip string, names iter.Seq[string]) string {
	near, best := "", 4
	for name := range names {
		if d := distance(slip, name); d < best || d == best && name < near {
			near, best = name, d
		}
	}
	if best > 3 {
		return ""
	}
	return near
}

// flagError names the flag that was meant, where one is near.
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) && len(unknown.GetSpecifiedName()) > 1 {
		names := []string{}
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		if near := nearest(unknown.GetSpecifiedName(), slices.Values(names)); near != "" {
			err = fmt.Errorf("%w: did you mean --%s?", err, near)
		}
	}
	return exitcode.With(exitcode.Misconfigured, err)
}

// refuseUnknown refuses names of commands and shells that there are not, where
// cobra would print a help text and exit with 0.
func refuseUnknown(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		switch cmd.Name() {
		case "help":
			cmd.RunE = func(_ *cobra.Command, args []string) error {
				about, rest, err := root.Find(args)
				if err != nil || len(rest) > 0 {
					return unknownCommand(about, args[len(args)-max(len(rest), 1)])
				}
				about.InitDefaultHelpFlag()
				return about.Help()
			}
		case "completion":
			cmd.Args = cobra.ArbitraryArgs
			cmd.RunE = func(cmd *cobra.Command, args []string) error {
				if len(args) > 0 {
					return usage("unknown shell %q: want bash, fish, powershell or zsh", args[0])
				}
				return cmd.Help()
			}
		}
	}
}

func unknownCommand(parent *cobra.Command, name string) error {
	parent.SuggestionsMinimumDistance = 2
	hint := ""
	if near := parent.SuggestionsFor(name); len(near) > 0 {
		hint = fmt.Sprintf(", did you mean %s?", strings.Join(near, " or "))
	}
	return usage("unknown command %q%s: see duesday --help", name, hint)
}

// distance is how many letters must be changed, added or left out to make a
// text another.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
