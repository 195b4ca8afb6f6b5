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
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
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

// Command is weft's command line, for what is generated from it.
func Command() *cobra.Command { return newRoot() }

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "weft",
		Short: "Design, predict, run and observe GPU cluster communication",
		Long: `weft designs GPU cluster networks, proves and predicts how collectives,
training and serving run on them, runs them, and shows what happens.

Wherever a verb takes CLUSTER, give it a cluster file (YAML), a topology in a
format that 'weft topo import' reads, '-' for standard input, or the name of a
preset or host ('weft topo build --list' shows them).`,
		Example: `  weft design examples/rail-1k.yaml
  weft sim collective --size 1GiB --cluster examples/rail-1k.yaml
  weft bench all-reduce -n 4
  weft up`,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          group,
	}
	for _, g := range jobs() {
		root.AddGroup(&cobra.Group{ID: g.id, Title: g.title})
		for _, c := range g.verbs {
			c.GroupID = g.id
			root.AddCommand(c)
		}
	}
	root.SetFlagErrorFunc(wrongFlag)
	root.SetHelpCommandGroupID(about)
	root.SetCompletionCommandGroupID(about)
	root.AddCommand(newBenchRank(), newFitRank(), newLabInit(), newLabRank(), newRank(), newServeWorker(),
		newOutsideAgent()) // hidden: processes that weft starts itself
	refuseIgnored(root)
	askForOp(root)
	completeFlags(root, choices())
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if c.Name() == "completion" {
			c.Args, c.RunE = cobra.ArbitraryArgs, group
		}
	}
	return root
}

// about is the group of verbs that tell about weft itself.
const about = "about"

// job is one kind of work that people come with; the help lists verbs by it.
type job struct {
	id, title string
	verbs     []*cobra.Command
}

func jobs() []job {
	return []job{
		{"design", "Design a network:", []*cobra.Command{newTopo(), newDesign(), newStudio(), newNet(), newLab()}},
		{"predict", "Prove and predict:", []*cobra.Command{newAlgo(), newSim(), newExplain(), newPlan(), newCalibrate()}},
		{"run", "Run:", []*cobra.Command{runsRanks(newUp()), runsRanks(newRun()), runsRanks(newBench()), newCoord(), newCkpt()}},
		{"move", "Move data:", []*cobra.Command{newXfer(), newKV(), newServe()}},
		{"observe", "Observe and diagnose:", []*cobra.Command{newWatch(), newDoctor(), newAgent()}},
		{about, "About weft:", []*cobra.Command{newVersion()}},
	}
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

// wrongFlag says what a flag for numbers wants. Flags of other kinds say it themselves.
func wrongFlag(_ *cobra.Command, err error) error {
	bad, known := errors.AsType[*pflag.InvalidValueError](err)
	number, parsed := errors.AsType[*strconv.NumError](err)
	if !known || !parsed {
		return err
	}
	want := "a number"
	switch kind := bad.GetFlag().Value.Type(); {
	case kind == "bool":
		want = "true or false"
	case errors.Is(number, strconv.ErrRange):
		want = "a number that is not so large"
	case strings.HasPrefix(kind, "uint"):
		want = "a whole number from 0 on"
	case strings.HasPrefix(kind, "int"):
		want = "a whole number"
	}
	return fmt.Errorf("--%s is %q; want %s", bad.GetFlag().Name, bad.GetValue(), want)
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
