package cli

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/coord"
	"github.com/weft-fabric/weft/elastic/node"
	"github.com/weft-fabric/weft/launch"
	"github.com/weft-fabric/weft/launch/place"
)

// elasticRun is 'run' with nodes that meet at a coordinator.
type elasticRun struct {
	flags    place.Flags
	follow   bool
	explain  bool
	state    string // folder of the coordinator that this node has in it
	tls      coord.Files
	user     string
	env      []string
	grace    time.Duration
	out, err io.Writer
}

func (r *elasticRun) bind(cmd *cobra.Command) {
	r.flags.Bind(cmd.Flags())
	f := cmd.Flags()
	f.BoolVar(&r.follow, "follow", false, "the program follows epochs by itself (package elastic): survivors are not started again")
	f.BoolVar(&r.explain, "explain", false, "say which flag or variable gave what")
	f.StringVar(&r.state, "coord-dir", "", "`DIR` of the state of the coordinator in this node; one that goes with the run without it")
	f.StringVar(&r.user, "coord-user", "", "`NAME` at an etcd with users; the password is in WEFT_COORD_PASSWORD")
	f.StringVar(&r.tls.CA, "coord-ca", "", "`FILE` with the authority of an etcd's certificates")
	f.StringVar(&r.tls.Cert, "coord-cert", "", "`FILE` with this node's certificate for an etcd")
	f.StringVar(&r.tls.Key, "coord-key", "", "`FILE` with its key")
}

// run starts this node's ranks and keeps them at work.
func (r *elasticRun) run(ctx context.Context, command []string) error {
	where, err := place.Recognise(os.Getenv)
	if err != nil {
		return err
	}
	job, err := r.flags.Resolve(where, runtime.NumCPU())
	if err != nil {
		return err
	}
	if r.explain {
		for _, line := range where.Why {
			fmt.Fprintln(r.err, line)
		}
		fmt.Fprintf(r.err, "node %d of %d with %d ranks, %d to %d in all, job %s, coordinator %s\n", job.Node, job.Nodes, job.NProc, job.Min, job.Max, job.Name, meeting(job))
	}
	if r.follow && !r.flags.Min.Given {
		job.Min = 1 // a rank that is started again is missing for a moment
	}
	token := os.Getenv("WEFT_TOKEN")
	if token == "" && job.Serve && len(job.Coord) == 0 {
		if token, err = launch.NewToken(); err != nil {
			return err
		}
	}
	if token == "" && job.Serve && job.Nodes > 1 {
		return errors.New("WEFT_TOKEN is not set: give all nodes of the job the same secret in it")
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
		return err
	}
	defer func() { _ = client.Close() }()
	return r.work(ctx, job, client, command)
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
		if dir, err = os.MkdirTemp("", "weft-coord-"); err != nil {
			return nil, err
		}
		clean = func() { _ = os.RemoveAll(dir) } // what stays is a folder in the place for such
	}
	s, err := coord.Serve(ctx, coord.ServerConfig{Dir: filepath.Join(dir, "etcd"), NoSync: job.Nodes == 1, Listen: job.Listen, Job: job.Name, Token: token})
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

// dial finds the coordinator. One that this program serves has certificates that
// follow from the token; another etcd has its own, or none.
func (r *elasticRun) dial(ctx context.Context, job place.Job, token string) (*coord.Client, error) {
	cfg := coord.Config{Endpoints: job.Coord, Job: job.Name, Token: token, User: r.user, Password: os.Getenv("WEFT_COORD_PASSWORD"), Wait: 15 * time.Second}
	if r.flags.Coord == "" && !job.Serve {
		cfg.Wait = 5 * time.Minute // the first node may be started later
		fmt.Fprintf(r.err, "weft: node %d meets the others at %s\n", job.Node, job.Coord[0])
	}
	if job.Serve && job.Nodes == 1 {
		cfg.TTL = coord.OneHost
	}
	if r.tls != (coord.Files{}) {
		t, err := r.tls.Load()
		if err != nil {
			return nil, err
		}
		cfg.TLS = t
	}
	if !job.Serve && cfg.TLS == nil && r.user == "" && plain(ctx, job.Coord) {
		cfg.External = true
		if token != "" {
			fmt.Fprintf(r.err, "weft: the etcd at %s has no TLS: whoever reads the network reads the job's secrets; --coord-ca, --coord-cert and --coord-key mend that\n", strings.Join(job.Coord, ","))
		}
	}
	return coord.Dial(ctx, cfg)
}

// plain reports whether one of several servers answers, and does not speak TLS.
func plain(ctx context.Context, addrs []string) bool {
	for _, a := range addrs {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", a)
		if err != nil {
			cancel()
			continue
		}
		// Certificates are not looked at: this only asks which language is spoken.
		err = tls.Client(conn, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}).HandshakeContext(ctx)
		cancel()
		_ = conn.Close()
		var other tls.RecordHeaderError
		return errors.As(err, &other)
	}
	return false
}

// work runs the node's agent.
func (r *elasticRun) work(ctx context.Context, job place.Job, client *coord.Client, command []string) error {
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	addr, err := reach(job.Coord[0])
	if err != nil {
		return err
	}
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
	env := append([]string{"WEFT_JOB=" + job.Name}, r.env...)
	if job.Ckpt != "" {
		env = append(env, "WEFT_CKPT="+job.Ckpt)
	}
	n, err := node.New(node.Config{
		Client: client, Policy: coord.Policy{Min: job.Min, Max: job.Max, Settle: 2 * time.Second, Name: fmt.Sprintf("%s-%d", host, os.Getpid())},
		Slots: slots, Command: command, Env: env, Follow: r.follow, Host: host, Addr: addr, Restarts: job.MaxRestarts, Grace: r.grace,
		Stdout: r.out, Stderr: r.err, Prefix: job.Max > 1, Watch: r.tell,
	})
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	more := make(chan os.Signal, 8)
	signal.Notify(more, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2)
	defer signal.Stop(more)
	over := make(chan struct{})
	defer close(over)
	go func() {
		for {
			select {
			case sig := <-more:
				for i := range slots {
					n.Signal(i, sig.(syscall.Signal))
				}
			case <-over:
				return
			}
		}
	}()
	err = n.Run(ctx)
	switch {
	case err == nil || errors.As(err, new(*launch.Failure)):
		return err
	case errors.Is(err, context.Canceled):
		return finding{errors.New("ended by a signal before the work was done")}
	}
	return finding{err}
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
	case node.Silent, node.GaveUp, node.Replaced:
		say("slot %d: %s", e.Slot, e.Text)
	case node.Trouble:
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
