// Package cli is the command line: one file a verb, each of them help text,
// flags, one call into a package, and printing. Nothing imports cli.
//
// Exit codes: 0 fine, 1 a finding or a failure, 2 wrong use or bad input; 'run' exits
// with the code of the rank that failed.
package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/run/comm"
	"github.com/weft-fabric/weft/run/comm/device"
	"github.com/weft-fabric/weft/run/launch"
)

// finding is an error that is an answer rather than wrong use: it exits with 1.
type finding struct{ error }

func (f finding) Unwrap() error { return f.error }

// Main runs one command line and gives the exit code.
func Main(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteC()
	if err == nil {
		return 0
	}
	fmt.Fprintf(stderr, "weft: %s\n", strings.ReplaceAll(err.Error(), "\n", "\n      "))
	if rank := (*launch.Failure)(nil); errors.As(err, &rank) {
		if code := rank.Exit.Status(); code <= 2 || cmd.Name() == "run" { // whose ranks are the user's
			return code
		}
		return 1
	}
	if errors.As(err, new(finding)) {
		return 1
	}
	if strings.Contains(err.Error(), "arg(s)") { // cobra counts arguments and does not say which they are
		fmt.Fprintf(stderr, "Usage: %s\n", cmd.UseLine())
	}
	fmt.Fprintf(stderr, "Try '%s --help'.\n", cmd.CommandPath())
	return 2
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "weft",
		Short: "Design, prove, predict, run and watch GPU cluster networks",
		Long: `weft designs GPU cluster networks, proves and predicts how collectives and
training run on them, runs them, and watches what runs.

CLUSTER, wherever a verb asks for one, is a cluster file (YAML), a topology in a
dialect that 'weft topo import' knows, '-' for standard input, or the name of a
preset or host: see 'weft topo build --list'.`,
		Example: `  weft design examples/rail-1k.yaml
  weft topo build dgx-h100
  weft topo paths examples/rail-1k.yaml n0:gpu0 n17:gpu5`,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          group,
	}
	root.AddCommand(newTopo(), newDesign(), newAlgo(), newExplain(), newCalibrate(), newPlan(), newSim(), runsRanks(newRun()), runsRanks(newBench()), newBenchRank(), newFitRank(), newCkpt(),
		newNet(), newLab(), newLabInit(), newLabRank(), runsRanks(newUp()), newRank(), newServeWorker(), newOutsideAgent(), newCoord(), newDoctor(), newAgent(), newWatch(), newKV(), newXfer(), newVersion())
	refuseIgnored(root)
	completeFlags(root, choices())
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if c.Name() == "completion" {
			c.Args, c.RunE = cobra.ArbitraryArgs, group
		}
	}
	return root
}

// runsRanks has a verb say at once where it cannot work: ranks take Linux, and settings that are known.
func runsRanks(cmd *cobra.Command) *cobra.Command {
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if err := launch.Supported(); err != nil {
			return finding{fmt.Errorf("%s: %w", cmd.CommandPath(), err)}
		}
		return checkSettings(cmd)
	}
	return cmd
}

// checkSettings says what is wrong with the WEFT_ variables that ranks would get.
func checkSettings(cmd *cobra.Command) error {
	environ := append([]string{"WEFT_TOKEN=drawn for each run"}, os.Environ()...)
	if tls := cmd.Flags().Lookup("tls"); tls != nil && tls.Changed {
		environ = append(environ, "WEFT_TLS="+tls.Value.String())
	}
	if more, err := cmd.Flags().GetStringArray("env"); err == nil {
		environ = append(environ, more...)
	}
	hosts := cmd.Flags().Lookup("hosts")
	_, err := device.FromEnviron(environ)
	return errors.Join(comm.CheckEnviron(environ, hosts == nil || !hosts.Changed), err)
}

// ofRank is the error of a rank: a failure, unless the rank was told something that cannot be.
func ofRank(err error) error {
	if _, wrong := errors.AsType[*comm.SettingError](err); wrong || err == nil {
		return err
	}
	return finding{err}
}

// group is what a command does that only holds others: help, or an error that names them.
func group(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	return fmt.Errorf("unknown verb %q; known: %s", args[0], strings.Join(names, ", "))
}
