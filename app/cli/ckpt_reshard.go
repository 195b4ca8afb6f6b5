package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/run/ckpt"
)

func newCkptReshard() *cobra.Command {
	var step int64
	var ranks int
	var out, layout string
	var asJSON bool
	var names []string
	for _, l := range ckpt.Layouts {
		names = append(names, l.Name+" ("+l.Summary+")")
	}
	cmd := &cobra.Command{
		Use:   "reshard PLACE -n RANKS -o PLACE",
		Short: "Rewrite a checkpoint for another number of ranks",
		Long: `Rewrite a checkpoint for another number of ranks; every bit of every tensor stays the
same. Training does not need it: any layout loads into any other. Layouts: ` + strings.Join(names, ", ") + `.`,
		Example: `  weft ckpt reshard runs/gpt/ckpt -n 3 -o runs/gpt-3
  weft ckpt reshard s3://models/gpt -n 1 --layout whole -o one   # for programs that read safetensors`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cut, err := ckpt.FindLayout(layout)
			if err != nil {
				return fmt.Errorf("--layout: %w", err)
			}
			switch {
			case ranks < 1:
				return fmt.Errorf("--ranks %d: want 1 or more", ranks)
			case out == "":
				return errors.New("say where to write with -o DIR or -o s3://BUCKET/PREFIX")
			}
			return withStore(cmd, args[0], func(ctx context.Context, src *ckpt.Store) error {
				m, err := pick(cmd, ctx, src, step)
				if err != nil {
					return err
				}
				dst, err := ckpt.Open(ctx, out, ckpt.Options{})
				if err != nil {
					return err
				}
				if err := ckpt.Reshard(ctx, src, m, dst, ranks, cut, "reshard-"+layout); err != nil {
					return finding{err}
				}
				done, err := dst.At(ctx, m.Step)
				if err != nil {
					return finding{err}
				}
				if asJSON {
					return printJSON(cmd.OutOrStdout(), map[string]any{
						"step": m.Step, "from_ranks": m.World, "to_ranks": done.World, "layout": layout, "bytes": done.Bytes(), "place": out,
					})
				}
				fmt.Fprintf(cmd.OutOrStdout(), "step %d: %s of %s to %s (%s) in %s\n", m.Step, unit.Bytes(done.Bytes()), count(m.World, "file"),
					count(done.World, "file"), layout, out)
				return nil
			})
		},
	}
	flags := cmd.Flags()
	flags.IntVarP(&ranks, "ranks", "n", 0, "`RANKS` to split for")
	flags.StringVarP(&out, "out", "o", "", "`PLACE` to write to")
	flags.StringVar(&layout, "layout", "flat", "how tensors are split")
	flags.BoolVar(&asJSON, "json", false, "print as JSON")
	stepFlag(cmd, &step)
	return cmd
}
