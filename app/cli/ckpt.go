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

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/run/ckpt"
)

func newCkpt() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ckpt",
		Short: "List, show, verify and reshard checkpoints",
		Long: `Work with training checkpoints in a directory or an S3-compatible object
store. PLACE is a directory, or s3://BUCKET/PREFIX with AWS_ENDPOINT_URL,
AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN and AWS_REGION in the
environment. PLACE may also be the folder of one checkpoint. Directories with other programs' safetensors files work too.`,
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
	var o ckpt.Options
	if parent, folder, ok := ckpt.Within(where); ok {
		o.Only, where = folder, parent
	}
	s, err := ckpt.Open(ctx, where, o)
	if err != nil {
		return err
	}
	return errors.Join(work(ctx, s), s.Close())
}

// stepFlag chooses a checkpoint; the latest without it.
func stepFlag(cmd *cobra.Command, step *int64) {
	cmd.Flags().Int64Var(step, "step", -1, "the checkpoint of `STEP`; default: the latest")
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
