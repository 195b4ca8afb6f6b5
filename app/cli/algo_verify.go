package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/collective/algo"
)

func newAlgoVerify() *cobra.Command {
	var f algoFlags
	var ranks string
	var all, asJSON, verbose bool
	cmd := &cobra.Command{
		Use:     "verify NAME|FILE ...",
		Aliases: []string{"prove"},
		Short:   "Prove that algorithms or program files are correct",
		Long: `Prove programs: every rank ends with what the collective promises, with every
contribution once and added in the same association on every rank; no rank waits
forever; no chunk is used without an order. NAME is an algorithm, proven for all its
collectives or for --op; FILE is a program in weft's text form or MSCCL XML, '-' for
standard input.

A wrong program prints one line and exits with 1; -v adds the steps that led there.`,
		Example: `  weft algo verify ring -n 64
  weft algo verify program.weft allreduce.xml
  weft algo verify --all --ranks 2..64`,
		ValidArgsFunction: algoNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			if all != (len(args) == 0) {
				return fmt.Errorf("name algorithms or files, or say --all")
			}
			counts, err := parseRanks(ranks)
			if err != nil {
				return err
			}
			v := &prover{f: f, counts: counts, all: all, bar: newProofBar(cmd.ErrOrStderr())}
			if all {
				for _, a := range algo.All() {
					args = append(args, a.Name)
				}
			}
			for _, arg := range args {
				if err := v.prove(cmd, arg); err != nil {
					v.bar.clear()
					if wrong := new(disproof); verbose && errors.As(err, wrong) {
						return finding{fmt.Errorf("%+v", wrong.error)}
					}
					return err
				}
			}
			v.bar.clear()
			if asJSON {
				return printJSON(cmd.OutOrStdout(), v.reports)
			}
			return v.print(cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVarP(&ranks, "ranks", "n", "8", "`COUNTS` of ranks for algorithms: 64, 2..64 or 2..64,128")
	cmd.Flags().BoolVar(&all, "all", false, "all algorithms; those of two levels in domains of up to 8")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a report for every program as JSON")
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "for a wrong program, print the steps that led there")
	f.register(cmd)
	return cmd
}
