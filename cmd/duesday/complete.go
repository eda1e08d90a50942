package main

import "github.com/spf13/cobra"

// complete says what a shell may offer for a flag.
func complete(cmd *cobra.Command, flag string, words ...string) {
	// It fails only for a flag that is not there, or twice.
	if err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err)
	}
}
