package cli

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/run/ckpt"
)

// verified is a line of verify.
type verified struct {
	Step     int64          `json:"step"`
	State    ckpt.State     `json:"state"`
	Folder   string         `json:"folder"`
	Files    int            `json:"files"`
	Bytes    int64          `json:"bytes"`
	Problems []ckpt.Problem `json:"problems,omitempty"`
}

// verifyAll reads all checkpoints that are said to be whole, and counts those and the damaged ones among them.
func verifyAll(ctx context.Context, s *ckpt.Store, list []ckpt.Entry) (results []verified, checked, damaged int, err error) {
	results = []verified{}
	for _, e := range list {
		v := verified{Step: e.Step, State: e.State, Folder: e.Folder, Files: e.World, Bytes: e.Bytes}
		if e.State != ckpt.Incomplete {
			checked++
			if v.Problems, err = s.Verify(ctx, e); err != nil {
				return nil, 0, 0, err
			}
			if len(v.Problems) > 0 {
				v.State = ckpt.Damaged
				damaged++
			}
		}
		results = append(results, v)
	}
	return results, checked, damaged, nil
}

func newCkptVerify() *cobra.Command {
	var asJSON bool
	var step int64
	cmd := &cobra.Command{
		Use:   "verify PLACE",
		Short: "Read checkpoints in full and check every byte",
		Long: `Read checkpoints in full and check manifests, headers and data against their
checksums: any flipped bit is found and located. Exit code 1 if anything is wrong or
there is nothing to verify. Folders without a manifest are listed but are no damage.
Other programs' files have no checksums; only their structure is checked.`,
		Example: "  weft ckpt verify runs/gpt/ckpt\n  weft ckpt verify s3://models/gpt --step 2000",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withStore(cmd, args[0], func(ctx context.Context, s *ckpt.Store) error {
				list, err := s.List(ctx)
				if err != nil {
					return finding{err}
				}
				if step >= 0 {
					list = slices.DeleteFunc(list, func(e ckpt.Entry) bool { return e.Step != step })
				}
				results, checked, damaged, err := verifyAll(ctx, s, list)
				if err != nil {
					return finding{err}
				}
				if asJSON {
					if err := printJSON(cmd.OutOrStdout(), results); err != nil {
						return err
					}
				} else {
					printVerified(cmd, results)
				}
				switch {
				case checked == 0 && step >= 0:
					return finding{fmt.Errorf("no checkpoint of step %d in %s to verify", step, args[0])}
				case checked == 0:
					return finding{fmt.Errorf("no checkpoint in %s to verify", args[0])}
				case damaged > 0:
					return finding{fmt.Errorf("%d of %s damaged", damaged, count(checked, "checkpoint"))}
				}
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print as JSON")
	cmd.Flags().Int64Var(&step, "step", -1, "only the checkpoint of `STEP`")
	return cmd
}

func printVerified(cmd *cobra.Command, results []verified) {
	w := cmd.OutOrStdout()
	for _, v := range results {
		what := fmt.Sprintf("whole: %s, %v", count(v.Files, "file"), unit.Bytes(v.Bytes))
		switch v.State {
		case ckpt.Incomplete:
			what = "no manifest: being written, or left by writers that died"
		case ckpt.Foreign:
			what = fmt.Sprintf("structure is right: %s, %v; no checksums", count(v.Files, "file"), unit.Bytes(v.Bytes))
		case ckpt.Damaged:
			what = "damaged"
		}
		fmt.Fprintf(w, "step %d: %s\n", v.Step, what)
		for _, p := range v.Problems {
			fmt.Fprintf(w, "  %s\n", p)
		}
	}
}
