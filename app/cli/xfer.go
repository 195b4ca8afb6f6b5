package cli

import (
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/move/xfer"
	"github.com/weft-fabric/weft/move/xfer/directory"
	"github.com/weft-fabric/weft/move/xfer/measure"
	"github.com/weft-fabric/weft/run/launch"
	"github.com/weft-fabric/weft/run/transport/auth"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

func newXfer() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "xfer",
		Short: "Move bytes between processes' memory, files and object stores",
		Long: `Move bytes between memory, files and objects of processes (transfer agents) that come and go, with leases, deadlines,
checksums, exactly-once notices, and failures reported to both ends (docs/reference/transfers.md).`,
		Example: `  weft xfer bench --start_block_size 4K --max_block_size 1M
  weft xfer explain host host`,
		RunE: group,
	}
	cmd.AddCommand(newXferBench(), newXferExplain(), newXferServe(), newXferShow(), newXferCompare(), newXferShare(), newXferRank())
	return cmd
}

// underscores lets flags be written as nixlbench has them, and with dashes.
func underscores(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	return pflag.NormalizedName(strings.ReplaceAll(name, "-", "_"))
}

// xferPlace are the flags that say where files and objects lie.
type xferPlace struct {
	dir, store, io, path, floor, device string
	buffered                            bool
}

func (p *xferPlace) register(cmd *cobra.Command) {
	cmd.Flags().SetNormalizeFunc(underscores)
	cmd.Flags().StringVar(&p.dir, "filepath", "",
		"`DIR` for files, and for objects without --store; default: a new one in the system's temporary folder")
	cmd.Flags().StringVar(&p.store, "store", "", "objects in an object store: s3://`BUCKET/PREFIX`")
	cmd.Flags().StringVar(&p.io, "posix_api_type", "",
		"how files are read and written: URING, or CALLS for plain ones; default: the faster one, as measured")
	cmd.Flags().StringVar(&p.path, "path", "", "the `PATH` to take, or to fail: "+strings.Join(xfer.Paths, ", "))
	cmd.Flags().StringVar(&p.floor, "require", "", "the longest `PATH` that may be taken, in this order; fail rather than take a longer one")
	cmd.Flags().StringVar(&p.device, "device", "cuda", "GPU memory is of cuda, or of soft, a GPU in software for tests")
	cmd.Flags().BoolVar(&p.buffered, "buffered", false, "files through the page cache")
}

// config makes the common part of a measurement; done removes what it made.
func (p *xferPlace) config() (c measure.Config, done func(), err error) {
	done = func() {}
	c = measure.Config{Store: strings.TrimSuffix(p.store, "/"), Dir: p.dir, Path: p.path, Floor: p.floor, Device: p.device,
		Buffered: p.buffered, Scheme: "pairwise", Pairs: 1}
	for _, f := range []struct {
		name, value string
		known       []string
	}{{"path", p.path, xfer.Paths}, {"require", p.floor, xfer.Paths}, {"device", p.device, measure.Devices}} {
		if f.value != "" && !slices.Contains(f.known, f.value) {
			return c, done, fmt.Errorf("--%s %q: want %s", f.name, f.value, strings.Join(f.known, ", "))
		}
	}
	switch strings.ToUpper(p.io) {
	case "":
	case "URING":
		c.IO = "ring"
	case "CALLS":
		c.IO = "calls"
	default:
		return c, done, fmt.Errorf("--posix_api_type %q: want URING or CALLS; AIO and POSIXAIO are not used here", p.io)
	}
	if p.store != "" && !strings.HasPrefix(p.store, "s3://") {
		return c, done, fmt.Errorf("--store %q: want s3://BUCKET/PREFIX; --filepath takes a directory", p.store)
	}
	if st, err := os.Stat(p.dir); p.dir != "" && (err != nil || !st.IsDir()) {
		return c, done, fmt.Errorf("--filepath %q: no such directory; make it first", p.dir)
	}
	if c.Token, err = launch.NewToken(); err != nil {
		return c, done, err
	}
	exe, err := os.Executable()
	if err != nil {
		return c, done, err
	}
	c.Command = []string{exe, "xfer", "serve", "--json"}
	if c.Dir == "" {
		if c.Dir, err = os.MkdirTemp("", "weft-xfer-"); err != nil {
			return c, done, err
		}
		done = func() { os.RemoveAll(c.Dir) }
	}
	return c, done, nil
}

// xferBench is 'xfer bench' with nixlbench's flags.
type xferBench struct {
	place                                     xferPlace
	nixl                                      nixlbench
	op, scheme, from, to, backend, class      string
	minBlock, maxBlock, total                 string
	minBatch, maxBatch, iters, warmup, rounds int
	pairs, streams                            int
	check, compare, noSums, noPeers, asJSON   bool
}

func newXferBench() *cobra.Command {
	var b xferBench
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Benchmark transfers, with nixlbench's flags and columns",
		Long: `Measure transfers. The initiator is this process; each target is a child process. With --backend POSIX or OBJ the file
or object belongs to the initiator, as with nixlbench's storage plug-ins.

A request's blocks are not adjacent, and a request starts when the previous one is done. CPU s/GB is the CPU time of all
processes. --compare interleaves weft with memcpy, as many bare sockets, ucx_perftest, MPI's one-sided operations, fio, the
store's client and the GPU driver's copies, and names those not installed. Ratios are medians over the rounds.`,
		Example: `  weft xfer bench --start_block_size 4K --max_block_size 1M --compare
  weft xfer bench --op_type WRITE --path tcp --start_block_size 1M
  weft xfer bench --backend POSIX --start_block_size 1M --start_batch_size 16 --compare
  weft xfer bench --scheme manytoone --num_initiator_dev 2
  weft xfer bench --backend SELF --target_seg_type VRAM --device soft --start_block_size 1M --compare`,
		Args: cobra.NoArgs,
		RunE: b.run,
	}
	b.place.register(cmd)
	b.nixl.register(cmd)
	f := cmd.Flags()
	f.StringVar(&b.op, "op_type", "READ", "READ or WRITE")
	f.StringVar(&b.scheme, "scheme", "pairwise", "pairwise, manytoone or onetomany")
	f.StringVar(&b.backend, "backend", "", "WEFT, POSIX for a file of the initiator, OBJ for an object of it, SELF for two regions of it")
	f.StringVar(&b.from, "initiator_seg_type", "DRAM", "`KIND` at the initiator: DRAM, FILE, OBJ or VRAM")
	f.StringVar(&b.to, "target_seg_type", "DRAM", "`KIND` at the target")
	f.StringVar(&b.class, "class", "bulk", "latency, bulk or background")
	f.StringVar(&b.minBlock, "start_block_size", "4K", "smallest block")
	f.StringVar(&b.maxBlock, "max_block_size", "4K", "largest block")
	f.IntVar(&b.minBatch, "start_batch_size", 1, "fewest blocks in a request")
	f.IntVar(&b.maxBatch, "max_batch_size", 1, "most blocks in a request")
	f.StringVar(&b.total, "total_buffer_size", "64M", "bytes of each region")
	f.IntVar(&b.iters, "num_iter", 100, "requests of each initiator")
	f.IntVar(&b.warmup, "warmup_iter", 10, "requests before")
	f.IntVar(&b.rounds, "rounds", 5, "rounds between which comparisons run")
	f.IntVar(&b.pairs, "num_initiator_dev", 1, "pairs, initiators of manytoone, or targets of onetomany")
	f.IntVar(&b.streams, "streams", 1, "connections that carry data, for each address")
	f.BoolVar(&b.noSums, "no-checksums", false, "send slices on sockets without checksums")
	f.BoolVar(&b.noPeers, "no-peers", false, "--compare without ucx_perftest and MPI, whose processes spin")
	f.BoolVar(&b.check, "check_consistency", false, "write, read back and compare")
	f.BoolVar(&b.compare, "compare", false, "interleave with other tools that move the same bytes")
	f.BoolVar(&b.asJSON, "json", false, "print JSON")
	return cmd
}

func (b *xferBench) run(cmd *cobra.Command, _ []string) error {
	if err := b.nixl.place(&b.place); err != nil {
		return err
	}
	c, done, err := b.place.config()
	if err != nil {
		return err
	}
	defer done()
	if err := b.kinds(&c); err != nil {
		return err
	}
	if err := b.sizes(cmd, &c); err != nil {
		return err
	}
	if err := b.limits(&c); err != nil {
		return err
	}
	c.Scheme, c.Pairs, c.MinBatch, c.MaxBatch = b.scheme, b.pairs, b.minBatch, b.maxBatch
	c.Iters, c.Warmup, c.Rounds, c.Streams = b.iters, b.warmup, b.rounds, b.streams
	c.Check, c.Compare, c.NoSums, c.NoPeers = b.check, b.compare, b.noSums, b.noPeers
	if err := b.nixl.config(cmd, &c); err != nil {
		return err
	}
	if !b.asJSON {
		c.Progress = cmd.OutOrStdout()
		measure.PrintHead(c.Progress)
	}
	rows, err := measure.Run(cmd.Context(), c)
	if err != nil {
		return finding{err}
	}
	if b.asJSON {
		return printJSON(cmd.OutOrStdout(), rows)
	}
	return nil
}

// kinds reads what is moved: the operation, the memory at either end, and which of nixlbench's backends that is.
func (b *xferBench) kinds(c *measure.Config) (err error) {
	switch strings.ToUpper(b.op) {
	case "READ":
		c.Op = xfer.Read
	case "WRITE":
		c.Op = xfer.Write
	default:
		return fmt.Errorf("--op_type %q: want READ or WRITE", b.op)
	}
	if c.Local, err = xfer.ParseKind(b.from); err != nil {
		return fmt.Errorf("--initiator_seg_type: %w", err)
	}
	if c.Remote, err = xfer.ParseKind(b.to); err != nil {
		return fmt.Errorf("--target_seg_type: %w", err)
	}
	if c.Class, err = xfer.ParseClass(b.class); err != nil {
		return fmt.Errorf("--class: %w", err)
	}
	switch strings.ToUpper(b.backend) {
	case "", "WEFT", "UCX":
	case "POSIX":
		c.Here, c.Remote = true, xfer.File
	case "OBJ":
		c.Here, c.Remote = true, xfer.Object
	case "SELF":
		c.Here = true
	default:
		return fmt.Errorf("--backend %q: want WEFT (or UCX, which is the same here), POSIX, OBJ or SELF; "+
			"--path chooses the path between processes", b.backend)
	}
	return nil
}

// sizes reads the sizes of blocks and of the buffer. Where the flags leave them open, the buffer is as large as the
// largest batch, and blocks do not grow.
func (b *xferBench) sizes(cmd *cobra.Command, c *measure.Config) error {
	for _, f := range []struct {
		flag, text string
		to         *int64
	}{{"start_block_size", b.minBlock, &c.MinBlock}, {"max_block_size", b.maxBlock, &c.MaxBlock}, {"total_buffer_size", b.total, &c.Total}} {
		n, err := unit.ParseBytes(f.text)
		if err != nil || n <= 0 {
			return fmt.Errorf("--%s %q: want a size, as 64K", f.flag, f.text)
		}
		*f.to = int64(n)
	}
	if !cmd.Flags().Changed("max_block_size") {
		c.MaxBlock = max(c.MaxBlock, c.MinBlock)
	}
	b.maxBatch = max(b.maxBatch, b.minBatch)
	if !cmd.Flags().Changed("total_buffer_size") && b.maxBatch > 0 && b.maxBatch <= xfer.MaxDescs &&
		c.MaxBlock <= math.MaxInt64/int64(b.maxBatch) {
		c.Total = max(c.Total, c.MaxBlock*int64(b.maxBatch))
	}
	return nil
}

// limits refuses counts and sizes that are out of range or do not go together.
func (b *xferBench) limits(c *measure.Config) error {
	for _, f := range []struct {
		flag        string
		value, most int
		least       int
	}{{"num_iter", b.iters, 1 << 30, 1}, {"warmup_iter", b.warmup, 1 << 30, 0}, {"start_batch_size", b.minBatch, xfer.MaxDescs, 1},
		{"max_batch_size", b.maxBatch, xfer.MaxDescs, 1},
		{"num_initiator_dev", b.pairs, 256, 1}, {"rounds", b.rounds, 1 << 20, 1}, {"streams", b.streams, 64, 1}} {
		if f.value < f.least || f.value > f.most {
			return fmt.Errorf("--%s %d: want %d to %d", f.flag, f.value, f.least, f.most)
		}
	}
	if c.MaxBlock < c.MinBlock {
		return fmt.Errorf("--max_block_size %v is less than --start_block_size %v", unit.Bytes(c.MaxBlock), unit.Bytes(c.MinBlock))
	}
	if float64(c.MaxBlock)*float64(b.maxBatch) > float64(c.Total) {
		return fmt.Errorf("--total_buffer_size %v: %d blocks of %v need more", unit.Bytes(c.Total), b.maxBatch, unit.Bytes(c.MaxBlock))
	}
	if b.check && c.Local != xfer.Host {
		return fmt.Errorf("--check_consistency needs host memory at the initiator; --initiator_seg_type is %s", b.from)
	}
	if !slices.Contains(measure.Schemes, b.scheme) {
		return fmt.Errorf("--scheme %q: want %s", b.scheme, strings.Join(measure.Schemes, ", "))
	}
	return nil
}

// printExplained prints what each path takes, with why beside the chosen one.
func printExplained(out io.Writer, e measure.Explained, why string) error {
	w := newTable(out)
	fmt.Fprintf(w, "path\tlatency\trate\t%v take\twhy\n", e.Size)
	for _, r := range e.Routes {
		if !r.OK {
			fmt.Fprintf(w, "%s\t-\t-\t-\tno: %s\n", r.Path, r.Why)
			continue
		}
		chosen := ""
		if r.Path == e.Chosen {
			chosen = why
		}
		fmt.Fprintf(w, "%s\t%v\t%v\t%v\t%s\n", r.Path, r.Latency.Round(time.Microsecond/10), r.Rate,
			(r.Latency + time.Duration(float64(e.Size)/float64(r.Rate)*1e9)).Round(time.Microsecond), chosen)
	}
	if e.File != "" {
		fmt.Fprintf(w, "\nfiles: %s\n", e.File)
	}
	return w.Flush()
}

func newXferExplain() *cobra.Command {
	var place xferPlace
	var size string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "explain LOCAL REMOTE",
		Short: "Measure the paths between two processes and show which one a read takes",
		Long: `Start an agent in another process, measure every path to it, and say which one a read of --size bytes takes and why
not the others. LOCAL and REMOTE are host, file, object or gpu. --path and --require fail if that path is unavailable.`,
		Example: `  weft xfer explain host host
  weft xfer explain host file --size 16M
  weft xfer explain host host --require pull`,
		Args: cobra.ExactArgs(2), ValidArgs: []string{"host", "file", "object", "gpu"},
		RunE: func(cmd *cobra.Command, args []string) error {
			c, done, err := place.config()
			if err != nil {
				return err
			}
			defer done()
			if c.Local, err = xfer.ParseKind(args[0]); err != nil {
				return err
			}
			if c.Remote, err = xfer.ParseKind(args[1]); err != nil {
				return err
			}
			n, err := unit.ParseBytes(size)
			if err != nil || n <= 0 {
				return fmt.Errorf("--size %q: want a size, as 16M", size)
			}
			e, err := measure.Explain(cmd.Context(), c, int64(n))
			if err != nil {
				return finding{err}
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), e)
			}
			why := "chosen: takes the least time"
			if c.Path != "" {
				why = "chosen: demanded"
			}
			return printExplained(cmd.OutOrStdout(), e, why)
		},
	}
	place.register(cmd)
	cmd.Flags().StringVar(&size, "size", "1M", "bytes of the read")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// etcdAt connects to the etcd in which agents find one another.
func etcdAt(endpoints string) (*clientv3.Client, error) {
	if err := checkEtcd(endpoints); err != nil {
		return nil, err
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: strings.Split(endpoints, ","), DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
	if err != nil {
		return nil, fmt.Errorf("--etcd %s: %w; want addresses such as 10.0.0.1:2379,10.0.0.2:2379", endpoints, err)
	}
	return c, nil
}

// checkEtcd refuses what are no addresses of an etcd.
func checkEtcd(endpoints string) error {
	for e := range strings.SplitSeq(endpoints, ",") {
		if _, rest, ok := strings.Cut(e, "://"); ok {
			e = rest
		}
		if _, err := hostPort(e, 1); err != nil {
			return fmt.Errorf("--etcd %w", err)
		}
	}
	return nil
}

const etcdPrefix = "/weft/xfer"

func printRegion(w io.Writer, r *xfer.Remote) {
	may := []string{}
	if r.Access&xfer.MayRead != 0 {
		may = append(may, "read")
	}
	if r.Access&xfer.MayWrite != 0 {
		may = append(may, "written")
	}
	mapped := "no"
	if r.Share >= 0 {
		mapped = "yes"
	}
	fmt.Fprintf(w, "%s\t%s\t%v\t%s\t%s\n", r.Name, r.Kind, unit.Bytes(r.Size), strings.Join(may, ", "), mapped)
}

func newXferShow() *cobra.Command {
	var etcd, prefix string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show NAME [HOST:PORT]",
		Short: "Show an agent's addresses and regions",
		Long: `Ask the agent NAME at an address to describe itself, or look it up in the etcd of 'weft xfer serve --etcd'. WEFT_TOKEN is
the cluster's token.`,
		Example: `  weft xfer show store 127.0.0.1:7000
  weft xfer show store --etcd 127.0.0.1:2379`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if (len(args) == 2) == (etcd != "") {
				return fmt.Errorf("want an address, or --etcd HOST:PORT to look the agent up")
			}
			a, err := xfer.New(xfer.Config{Name: fmt.Sprintf("show %d", os.Getpid()), Token: os.Getenv("WEFT_TOKEN")})
			if err != nil {
				return err
			}
			defer a.Close()
			ctx, cancel := context.WithTimeout(cmd.Context(), 10*time.Second)
			defer cancel()
			var p *xfer.Peer
			if etcd != "" {
				c, err := etcdAt(etcd)
				if err != nil {
					return err
				}
				defer c.Close()
				err = await(ctx, cmd.ErrOrStderr(), "the etcd at "+etcd, func(ctx context.Context) (err error) {
					p, err = directory.Find(ctx, c, prefix, args[0], a)
					return err
				})
				if err != nil {
					return finding{fmt.Errorf("--etcd %s: %w", etcd, err)}
				}
			} else if p, err = a.Meet(ctx, args[0], args[1]); err != nil {
				return finding{err}
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), struct {
					Name       string         `json:"name"`
					Generation uint64         `json:"generation"`
					Regions    []*xfer.Remote `json:"regions"`
				}{p.ID().Name, p.ID().Generation, p.Regions()})
			}
			w := newTable(cmd.OutOrStdout())
			fmt.Fprintf(w, "agent %s, generation %x\n", p.ID().Name, p.ID().Generation)
			fmt.Fprintln(w, "region\tkind\tsize\tmay be\tmapped on its host")
			for _, r := range p.Regions() {
				printRegion(w, r)
			}
			return w.Flush()
		},
	}
	cmd.Flags().StringVar(&etcd, "etcd", "", "`HOST:PORT,...` of the etcd in which it published itself")
	cmd.Flags().StringVar(&prefix, "prefix", etcdPrefix, "`KEY` in etcd for the entries of agents")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func newXferServe() *cobra.Command {
	var name, io, etcd, prefix string
	var listen, regions []string
	var bare, quiet, buffered, noSums, asJSON bool
	cmd := &cobra.Command{
		Use:   "serve --region NAME=KIND:...",
		Short: "Run an agent whose regions others can read and write",
		Long: `Run an agent until its standard input ends or it is interrupted. The first output line describes it as JSON: others
open the description, or meet it at an address. Every notice is one more line. WEFT_TOKEN is the cluster's token.`,
		Example: `  weft xfer serve --name store --region kv=host:64M </dev/null
  weft xfer serve --region slab=file:/tmp/weft-slab:64M --listen 127.0.0.1:0 </dev/null
  weft xfer serve --name store --region kv=host:64M --etcd 127.0.0.1:2379 </dev/null`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if name == "" || len(name) > 200 {
				return fmt.Errorf("--name of %d bytes: want 1 to 200", len(name))
			}
			if io != "" && io != "ring" && io != "calls" {
				return fmt.Errorf("--io %q: want ring or calls", io)
			}
			s := measure.Serving{Config: xfer.Config{Name: name, Listen: listen, Token: os.Getenv("WEFT_TOKEN"), NoSums: noSums}, Bare: bare,
				Quiet: quiet}
			if len(regions) == 0 {
				return fmt.Errorf("no region given; want --region NAME=host:SIZE, NAME=file:PATH:SIZE or NAME=object:s3://BUCKET/KEY:SIZE")
			}
			for _, text := range regions {
				r, err := measure.ParseRegion(text)
				if err != nil {
					return err
				}
				if slices.ContainsFunc(s.Regions, func(x measure.Region) bool { return x.Name == r.Name }) {
					return fmt.Errorf("--region %s: the name is there twice", r.Name)
				}
				r.Buffered, r.IO = buffered, io
				s.Regions = append(s.Regions, r)
			}
			for _, at := range listen {
				host, _, err := net.SplitHostPort(at)
				if err != nil {
					return fmt.Errorf("--listen %q: want HOST:PORT", at)
				}
				if err := auth.CheckToken(s.Config.Token, host, false); err != nil {
					return err
				}
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			if etcd != "" {
				c, err := etcdAt(etcd)
				if err != nil {
					return err
				}
				defer c.Close()
				s.Ready = func(ctx context.Context, a *xfer.Agent) (func(), error) {
					var e *directory.Entry
					err := await(ctx, cmd.ErrOrStderr(), "the etcd at "+etcd, func(ctx context.Context) (err error) {
						e, err = directory.Publish(ctx, c, prefix, a)
						return err
					})
					if err != nil {
						return nil, fmt.Errorf("--etcd %s: %w", etcd, err)
					}
					return e.Close, nil
				}
			}
			if err := measure.Serve(ctx, cmd.InOrStdin(), cmd.OutOrStdout(), s); err != nil && ctx.Err() == nil {
				return finding{err}
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&name, "name", "agent", "`NAME` of the agent")
	f.StringArrayVar(&listen, "listen", nil, "`HOST:PORT` to listen at, once for each interface; default: 127.0.0.1:0")
	f.StringArrayVar(&regions, "region", nil, "a region: `NAME=KIND:...`")
	f.StringVar(&etcd, "etcd", "", "publish the description in the etcd at `HOST:PORT,...` while the agent lives")
	f.StringVar(&prefix, "prefix", etcdPrefix, "`KEY` in etcd for the entries of agents")
	f.BoolVar(&bare, "bare", false, "answer bare sockets, too, for comparisons")
	f.BoolVar(&quiet, "quiet", false, "print no notices")
	f.BoolVar(&noSums, "no-checksums", false, "send and take slices on sockets without checksums; whoever meets this agent must, too")
	f.BoolVar(&buffered, "buffered", false, "files through the page cache")
	f.StringVar(&io, "io", "", "how files are read and written: ring or calls")
	f.BoolVar(&asJSON, "json", true, "print JSON, which is the only form")
	_ = f.MarkHidden("bare")
	return cmd
}

// newXferRank is a rank of 'xfer compare'.
func newXferRank() *cobra.Command {
	return &cobra.Command{
		Use: "rank", Hidden: true, Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := measure.Rank(cmd.Context(), cmd.OutOrStdout(), args[0], args[1]); err != nil {
				return finding{err}
			}
			return nil
		},
	}
}

func newXferCompare() *cobra.Command {
	var sizes string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "compare",
		Short: "Compare send/receive with transfers: times, and what happens when one side is late or dies",
		Long: `Move the same bytes between two processes on this host by send and receive, as NCCL does, and by transfers, as NIXL
does; then with one side late, and with one side killed.`,
		Example: `  weft xfer compare --sizes 1M`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), 10*time.Minute)
			defer cancel()
			var place xferPlace
			c, done, err := place.config()
			if err != nil {
				return err
			}
			defer done()
			var list []int64
			for s := range strings.SplitSeq(sizes, ",") {
				n, err := unit.ParseBytes(s)
				if err != nil || n <= 0 || n%4 != 0 {
					return fmt.Errorf("--sizes %q: want sizes that are multiples of 4, as 1M,20M", s)
				}
				list = append(list, int64(n))
			}
			t, err := measure.Compare(ctx, c, list)
			if err != nil {
				return finding{err}
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), t)
			}
			w := newTable(cmd.OutOrStdout())
			fmt.Fprintln(w, "what\tsend and receive\ttransfer")
			for _, r := range t {
				fmt.Fprintf(w, "%s\t%s\t%s\n", r.What, r.SendRecv, r.Transfer)
			}
			return w.Flush()
		},
	}
	cmd.Flags().StringVar(&sizes, "sizes", "1M,20M", "bytes to move, several with commas")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func newXferShare() *cobra.Command {
	var size, limit string
	var asJSON, classes bool
	cmd := &cobra.Command{
		Use:   "share",
		Short: "Run an all-reduce together with transfers of each class on one link and check the sharing rule",
		Long: `Run all-reduces of two ranks over this host's loopback: alone, next to transfers of
each class with and without the sharing rule, and next to bulk transfers limited to
--limit. By the rule, class latency sends as many bytes as collectives do, bulk a
quarter, background a sixteenth. Column 'by its' is transfer bytes over all-reduce
bytes. Exit code 1 if a class sent more.

--classes times small writes of class latency next to the same agent's bulk writes and
next to all-reduces.

On a plain loopback the CPUs are the bottleneck, not the link; use a network namespace
with a shaped loopback (docs/how-to/transfers.md).`,
		Example: `  weft xfer share --limit 50MB/s
  weft xfer share --classes --limit 20MB/s
  weft xfer share --size 4M --limit 200MB/s --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			n, err := unit.ParseBytes(size)
			if err != nil || n <= 0 || n%4 != 0 {
				return fmt.Errorf("--size %q: want a multiple of 4, as 4M", size)
			}
			most, err := unit.ParseRate(limit)
			if err != nil || most <= 0 {
				return fmt.Errorf("--limit %q: want a rate, as 50MB/s", limit)
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), 5*time.Minute)
			defer cancel()
			var place xferPlace
			c, done, err := place.config()
			if err != nil {
				return err
			}
			defer done()
			if classes {
				t, err := measure.Classes(ctx, c, int64(n), most)
				if err != nil {
					return finding{err}
				}
				if asJSON {
					return printJSON(cmd.OutOrStdout(), t)
				}
				w := newTable(cmd.OutOrStdout())
				fmt.Fprintf(w, "256 KiB of class\tbeside\tmedian\tp95\tby the median alone\tthe bulk writes\tall-reduce of %v\n", n)
				for _, u := range t {
					bulk, reduce := "", ""
					if u.Bulk > 0 {
						bulk = u.Bulk.String()
					}
					if u.Reduce > 0 {
						reduce = fmt.Sprintf("%.1f ms", u.Reduce*1e3)
					}
					fmt.Fprintf(w, "%s\t%s\t%.1f ms\t%.1f ms\t%.2f\t%s\t%s\n", u.Class, u.Beside, u.Median, u.P95, u.Slower, bulk, reduce)
				}
				return w.Flush()
			}
			const form = "%-28s  %10s  %10s  %8s  %12s  %8s  %8s  %s\n"
			show := func(s measure.Share) {
				rate, ratio, agreed, held := "", "", "", ""
				if s.Class != "" {
					rate, ratio = s.Bulk.String(), fmt.Sprintf("%.3f", s.Ratio)
				}
				if s.Agreed > 0 {
					agreed = fmt.Sprintf("%.3f", s.Agreed)
				}
				if s.Limit > 0 {
					agreed = s.Limit.String()
				}
				if agreed != "" {
					held = map[bool]string{true: "yes", false: "no"}[s.Held]
				}
				fmt.Fprintf(cmd.OutOrStdout(), form, s.Beside, fmt.Sprintf("%.2f ms", s.Each*1e3), s.Rate, fmt.Sprintf("%.2f", s.Slower), rate, ratio,
					agreed, held)
			}
			if asJSON {
				show = nil
			} else {
				fmt.Fprintf(cmd.OutOrStdout(), form, fmt.Sprintf("all-reduce of %v beside", n), "takes", "rate", "by alone", "transfers", "by its",
					"agreed", "held")
			}
			t, err := measure.Shares(ctx, c, int64(n), most, show)
			if err != nil {
				return finding{err}
			}
			if asJSON {
				if err := printJSON(cmd.OutOrStdout(), t); err != nil {
					return err
				}
			}
			for _, s := range t {
				if !s.Held {
					return finding{fmt.Errorf("%s: the transfers sent %v, %.3f of what the all-reduces sent; more than was agreed",
						s.Beside, s.Bulk, s.Ratio)}
				}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&size, "size", "4M", "bytes of the all-reduce")
	cmd.Flags().StringVar(&limit, "limit", "50MB/s", "what bulk transfers may take")
	cmd.Flags().BoolVar(&classes, "classes", false, "small writes next to bulk writes and all-reduces")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
