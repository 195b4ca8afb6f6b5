package cli

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/predict/plan"
	"github.com/weft-fabric/weft/predict/tune"
)

// logOp reads the collective that logs are taken to be of, 0 where they say it themselves.
func logOp(name string) (op sched.Collective, err error) {
	if name == "" {
		return 0, nil
	}
	if op, err = tune.ParseOp(name); err != nil {
		return 0, fmt.Errorf("--op: %w", err)
	}
	return op, nil
}

// readPoints reads a table of points or a log of nccl-tests, whose collective is as where it does not say.
func readPoints(cmd *cobra.Command, path string, as sched.Collective) (points []tune.Point, err error) {
	data, err := readInput(cmd, path)
	if err != nil {
		return nil, err
	}
	if strings.EqualFold(filepath.Ext(path), ".csv") {
		points, err = tune.ReadPoints(bytes.NewReader(data))
	} else {
		points, err = tune.ReadNCCLTestsAs(bytes.NewReader(data), as)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return points, nil
}

func printFit(w io.Writer, c *tune.Calibration) {
	for _, l := range c.Links {
		fmt.Fprintf(w, "%s: %d points, %s to %s, %d to %d GPUs: bus %s, error on left-out points: median %.1f%%, 90th percentile %.1f%%\n",
			l.Kind, l.Points, l.From, l.To, l.MinGPUs, l.MaxGPUs, l.Bus(), 100*l.MedianError, 100*l.P90Error)
	}
}

func newCalibrate() *cobra.Command {
	var out, op, steps, on string
	var p presetFlags
	cmd := &cobra.Command{
		Use:   "calibrate LOG... | --steps FILE --cluster CLUSTER",
		Short: "Fit the NCCL model to nccl-tests logs from your cluster, with error bars",
		Long: `Fit an alpha-beta-gamma model to measurements: nccl-tests logs in the old or new
column format, or comma-separated points (op, gpus, bytes, time_us and optionally
nodes). 'sim collective' and 'explain' read the result with --cal.

With --steps fit the factor of 'weft plan' to your own training steps: a table with
the columns model, framework, layout and step_s, the layout as in 'weft plan --layout'
with its fields joined by spaces. 'weft plan' reads the result with --cal.`,
		Example: `  weft calibrate all-reduce.log reduce-scatter.log -o my-cluster.cal
  weft calibrate points.csv
  weft sim collective --size 8B..1GiB --host dgx-a100 --cal my-cluster.cal
  weft calibrate --steps steps.csv --cluster dgx-h100 -o my.factors`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if steps != "" {
				if len(args) > 0 || op != "" {
					return fmt.Errorf("--steps stands alone: give logs or steps")
				}
				return calibrateSteps(cmd, steps, on, p, out)
			}
			if len(args) == 0 {
				return fmt.Errorf("give logs of nccl-tests, or --steps FILE with --cluster")
			}
			as, err := logOp(op)
			if err != nil {
				return err
			}
			var points []tune.Point
			for _, path := range args {
				more, err := readPoints(cmd, path, as)
				if err != nil {
					return err
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
			printFit(cmd.OutOrStdout(), c)
			return output(cmd, out, func(w io.Writer) error { _, err := io.WriteString(w, c.String()); return err })
		},
	}
	cmd.Flags().StringVarP(&out, "output", "o", "", "`FILE` to write the calibration to; default: standard output")
	cmd.Flags().StringVar(&op, "op", "", "`COLLECTIVE` of the logs, where they do not say: old ones of all-gather and all-to-all look alike")
	cmd.Flags().StringVar(&steps, "steps", "", "fit the factor of plans to the training steps in `FILE`")
	cmd.Flags().StringVar(&on, "cluster", "", "`CLUSTER` that the steps ran on")
	p.register(cmd)
	_ = cmd.RegisterFlagCompletionFunc("cluster", clusterNames)
	return cmd
}

// calibrateSteps fits the factor of plans to a user's own steps.
func calibrateSteps(cmd *cobra.Command, path, on string, p presetFlags, out string) error {
	data, err := readInput(cmd, path)
	if err != nil {
		return err
	}
	r := csv.NewReader(bytes.NewReader(data))
	r.Comment, r.TrimLeadingSpace = '#', true
	rows, err := r.ReadAll()
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if len(rows) < 2 {
		return fmt.Errorf("%s has no steps; want the columns model, framework, layout, step_s and a row for each run", path)
	}
	at := map[string]int{}
	for i, name := range rows[0] {
		at[strings.ToLower(strings.TrimSpace(name))] = i
	}
	for _, name := range []string{"model", "framework", "layout", "step_s"} {
		if _, ok := at[name]; !ok {
			return fmt.Errorf("%s: no column %s; it has %q, want model, framework, layout, step_s, with commas between",
				path, name, strings.Join(rows[0], ","))
		}
	}
	var all []plan.Own
	for i, row := range rows[1:] {
		wrong := func(err error) error { return fmt.Errorf("%s: row %d: %w", path, i+2, err) }
		m, err := loadModel(cmd, row[at["model"]])
		if err != nil {
			return wrong(err)
		}
		f, err := plan.ParseFramework(row[at["framework"]])
		if err != nil {
			return wrong(err)
		}
		l, err := plan.ParseLayout(row[at["layout"]], f, 0)
		if err != nil {
			return wrong(err)
		}
		step, err := strconv.ParseFloat(row[at["step_s"]], 64)
		if err != nil || !(step > 0) {
			return wrong(fmt.Errorf("step_s is %q; want seconds", row[at["step_s"]]))
		}
		c, _, err := planCluster(cmd, on, p, l.GPUs())
		if err != nil {
			return err
		}
		mc, err := plan.NewMachine(c, l.GPUs())
		if err != nil {
			return wrong(err)
		}
		all = append(all, plan.Own{Question: plan.Question{Model: m, Machine: mc, Framework: f, Layout: l}, Step: step})
	}
	fitted, err := plan.Calibrate(all)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return output(cmd, out, func(w io.Writer) error { _, err := io.WriteString(w, plan.WriteFactors(fitted)); return err })
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
