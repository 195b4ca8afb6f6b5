package cli

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/model/topo/hostlist"
	"github.com/weft-fabric/weft/run/launch"
	"github.com/weft-fabric/weft/run/transport/witness"
)

// ending are the signals that ask a run to end. A terminal that is closed does not end
// a run under nohup.
func ending() []os.Signal {
	if signal.Ignored(syscall.SIGHUP) {
		return []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	}
	return []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP}
}

// runFlags are the flags of weft run.
type runFlags struct {
	spec                     launch.Spec
	hosts, rsh, tie, watched string
	env                      []string
	elastic                  elasticRun
	links                    linkFlags
	inLab                    labFlag
	rails                    railFlags
}

func newRun() *cobra.Command {
	var s runFlags
	cmd := &cobra.Command{
		Use:   "run [-n RANKS | --nodes COUNT --nproc COUNT] [flags] -- COMMAND [ARG...]",
		Short: "Start a program as several ranks, on one host or elastically on several",
		Long: `Start COMMAND as RANKS processes, each with RANK, WORLD_SIZE, LOCAL_RANK,
LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and WEFT_TOKEN in its environment.

Output lines begin with the rank in brackets and are never mixed. Standard input is
empty. SIGINT and SIGTERM are forwarded. When a rank fails, the others get SIGTERM
and, after the grace period, SIGKILL. On exit, weft reports which rank failed first,
how, and the tail of its stderr. With --keep-going the others continue, for programs
that use Shrink, and the run fails only if no rank exits with 0. Nothing is left
behind: a rank's children end with it unless they left its process group, and ranks
are killed when weft exits, even by SIGKILL.

With --hosts ranks are assigned to hosts in blocks and started through --rsh: a
template with {command} for remote shells like ssh, without it for commands like
'ip netns exec {host}'.

With --lab ranks run on a lab's hosts, one per host unless -n says otherwise, over the
lab's network. With --cluster ranks use the rails from the file's network plan.

With --nproc, --nodes, --coord or another of torchrun's flags the run is elastic:
start 'weft run' on every node. Nodes meet at a coordinator and may come and go
between --min and --max ranks. Settings from Slurm, Kubernetes or torchrun's variables
need no flags; --explain shows them. When a rank fails, or ranks come or go, all ranks
restart together, after failures at most --max-restarts times; --restart one restarts
only the failed rank. A program that follows epochs (package elastic, --follow) keeps
its processes: only the failed rank is restarted.

Launchers started by srun, mpirun or torchrun without -n or --nproc also meet:
'srun -n 8 weft run -- PROGRAM' is one world of eight ranks.

The first SIGINT, SIGTERM or SIGHUP asks all ranks to end, the second ends the grace
period.

Exit code: that of the first rank to fail, or 128 plus the signal that ended it.`,
		Example: `  weft run -n 4 -- ./my-program --epochs 3
  weft run -n 4 -- sh -c 'echo rank $RANK of $WORLD_SIZE'
  weft run -n 4 --keep-going -- ./program-that-shrinks
  weft run -n 4 --hosts a,b --keep-going --witness 10.0.0.9:2381 -- ./program-that-shrinks
  weft run -n 16 --hosts 'n[0-1]' --master-addr n0 -- ./my-program
  weft run -n 2 --hosts a,b --rsh 'ip netns exec {host}' --master-addr 10.0.0.1 -- ./my-program
  weft run -n 16 --hosts 'n[0-1]' --cluster examples/lab.yaml -- ./my-program
  weft run -n 2 --transport tcp --tls -- ./my-program
  weft run -n 4 --watch /run/weft -- ./my-program
  weft run --nproc 4 --max-restarts 3 -- python train.py
  weft run --nodes 2 --nproc 4 --min 2 --max 8 --coord etcd://host:2379 --ckpt DIR -- python train.py`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("no command to run; give it behind --, like: weft run -n 4 -- ./program")
			}
			return nil
		},
		RunE: s.run,
	}
	cmd.Flags().IntVarP(&s.spec.N, "ranks", "n", 1, "number of ranks")
	cmd.Flags().DurationVar(&s.spec.Grace, "grace", launch.Grace, "`TIME` between SIGTERM and SIGKILL when ranks are ended")
	cmd.Flags().BoolVar(&s.spec.KeepGoing, "keep-going", false, "let the other ranks run on when one fails")
	cmd.Flags().StringVar(&s.tie, "witness", "",
		"`ADDRESS`, host:port, at which this command is the witness of the ranks: if the network parts them in halves, the half that it votes with goes on")
	cmd.Flags().StringVar(&s.watched, "watch", "",
		"`DIR` of each host in which ranks tell 'weft agent' of their operations and leave flight records; it is made where it is missing")
	cmd.Flags().StringArrayVar(&s.env, "env", nil, "`NAME=VALUE` for every rank; repeatable")
	hostFlags(cmd, &s.spec, &s.hosts, &s.rsh)
	s.inLab.bind(cmd)
	s.rails.bind(cmd)
	cmd.Flags().IntVar(&s.spec.Port, "master-port", 0, "`PORT` for MASTER_PORT; default: a free one")
	s.links.bind(cmd)
	s.links.bindTransport(cmd)
	s.links.bindRequire(cmd)
	s.elastic.bind(cmd)
	cmd.Flags().SetInterspersed(false) // what follows the command is the command's
	return cmd
}

func (s *runFlags) run(cmd *cobra.Command, args []string) (err error) {
	for _, kv := range s.env {
		if i := strings.IndexByte(kv, '='); i < 1 {
			return fmt.Errorf("--env %q; want NAME=VALUE", kv)
		}
	}
	if s.spec.Grace < 0 {
		return fmt.Errorf("--grace %s; want a time of 0 or more", s.spec.Grace)
	}
	if err := s.links.apart(args); err != nil {
		return err
	}
	more, err := s.links.env()
	if err != nil {
		return err
	}
	s.env = append(more, s.env...)
	if err := s.watch(); err != nil {
		return err
	}
	meets, err := s.elastic.wanted(cmd)
	if err != nil {
		return err
	}
	if meets {
		for _, name := range []string{"ranks", "hosts", "rsh", "keep-going", "lab", "witness", "cluster"} {
			if cmd.Flags().Changed(name) {
				return fmt.Errorf("--%s is for runs without nodes that meet; leave it out, or leave out --nproc, --nodes and their like", name)
			}
		}
		s.elastic.env, s.elastic.out, s.elastic.err, s.elastic.grace = s.env, cmd.OutOrStdout(), cmd.ErrOrStderr(), s.spec.Grace
		s.elastic.watched = s.watched
		if s.elastic.grace == 0 {
			s.elastic.grace = -1
		}
		return scarce(s.elastic.run(cmd.Context(), args, s.spec.Addr, s.spec.Port))
	}
	if err := onlyMeeting(cmd); err != nil {
		return err
	}
	if s.spec.Command, s.spec.Env = args, s.env; s.spec.Grace == 0 {
		s.spec.Grace = -1 // none; 0 would be the default
	}
	if s.inLab.name != "" {
		if err := s.inLab.place(cmd, &s.spec, s.hosts); err != nil {
			return err
		}
		if !cmd.Flags().Changed("ranks") {
			s.spec.N = len(s.spec.Hosts)
		}
	} else if err := places(cmd, &s.spec, s.hosts, s.rsh); err != nil {
		return err
	}
	if err := s.rails.place(cmd, &s.spec); err != nil {
		return err
	}
	s.spec.Token = os.Getenv("WEFT_TOKEN")
	if s.tie != "" {
		end, err := serveWitness(s.tie, &s.spec)
		if err != nil {
			return err
		}
		defer end()
	}
	s.spec.Prefix = s.spec.N > 1
	s.spec.Stdout, s.spec.Stderr = cmd.OutOrStdout(), cmd.ErrOrStderr()
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, append(ending(), syscall.SIGUSR1, syscall.SIGUSR2)...)
	defer signal.Stop(signals)
	s.spec.Signals = signals
	s.spec.Failed = func(e launch.Exit, left int) {
		fmt.Fprintf(cmd.ErrOrStderr(), "weft run: %s; %d of %d ranks go on\n", e, left, s.spec.N)
	}
	_, err = launch.Run(cmd.Context(), s.spec)
	return scarce(err)
}

// watch has ranks tell 'weft agent' of their operations, if --watch says where.
func (s *runFlags) watch() error {
	if s.watched == "" {
		return nil
	}
	dir, err := filepath.Abs(s.watched)
	if err != nil {
		return fmt.Errorf("--watch %s: %w", s.watched, err)
	}
	s.watched = dir
	s.env = append([]string{"WEFT_WATCH=" + dir, "WEFT_FLIGHT_DIR=" + dir}, s.env...)
	return nil
}

// onlyMeeting refuses flags of runs whose nodes meet.
func onlyMeeting(cmd *cobra.Command) error {
	for _, name := range []string{"restart", "explain", "coord-dir", "coord-timeout", "coord-user", "coord-ca", "coord-cert", "coord-key"} {
		if f := cmd.Flags().Lookup(name); f.Changed {
			return fmt.Errorf("--%s %s is for runs whose nodes meet; leave it out, or give --nproc or --nodes instead of -n", name, f.Value)
		}
	}
	return nil
}

// serveWitness is the witness of a run's ranks, and lets them know.
func serveWitness(at string, spec *launch.Spec) (end func(), err error) {
	if spec.Token == "" {
		if spec.Token, err = launch.NewToken(); err != nil {
			return nil, err
		}
	}
	s, err := witness.Serve(witness.ServerConfig{Listen: at, Token: spec.Token})
	if err != nil {
		return nil, fmt.Errorf("--witness %s: %w", at, err)
	}
	spec.Env = append([]string{"WEFT_QUORUM=witness:" + s.Address()}, spec.Env...)
	return func() { _ = s.Close() }, nil
}

// scarce makes a failure to start ranks for want of something one of the host, not of use.
func scarce(err error) error {
	for _, e := range []error{syscall.EMFILE, syscall.ENFILE, syscall.EAGAIN, syscall.ENOMEM} {
		if errors.Is(err, e) {
			return finding{fmt.Errorf("%w; start fewer ranks or raise the limit: ulimit -n for files, -u for processes", err)}
		}
	}
	return err
}

// hostFlags are the flags of verbs that start ranks.
func hostFlags(cmd *cobra.Command, spec *launch.Spec, hosts, rsh *string) {
	cmd.Flags().Var((*hostsFlag)(hosts), "hosts", "`LIST` of hosts to run on, like a,b or n[0-3]; default: this host")
	cmd.Flags().StringVar(rsh, "rsh", "ssh -o BatchMode=yes {host} {command}", "`TEMPLATE` of the command that starts a rank on a host")
	cmd.Flags().StringVar(&spec.Addr, "master-addr", "", "`ADDRESS` where rank 0 listens; default: the first host")
}

// hostsFlag is a list of hosts. An empty one is an error: a script whose list is lost would run all ranks here.
type hostsFlag string

func (f *hostsFlag) String() string { return string(*f) }
func (f *hostsFlag) Type() string   { return "string" }
func (f *hostsFlag) Set(s string) error {
	if strings.TrimSpace(s) == "" {
		return errors.New("it names no host; want a list like a,b or n[0-3], or no --hosts for this host")
	}
	*f = hostsFlag(s)
	return nil
}

// places fills in where ranks run.
func places(cmd *cobra.Command, spec *launch.Spec, hosts, rsh string) (err error) {
	if hosts == "" {
		if cmd.Flags().Changed("rsh") {
			return errors.New("--rsh says how hosts are reached, and none are given: add --hosts, like --hosts a,b")
		}
		return nil
	}
	if spec.Hosts, err = hostlist.Expand(hosts); err != nil {
		return err
	}
	spec.Remote, err = launch.ParseRemote(rsh)
	return err
}
