package cli

import (
	"github.com/spf13/cobra"
)

func newAlgoShow() *cobra.Command {
	var f algoFlags
	var ranks int
	var to, out string
	cmd := &cobra.Command{
		Use:   "show NAME|FILE",
		Short: "Show an algorithm's program as text, as MSCCL XML, or as a picture",
		Long: `Show an algorithm's program: one text for all ranks, in which r is the rank, n
the number of ranks and c the channel. --to msccl writes MSCCL XML for every
rank, --to mscclpp an MSCCL++ execution plan, and -o FILE.svg a picture of who
sends what when. FILE is a program in weft's text form, MSCCL XML or an MSCCL++
plan, '-' for standard input.`,
		Example: `  weft algo show ring -n 8
  weft algo show double-binary-tree -n 8 -o tree.svg
  weft algo show hierarchical -n 32 --local 8 --inner direct --outer tree
  weft algo show ring -n 8 --channels 2 --to msccl -o ring.xml
  weft algo show theirs.xml -o theirs.svg`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: algoNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := f.program(cmd, args[0], ranks)
			if err != nil {
				return err
			}
			return writeProgram(cmd, p, to, out)
		},
	}
	cmd.Flags().IntVarP(&ranks, "ranks", "n", 8, "number of ranks")
	cmd.Flags().StringVar(&to, "to", "", "`FORM`: weft, msccl, mscclpp or svg; default: by the ending of -o, else weft")
	cmd.Flags().StringVarP(&out, "output", "o", "", "`FILE` to write; default: standard output")
	f.register(cmd)
	return cmd
}
