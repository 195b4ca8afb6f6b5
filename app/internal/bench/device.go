package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"time"
	"unsafe"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/run/comm"
	"github.com/weft-fabric/weft/run/comm/device"
	"github.com/weft-fabric/weft/run/gpu"
	"github.com/weft-fabric/weft/run/gpu/cuda"
	"github.com/weft-fabric/weft/run/gpu/soft"
	"github.com/weft-fabric/weft/run/reduce"
)

// Where buffers may be, other than on the host.
const (
	CUDA = "cuda" // NVIDIA's GPUs
	Soft = "soft" // a GPU in software: the same kernels, interpreted
)

// GPU is where a rank's buffers are.
type GPU struct {
	gpu.Info
	Way      string  `json:"way"`
	Reason   string  `json:"reason"`
	Add      float64 `json:"add_GBps"` // what its memory moves in a plain add
	AddBytes int64   `json:"add_bytes"`
}

// gpus is the ranks' GPUs; nil where buffers are on the host.
type gpus struct {
	g   *device.Group
	add float64 // bytes a second
	of  int64   // bytes of the buffers of that add
}

// openGPU opens this rank's GPU, if buffers are to be on one, and measures the memory.
func openGPU(ctx context.Context, c *comm.Comm, cfg *Config, most int64) (*gpus, error) {
	if cfg.Device == "" {
		return nil, nil
	}
	way, err := device.FromEnv()
	if err != nil {
		return nil, err
	}
	way.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	if cfg.DeviceWay != "" {
		way.Way = device.Way(cfg.DeviceWay)
	}
	g, err := device.Open(ctx, c, func() (gpu.Device, error) { return openDevice(c, cfg.Device) }, way)
	if err != nil {
		return nil, err
	}
	x := &gpus{g: g, of: min(256<<20, max(64<<10, most))}
	if cfg.Device == Soft {
		x.of = 64 << 10
	}
	return x, x.measure(ctx, c, cfg.Type)
}

// openDevice opens the GPU of a rank: ranks of a host take turns.
func openDevice(c *comm.Comm, name string) (gpu.Device, error) {
	if name == Soft {
		return soft.New(gpu.Plain), nil
	}
	local, err := strconv.Atoi(os.Getenv("LOCAL_RANK"))
	if err != nil {
		local = c.Rank()
	}
	n, err := cuda.Count()
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, fmt.Errorf("%w: no GPU is visible; see nvidia-smi and CUDA_VISIBLE_DEVICES", gpu.ErrNoDevice)
	}
	return cuda.Open(local % n)
}

// measure finds how fast the memory adds, a = a + b, while the other ranks wait: the fastest of several passes.
func (x *gpus) measure(ctx context.Context, c *comm.Comm, t reduce.Type) error {
	rate := []float64{0}
	if c.Rank() == 0 {
		var err error
		if rate[0], err = x.adds(t); err != nil {
			return err
		}
	}
	if err := comm.Broadcast(ctx, c, rate, 0); err != nil {
		return err
	}
	x.add = rate[0]
	return nil
}

// adds times sums of two buffers into the first, several to a look so that the time of a launch does not count.
func (x *gpus) adds(t reduce.Type) (float64, error) {
	d := x.g.Device()
	a, err := d.Alloc(int(x.of))
	if err != nil {
		return 0, err
	}
	b, err := d.Alloc(int(x.of))
	if err != nil {
		return 0, err
	}
	q, err := d.Queue()
	if err != nil {
		return 0, err
	}
	const each = 8
	best := 0.0
	for range 6 {
		began := time.Now()
		for range each {
			if err := q.Reduce(&gpu.Reduction{Type: t, Op: reduce.Max, Srcs: []gpu.Ptr{a, b}, Dsts: []gpu.Ptr{a}, Bytes: int(x.of)}); err != nil {
				return 0, err
			}
		}
		mark, err := q.Mark()
		if err != nil {
			return 0, err
		}
		for done := false; !done; {
			if done, err = q.Reached(mark); err != nil {
				return 0, err
			}
		}
		best = max(best, 3*each*float64(x.of)/time.Since(began).Seconds())
	}
	return best, errors.Join(q.Close(), d.Free(a), d.Free(b))
}

// hello is what the table's head says.
func (x *gpus) hello() *GPU {
	if x == nil {
		return nil
	}
	return &GPU{Info: x.g.Device().Info(), Way: string(x.g.Way()), Reason: x.g.Reason(), Add: x.add / 1e9, AddBytes: x.of}
}

func (x *gpus) close() error {
	if x == nil {
		return nil
	}
	return x.g.Close()
}

// program names what runs.
func (x *gpus) program(cfg *Config) string {
	switch {
	case cfg.program != nil:
		return cfg.program.Name
	case cfg.Op.Reduces():
		return "rank-order"
	}
	return "direct"
}

// limit is the least time, in microseconds, in which the memory of one GPU can read every input and write every output once.
func (x *gpus) limit(o Op, n int, bytes int64) float64 {
	read, written := 1, n // of the larger buffer
	switch o.Collective {
	case sched.AllReduce, sched.AllToAll:
		read = n
	case sched.ReduceScatter, sched.Reduce:
		read, written = n, 1
	case sched.Gather, sched.Scatter:
		written = 1
	case sched.Broadcast:
		written = n - 1
	}
	return float64(read+written) * float64(bytes) / x.add * 1e6
}

// onGPU is a work whose buffers are on a GPU. Those of the host hold what goes there and what comes back.
type onGPU[T reduce.Element] struct {
	*typed[T]
	x       *gpus
	in, out device.Memory
}

func newOnGPU[T reduce.Element](w *typed[T], x *gpus) (work, error) {
	o := &onGPU[T]{typed: w, x: x}
	t := reduce.TypeOf[T]()
	var err error
	if o.in, err = x.g.Alloc(t, len(w.in)); err != nil {
		return nil, err
	}
	o.out, err = x.g.Alloc(t, len(w.out))
	return o, err
}

func (o *onGPU[T]) free() error { return errors.Join(o.x.g.Free(o.in), o.x.g.Free(o.out)) }

// at is where a part of a buffer of the host lies on the GPU.
func (o *onGPU[T]) at(s []T) device.Memory {
	t := reduce.TypeOf[T]()
	if len(s) == 0 {
		return device.Memory{At: o.out.At, Type: t}
	}
	p := uintptr(unsafe.Pointer(&s[0]))
	for _, x := range []struct {
		host []T
		gpu  device.Memory
	}{{o.typed.in, o.in}, {o.typed.out, o.out}} {
		if first := uintptr(unsafe.Pointer(&x.host[0])); p >= first && p < first+uintptr(len(x.host)*t.Size()) {
			from := int(p-first) / t.Size()
			return x.gpu.Part(from, from+len(s))
		}
	}
	return device.Memory{Type: t}
}

func (o *onGPU[T]) call(ctx context.Context, inPlace bool) error {
	src, dst := o.buffers(inPlace)
	c := device.Call{Op: o.cfg.Op.Collective, Reduce: o.cfg.Reduce, Root: o.cfg.Root, Src: o.at(src), Dst: o.at(dst), Factor: factor,
		Program: o.cfg.program}
	if o.cfg.Op.V {
		c.Counts = o.counts
	}
	return o.x.g.Do(ctx, c)
}

// both copies both buffers.
func (o *onGPU[T]) both(move func(device.Memory, []byte) error) error {
	return errors.Join(move(o.in, reduce.Bytes(o.typed.in)), move(o.out, reduce.Bytes(o.typed.out)))
}

func (o *onGPU[T]) put(ctx context.Context) error {
	return o.both(func(m device.Memory, b []byte) error { return o.x.g.Put(ctx, m, b) })
}

func (o *onGPU[T]) fill(ctx context.Context, seed uint64, inPlace bool) error {
	return errors.Join(o.typed.fill(ctx, seed, inPlace), o.put(ctx))
}

func (o *onGPU[T]) zero(ctx context.Context) error {
	return errors.Join(o.typed.zero(ctx), o.put(ctx))
}

func (o *onGPU[T]) wrong(ctx context.Context, seed uint64, inPlace bool) (int64, error) {
	if err := o.both(func(m device.Memory, b []byte) error { return o.x.g.Get(ctx, b, m) }); err != nil {
		return 0, err
	}
	return o.differ(seed, inPlace), nil
}
