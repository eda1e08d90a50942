package main

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// complete says what a shell may offer for a flag.
func complete(cmd *cobra.Command, flag string, words ...string) {
	// It fails only for a flag that is not there, or twice.
	if err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err)
	}
}

// completeFlags keeps a shell from offering file names for flags that want none,
// and for arguments, of which there are none.
func completeFlags(root *cobra.Command) {
	for _, cmd := range root.Commands() {
		cmd.ValidArgsFunction = cobra.NoFileCompletions
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if _, has := cmd.GetFlagCompletionFunc(f.Name); !has && !strings.HasSuffix(f.Name, "-file") && f.Name != "dir" {
				complete(cmd, f.Name)
			}
		})
	}
}

// isCompletion is whether a shell asks, or is taught how to.
func isCompletion(cmd *cobra.Command) bool {
	for ; cmd != nil; cmd = cmd.Parent() {
		if name := cmd.Name(); name == "completion" || name == cobra.ShellCompRequestCmd || name == cobra.ShellCompNoDescRequestCmd {
			return true
		}
	}
	return false
}
