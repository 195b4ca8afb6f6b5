package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/run/comm"
	"github.com/weft-fabric/weft/run/coord"
	"github.com/weft-fabric/weft/run/elastic/node"
	"github.com/weft-fabric/weft/run/launch"
	"github.com/weft-fabric/weft/run/launch/place"
)

// fewHosts is up to how many hosts workers keep leases of a second besides the
// agents' observing of one another: the coordinator has few to renew.
const fewHosts = 16

// elasticRun is 'run' with nodes that meet at a coordinator.
type elasticRun struct {
	flags    place.Flags
	torch    torchFlags
	follow   bool
	restart  string
	explain  bool
	state    string // folder of the coordinator that this node has in it
	away     time.Duration
	tls      coord.Files
	user     string
	env      []string
	grace    time.Duration
	out, err io.Writer
	watched  string // folder in which ranks and launcher tell the agent; "" for none
}

func (r *elasticRun) bind(cmd *cobra.Command) {
	r.flags.Bind(cmd.Flags())
	r.torch.bind(cmd.Flags())
	f := cmd.Flags()
	f.BoolVar(&r.follow, "follow", false, "the program follows epochs (package elastic): survivors are not restarted")
	f.StringVar(&r.restart, "restart", string(node.All),
		"which ranks are started again when one fails: all, together, or one, the rank that failed")
	f.BoolVar(&r.explain, "explain", false, "say which flag or variable gave what")
	f.StringVar(&r.state, "coord-dir", "", "`DIR` of the state of the coordinator in this node; default: a temporary one")
	f.DurationVar(&r.away, "coord-timeout", time.Minute, "`TIME` that ranks wait for a coordinator that does not answer; then the run ends")
	f.StringVar(&r.user, "coord-user", "", "`NAME` at an etcd with users; the password is in WEFT_COORD_PASSWORD")
	f.StringVar(&r.tls.CA, "coord-ca", "", "`FILE` with the authority of an etcd's certificates")
	f.StringVar(&r.tls.Cert, "coord-cert", "", "`FILE` with this node's certificate for an etcd")
	f.StringVar(&r.tls.Key, "coord-key", "", "`FILE` with the key of that certificate")
	_ = cmd.RegisterFlagCompletionFunc("restart",
		cobra.FixedCompletions([]string{string(node.All), string(node.One)}, cobra.ShellCompDirectiveNoFileComp)) // it is a flag
}

// wanted reports whether the run is one of nodes that meet: a flag of such a run is
// given, or a scheduler has started several of this process.
func (r *elasticRun) wanted(cmd *cobra.Command) (bool, error) {
	alone := cmd.Flags().Changed("ranks") || cmd.Flags().Changed("hosts")
	if r.flags.Standalone && alone {
		r.flags.Standalone = false // -n says how many ranks this host has
		return r.flags.Given(), nil
	}
	if r.flags.Given() || r.follow || r.torch.given(cmd.Flags()) {
		return true, nil
	}
	where, err := place.Recognise(os.Getenv)
	switch {
	case alone && err == nil && where.Size > 1:
		return false,
			fmt.Errorf("%s has started %d processes like this one, and -n or --hosts would make a world of each: leave it out for one world of all, or add --standalone",
				where.By, where.Size)
	case alone || cmd.Flags().Changed("lab"):
		return false, nil
	case err == nil && !where.Several():
		return false, halfLaunched(os.Environ())
	}
	return err == nil, err
}

// halfLaunched refuses an environment in which a launcher has left only some of what it sets: each of the processes that it
// started would make a world of its own.
func halfLaunched(environ []string) error {
	own := slices.DeleteFunc(slices.Clone(environ), func(kv string) bool {
		return strings.HasPrefix(kv, "WEFT_") || strings.HasPrefix(kv, "MASTER_")
	})
	if _, err := comm.FromEnviron(own); err != nil {
		return fmt.Errorf("%w. With -n this is a run of its own", err)
	}
	return nil
}

// run starts this node's ranks and keeps them at work.
func (r *elasticRun) run(ctx context.Context, command []string, master string, port int) error {
	where, err := place.Recognise(os.Getenv)
	if err != nil {
		return err
	}
	if master != "" && r.flags.Endpoint == "" { // as torchrun's static rendezvous has it
		r.flags.Endpoint = net.JoinHostPort(master, strconv.Itoa(cmp.Or(port, place.CoordPort)))
	}
	if err := r.torch.complete(os.Getenv); err != nil {
		return err
	}
	if command, err = r.torch.command(command); err != nil {
		return err
	}
	job, err := r.job(where)
	if err != nil {
		return err
	}
	token, err := r.token(job)
	if err != nil {
		return err
	}
	if job.Serve {
		stop, err := r.serve(ctx, &job, token)
		if err != nil {
			return err
		}
		defer stop()
	}
	client, err := r.dial(ctx, job, token)
	if err != nil {
		if errors.Is(err, coord.ErrUnreachable) {
			return finding{err}
		}
		return err
	}
	defer func() { _ = client.Close() }()
	return r.work(ctx, job, client, token, command)
}

// job works out, from the flags and from what the scheduler says, which ranks this node has and where the nodes meet.
func (r *elasticRun) job(where place.Place) (job place.Job, err error) {
	if k := node.Restart(r.restart); k != node.All && k != node.One {
		return job, fmt.Errorf("--restart %q; known: %s, %s", r.restart, node.All, node.One)
	}
	if r.away <= 0 {
		return job, fmt.Errorf("--coord-timeout %v; want a time above 0", r.away)
	}
	if job, err = r.flags.Resolve(where, runtime.NumCPU()); err != nil {
		return job, err
	}
	if job.Serve && (r.user != "" || r.tls != (coord.Files{})) {
		return job, errors.New("--coord-user, --coord-ca, --coord-cert and --coord-key are for an etcd that is there; here the coordinator is in the run: leave them out, or name one with --coord etcd://HOST:PORT")
	}
	if r.explain {
		r.explained(where, job)
	}
	if r.follow && !r.flags.Min.Given {
		job.Min = 1 // a rank that is started again is missing for a moment
	}
	return job, nil
}

// token is the job's secret. Only a node whose coordinator no other node uses can make one up.
func (r *elasticRun) token(job place.Job) (string, error) {
	token := os.Getenv("WEFT_TOKEN")
	switch {
	case token != "":
		return token, nil
	case job.Serve && len(job.Coord) == 0:
		return launch.NewToken()
	case job.Nodes > 1 && (job.Serve || r.flags.Coord == "" && !strings.HasPrefix(r.flags.Backend, "etcd")):
		return "", errors.New("WEFT_TOKEN is not set: give all nodes of the job the same secret in it")
	}
	return "", nil
}

// explained prints which flag or variable gave what, and what came of it.
func (r *elasticRun) explained(where place.Place, job place.Job) {
	for _, line := range where.Why {
		fmt.Fprintln(r.err, line)
	}
	fmt.Fprintf(r.err, "node %d of %d with %d ranks, %d to %d in all, job %s, coordinator %s\n",
		job.Node, job.Nodes, job.NProc, job.Min, job.Max, job.Name, meeting(job))
}

func meeting(j place.Job) string {
	switch {
	case len(j.Coord) == 0:
		return "in this process"
	case j.Serve:
		return "in this process, at " + j.Coord[0]
	}
	return "at " + strings.Join(j.Coord, ",")
}

// serve has the coordinator in this process.
func (r *elasticRun) serve(ctx context.Context, job *place.Job, token string) (stop func(), err error) {
	dir := r.state
	clean := func() {}
	if dir == "" {
		var remove func() error
		if dir, remove, err = launch.TempDir("coord"); err != nil {
			return nil, err
		}
		clean = func() { _ = remove() } // what stays goes with the next start
	}
	s, err := coord.Serve(ctx, coord.ServerConfig{Dir: filepath.Join(dir, "etcd"), NoSync: job.Nodes == 1, Listen: job.Listen, Job: job.Name,
		Token: token})
	if err != nil {
		clean()
		return nil, err
	}
	if len(job.Coord) == 0 {
		job.Coord = []string{s.Address()}
	}
	return func() {
		_ = s.Close() // its state is on disk
		clean()
	}, nil
}

// leaseTerm is how long a lease lasts at the coordinator; 0 leaves it to package coord.
func leaseTerm(job place.Job, token string) time.Duration {
	switch {
	case token != "" && job.Nodes > fewHosts:
		return coord.ManyHosts
	case job.Serve && job.Nodes == 1:
		return coord.OneHost
	}
	return 0
}

// dial finds the coordinator. One that this program serves has certificates that
// follow from the token; another etcd has its own, or none.
func (r *elasticRun) dial(ctx context.Context, job place.Job, token string) (*coord.Client, error) {
	cfg := coord.Config{Endpoints: job.Coord, Job: job.Name, Token: token, User: r.user, Password: os.Getenv("WEFT_COORD_PASSWORD"),
		Wait: r.away}
	if r.flags.Coord == "" && !job.Serve {
		cfg.Wait = max(r.away, 5*time.Minute) // the first node may be started later
		fmt.Fprintf(r.err, "weft: node %d meets the others at %s\n", job.Node, job.Coord[0])
	}
	cfg.TTL = leaseTerm(job, token)
	if r.tls != (coord.Files{}) {
		t, err := r.tls.Load()
		if err != nil {
			return nil, err
		}
		cfg.TLS = t
	}
	cfg.Detect = !job.Serve
	client, err := coord.Dial(ctx, cfg)
	if err == nil && client.External() && token != "" {
		fmt.Fprintf(r.err,
			"weft: the etcd at %s has no TLS: anyone on the network can read the job's secrets; set --coord-ca, --coord-cert and --coord-key\n",
			strings.Join(job.Coord, ","))
	}
	return client, err
}

// work runs the node's agent.
func (r *elasticRun) work(ctx context.Context, job place.Job, client *coord.Client, token string, command []string) error {
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	addr := r.torch.localAddr
	if addr == "" {
		if addr, err = reach(job.Coord[0]); err != nil {
			return err
		}
	}
	slots := r.slots(job)
	env := r.environment(job)
	secret := ""
	if token != "" && job.Nodes > 1 {
		secret = token + " " + job.Name
	}
	logs, err := r.torch.logs(job.Name, r.err)
	if err != nil {
		return err
	}
	name := fmt.Sprintf("%s-%d", host, os.Getpid())
	own := name
	if job.Shared {
		own = host
	}
	n, err := node.New(node.Config{
		Client: client, Secret: secret, Policy: coord.Policy{Min: job.Min, Max: job.Max, Settle: r.torch.settle, Name: name},
		Slots: slots, Node: own, Command: command, Env: env, Follow: r.follow, Restart: node.Restart(r.restart), Host: host, Addr: addr,
		Restarts: job.MaxRestarts, Grace: r.grace, Away: r.away, Role: r.torch.role, Run: job.Name,
		Stdout: r.out, Stderr: r.err, Prefix: job.Max > 1, Output: logs, Watch: r.tell,
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer r.passSignals(ctx, cancel, n, len(slots))()
	err = n.Run(ctx)
	launch.Over(r.watched, job.Name, err)
	return ended(err)
}

// ended is how a run that ended so is reported. A rank's failure has its own exit code.
func ended(err error) error {
	switch {
	case err == nil || errors.As(err, new(*launch.Failure)):
		return err
	case errors.Is(err, context.Canceled):
		return finding{errors.New("ended by a signal before the work was done")}
	}
	return finding{err}
}

// slots are the numbers of this node's ranks, where nodes are numbered.
func (r *elasticRun) slots(job place.Job) []int {
	// Where nodes count their own ranks they may differ.
	stride := job.NProc
	if _, err := strconv.Atoi(r.flags.NProc); err != nil && job.Nodes > 1 {
		stride = place.MaxProc
	}
	slots := make([]int, job.NProc)
	for i := range slots {
		slots[i] = node.Any
		if job.Numbered {
			slots[i] = job.Node*stride + i
		}
	}
	return slots
}

// environment is what ranks get besides the agent's own.
func (r *elasticRun) environment(job place.Job) []string {
	env := []string{"WEFT_JOB=" + job.Name}
	if job.NProc > 1 && !r.follow && os.Getenv("OMP_NUM_THREADS") == "" {
		env = append(env, "OMP_NUM_THREADS=1") // or every rank would take all cores
	}
	env = append(env, r.env...)
	if job.Ckpt != "" {
		env = append(env, "WEFT_CKPT="+job.Ckpt)
	}
	return env
}

// passSignals lets a signal end the ranks and a second one kill them, and hands others on, until stop is called.
func (r *elasticRun) passSignals(ctx context.Context, cancel func(), n *node.Node, slots int) (stop func()) {
	ends, more := make(chan os.Signal, 8), make(chan os.Signal, 8)
	signal.Notify(ends, ending()...)
	signal.Notify(more, syscall.SIGUSR1, syscall.SIGUSR2)
	over := make(chan struct{})
	go func() {
		for {
			select {
			case sig := <-ends:
				if ctx.Err() == nil {
					fmt.Fprintf(r.err, "weft: %v: ranks are asked to end, and have %v; a second signal ends them at once\n", sig, max(0, r.grace))
					cancel()
				} else {
					n.Kill()
				}
			case sig := <-more:
				for i := range slots {
					n.Signal(i, sig.(syscall.Signal))
				}
			case <-over:
				return
			}
		}
	}()
	return func() {
		close(over)
		signal.Stop(more)
		signal.Stop(ends)
	}
}

// tell says on standard error what a user should know of.
func (r *elasticRun) tell(e node.Event) {
	say := func(format string, a ...any) { fmt.Fprintf(r.err, "weft: "+format+"\n", a...) }
	switch e.Kind {
	case node.Decided:
		say("epoch %d: %d ranks, %d recovering: %s", e.Epoch.Number, len(e.Epoch.Members), len(e.Epoch.Recovering), e.Epoch.Reason)
	case node.Exited:
		if !e.Exit.OK() {
			say("%s", e.Exit)
		}
	case node.Lost:
		say("%s", e.Text)
	case node.Silent, node.GaveUp:
		say("slot %d: %s", e.Slot, e.Text)
	case node.Trouble, node.Answered:
		say("%s", e.Text)
	case node.Heard:
		say("slot %d: pid %d speaks again", e.Slot, e.Pid)
	}
}

// reach is the address from which this host talks to another.
func reach(to string) (string, error) {
	conn, err := net.Dial("udp", to) // sends nothing
	if err != nil {
		return "", fmt.Errorf("the address of this host towards %s: %w", to, err)
	}
	defer conn.Close()
	return conn.LocalAddr().(*net.UDPAddr).IP.String(), nil
}
