// Package device runs collectives on GPU memory between the ranks of a communicator.
//
//	c, err := comm.Join(ctx, cfg)
//	g, err := device.Open(ctx, c, func() (gpu.Device, error) { return cuda.Open(0) }, device.Config{})
//	x, err := g.Alloc(reduce.Float32, n)                 // or memory of any other allocator, by its address
//	err = device.AllReduce(ctx, g, x, x, comm.Sum)
//
// There are two paths. All ranks agree on one when the group opens. Way names it, and it never changes:
//
//	direct   ranks map each other's memory: processes on one GPU, or on GPUs that reach each other. The program's
//	         flat form says which rank reads which inputs, in which order, and writes the sum to which outputs.
//	         Each rank does its part in one kernel; only two small messages pass through the host.
//	staged   through host memory, in pieces: while one is copied from the GPU, the communicator reduces the
//	         previous one, and the one before that is copied back. It works over any transport, also between hosts.
//	         On one host, GPUs sum in shared host memory if that is faster (Sums).
//
// Config.Way (WEFT_CUDA) demands one of them; if it is unavailable, all ranks get an error.
//
// Sums use the program rank-order: their bits depend on rank numbers alone. Both paths give the same bits, as does
// comm.AllReduce on the host with that program or with WEFT_CANONICAL=1. Call.Program selects another one.
//
// A rank that dies, calls something else or passes invalid memory ends the call on all ranks, with a *comm.Failure or
// the error of package gpu that names it. Unlike on the host, a failed in-place operation may have changed its memory.
package device

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/verify"
	"github.com/weft-fabric/weft/run/comm"
	"github.com/weft-fabric/weft/run/comm/internal/chunks"
	"github.com/weft-fabric/weft/run/comm/internal/flat"
	"github.com/weft-fabric/weft/run/gpu"
	"github.com/weft-fabric/weft/run/gpu/ptx"
	"github.com/weft-fabric/weft/run/reduce"
)

// Memory is elements on a GPU.
type Memory struct {
	At    gpu.Ptr
	Type  reduce.Type
	Count int
}

// Bytes is how long it is.
func (m Memory) Bytes() int { return m.Count * m.Type.Size() }

// Part is elements from one up to another.
func (m Memory) Part(from, to int) Memory {
	return Memory{m.At + gpu.Ptr(from*m.Type.Size()), m.Type, to - from}
}

// Way is how memory of one rank comes to another.
type Way string

// The ways, and Auto for the faster one that all ranks can go.
const (
	Auto   Way = "auto"
	Direct Way = "direct"
	Staged Way = "staged"
)

// Config is how ranks use their GPUs.
type Config struct {
	Way     Way           // WEFT_CUDA; Auto if empty
	Sums    Sums          // WEFT_CUDA_SUMS: where the staged way sums; AnySums if empty
	Timeout time.Duration // how long an operation may take; 2 minutes if zero
	Piece   int           // bytes of a piece of the staged way; 4 MiB if zero
	Log     *slog.Logger  // hears which way is taken and why (info, on rank 0), and of copies that other memory would not need (warnings)
}

// FromEnv reads WEFT_CUDA and WEFT_CUDA_SUMS. A value that is not known is a *comm.SettingError.
func FromEnv() (Config, error) { return FromEnviron(os.Environ()) }

// FromEnviron is FromEnv of a list of NAME=value, of which the last one counts.
func FromEnviron(environ []string) (Config, error) {
	var cfg Config
	for _, kv := range environ {
		if v, ok := strings.CutPrefix(kv, "WEFT_CUDA="); ok {
			cfg.Way = Way(v)
		}
		if v, ok := strings.CutPrefix(kv, "WEFT_CUDA_SUMS="); ok {
			cfg.Sums = Sums(v)
		}
	}
	if err := cfg.Way.check(); err != nil {
		return Config{}, &comm.SettingError{Name: "WEFT_CUDA", Value: string(cfg.Way), Err: fmt.Errorf("WEFT_CUDA: %w", err)}
	}
	if err := cfg.Sums.check(); err != nil {
		return Config{}, &comm.SettingError{Name: "WEFT_CUDA_SUMS", Value: string(cfg.Sums), Err: fmt.Errorf("WEFT_CUDA_SUMS: %w", err)}
	}
	return cfg, nil
}

func (w Way) check() error {
	switch w {
	case "", Auto, Direct, Staged:
		return nil
	}
	return fmt.Errorf("way %q is none of %s, %s, %s", string(w), Auto, Direct, Staged)
}

// Group is the ranks of a communicator with their GPUs.
type Group struct {
	c      *comm.Comm // of its own, for what ranks tell one another
	above  *comm.Comm // the one that it was made of
	dev    gpu.Device
	cfg    Config
	way    Way
	reason string // why
	infos  []gpu.Info

	queue  *worker
	gpuQ   gpu.Queue // kernels, copies inside the GPU, copies to the host
	backQ  gpu.Queue // copies from the host
	plans  map[planKey]*planned
	direct *direct
	staged *staged
	warned map[string]bool

	closing sync.Once
	closed  error
}

// Open makes a group of the ranks of c, each with the GPU that open gives; all ranks must call it. The group closes the GPU. If
// a rank has none, all ranks get an error that names it.
func Open(ctx context.Context, c *comm.Comm, open func() (gpu.Device, error), cfg Config) (*Group, error) {
	cfg.Timeout = cmp.Or(cfg.Timeout, 2*time.Minute)
	cfg.Piece = cmp.Or(cfg.Piece, 4<<20)
	cfg.Way = cmp.Or(cfg.Way, Auto)
	if err := errors.Join(cfg.Way.check(), cfg.Sums.check()); err != nil {
		return nil, err
	}
	if c.Size() > ptx.Most && cfg.Way == Direct {
		return nil, fmt.Errorf("%d ranks: the direct path supports at most %d", c.Size(), ptx.Most)
	}
	own, err := c.Dup(ctx)
	if err != nil {
		return nil, err
	}
	g := &Group{c: own, above: c, cfg: cfg, plans: map[planKey]*planned{}, warned: map[string]bool{}}
	g.queue = newWorker(g)
	if err := g.meet(ctx, open); err != nil {
		_ = g.Close() // what went wrong first is told
		return nil, err
	}
	if g.cfg.Log != nil && g.Rank() == 0 {
		g.cfg.Log.Info("memory of GPUs", "way", g.way, "why", g.reason, "gpu", g.infos[0].Name, "sharing", g.infos[0].Sharing)
	}
	return g, nil
}

// Rank is the own number.
func (g *Group) Rank() int { return g.c.Rank() }

// Size is the number of ranks.
func (g *Group) Size() int { return g.c.Size() }

// Way is how memory comes from rank to rank, and Reason is why.
func (g *Group) Way() Way { return g.way }

// Reason says why the way was taken.
func (g *Group) Reason() string { return g.reason }

// GPUs are those of the ranks.
func (g *Group) GPUs() []gpu.Info { return slices.Clone(g.infos) }

// Device is the own GPU.
func (g *Group) Device() gpu.Device { return g.dev }

// Alloc gets memory that other ranks can see.
func (g *Group) Alloc(t reduce.Type, n int) (Memory, error) {
	at, err := g.dev.Alloc(max(1, n*t.Size()))
	return Memory{at, t, n}, err
}

// Free gives it back. No operation may be under way on it.
func (g *Group) Free(m Memory) error { return g.dev.Free(m.At) }

// Put and Get copy from and to memory of the host, and wait for the copy.
func (g *Group) Put(ctx context.Context, dst Memory, src []byte) error {
	return g.queue.alone(func() error {
		if err := g.backQ.In(dst.At, src); err != nil {
			return err
		}
		return g.wait(ctx, g.backQ)
	})
}

// Get copies to the host.
func (g *Group) Get(ctx context.Context, dst []byte, src Memory) error {
	return g.queue.alone(func() error {
		if err := g.gpuQ.Out(dst, src.At); err != nil {
			return err
		}
		return g.wait(ctx, g.gpuQ)
	})
}

// Close gives back what the group holds. Calls of other ranks that need this one fail from now on, so have a Barrier before; what
// is under way ends on all ranks.
func (g *Group) Close() error {
	g.closing.Do(func() { g.closed = g.close() })
	return g.closed
}

// planKey is what a program depends on.
type planKey struct {
	op      sched.Collective
	root    int
	program *sched.Program
}

// planned is a program with its flat form.
type planned struct {
	program *sched.Program
	form    *flat.Form // where GPUs sum
	digest  uint64

	last struct { // passes of the last call: most calls are as long as one before
		size, count int
		list        []pass
	}
}

// passes are those of ranks from one up to another, which are the same ranks in every call.
func (p *planned) passes(size, count, first, end int) []pass {
	if l := &p.last; l.list == nil || l.size != size || l.count != count {
		l.size, l.count, l.list = size, count, passesOf(p.program, p.form, chunks.New(p.program, size, count, nil), first, end)
	}
	return p.last.list
}

// plan finds the program of a call. Its flat form is what the direct way does.
func (g *Group) plan(c *Call) (*planned, error) {
	k := planKey{c.Op, max(c.Root, 0), c.Program}
	if p := g.plans[k]; p != nil {
		return p, nil
	}
	p := c.Program
	if p == nil {
		name := "direct"
		if reduces(c.Op) {
			name = "rank-order"
		}
		a, err := algo.Find(name)
		if err != nil {
			return nil, err
		}
		if p, err = a.Program(algo.Spec{Op: c.Op, Ranks: g.Size(), Root: max(c.Root, 0)}); err != nil {
			return nil, err
		}
	}
	switch {
	case p.Op != c.Op:
		return nil, fmt.Errorf("program %s does %s, not %s", p.Name, p.Op, c.Op)
	case p.Ranks != g.Size():
		return nil, fmt.Errorf("program %s is for %d ranks, the group has %d", p.Name, p.Ranks, g.Size())
	case c.Op.Rooted() && p.Root != c.Root:
		return nil, fmt.Errorf("program %s has root %d, not %d", p.Name, p.Root, c.Root)
	}
	if c.Program != nil {
		if _, err := verify.Right(p); err != nil {
			return nil, fmt.Errorf("program %s is not proven and does not run: %w", p.Name, err)
		}
	}
	raw, err := hex.DecodeString(p.Digest()[:16])
	if err != nil {
		return nil, fmt.Errorf("digest of %s: %w", p.Name, err)
	}
	made := &planned{program: p, digest: binary.BigEndian.Uint64(raw)}
	if g.staged != nil && g.staged.pinned != nil {
		made.form, _ = flat.New(p) // without one the host sums
	}
	if g.way == Direct && g.Size() > 1 {
		if made.form, err = flat.New(p); err != nil {
			return nil, fmt.Errorf("the direct path needs a program in which one rank computes each sum: %w", err)
		}
	}
	g.plans[k] = made
	return made, nil
}

// reduces reports whether a collective computes.
func reduces(op sched.Collective) bool {
	return op == sched.AllReduce || op == sched.ReduceScatter || op == sched.Reduce
}
