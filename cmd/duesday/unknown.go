package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.uber.org/zap"
)

// variable is the environment's name for a flag.
func variable(flag string) string {
	return "DUESDAY_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// notFlags are variables that are right without a flag of their name.
var notFlags = []string{"DUESDAY_ADMIN_TOKEN", "DUESDAY_ADMIN_TOKEN_FILE", "DUESDAY_MUTANT"}

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
		near, best := "", len(name)
		for other, flag := range known {
			if d := distance(name, other); d < best || d == best && flag < near {
				near, best = flag, d
			}
		}
		hint := ""
		if best <= 3 {
			hint = fmt.Sprintf(": did you mean %s?", variable(near))
		}
		format := cmd.Flags().Lookup("log-format")
		if format == nil {
			fmt.Fprintf(p.err, "%s: warning: no flag has the name of the variable %s%s\n", cmd.CommandPath(), name, hint)
			continue
		}
		fields := []zap.Field{zap.String("variable", name)}
		if hint != "" {
			fields = append(fields, zap.String("did_you_mean", variable(near)))
		}
		p.logger(format.Value.String(), false).Warn("no flag has the name of this variable", fields...)
	}
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
