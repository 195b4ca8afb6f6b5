package cli

import (
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/weft-fabric/weft/predict/tune"
)

// isCollective says how a collective is given to a verb for which it is a flag; nil if the word is none, or the verb has no such flag.
func isCollective(cmd *cobra.Command, word string) error {
	flag := cmd.Flags().Lookup("op")
	if flag == nil {
		return nil
	}
	if value, _ := pflag.UnquoteUsage(flag); value != "COLLECTIVE" {
		return nil
	}
	op, err := tune.ParseOp(word)
	if err != nil {
		return nil
	}
	return fmt.Errorf("%q is a collective; it goes with --op %s", word, op)
}

// askForOp has verbs whose collective is a flag say so where it is given as an argument.
func askForOp(cmd *cobra.Command) {
	if args := cmd.Args; args != nil {
		cmd.Args = func(cmd *cobra.Command, given []string) error {
			err := args(cmd, given)
			for _, word := range given {
				if op := isCollective(cmd, word); err != nil && op != nil {
					return op
				}
			}
			return err
		}
	}
	for _, sub := range cmd.Commands() {
		askForOp(sub)
	}
}
