package cli

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/fabric/lab"
)

func newLab() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lab",
		Short: "Bring a cluster's network up on this machine, with real routers and the emitted configuration",
		RunE:  group,
	}
	cmd.AddCommand(newLabUp(), newLabDown(), newLabExec(), newLabList(), newLabShow(), newLabDrill(), newLabTraffic())
	return cmd
}

// existing is the full path of a file, nothing for the name of a preset.
func existing(name string) string {
	path, err := filepath.Abs(name)
	if err != nil {
		return ""
	}
	if _, err := os.Stat(path); err != nil {
		return ""
	}
	return path
}

func newLabUp() *cobra.Command {
	var f planFlags
	var name string
	var noLLDP bool
	o := lab.Usual()
	cmd := &cobra.Command{
		Use:   "up CLUSTER",
		Short: "Start a lab: one namespace per host and switch, with FRR and systemd-networkd on the emitted files",
		Long: `Start a lab: every host and switch of a cluster is a network namespace, every cable a
pair of virtual devices. Switches run FRR and hosts run systemd-networkd on the files
that 'weft net emit' writes. It needs root. A lab runs until 'weft lab down', or until
its first process is killed; then nothing is left of it.

--routing bird starts hundreds of routers in seconds, with the sessions, AS numbers and
filters of the emitted frr.conf. Without root use '--routing bird --hosts plain
--no-lldp' (or static) on a kernel with user namespaces; lab exec, bench --lab and
run --lab work in it, show and drill need root.`,
		Example: `  weft lab up examples/lab.yaml
  weft lab exec lab n0 -- ping -c 3 10.160.0.3
  weft lab exec lab leaf0 -- vtysh -N leaf0 -c 'show bgp summary'
  weft lab down lab
  weft lab up examples/lab.yaml --routing bird --hosts plain --no-lldp --name light`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: clusterNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := f.load(cmd, args[0])
			if err != nil {
				return err
			}
			if name == "" {
				name = p.Name
			}
			o.LLDP = !noLLDP && o.Setup != "none"
			s, err := lab.NewSpec(p, name, o)
			if err != nil {
				return err
			}
			s.File = existing(args[0])
			if err := lab.Check(s); err != nil {
				return err
			}
			if err := lab.Up(s, func(p lab.Progress) {
				if p.Step != "" {
					fmt.Fprintf(cmd.ErrOrStderr(), "%7.2f s  %s\n", p.Seconds, p.Step)
				}
				if p.Ready {
					fmt.Fprintf(cmd.OutOrStdout(), "lab %s is up after %.1f s: %s, %s\n", name, p.Seconds, count(len(s.Nodes), "node"),
						count(len(s.Wires), "cable"))
				}
			}); err != nil {
				return finding{err}
			}
			return nil
		},
	}
	f.register(cmd)
	cmd.Flags().StringVar(&name, "name", "", "the lab's `NAME`; default: the cluster's")
	cmd.Flags().StringVar(&o.Routing, "routing", o.Routing,
		"what switches run: `frr` on the emitted files, bird (hundreds of routers), or static: routes that weft computes")
	cmd.Flags().StringVar(&o.Setup, "hosts", o.Setup,
		"who configures hosts: `networkd` on the emitted files, plain (weft itself), or none: switches alone")
	_ = cmd.RegisterFlagCompletionFunc("routing", cobra.FixedCompletions(lab.Routings, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("hosts", cobra.FixedCompletions(lab.Configurers, cobra.ShellCompDirectiveNoFileComp))
	cmd.Flags().DurationVar(&o.Wait, "wait", 0,
		"how long a daemon may take to start, and routes to settle; default 90s, in an emulated machine more")
	cmd.Flags().BoolVar(&noLLDP, "no-lldp", false, "start no lldpd, which says who is plugged into whom")
	return cmd
}

func newLabDown() *cobra.Command {
	return &cobra.Command{
		Use:               "down NAME",
		Short:             "Stop a lab",
		Example:           `  weft lab down lab`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: labNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := lab.Down(args[0]); err != nil {
				return finding{err}
			}
			fmt.Fprintf(cmd.OutOrStdout(), "lab %s is gone\n", args[0])
			return nil
		},
	}
}

func newLabList() *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "List running labs",
		Example: `  weft lab list`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			names, err := lab.List()
			if err != nil {
				return err
			}
			for _, n := range names {
				i, err := lab.Find(n)
				if err != nil {
					continue // it just ended
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s  %s, %s, process %d\n", n, count(len(i.Spec.Nodes), "node"),
					count(len(i.Spec.Wires), "cable"), i.PID)
			}
			return nil
		},
	}
}

func newLabExec() *cobra.Command {
	return &cobra.Command{
		Use:   "exec NAME NODE -- COMMAND...",
		Short: "Run a command on a lab's host or switch",
		Example: `  weft lab exec lab n0 -- ip -br addr
  weft lab exec lab spine0 -- vtysh -N spine0 -c 'show ip route'`,
		Args:              cobra.MinimumNArgs(3),
		ValidArgsFunction: labNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			i, err := lab.Find(args[0])
			if err != nil {
				return err
			}
			line, err := i.Command(args[1], args[2:]...)
			if err != nil {
				return err
			}
			path, err := exec.LookPath(line[0])
			if err != nil {
				return err
			}
			return syscall.Exec(path, line, os.Environ())
		},
	}
}

// labNames completes the name of a lab that is up.
func labNames(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	names, _ := lab.List()
	return names, cobra.ShellCompDirectiveNoFileComp
}

// newLabInit is the first process of a lab; weft lab up starts it.
func newLabInit() *cobra.Command {
	return &cobra.Command{
		Use:    "lab-init",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f := os.NewFile(3, "listener")
			if f == nil {
				return errors.New("lab-init is started by weft lab up")
			}
			l, err := net.FileListener(f)
			if err != nil {
				return fmt.Errorf("lab-init is started by weft lab up: %w", err)
			}
			return lab.Init(os.Stdin, os.Stdout, l)
		},
	}
}
