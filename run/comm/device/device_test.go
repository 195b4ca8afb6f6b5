package device

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/run/comm"
	"github.com/weft-fabric/weft/run/gpu"
	"github.com/weft-fabric/weft/run/gpu/soft"
	"github.com/weft-fabric/weft/run/reduce"
)

// ranks runs one function a rank, on software GPUs whose memory is of a kind, and gives their errors.
func ranks(t *testing.T, n int, kind gpu.Kind, cfg Config, do func(ctx context.Context, g *Group, host *comm.Comm) error) []error {
	t.Helper()
	return ranksOn(t, n, func(int) gpu.Device { return soft.New(kind) }, cfg, do)
}

// ranksOn is ranks on the GPUs that open gives them. Where sums are computed is tried only for a test that asks for it, by AnySums: a
// software GPU takes a second for that.
func ranksOn(t *testing.T, n int, open func(rank int) gpu.Device, cfg Config,
	do func(ctx context.Context, g *Group, host *comm.Comm) error) []error {
	t.Helper()
	if cfg.Sums == "" {
		cfg.Sums = OnHost
	}
	cs, err := comm.Local(n)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second)
	defer cancel()
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i, c := range cs {
		wg.Go(func() {
			g, err := Open(ctx, c, func() (gpu.Device, error) { return open(i), nil }, cfg)
			if err != nil {
				errs[i] = err
				return
			}
			if errs[i] = do(ctx, g, c); errs[i] != nil {
				return
			}
			if err := comm.Barrier(ctx, c); err != nil {
				errs[i] = err
				return
			}
			errs[i] = g.Close()
		})
	}
	wg.Wait()
	for _, c := range cs {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	return errs
}

// none fails for errors.
func none(t *testing.T, errs []error) {
	t.Helper()
	for r, err := range errs {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

// user gets memory as a user's allocator does, and fills it.
func user(g *Group, typ reduce.Type, n int, fill []byte) (Memory, error) {
	d := g.Device().(*soft.Device)
	at, err := d.AllocUser(max(1, n*typ.Size()))
	if err != nil {
		return Memory{}, err
	}
	b, err := d.Bytes(at, len(fill))
	copy(b, fill)
	return Memory{at, typ, n}, err
}

// read is what memory holds.
func read(g *Group, m Memory) []byte {
	b, err := g.Device().(*soft.Device).Bytes(m.At, m.Bytes())
	if err != nil {
		panic(err)
	}
	return bytes.Clone(b)
}

// data are a rank's inputs; any bits are a number, NaNs included.
func data(seed uint64, rank, n int) []byte {
	rnd := rand.New(rand.NewPCG(seed, uint64(rank)))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rnd.Uint32())
	}
	return b
}

// expect computes on plain slices, in the canonical order, what a rank has after a collective; nil if nothing.
func expect(op sched.Collective, typ reduce.Type, red reduce.Op, root, rank int, ins [][]byte) []byte {
	n := len(ins)
	sum := func() []byte {
		out := make([]byte, len(ins[0]))
		srcs := ins
		if red == reduce.PreMulSum {
			srcs = nil
			for r, in := range ins {
				x := make([]byte, len(in))
				reduce.ScaleTo(typ, x, in, float64(r+1))
				srcs = append(srcs, x)
			}
		}
		reduce.ApplyAll(typ, red, [][]byte{out}, srcs, reduce.Tree(n))
		reduce.Finish(typ, red, out, n)
		return out
	}
	block := func(b []byte, i int) []byte { return b[len(b)/n*i:][:len(b)/n] }
	switch op {
	case sched.AllReduce:
		return sum()
	case sched.Reduce:
		if rank == root {
			return sum()
		}
	case sched.ReduceScatter:
		return block(sum(), rank)
	case sched.AllGather:
		return bytes.Join(ins, nil)
	case sched.Gather:
		if rank == root {
			return bytes.Join(ins, nil)
		}
	case sched.Broadcast:
		return ins[root]
	case sched.Scatter:
		return block(ins[root], rank)
	case sched.AllToAll:
		var out []byte
		for r := range n {
			out = append(out, block(ins[r], rank)...)
		}
		return out
	}
	return nil
}

var collectives = []sched.Collective{sched.AllReduce, sched.Reduce, sched.ReduceScatter, sched.AllGather, sched.Gather, sched.Broadcast,
	sched.Scatter, sched.AllToAll}

// Every collective, by both ways, on a GPU that all share and on GPUs of their own (4 ranks), on GPUs that cannot wait for one another
// (3 ranks), on memory that others can see and
// on memory that they cannot, in place and not, gives the bits that plain slices give.
func TestCollectives(t *testing.T) {
	for _, cfg := range []Config{{Way: Direct}, {Way: Staged, Sums: OnHost}, {Way: Staged, Sums: OnGPU}} {
		for _, kind := range []gpu.Kind{gpu.Plain, gpu.Mapped} {
			for _, n := range []int{1, 2, 3, 4} {
				way := cfg.Way
				cfg.Piece = 1024
				t.Run(fmt.Sprintf("%s%s/%d/%d", way, cfg.Sums, kind, n), func(t *testing.T) {
					open := func(rank int) gpu.Device {
						switch n {
						case 3:
							return soft.New(kind).Mute()
						case 4:
							return soft.New(kind).As(fmt.Sprint(rank))
						}
						return soft.New(kind)
					}
					none(t, ranksOn(t, n, open, cfg, func(ctx context.Context, g *Group, _ *comm.Comm) error {
						if n > 1 && g.Way() != way {
							return fmt.Errorf("way %s: %s", g.Way(), g.Reason())
						}
						for i, op := range collectives {
							for _, inPlace := range []bool{false, true} {
								typ := []reduce.Type{reduce.Float32, reduce.BFloat16, reduce.Int64, reduce.Uint8}[i%4]
								red := []reduce.Op{reduce.Sum, reduce.Avg, reduce.PreMulSum, reduce.Max}[(i+n)%4]
								for _, count := range []int{0, 1, 70, 500} {
									if err := one(ctx, g, op, typ, red, n-1, count, inPlace, uint64(i*1000+count)); err != nil {
										return fmt.Errorf("%s of %d %s %s, in place %t: %w", op, count, typ, red, inPlace, err)
									}
								}
							}
						}
						return nil
					}))
				})
			}
		}
	}
}

// idle is a GPU whose kernels do nothing, as that of a driver which is none.
type idle struct{ *soft.Device }

type idleQueue struct{ gpu.Queue }

func (d idle) Queue() (gpu.Queue, error) {
	q, err := d.Device.Queue()
	return idleQueue{q}, err
}

func (idleQueue) Reduce(*gpu.Reduction) error { return nil }

// Where the staged way sums is tried, agreed on and said; what is demanded and cannot be had is an error on all ranks.
func TestSumsAreChosen(t *testing.T) {
	for _, x := range []struct {
		name string
		open func(rank int) gpu.Device
		sums Sums
		want string // in the reason
	}{
		{"measured", func(int) gpu.Device { return soft.New(gpu.Plain) }, AnySums,
			"; sums on the host: GPUs take|; sums on the host: 16 KiB take|; sums of 1 MiB and more on the GPUs: 16 KiB take"},
		{"kernels that do nothing on one rank", func(rank int) gpu.Device {
			if rank == 1 {
				return idle{soft.New(gpu.Plain)}
			}
			return soft.New(gpu.Plain)
		}, AnySums, "; sums on the host: GPUs do not sum memory of the host"},
		{"on the host", func(int) gpu.Device { return soft.New(gpu.Plain) }, OnHost, "; sums on the host, as was demanded (WEFT_CUDA_SUMS)"},
		{"on the GPUs", func(int) gpu.Device { return soft.New(gpu.Plain) }, OnGPU, "; sums on the GPUs, as was demanded (WEFT_CUDA_SUMS)"},
	} {
		t.Run(x.name, func(t *testing.T) {
			none(t, ranksOn(t, 2, x.open, Config{Way: Staged, Sums: x.sums, Piece: 4096}, func(ctx context.Context, g *Group, _ *comm.Comm) error {
				if !slices.ContainsFunc(strings.Split(x.want, "|"), func(s string) bool { return strings.Contains(g.Reason(), s) }) {
					return fmt.Errorf("the reason is %q, want %q in it", g.Reason(), x.want)
				}
				return nil
			}))
		})
	}
	if _, err := FromEnviron([]string{"WEFT_CUDA_SUMS=here"}); err == nil ||
		!strings.Contains(err.Error(), `WEFT_CUDA_SUMS: sums "here" are none of auto, host, gpu`) {
		t.Errorf("the error is %v", err)
	}
}

// one does one collective and compares.
func one(ctx context.Context, g *Group, op sched.Collective, typ reduce.Type, red reduce.Op, root, count int, inPlace bool,
	seed uint64) error {
	n, me := g.Size(), g.Rank()
	c := Call{Op: op, Reduce: red, Root: root, Factor: float64(me + 1)}
	in, out := count, count
	if op.Blocks() {
		if c.larger(true) {
			in *= n
		}
		if c.larger(false) {
			out *= n
		}
	}
	var ins [][]byte
	for r := range n {
		ins = append(ins, data(seed, r, in*typ.Size()))
	}
	var err error
	if c.Src, err = user(g, typ, in, ins[me]); err != nil {
		return err
	}
	if c.Dst, err = user(g, typ, out, nil); err != nil {
		return err
	}
	larger := c.Dst
	switch {
	case op == sched.Broadcast:
		c.Dst = c.Src
	case inPlace && in == out:
		c.Dst = c.Src
	case inPlace && in > out:
		c.Dst = c.Src.Part(me*count, (me+1)*count)
	case inPlace:
		c.Src = larger.Part(me*count, (me+1)*count)
		b, _ := g.Device().(*soft.Device).Bytes(c.Src.At, c.Src.Bytes())
		copy(b, ins[me])
	}
	result := c.Dst
	if err := g.Do(ctx, c); err != nil {
		return err
	}
	if want := expect(op, typ, red, root, me, ins); want != nil {
		if got := read(g, result); !bytes.Equal(got, want) {
			return fmt.Errorf("got  %x\nwant %x", got[:min(64, len(got))], want[:min(64, len(want))])
		}
	}
	return nil
}

// Blocks of different lengths.
func TestBlocksOfDifferentLengths(t *testing.T) {
	counts := []int{3, 0, 70}
	for _, way := range []Way{Direct, Staged} {
		t.Run(string(way), func(t *testing.T) {
			none(t, ranks(t, 3, gpu.Plain, Config{Way: way, Piece: 64}, func(ctx context.Context, g *Group, _ *comm.Comm) error {
				me, at := g.Rank(), []int{0, 3, 3, 73}
				whole := data(9, 0, 4*73)
				src, err := user(g, reduce.Int32, counts[me], whole[4*at[me]:4*at[me+1]])
				if err != nil {
					return err
				}
				dst, err := user(g, reduce.Int32, 73, nil)
				if err != nil {
					return err
				}
				if err := g.Do(ctx, Call{Op: sched.AllGather, Dst: dst, Src: src, Counts: counts}); err != nil {
					return err
				}
				if !bytes.Equal(read(g, dst), whole) {
					return errors.New("all-gather-v is wrong")
				}
				if err := g.Do(ctx, Call{Op: sched.ReduceScatter, Reduce: reduce.Sum, Dst: src, Src: dst, Counts: counts}); err != nil {
					return err
				}
				want := make([]byte, 4*73)
				reduce.ApplyN(reduce.Int32, reduce.Sum, want, whole, whole, whole)
				if !bytes.Equal(read(g, src), want[4*at[me]:4*at[me+1]]) {
					return errors.New("reduce-scatter-v is wrong")
				}
				return nil
			}))
		})
	}
}

// All-to-all where every two ranks have a length of their own, also 0: by both ways, on one GPU and on several, in place where
// lengths are alike. Lengths that do not fit are told to all ranks, with the two that differ.
func TestAllToAllOfDifferentLengths(t *testing.T) {
	const n = 3
	length := func(from, to int) int { return (5*from + 3*to) % 7 * 10 }
	for _, way := range []Way{Direct, Staged} {
		for _, kind := range []gpu.Kind{gpu.Plain, gpu.Mapped} {
			for _, own := range []bool{false, true} {
				open := func(rank int) gpu.Device {
					if own {
						return soft.New(kind).As(fmt.Sprint(rank))
					}
					return soft.New(kind)
				}
				errs := ranksOn(t, n, open, Config{Way: way}, func(ctx context.Context, g *Group, _ *comm.Comm) error {
					me := g.Rank()
					var sends, recvs []int
					var in, want []byte
					for r := range n {
						sends, recvs = append(sends, length(me, r)), append(recvs, length(r, me))
						in = append(in, data(uint64(me), r, 4*length(me, r))...)
						want = append(want, data(uint64(r), me, 4*length(r, me))...)
					}
					src, err := user(g, reduce.Float32, len(in)/4, in)
					if err != nil {
						return err
					}
					dst, err := user(g, reduce.Float32, len(want)/4, nil)
					if err != nil {
						return err
					}
					if err := AllToAllV(ctx, g, dst, src, recvs, sends); err != nil {
						return err
					}
					if !bytes.Equal(read(g, dst), want) {
						return errors.New("all-to-all-v is wrong")
					}
					if me == 1 {
						sends[2]--
						src.Count--
					}
					err = AllToAllV(ctx, g, dst, src, recvs, sends)
					var f *comm.Failure
					if !errors.As(err, &f) || f.Kind != comm.Mismatch {
						return fmt.Errorf("rank 1 sends one less than rank 2 receives: %v", err)
					}
					if !strings.Contains(err.Error(), fmt.Sprintf("rank 1 sends %d elements to rank 2, which receives %d", length(1, 2)-1, length(1, 2))) {
						return err
					}
					return nil
				})
				none(t, errs)
			}
		}
	}
}

// Both ways give the bits of the communicator on the host, by the same program, whichever that is; the staged way does so in
// several pieces if the order of sums does not depend on the place, as in rank-order. A program that is not flat is refused by
// the direct way.
func TestBitsAreTheHosts(t *testing.T) {
	const n, count = 4, 1000
	for _, name := range []string{"rank-order", "direct", "one-shot", "ring"} {
		a, err := algo.Find(name)
		if err != nil {
			t.Fatal(err)
		}
		p, err := a.Program(algo.Spec{Op: sched.AllReduce, Ranks: n})
		if err != nil {
			t.Fatal(err)
		}
		for _, way := range []Way{Direct, Staged} {
			piece := 4 * count
			if name == "rank-order" {
				piece = 1000
			}
			errs := ranks(t, n, gpu.Plain, Config{Way: way, Piece: piece}, func(ctx context.Context, g *Group, host *comm.Comm) error {
				in := make([]float32, count)
				rnd := rand.New(rand.NewPCG(3, uint64(g.Rank())))
				for i := range in {
					in[i] = rnd.Float32()*2 - 1
				}
				m, err := user(g, reduce.Float32, count, reduce.Bytes(in))
				if err != nil {
					return err
				}
				if err := g.Do(ctx, Call{Op: sched.AllReduce, Reduce: reduce.Sum, Dst: m, Src: m, Program: p}); err != nil {
					return err
				}
				if err := comm.AllReduce(ctx, host, in, comm.Sum, comm.Using(p)); err != nil {
					return err
				}
				if !bytes.Equal(read(g, m), reduce.Bytes(in)) {
					return fmt.Errorf("%s, %s: the bits are not those of the host", name, way)
				}
				return nil
			})
			if name != "ring" || way == Staged {
				none(t, errs)
				continue
			}
			for r, err := range errs {
				if err == nil || r == 0 && !strings.Contains(err.Error(), "the direct path needs a program in which one rank computes each sum") {
					t.Errorf("ring, rank %d: %v", r, err)
				}
			}
		}
	}
}

// An operation is queued on all GPUs while the stream that its input comes from still works: the host waits for the other ranks'
// calls alone, and streams wait for the GPUs.
func TestLaunchedBeforeDone(t *testing.T) {
	for _, own := range []bool{false, true} {
		open := func(rank int) gpu.Device {
			if own {
				return soft.New(gpu.Plain).As(fmt.Sprint(rank))
			}
			return soft.New(gpu.Plain)
		}
		none(t, ranksOn(t, 3, open, Config{Way: Direct}, func(ctx context.Context, g *Group, host *comm.Comm) error {
			stream := g.Device().(*soft.Device).UserQueue()
			defer stream.Close()
			s := stream.Stream()
			x, err := user(g, reduce.Int32, 100, nil)
			if err != nil {
				return err
			}
			word := new(uint32)
			if err := errors.Join(stream.Await(word, 1), stream.In(x.At, bytes.Repeat([]byte{1, 0, 0, 0}, 100))); err != nil {
				return err
			}
			var all []*Work
			for range 3 {
				w := g.Start(ctx, Call{Op: sched.AllReduce, Reduce: reduce.Sum, Dst: x, Src: x, Stream: &s})
				select {
				case <-w.Launched():
				case <-ctx.Done():
					return errors.New("it was not launched while a stream worked")
				}
				if err := w.Block(s); err != nil {
					return err
				}
				all = append(all, w)
			}
			if err := comm.Barrier(ctx, host); err != nil {
				return err
			}
			select {
			case <-all[0].Done():
				return errors.New("it was done before its input was there")
			default:
			}
			if err := comm.Barrier(ctx, host); err != nil {
				return err
			}
			atomic.StoreUint32(word, 1)
			for _, w := range all {
				if err := w.Wait(ctx); err != nil {
					return err
				}
			}
			if got := read(g, x); !bytes.Equal(got, bytes.Repeat([]byte{27, 0, 0, 0}, 100)) {
				return fmt.Errorf("got %v", got[:8])
			}
			return nil
		}))
	}
}

// Launch is back while the stream still works, and what is queued behind it finds the result; also in a group of one rank.
func TestLaunch(t *testing.T) {
	for _, n := range []int{1, 3} {
		for _, way := range []Way{Direct, Staged} {
			none(t, ranks(t, n, gpu.Plain, Config{Way: way}, func(ctx context.Context, g *Group, host *comm.Comm) error {
				stream := g.Device().(*soft.Device).UserQueue()
				defer stream.Close()
				s := stream.Stream()
				x, e1 := user(g, reduce.Int32, 4, nil)
				y, e2 := user(g, reduce.Int32, 4*n, nil)
				if err := errors.Join(e1, e2); err != nil {
					return err
				}
				word := new(uint32)
				fill := bytes.Repeat([]byte{byte(g.Rank() + 1), 0, 0, 0}, 4)
				if err := errors.Join(stream.Await(word, 1), stream.In(x.At, fill)); err != nil {
					return err
				}
				if g.staged != nil { // the host carries it out
					atomic.StoreUint32(word, 1)
				}
				sum := Call{Op: sched.AllReduce, Reduce: reduce.Sum, Dst: x, Src: x, Stream: &s}
				if err := errors.Join(g.Launch(ctx, sum), g.Launch(ctx, Call{Op: sched.AllGather, Dst: y, Src: x, Stream: &s})); err != nil {
					return err
				}
				if idle, err := stream.Idle(s); g.direct != nil && idle || err != nil {
					return fmt.Errorf("the stream does not wait, %v", err)
				}
				out := make([]byte, 16*n)
				if err := stream.Out(out, y.At); err != nil {
					return err
				}
				if err := comm.Barrier(ctx, host); err != nil {
					return err
				}
				atomic.StoreUint32(word, 1)
				mark, err := stream.Mark()
				if err := errors.Join(err, g.until(ctx, func() (bool, error) { return stream.Reached(mark) })); err != nil {
					return err
				}
				if want := bytes.Repeat([]byte{byte(n * (n + 1) / 2), 0, 0, 0}, 4*n); !bytes.Equal(out, want) {
					return fmt.Errorf("%s of %d: the stream read %v", way, n, out)
				}
				return nil
			}))
		}
	}
}

func init() { lookEvery = 100 * time.Millisecond }

// A rank that makes a call on memory of the host where the others make one on memory of GPUs is named on all ranks. One that does so
// behind a call on memory of GPUs whose stream still works is not.
func TestMemoryOfTheHostInstead(t *testing.T) {
	for _, way := range []Way{Direct, Staged} {
		for r, err := range ranks(t, 3, gpu.Plain, Config{Way: way}, func(ctx context.Context, g *Group, host *comm.Comm) error {
			x, err := user(g, reduce.Int32, 8, nil)
			if err != nil {
				return err
			}
			stream := g.Device().(*soft.Device).UserQueue()
			defer stream.Close()
			s, word := stream.Stream(), new(uint32)
			if err := stream.Await(word, 1); err != nil {
				return err
			}
			w := &Work{done: make(chan struct{})}
			if g.Rank() == 0 {
				w = g.Start(ctx, Call{Op: sched.AllReduce, Reduce: reduce.Sum, Dst: x, Src: x, Stream: &s})
				time.AfterFunc(5*lookEvery, func() { atomic.StoreUint32(word, 1) })
			} else {
				atomic.StoreUint32(word, 1)
				if err := AllReduce(ctx, g, x, x, reduce.Sum); err != nil {
					return fmt.Errorf("the first: %w", err)
				}
				close(w.done)
			}
			if err := errors.Join(comm.Barrier(ctx, host), w.Wait(ctx)); err != nil {
				return fmt.Errorf("the first: %w", err)
			}
			if g.Rank() == 1 {
				return comm.AllReduce(ctx, host, []float32{1}, comm.Sum)
			}
			return AllReduce(ctx, g, x, x, reduce.Sum)
		}) {
			if err == nil || strings.Contains(err.Error(), "the first") ||
				!strings.Contains(err.Error(), "rank 1 calls all-reduce of 1 float32 sum on memory of the host, rank") {
				t.Errorf("%s: rank %d: %v", way, r, err)
			}
		}
	}
}

// Operations that are begun one after another wait for their streams, and streams for them, and nobody for the host.
func TestStreams(t *testing.T) {
	for _, way := range []Way{Direct, Staged} {
		none(t, ranks(t, 2, gpu.Plain, Config{Way: way}, func(ctx context.Context, g *Group, _ *comm.Comm) error {
			d := g.Device().(*soft.Device)
			stream := d.UserQueue()
			defer stream.Close()
			s := stream.Stream()
			x, err := user(g, reduce.Int32, 100, nil)
			if err != nil {
				return err
			}
			one := bytes.Repeat([]byte{1, 0, 0, 0}, 100)
			if err := stream.In(x.At, one); err != nil {
				return err
			}
			var all []*Work
			for range 5 { // each doubles what the one before left
				w := g.Start(ctx, Call{Op: sched.AllReduce, Reduce: reduce.Sum, Dst: x, Src: x, Stream: &s})
				if err := w.Block(s); err != nil {
					return err
				}
				all = append(all, w)
			}
			out := make([]byte, 400)
			if err := stream.Out(out, x.At); err != nil {
				return err
			}
			mark, err := stream.Mark()
			if err != nil {
				return err
			}
			if err := g.until(ctx, func() (bool, error) { return stream.Reached(mark) }); err != nil {
				return err
			}
			if want := bytes.Repeat([]byte{32, 0, 0, 0}, 100); !bytes.Equal(out, want) {
				return fmt.Errorf("%s: the stream read %v", way, out[:8])
			}
			for _, w := range all {
				if err := w.Wait(ctx); err != nil {
					return err
				}
			}
			return nil
		}))
	}
}

// Ranks that call different things, and a rank whose memory is none, are named on all ranks, and nobody hangs.
func TestWrongCalls(t *testing.T) {
	for _, way := range []Way{Direct, Staged} {
		t.Run(string(way), func(t *testing.T) {
			errs := ranks(t, 3, gpu.Plain, Config{Way: way}, func(ctx context.Context, g *Group, _ *comm.Comm) error {
				m, err := user(g, reduce.Float32, 10+g.Rank()/2, nil)
				if err != nil {
					return err
				}
				return AllReduce(ctx, g, m, m, reduce.Sum)
			})
			for r, err := range errs {
				var f *comm.Failure
				if !errors.Is(err, comm.ErrMismatch) || !errors.As(err, &f) || fmt.Sprint(f.Culprits) != "[0 2]" ||
					!strings.Contains(err.Error(), "counts 10 and 11") {
					t.Errorf("rank %d: %v", r, err)
				}
			}
			errs = ranks(t, 3, gpu.Plain, Config{Way: way}, func(ctx context.Context, g *Group, _ *comm.Comm) error {
				m, err := user(g, reduce.Float32, 10, nil)
				if err != nil {
					return err
				}
				if g.Rank() == 1 { // a buffer that was freed
					if err := g.Free(m); err != nil {
						return err
					}
				}
				err = AllReduce(ctx, g, m, m, reduce.Sum)
				if g.Rank() == 1 != errors.Is(err, gpu.ErrMemory) || err == nil || g.Rank() != 1 &&
					!strings.Contains(err.Error(), "rank 1 cannot take part") {
					return fmt.Errorf("a freed buffer: %w", err)
				}
				// The group goes on.
				m, err = g.Alloc(reduce.Float32, 10)
				if err != nil {
					return err
				}
				return AllReduce(ctx, g, m, m, reduce.Sum)
			})
			none(t, errs)
		})
	}
}

// A rank without a GPU is named on all ranks.
func TestRankWithoutGPU(t *testing.T) {
	cs, err := comm.Local(3)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i, c := range cs {
		wg.Go(func() {
			_, err := Open(t.Context(), c, func() (gpu.Device, error) {
				if i == 2 {
					return nil, fmt.Errorf("%w: libcuda.so.1: cannot open shared object file", gpu.ErrNoLibrary)
				}
				return soft.New(gpu.Plain), nil
			}, Config{})
			var no *NoGPU
			if !errors.As(err, &no) || no.Rank != 2 || !strings.Contains(err.Error(),
				"rank 2 has no GPU: the GPU's driver library cannot be opened") || i == 2 != errors.Is(err, gpu.ErrNoLibrary) {
				t.Errorf("rank %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	for _, c := range cs {
		_ = c.Close()
	}
}

// hidden is a GPU whose memory cannot be shown, as in containers that refuse it.
type hidden struct{ *soft.Device }

func (hidden) Export(gpu.Segment) (h gpu.Handle, err error) {
	return h, fmt.Errorf("%w: cuIpcGetMemHandle: error 801", gpu.ErrNotShown)
}

// Where memory cannot be shown, auto goes through the host and says why, and direct is an error on all ranks.
func TestWaysAreAgreed(t *testing.T) {
	for _, x := range []struct {
		ways   [2]Way
		hidden bool
		want   Way
		err    string
	}{
		{[2]Way{Auto, Auto}, false, Direct, ""},
		{[2]Way{Auto, Staged}, false, Staged, ""},
		{[2]Way{Auto, Auto}, true, Staged, ""},
		{[2]Way{Auto, Direct}, true, "", "memory of rank 1 cannot be shown to other processes"},
		{[2]Way{Staged, Direct}, false, "", "set the same WEFT_CUDA"},
	} {
		cs, err := comm.Local(2)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for i, c := range cs {
			wg.Go(func() {
				g, err := Open(t.Context(), c, func() (gpu.Device, error) {
					if x.hidden && i == 1 {
						return hidden{soft.New(gpu.Plain)}, nil
					}
					return soft.New(gpu.Plain), nil
				}, Config{Way: x.ways[i], Sums: OnHost})
				if x.err != "" {
					if err == nil || !strings.Contains(err.Error(), x.err) {
						t.Errorf("%v, hidden %t: rank %d: %v", x.ways, x.hidden, i, err)
					}
					return
				}
				if err != nil || g.Way() != x.want {
					t.Errorf("%v, hidden %t: rank %d: %v", x.ways, x.hidden, i, err)
					return
				}
				if x.hidden && !strings.Contains(g.Reason(), "error 801") {
					t.Errorf("the reason is %q", g.Reason())
				}
				if err := comm.Barrier(t.Context(), c); err != nil {
					t.Error(err)
				}
				if err := g.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		for _, c := range cs {
			_ = c.Close()
		}
	}
}

// Memory that is freed and got again at the same address is other memory: ranks that had mapped the old one map the new one.
func TestAddressesAreUsedAgain(t *testing.T) {
	none(t, ranks(t, 3, gpu.Plain, Config{Way: Direct}, func(ctx context.Context, g *Group, _ *comm.Comm) error {
		var last gpu.Ptr
		for i := range 5 {
			m, err := user(g, reduce.Int32, 300, bytes.Repeat([]byte{byte(1 + i), 0, 0, 0}, 300))
			if err != nil {
				return err
			}
			if i > 0 && m.At != last {
				return fmt.Errorf("address %#x after %#x: the test tests nothing", m.At, last)
			}
			last = m.At
			if err := AllReduce(ctx, g, m, m, reduce.Sum); err != nil {
				return err
			}
			if got := read(g, m); !bytes.Equal(got, bytes.Repeat([]byte{byte(3 + 3*i), 0, 0, 0}, 300)) {
				return fmt.Errorf("time %d: got %v", i, got[:8])
			}
			if err := g.Free(m); err != nil {
				return err
			}
		}
		return nil
	}))
}

// A group that is closed while operations are under way ends them on all ranks; later calls say that it is closed.
func TestCloseInTheMiddle(t *testing.T) {
	for _, way := range []Way{Direct, Staged} {
		errs := ranks(t, 2, gpu.Plain, Config{Way: way}, func(ctx context.Context, g *Group, _ *comm.Comm) error {
			m, err := user(g, reduce.Int32, 100, nil)
			if err != nil {
				return err
			}
			w := g.Start(ctx, Call{Op: sched.AllReduce, Reduce: reduce.Sum, Dst: m, Src: m})
			if g.Rank() == 0 { // rank 1 makes one call more, and waits in it
				<-w.Done()
				return g.Close()
			}
			again := g.Start(ctx, Call{Op: sched.AllReduce, Reduce: reduce.Sum, Dst: m, Src: m})
			var f *comm.Failure
			if err := again.Wait(ctx); !errors.As(err, &f) || fmt.Sprint(f.Culprits) != "[0]" {
				return fmt.Errorf("the call that rank 0 did not make: %w", err)
			}
			if err := g.Close(); err != nil {
				return err
			}
			if err := AllReduce(ctx, g, m, m, reduce.Sum); err == nil {
				return errors.New("a closed group took a call")
			}
			return nil
		})
		none(t, errs)
	}
}

// Groups that come and go leave nothing behind.
func TestGroupsComeAndGo(t *testing.T) {
	count := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip(err)
		}
		return len(list) + runtime.NumGoroutine()
	}
	cs, err := comm.Local(2)
	if err != nil {
		t.Fatal(err)
	}
	ways := []Config{{Way: Direct}, {Way: Staged, Sums: OnHost}, {Way: Staged, Sums: OnGPU}}
	cycle := func(n int) {
		var wg sync.WaitGroup
		for _, c := range cs {
			wg.Go(func() {
				for i := range n {
					g, err := Open(t.Context(), c, func() (gpu.Device, error) { return soft.New(gpu.Plain), nil }, ways[i%len(ways)])
					if err != nil {
						t.Error(err)
						return
					}
					m, err := g.Alloc(reduce.Float32, 100)
					if err == nil {
						err = AllReduce(t.Context(), g, m, m, reduce.Sum)
					}
					if err == nil {
						err = comm.Barrier(t.Context(), c)
					}
					if err := errors.Join(err, g.Close()); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
	}
	cycle(2 * len(ways))
	before := count()
	cycle(100)
	for end := time.Now().Add(50 * time.Second); count() > before+4; {
		if time.Now().After(end) {
			t.Fatalf("%d files and goroutines before 100 groups, %d after", before, count())
		}
		runtime.Gosched()
	}
	for _, c := range cs {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}
