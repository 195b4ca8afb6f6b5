package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/ckpt"
	"github.com/weft-fabric/weft/unit"
)

func newCkpt() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ckpt",
		Short: "List, show, verify and reshard checkpoints",
		Long: `Work on the checkpoints of training, in a directory or in an S3-compatible object
store. PLACE is a directory, or s3://BUCKET/PREFIX with AWS_ENDPOINT_URL,
AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN and AWS_REGION in the
environment. A directory with safetensors files of other programs is read too.`,
		RunE: group,
	}
	cmd.AddCommand(newCkptList(), newCkptShow(), newCkptVerify(), newCkptReshard())
	return cmd
}

// withStore opens the place that a verb reads; a signal ends what runs on it.
func withStore(cmd *cobra.Command, where string, work func(context.Context, *ckpt.Store) error) error {
	parent := cmd.Context()
	if parent == nil {
		parent = context.Background()
	}
	ctx, stop := signal.NotifyContext(parent, os.Interrupt, syscall.SIGTERM)
	defer stop()
	if !strings.Contains(where, "://") {
		if st, err := os.Stat(where); errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("no directory %q", where)
		} else if err == nil && !st.IsDir() {
			return fmt.Errorf("%s is a file; give the directory it lies in", where)
		}
	}
	s, err := ckpt.Open(ctx, where, ckpt.Options{})
	if err != nil {
		return err
	}
	return errors.Join(work(ctx, s), s.Close())
}

func newCkptList() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list PLACE",
		Short: "List checkpoints by step",
		Long: `List checkpoints by step with their state: complete, damaged (a manifest or files
that are missing or not right), incomplete (no manifest: being written, or left by
writers that died), foreign (files of other programs). Data is not read; 'weft ckpt
verify' does that.`,
		Example: "  weft ckpt list runs/gpt/ckpt\n  weft ckpt list s3://models/gpt --json",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withStore(cmd, args[0], func(ctx context.Context, s *ckpt.Store) error {
				list, err := s.List(ctx)
				if err != nil {
					return finding{err}
				}
				if asJSON {
					if list == nil {
						list = []ckpt.Entry{}
					}
					return printJSON(cmd.OutOrStdout(), list)
				}
				if len(list) == 0 {
					fmt.Fprintf(cmd.OutOrStdout(), "no checkpoints in %s\n", args[0])
					return nil
				}
				w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
				fmt.Fprintln(w, "step\tstate\tepoch\tranks\ttensors\tsize\tcreated\tfolder")
				for _, e := range list {
					created := "-"
					if !e.Created.IsZero() {
						created = e.Created.Format(time.RFC3339)
					}
					state := string(e.State)
					if e.Emergency {
						state += ", emergency"
					}
					fmt.Fprintf(w, "%d\t%s\t%d\t%d\t%d\t%v\t%s\t%s\n", e.Step, state, e.Epoch, e.World, e.Tensors, unit.Bytes(e.Bytes), created, e.Folder)
				}
				if err := w.Flush(); err != nil {
					return err
				}
				for _, e := range list {
					for _, p := range e.Problems {
						fmt.Fprintf(cmd.OutOrStdout(), "step %d: %s\n", e.Step, p)
					}
				}
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print as JSON")
	return cmd
}

// stepFlag chooses a checkpoint; the latest without it.
func stepFlag(cmd *cobra.Command, step *int64) {
	cmd.Flags().Int64Var(step, "step", -1, "the checkpoint of `STEP`; the latest without it")
}

// pick finds the checkpoint of a step, the latest whole one for -1, and says on
// standard error what was passed over.
func pick(cmd *cobra.Command, ctx context.Context, s *ckpt.Store, step int64) (*ckpt.Manifest, error) {
	var m *ckpt.Manifest
	var err error
	if step >= 0 {
		m, err = s.At(ctx, step)
	} else {
		var bad []*ckpt.Damage
		m, bad, err = s.Latest(ctx)
		for _, d := range bad {
			if m != nil {
				fmt.Fprintf(cmd.ErrOrStderr(), "weft: passed over: %v\n", d)
			}
		}
	}
	if d := new(ckpt.Damage); errors.As(err, &d) {
		return nil, finding{err}
	}
	return m, err
}

func newCkptShow() *cobra.Command {
	var asJSON bool
	var step int64
	cmd := &cobra.Command{
		Use:     "show PLACE",
		Short:   "Show a checkpoint: states, files, tensors and how they are split",
		Example: "  weft ckpt show runs/gpt/ckpt\n  weft ckpt show runs/gpt/ckpt --step 2000 --json",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withStore(cmd, args[0], func(ctx context.Context, s *ckpt.Store) error {
				m, err := pick(cmd, ctx, s, step)
				if err != nil {
					return err
				}
				if asJSON {
					return printJSON(cmd.OutOrStdout(), m)
				}
				return m.Print(cmd.OutOrStdout())
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the manifest as JSON")
	stepFlag(cmd, &step)
	return cmd
}

// verified is a line of verify.
type verified struct {
	Step     int64          `json:"step"`
	State    ckpt.State     `json:"state"`
	Folder   string         `json:"folder"`
	Files    int            `json:"files"`
	Bytes    int64          `json:"bytes"`
	Problems []ckpt.Problem `json:"problems,omitempty"`
}

func newCkptVerify() *cobra.Command {
	var asJSON bool
	var step int64
	cmd := &cobra.Command{
		Use:   "verify PLACE",
		Short: "Read checkpoints in full and check every byte",
		Long: `Read checkpoints in full and check manifests, headers and data against their
checksums: one flipped bit anywhere is found and placed. Exit code 1 if anything is
wrong, or if there is nothing to verify. Folders without a manifest are named and
are no damage. Files of other programs have no checksums; their structure is checked.`,
		Example: "  weft ckpt verify runs/gpt/ckpt\n  weft ckpt verify s3://models/gpt --step 2000",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withStore(cmd, args[0], func(ctx context.Context, s *ckpt.Store) error {
				list, err := s.List(ctx)
				if err != nil {
					return finding{err}
				}
				results := []verified{}
				checked, damaged := 0, 0
				for _, e := range list {
					if step >= 0 && e.Step != step {
						continue
					}
					v := verified{Step: e.Step, State: e.State, Folder: e.Folder, Files: e.World, Bytes: e.Bytes}
					if e.State != ckpt.Incomplete {
						checked++
						if v.Problems, err = s.Verify(ctx, e); err != nil {
							return finding{err}
						}
						if len(v.Problems) > 0 {
							v.State = ckpt.Damaged
							damaged++
						}
					}
					results = append(results, v)
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
		Short: "Write a checkpoint as another number of ranks would have",
		Long: `Write a checkpoint split for another number of ranks to another place; every bit of
every tensor stays the same. Training does not need it: a checkpoint of any layout
loads into any other. Layouts: ` + strings.Join(names, ", ") + `.`,
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
				fmt.Fprintf(cmd.OutOrStdout(), "step %d: %s of %s to %s (%s) in %s\n", m.Step, unit.Bytes(done.Bytes()), count(m.World, "file"), count(done.World, "file"), layout, out)
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
