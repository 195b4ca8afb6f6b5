package cli

import (
	"bytes"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/sched"
	"github.com/weft-fabric/weft/tune"
)

func newCalibrate() *cobra.Command {
	var out, op string
	cmd := &cobra.Command{
		Use:   "calibrate LOG...",
		Short: "Fit the cost model to nccl-tests logs of a cluster, with error bars",
		Long: `Fit an alpha-beta-gamma model to measurements: logs of nccl-tests in the old or
the new column form, or comma-separated points (op, gpus, bytes, time_us and,
optionally, nodes). The result is a small text file that 'sim collective' and
'explain' take with --cal.`,
		Example: `  weft calibrate all-reduce.log reduce-scatter.log -o my-cluster.cal
  weft calibrate points.csv
  weft sim collective --size 8B..1GiB --host dgx-a100 --cal my-cluster.cal`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var as sched.Collective
			if op != "" {
				var err error
				if as, err = tune.ParseOp(op); err != nil {
					return fmt.Errorf("--op: %w", err)
				}
			}
			var points []tune.Point
			for _, path := range args {
				data, err := readInput(cmd, path)
				if err != nil {
					return err
				}
				read := func() ([]tune.Point, error) { return tune.ReadNCCLTestsAs(bytes.NewReader(data), as) }
				if strings.EqualFold(filepath.Ext(path), ".csv") {
					read = func() ([]tune.Point, error) { return tune.ReadPoints(bytes.NewReader(data)) }
				}
				more, err := read()
				if err != nil {
					return fmt.Errorf("%s: %w", path, err)
				}
				points = append(points, more...)
			}
			c, err := tune.Calibrate(points)
			if err != nil {
				return err
			}
			if out == "" {
				_, err = io.WriteString(cmd.OutOrStdout(), c.String())
				return err
			}
			for _, l := range c.Links {
				fmt.Fprintf(cmd.OutOrStdout(), "%s: %d points, %s to %s, %d to %d GPUs: bus %s, median error %.1f%%, 90th percentile %.1f%%\n",
					l.Kind, l.Points, l.From, l.To, l.MinGPUs, l.MaxGPUs, l.Bus(), 100*l.MedianError, 100*l.P90Error)
			}
			return output(cmd, out, func(w io.Writer) error { _, err := io.WriteString(w, c.String()); return err })
		},
	}
	cmd.Flags().StringVarP(&out, "output", "o", "", "`FILE` to write the calibration to; standard output without it")
	cmd.Flags().StringVar(&op, "op", "", "`COLLECTIVE` of the logs, where they do not say: old ones of all-gather and all-to-all look alike")
	return cmd
}

// readCalibration reads a file that calibrate wrote.
func readCalibration(cmd *cobra.Command, path string) (*tune.Calibration, error) {
	data, err := readInput(cmd, path)
	if err != nil {
		return nil, err
	}
	c, err := tune.ReadCalibration(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}
