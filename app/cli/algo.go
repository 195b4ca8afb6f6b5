package cli

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
)

func newAlgo() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "algo",
		Short: "List, show, prove and synthesise collective algorithms",
		RunE:  group,
	}
	cmd.AddCommand(newAlgoList(), newAlgoShow(), newAlgoVerify(), newAlgoSynth())
	return cmd
}

// algoFlags are the parameters of a program.
type algoFlags struct {
	op   string
	dims string
	spec algo.Spec
}

func (f *algoFlags) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.op, "op", "", "`COLLECTIVE`, like all-reduce; default: the algorithm's first")
	flags.IntVar(&f.spec.Root, "root", 0, "root `RANK` of a rooted collective")
	flags.IntVar(&f.spec.Channels, "channels", 0, "copies side by side, each with its share of the data")
	flags.IntVar(&f.spec.Pieces, "pieces", 0, "pieces a share is cut into, for pipelined algorithms")
	flags.IntVar(&f.spec.Slots, "slots", 0, "messages in flight between two ranks on a channel")
	flags.IntVar(&f.spec.Local, "local", 0, "ranks of a fast domain (a host), for algorithms of two levels")
	flags.StringVar(&f.dims, "dims", "", "dimensions of a torus, like `4x4x4`")
	flags.IntVar(&f.spec.Aggregate, "aggregate", 0, "blocks per message, for pat")
	flags.StringVar(&f.spec.Inner, "inner", "", "`ALGORITHM` inside a domain, for hierarchical")
	flags.StringVar(&f.spec.Outer, "outer", "", "`ALGORITHM` between domains, for hierarchical")
}

// read turns the flags into a spec for an algorithm.
func (f *algoFlags) read(a *algo.Algorithm, ranks int) (algo.Spec, error) {
	s := f.spec
	s.Ranks, s.Op = ranks, a.Ops[0]
	var err error
	if f.op != "" {
		if s.Op, err = sched.ParseCollective(f.op); err != nil {
			return s, fmt.Errorf("--op: %w", err)
		}
	}
	if f.dims != "" {
		for _, d := range strings.Split(f.dims, "x") {
			v, err := strconv.Atoi(d)
			if err != nil {
				return s, fmt.Errorf("--dims %q: want lengths like 4x4x4", f.dims)
			}
			s.Dims = append(s.Dims, v)
		}
	}
	for _, f := range []struct {
		name  string
		value int
	}{{"--channels", s.Channels}, {"--pieces", s.Pieces}, {"--slots", s.Slots}, {"--local", s.Local}} {
		if f.value < 0 || f.value > 1<<16 {
			return s, fmt.Errorf("%s %d: want 0 to %d", f.name, f.value, 1<<16)
		}
	}
	return s, nil
}

// program builds an algorithm's program by name, or reads it from a file.
func (f *algoFlags) program(cmd *cobra.Command, arg string, ranks int) (*sched.Program, error) {
	a, err := algo.Find(arg)
	if err != nil {
		return fromFile(cmd, arg, err)
	}
	s, err := f.read(a, ranks)
	if err != nil {
		return nil, err
	}
	if err := f.refuseIgnored(cmd, a, s.Op, s.Ranks); err != nil {
		return nil, err
	}
	return a.Program(s)
}

// fromFile reads a program, which has settled what the flags of algorithms are for.
func fromFile(cmd *cobra.Command, path string, unknown error) (*sched.Program, error) {
	p, err := loadProgram(cmd, path, unknown)
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"ranks", "op", "root", "channels", "pieces", "slots", "local", "dims", "aggregate", "inner", "outer"} {
		if f := cmd.Flags().Lookup(name); f.Changed {
			return nil, fmt.Errorf("--%s %s: %s is a program, which says so itself; leave it out", name, f.Value, path)
		}
	}
	return p, nil
}

// refuseIgnored refuses a flag that an algorithm does not heed: with no value of it is the program another one.
func (f *algoFlags) refuseIgnored(cmd *cobra.Command, a *algo.Algorithm, op sched.Collective, ranks int) error {
	if root := cmd.Flags().Lookup("root"); root.Changed && !op.Rooted() {
		return fmt.Errorf("--root %s: %s has no root; leave it out", root.Value, op)
	}
	build := func(s algo.Spec) string {
		s.Op, s.Ranks = op, max(ranks, 4)
		p, err := a.Program(s)
		if err != nil {
			return err.Error()
		}
		return p.String()
	}
	plain := ""
	for _, x := range []struct {
		name   string
		others []algo.Spec
	}{
		{"pieces", []algo.Spec{{Pieces: 2}, {Pieces: 3}}},
		{"local", []algo.Spec{{Local: 1}, {Local: 2}}},
		{"dims", []algo.Spec{{Dims: []int{-1}}}},
		{"aggregate", []algo.Spec{{Aggregate: -1}}},
		{"inner", []algo.Spec{{Local: 2, Inner: "?"}}},
		{"outer", []algo.Spec{{Local: 2, Outer: "?"}}},
	} {
		given := cmd.Flags().Lookup(x.name)
		if !given.Changed {
			continue
		}
		if plain == "" {
			plain = build(algo.Spec{})
		}
		heeded := false
		for _, s := range x.others {
			heeded = heeded || build(s) != plain
		}
		if !heeded {
			return fmt.Errorf("--%s %s: %s takes no notice of it; leave it out, or see 'weft algo list' for one that does",
				x.name, given.Value, a.Name)
		}
	}
	return nil
}

// algoNames completes NAME with the algorithms; the shell adds files.
func algoNames(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var names []cobra.Completion
	for _, a := range algo.All() {
		names = append(names, cobra.CompletionWithDesc(a.Name, a.Summary))
	}
	return names, cobra.ShellCompDirectiveDefault
}
