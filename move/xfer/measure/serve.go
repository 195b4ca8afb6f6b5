// Package measure runs agents as processes and measures transfers between them: all pairs of kinds, beside what
// the memory, bare sockets, the disk and the store's client do alone, and beside sends and receives of comm.
package measure

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/move/xfer"
	"github.com/weft-fabric/weft/run/ckpt/blob"
	"github.com/weft-fabric/weft/run/gpu"
	"github.com/weft-fabric/weft/run/gpu/cuda"
	"github.com/weft-fabric/weft/run/gpu/soft"
)

// Region is a region to register, as users write it: NAME=host:SIZE, NAME=file:PATH[:SIZE] or
// NAME=object:s3://BUCKET/KEY:SIZE (or a folder instead of the store: NAME=object:DIR/KEY:SIZE), or
// NAME=gpu:cuda:SIZE.
type Region struct {
	Name string
	Kind xfer.Kind
	Path string
	Size int64

	Buffered, Create bool
	IO               string
}

// cutSize cuts PATH[:SIZE]. A path may have colons, so that only what reads as a size is one.
func cutSize(s string) (path, size string) {
	if i := strings.LastIndex(s, ":"); i >= 0 {
		if _, err := unit.ParseBytes(s[i+1:]); err == nil {
			return s[:i], s[i+1:]
		}
	}
	return s, ""
}

// ParseRegion reads a region.
func ParseRegion(s string) (Region, error) {
	name, rest, ok := strings.Cut(s, "=")
	kind, arg, ok2 := strings.Cut(rest, ":")
	if !ok || !ok2 || name == "" || arg == "" {
		return Region{}, fmt.Errorf("region %q: want NAME=host:SIZE, NAME=file:PATH:SIZE or NAME=object:s3://BUCKET/KEY:SIZE", s)
	}
	k, err := xfer.ParseKind(kind)
	if err != nil {
		return Region{}, fmt.Errorf("region %q: %w", s, err)
	}
	r := Region{Name: name, Kind: k, Create: true}
	size := arg
	if k != xfer.Host {
		r.Path, size = cutSize(arg)
	}
	if size != "" {
		n, err := unit.ParseBytes(size)
		if err != nil {
			return Region{}, fmt.Errorf("region %q: %w", s, err)
		}
		r.Size = int64(n)
	}
	if r.Size == 0 && k != xfer.File {
		at := map[xfer.Kind]string{xfer.Object: "s3://BUCKET/NAME:", xfer.GPU: "cuda:"}[k]
		return Region{}, fmt.Errorf("region %q: want a size, as %s=%s:%s64MiB", s, name, k, at)
	}
	return r, nil
}

// Register makes the region with an agent.
func (r Region) Register(a *xfer.Agent) (*xfer.Region, error) {
	s, err := r.storage(a)
	if err != nil {
		return nil, err
	}
	return a.Register(r.Name, s, 0)
}

// storage is where the bytes of the region lie.
func (r Region) storage(a *xfer.Agent) (xfer.Storage, error) {
	switch r.Kind {
	case xfer.Host:
		b, err := a.Alloc(int(r.Size))
		if err != nil {
			return nil, err
		}
		return xfer.Memory(b), nil
	case xfer.File:
		return xfer.OpenFile(r.Path, xfer.FileOptions{Size: r.Size, Create: r.Create && r.Size > 0, Buffered: r.Buffered, IO: r.IO})
	case xfer.Object:
		at := strings.LastIndex(r.Path, "/")
		if at < 0 {
			return nil, fmt.Errorf("object %q: want s3://BUCKET/KEY or DIR/KEY", r.Path)
		}
		p, err := blob.Open(r.Path[:at])
		if err != nil {
			return nil, err
		}
		return xfer.NewObject(p, r.Path[at+1:], r.Size, xfer.ObjectOptions{})
	case xfer.GPU:
		s, err := onGPU(r.Path, r.Size)
		if err != nil {
			return nil, fmt.Errorf("region %q: %w", r.Name, err)
		}
		return s, nil
	}
	return nil, nil
}

// gpus are the GPUs that regions of this process are on, each opened once: copies between two regions of one are its own.
var gpus struct {
	sync.Mutex
	open map[string]*sharedGPU
}

type sharedGPU struct {
	gpu.Device
	users int
}

// openGPU opens the first GPU, "soft" for one in software; it is closed by whoever closes it last.
func openGPU(which string) (*sharedGPU, func(), error) {
	gpus.Lock()
	defer gpus.Unlock()
	g := gpus.open[which]
	if g == nil {
		g = &sharedGPU{}
		switch which {
		case "soft":
			g.Device = soft.New(gpu.Plain)
		case "", "cuda":
			d, err := cuda.Open(0)
			if err != nil {
				return nil, nil, err
			}
			g.Device = d
		default:
			return nil, nil, fmt.Errorf("GPU %q: want cuda or soft", which)
		}
		if gpus.open == nil {
			gpus.open = map[string]*sharedGPU{}
		}
		gpus.open[which] = g
	}
	g.users++
	return g, sync.OnceFunc(func() {
		gpus.Lock()
		defer gpus.Unlock()
		if g.users--; g.users == 0 {
			_ = g.Close()
			delete(gpus.open, which)
		}
	}), nil
}

// ownedGPU is memory of a GPU that is given back with its storage.
type ownedGPU struct {
	*xfer.Device
	gpu  gpu.Device
	at   gpu.Ptr
	done func()
}

func (g ownedGPU) Close() error {
	_ = g.Device.Close()
	err := g.gpu.Free(g.at)
	g.done()
	return err
}

// onGPU gets memory of a GPU.
func onGPU(which string, size int64) (xfer.Storage, error) {
	d, done, err := openGPU(which)
	if err != nil {
		return nil, err
	}
	at, err := d.Alloc(int(size))
	if err != nil {
		done()
		return nil, err
	}
	x, err := xfer.NewDevice(d, at, size)
	if err != nil {
		_ = d.Free(at)
		done()
		return nil, err
	}
	return ownedGPU{x, d, at, done}, nil
}

// Hello is the first line of an agent that serves.
type Hello struct {
	Agent       string          `json:"agent"`
	Generation  uint64          `json:"generation"`
	Addrs       []string        `json:"addrs"`
	Bare        string          `json:"bare,omitempty"`
	Description json.RawMessage `json:"description"`
}

// Heard is a later line: a notice, or an answer.
type Heard struct {
	Notice  *string `json:"notice,omitempty"`
	From    string  `json:"from,omitempty"`
	Request uint64  `json:"request,omitempty"`
	Error   string  `json:"error,omitempty"`
	CPU     float64 `json:"cpu_s,omitempty"`
	Sum     string  `json:"sum,omitempty"`
}

// Serving says how an agent serves.
type Serving struct {
	Config  xfer.Config
	Regions []Region
	Bare    bool // sockets without any of ours, too, to compare with
	Quiet   bool // notices are not printed
	// Ready, if set, is called when all regions are there; what it gives is called in the end.
	Ready func(context.Context, *xfer.Agent) (end func(), err error)
}

// Serve runs an agent until its input ends. It prints a Hello, then a line for every notice. Lines that it reads
// are commands: "usage" prints the processor time so far.
func Serve(ctx context.Context, in io.Reader, out io.Writer, s Serving) error {
	a, err := xfer.New(s.Config)
	if err != nil {
		return err
	}
	defer a.Close()
	for _, r := range s.Regions {
		if _, err := r.Register(a); err != nil {
			return err
		}
	}
	if s.Ready != nil {
		end, err := s.Ready(ctx, a)
		if err != nil {
			return err
		}
		defer end()
	}
	h := Hello{Agent: a.ID().Name, Generation: a.ID().Generation, Addrs: a.Addrs(), Description: a.Describe()}
	if s.Bare {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		defer ln.Close()
		h.Bare = ln.Addr().String()
		go bare(ln)
	}
	var mu sync.Mutex
	enc := json.NewEncoder(out)
	say := func(v any) {
		mu.Lock()
		defer mu.Unlock()
		_ = enc.Encode(v)
	}
	say(h)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		for {
			n, err := a.NextNotice(ctx)
			if err != nil {
				return
			}
			if s.Quiet {
				continue
			}
			text := string(n.Data)
			x := Heard{Notice: &text, From: n.From.Name, Request: n.Request}
			if n.Err != nil {
				x.Error = n.Err.Error()
			}
			say(x)
		}
	}()
	go func() {
		defer cancel()
		lines := bufio.NewScanner(in)
		for lines.Scan() {
			if lines.Text() == "usage" {
				say(Heard{CPU: cpuTime().Seconds()})
			}
		}
	}()
	<-ctx.Done()
	return nil
}

const bareSize = 64 << 20

// bareMemory is as much memory as a region has, and written to: pages that nobody wrote are all the same one of zeros, which stays in the
// processor's cache, as a small buffer would.
func bareMemory() []byte {
	b := make([]byte, bareSize)
	for i := range b {
		b[i] = byte(i)
	}
	return b
}

// bare answers connections that say how many bytes come, or are wanted, with plain reads and writes.
func bare(ln net.Listener) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			answerBare(c)
		}()
	}
}

// answerBare takes what is written and gives what is read, until the connection ends. A question is a length of 8 bytes and 0 for reading;
// what was written whole is answered with a byte.
func answerBare(c net.Conn) {
	buf := bareMemory()
	at := 0
	var head [9]byte
	for {
		if _, err := io.ReadFull(c, head[:]); err != nil {
			return
		}
		do := c.Write
		if head[8] != 0 {
			do = func(b []byte) (int, error) { return io.ReadFull(c, b) }
		}
		for n := int64(binary.LittleEndian.Uint64(head[:])); n > 0; {
			k := int(min(n, 1<<20))
			if at+k > len(buf) {
				at = 0
			}
			if _, err := do(buf[at : at+k]); err != nil {
				return
			}
			at, n = at+k, n-int64(k)
		}
		if head[8] != 0 {
			if _, err := c.Write(head[:1]); err != nil {
				return
			}
		}
	}
}

// bareStream is a bare socket and the memory that it fills or sends, as large as a region.
type bareStream struct {
	c   net.Conn
	buf []byte
	at  int
}

// move moves n bytes.
func (s *bareStream) move(n int64, write bool) error {
	var head [9]byte
	for i := range 8 {
		head[i] = byte(n >> (8 * i))
	}
	if write {
		head[8] = 1
	}
	if _, err := s.c.Write(head[:]); err != nil {
		return err
	}
	for n > 0 {
		k := int(min(n, 1<<20))
		if s.at+k > len(s.buf) {
			s.at = 0
		}
		var err error
		if write {
			_, err = s.c.Write(s.buf[s.at : s.at+k])
		} else {
			_, err = io.ReadFull(s.c, s.buf[s.at:s.at+k])
		}
		if err != nil {
			return err
		}
		s.at, n = s.at+k, n-int64(k)
	}
	if write {
		_, err := io.ReadFull(s.c, head[:1])
		return err
	}
	return nil
}

// cpuTime is the processor time of this process.
func cpuTime() time.Duration {
	return processTime()
}

// Child is an agent in a process of its own.
type Child struct {
	Hello Hello
	Pid   int
	proc  *os.Process
	in    io.WriteCloser
	lines chan Heard
	ended chan struct{}
}
