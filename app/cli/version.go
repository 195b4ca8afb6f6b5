package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/weft-fabric/weft/run/release"
)

func newVersion() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print this binary's version, commit, compiler and platform",
		Long: `Print what this binary was built from. Binaries built outside a checkout, or by
'go run', have version (devel) and an unknown commit.`,
		Example: `  weft version
  weft version --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b := release.This()
			if asJSON {
				return printJSON(cmd.OutOrStdout(), b)
			}
			commit := b.Commit
			if b.Dirty {
				commit += ", with changes that were not committed"
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "weft      %s\ncommit    %s\ntime      %s\ngo        %s\nplatform  %s\n",
				b.Version, commit, b.Time, b.Go, b.Platform)
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
