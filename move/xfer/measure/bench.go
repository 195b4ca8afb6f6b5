package measure

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/move/xfer"
	"github.com/weft-fabric/weft/run/ckpt/blob"
)

// Config says what is measured. Names follow nixlbench.
type Config struct {
	Op       xfer.Op
	Local    xfer.Kind // initiator_seg_type
	Remote   xfer.Kind // target_seg_type
	Scheme   string    // pairwise, manytoone or onetomany
	Pairs    int       // initiators and targets of the larger side
	Here     bool      // the target's region is of the initiator's own agent, as storage is
	MinBlock int64
	MaxBlock int64
	MinBatch int
	MaxBatch int
	Total    int64 // bytes of each region
	Iters    int
	Large    int // blocks above 1 MiB are moved this much less often; 0 for as often
	Threads  int // requests of an initiator that are under way at once; 0 for one
	Recreate bool
	Warmup   int
	Rounds   int // between which the comparisons are run
	Check    bool
	Compare  bool
	Path     string
	Floor    string // the longest path that may be taken
	Class    xfer.Class
	Streams  int
	NoPeers  bool   // Compare leaves ucx_perftest and MPI out, whose processes spin
	NoSums   bool   // slices on sockets go without checksums
	Dir      string // for files, and objects if Store is empty
	Store    string // s3://BUCKET/PREFIX
	Device   string // of GPU memory: cuda or soft
	Buffered bool
	IO       string   // ring or calls; empty to choose
	Command  []string // starts an agent that serves; regions are added as arguments
	Token    string
	Progress io.Writer
}

// Schemes are those of Config, Devices the GPUs.
var (
	Schemes = []string{"pairwise", "manytoone", "onetomany"}
	Devices = []string{"cuda", "soft"}
)

// Row is a line of the result.
type Row struct {
	Block   int64     `json:"block"`
	Batch   int       `json:"batch"`
	Rate    unit.Rate `json:"rate"`       // of all initiators together, bytes a second
	Latency float64   `json:"latency_us"` // average of a request
	Prep    float64   `json:"prep_us"`    // average
	PrepP99 float64   `json:"prep_p99_us"`
	Post    float64   `json:"post_us"`
	PostP99 float64   `json:"post_p99_us"`
	Tx      float64   `json:"tx_us"`
	TxP99   float64   `json:"tx_p99_us"`
	Descs   float64   `json:"descriptors_per_s"`
	CPU     float64   `json:"cpu_s_per_gb"` // of all processes
	Path    string    `json:"path"`
	Beside  []Beside  `json:"beside,omitempty"`
}

// Beside is what something else does with the same bytes in the same minute.
type Beside struct {
	Name  string    `json:"name"`
	Rate  unit.Rate `json:"rate,omitempty"`
	Ratio float64   `json:"ratio,omitempty"`        // ours by theirs, the median over rounds
	CPU   float64   `json:"cpu_s_per_gb,omitempty"` // of our processes, where it runs in them
	Why   string    `json:"why,omitempty"`          // not measured
}

// pair is an initiator and its target.
type bout struct {
	agent  *xfer.Agent
	local  *xfer.Region
	remote func(off, n int64) xfer.Desc
	peer   *xfer.Peer
}

// Run measures.
func Run(ctx context.Context, c Config) ([]Row, error) {
	if c.Rounds < 1 {
		c.Rounds = 1
	}
	if c.MaxBlock*int64(c.MaxBatch) > c.Total {
		return nil, fmt.Errorf("%d blocks of %v need %v, and the buffer has %v",
			c.MaxBatch, unit.Bytes(c.MaxBlock), unit.Bytes(c.MaxBlock*int64(c.MaxBatch)), unit.Bytes(c.Total))
	}
	whole := c.Remote == xfer.Object && c.Op == xfer.Write || c.Local == xfer.Object && c.Op == xfer.Read
	targets, initiators := c.Pairs, c.Pairs
	switch c.Scheme {
	case "pairwise":
	case "manytoone":
		targets = 1
	case "onetomany":
		initiators = 1
	default:
		return nil, fmt.Errorf("scheme %q: want %s", c.Scheme, strings.Join(Schemes, ", "))
	}
	var rows []Row
	for block := c.MinBlock; block <= c.MaxBlock; block *= 2 {
		for batch := c.MinBatch; batch <= c.MaxBatch; batch *= 2 {
			total := c.Total
			if whole {
				total = block * int64(batch) // an object is written as a whole
			}
			row, err := c.one(ctx, initiators, targets, block, batch, total)
			if err != nil {
				return rows, err
			}
			rows = append(rows, row)
			if c.Progress != nil {
				PrintRow(c.Progress, row, c.Compare)
			}
		}
	}
	return rows, nil
}

// region is a region of a side.
func (c *Config) region(kind xfer.Kind, who string, i int, size int64) Region {
	r := Region{Name: who, Kind: kind, Size: size, Create: true, Buffered: c.Buffered, IO: c.IO}
	switch kind {
	case xfer.GPU:
		r.Path = c.Device
	case xfer.File:
		r.Path = filepath.Join(c.Dir, fmt.Sprintf("%s-%d", who, i))
	case xfer.Object:
		where := c.Store
		if where == "" {
			where = filepath.Join(c.Dir, "objects")
		}
		r.Path = fmt.Sprintf("%s/%s-%d", where, who, i)
	}
	return r
}

// fill gives an object or file bytes to be read.
func (c *Config) fill(ctx context.Context, r Region) error {
	b := make([]byte, min(r.Size, 1<<30))
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	switch r.Kind {
	case xfer.File:
		return os.WriteFile(r.Path, b, 0o644)
	case xfer.Object:
		at := strings.LastIndex(r.Path, "/")
		p, err := blob.Open(r.Path[:at])
		if err != nil {
			return err
		}
		defer p.Close()
		return p.Put(ctx, r.Path[at+1:], blob.Bytes(b))
	}
	return nil
}

// text is a region as an argument of a serving agent.
func (r Region) text() string {
	if r.Kind == xfer.GPU {
		return fmt.Sprintf("%s=gpu:%s:%d", r.Name, r.Path, r.Size)
	}
	if r.Kind == xfer.Host {
		return fmt.Sprintf("%s=host:%d", r.Name, r.Size)
	}
	return fmt.Sprintf("%s=%s:%s:%d", r.Name, r.Kind, r.Path, r.Size)
}

// one measures one line.
func (c *Config) one(ctx context.Context, initiators, targets int, block int64, batch int, total int64) (row Row, err error) {
	row = Row{Block: block, Batch: batch}
	agentConfig := xfer.Config{Token: c.Token, Path: c.Path, Floor: c.Floor, Streams: c.Streams, NoSums: c.NoSums, Timeout: time.Minute}
	var children []*Child
	defer func() {
		for _, k := range children {
			k.Stop()
		}
	}()
	if !c.Here {
		for i := range targets {
			r := c.region(c.Remote, "target", i, total)
			if err := c.fill(ctx, r); err != nil {
				return row, err
			}
			args := append(slices.Clone(c.Command), "--name", fmt.Sprintf("target%d", i), "--region", r.text(), "--bare", "--quiet")
			if c.Buffered {
				args = append(args, "--buffered")
			}
			if c.IO != "" {
				args = append(args, "--io", c.IO)
			}
			if c.NoSums {
				args = append(args, "--no-checksums")
			}
			k, err := Start(ctx, args, "WEFT_TOKEN="+c.Token)
			if err != nil {
				return row, err
			}
			children = append(children, k)
		}
	}
	var bouts []*bout
	var agents []*xfer.Agent
	defer func() {
		for _, a := range agents {
			a.Close()
		}
	}()
	for i := range max(initiators, targets) {
		var b *bout
		if i < initiators {
			cfg := agentConfig
			cfg.Name = fmt.Sprintf("initiator%d", i)
			a, err := xfer.New(cfg)
			if err != nil {
				return row, err
			}
			agents = append(agents, a)
		}
		a := agents[min(i, len(agents)-1)]
		b = &bout{agent: a}
		lr := c.region(c.Local, fmt.Sprintf("local%d", i), i, total)
		if err := c.fill(ctx, lr); err != nil {
			return row, err
		}
		if b.local, err = lr.Register(a); err != nil {
			return row, err
		}
		if m := b.local.Bytes(); m != nil {
			for k := range m {
				m[k] = byte(k)
			}
		}
		if c.Here {
			tr := c.region(c.Remote, fmt.Sprintf("target%d", i), i, total)
			if err := c.fill(ctx, tr); err != nil {
				return row, err
			}
			r, err := tr.Register(a)
			if err != nil {
				return row, err
			}
			b.remote = r.At
			if err := pin(b.local, r); err != nil {
				return row, err
			}
		} else {
			if b.peer, err = a.Open(children[i%targets].Hello.Description); err != nil {
				return row, err
			}
			r, err := b.peer.Region("target")
			if err != nil {
				return row, err
			}
			b.remote = r.At
		}
		bouts = append(bouts, b)
	}
	return row, c.measure(ctx, &row, bouts, children, block, batch, total)
}

// pin pins host memory that is copied to or from a GPU of this process.
func pin(a, b *xfer.Region) error {
	for _, x := range [][2]*xfer.Region{{a, b}, {b, a}} {
		if g, ok := x[0].Storage().(ownedGPU); ok && x[1].Bytes() != nil {
			return g.Pin(x[1].Bytes())
		}
	}
	return nil
}

// lists are the prepared requests of an initiator: windows of its regions, used in turn.
func lists(b *bout, block int64, batch int, total int64) (s state, err error) {
	n := int(total / block)
	s.here, s.there = make([]xfer.Desc, n), make([]xfer.Desc, n)
	for k := range n {
		s.here[k], s.there[k] = b.local.At(int64(k)*block, block), b.remote(int64(k)*block, block)
	}
	began := time.Now()
	if s.local, err = b.agent.Prepare(nil, s.here); err != nil {
		return s, err
	}
	if s.remote, err = b.agent.Prepare(b.peer, s.there); err != nil {
		return s, err
	}
	s.prep = time.Since(began)
	windows := n / batch
	for w := range windows {
		// Blocks of a request lie apart, as those of a cache do: every window takes each windows-th block.
		idx := make([]int, batch)
		for k := range idx {
			idx[k] = k*windows + w
		}
		s.index = append(s.index, idx)
	}
	return s, nil
}

// other is something that moves the same bytes.
type other struct {
	name   string
	Why    string
	inside bool // it runs in our processes
	run    func(iters int) (time.Duration, error)
}

// beside prepares what is compared with.
func (c *Config) beside(ctx context.Context, b *bout, children []*Child, block int64, batch int, total int64) (list []other, stop func(),
	err error) {
	if !c.Compare {
		return nil, func() {}, nil
	}
	per := block * int64(batch)
	if c.Local == xfer.Host && c.Remote == xfer.Host {
		src, dst := make([]byte, total), make([]byte, total)
		for i := range src {
			src[i], dst[i] = byte(i), 1
		}
		windows := int(total/block) / batch
		list = append(list, other{name: "memcpy", inside: true, run: func(iters int) (time.Duration, error) {
			began := time.Now()
			for k := range iters {
				for i := range batch {
					at := int64(i*windows+k%windows) * block
					copy(dst[at:at+block], src[at:at+block])
				}
			}
			return time.Since(began), nil
		}})
	}
	var ends []func()
	stop = func() {
		for _, end := range ends {
			end()
		}
	}
	if len(children) > 0 {
		// As many connections as ours has, each with its part of the bytes.
		n := max(1, c.Streams)
		streams := make([]bareStream, n)
		for i := range streams {
			conn, err := net.Dial("tcp", children[0].Hello.Bare)
			if err != nil {
				stop()
				return nil, nil, err
			}
			ends = append(ends, func() { conn.Close() })
			streams[i] = bareStream{c: conn, buf: bareMemory()}
		}
		list = append(list, other{name: "bare socket", inside: true, run: func(iters int) (time.Duration, error) {
			began := time.Now()
			errs := make([]error, n)
			for range iters {
				var wg sync.WaitGroup
				for i := range streams[1:] {
					wg.Go(func() { errs[1+i] = streams[1+i].move(per/int64(n), c.Op == xfer.Write) })
				}
				errs[0] = streams[0].move(per-per/int64(n)*int64(n-1), c.Op == xfer.Write)
				wg.Wait()
				if err := errors.Join(errs...); err != nil {
					return 0, err
				}
			}
			return time.Since(began), nil
		}})
	}
	if c.Local == xfer.Host && c.Remote == xfer.Host && len(children) > 0 && !c.NoPeers {
		list = append(list, c.ucx(ctx, block, batch), c.rma(ctx, block, batch, total))
	}
	if c.Local == xfer.GPU || c.Remote == xfer.GPU {
		o, end := c.gpuCopy(per, total)
		ends = append(ends, end)
		list = append(list, o)
	}
	if c.Remote == xfer.File {
		list = append(list, fio(ctx, c, block, batch, total))
	}
	if c.Remote == xfer.Object {
		r := c.region(xfer.Object, "client", 0, total)
		at := strings.LastIndex(r.Path, "/")
		p, err := blob.Open(r.Path[:at])
		if err != nil {
			stop()
			return nil, nil, err
		}
		ends = append(ends, p.Close)
		body := make([]byte, total) // and an object as large as ours, read from one end to the other
		if err := p.Put(ctx, r.Path[at+1:], blob.Bytes(body)); err != nil {
			stop()
			return nil, nil, err
		}
		list = append(list, other{name: "its client", inside: true, run: func(iters int) (time.Duration, error) {
			began := time.Now()
			for k := range iters {
				off := int64(k) % (total / per) * per
				var err error
				if c.Op == xfer.Write {
					err = p.Put(ctx, r.Path[at+1:], blob.Bytes(body[off:][:per]))
				} else {
					err = p.Read(ctx, r.Path[at+1:], body[off:][:per], off)
				}
				if err != nil {
					return 0, err
				}
			}
			return time.Since(began), nil
		}})
	}
	return list, stop, nil
}
