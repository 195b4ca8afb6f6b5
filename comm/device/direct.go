package device

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"github.com/weft-fabric/weft/comm"
	"github.com/weft-fabric/weft/comm/internal/chunks"
	"github.com/weft-fabric/weft/gpu"
	"github.com/weft-fabric/weft/reduce"
	"github.com/weft-fabric/weft/sched"
)

// direct is the way on which ranks map one another's memory. An operation is
//
//	enter   all ranks tell what they call and where their memory lies: inputs are complete
//	work    each rank does its passes, by its own kernels on its own queue
//	leave   all ranks tell that theirs are done: outputs are complete, inputs may change
//
// Ranks that share one GPU leave the passes of all to rank 0: its kernels have the whole GPU, which the others' would only
// take turns with. What is read, added and stored, and in which order, stays the program's.
//
// Entering and leaving are small collectives of the host. So nothing on the GPU ever waits for another process: kernels that
// do would burn time slices of the GPU that the other process needs.
type direct struct {
	entries
	cards   []card
	verdict []int32            // who failed
	maps    []map[view]gpu.Ptr // by rank: memory of it that is mapped here
	scratch [2]Memory          // what stands for in and out where they cannot be used themselves
	names   map[gpu.Ptr]named
	shared  bool // all ranks are on one GPU
}

// view is a segment of another process.
type view struct {
	base gpu.Ptr
	id   uint64
}

// named is the handle of a segment.
type named struct {
	id     uint64
	handle gpu.Handle
}

func newDirect(g *Group, cards []card) (*direct, error) {
	d := &direct{cards: cards, names: map[gpu.Ptr]named{}}
	var err error
	if d.entries, err = newEntries(g); err != nil {
		return nil, err
	}
	if d.verdict, err = comm.Alloc[int32](g.c, 1); err != nil {
		return nil, err
	}
	d.shared = true
	for _, c := range cards {
		d.maps = append(d.maps, map[view]gpu.Ptr{})
		d.shared = d.shared && c.Info.ID == cards[0].Info.ID
	}
	return d, nil
}

// buffers are in and out as the other ranks are to use them.
type buffers struct {
	in, out Memory
	back    bool // out is scratch, to be copied to the call's
}

// run carries out an operation; wrong is why this rank cannot take part.
func (d *direct) run(ctx context.Context, w *Work, p *planned, wrong error) error {
	g, c := d.g, &w.call
	d.begin()
	var use buffers
	if wrong == nil {
		use, wrong = d.prepare(ctx, c, p)
	}
	if err := d.enter(ctx, c, p, wrong); err != nil {
		return err
	}
	if c.Op == sched.Barrier {
		return nil
	}
	var pairs []pair
	if c.Sends != nil {
		var err error
		if pairs, err = d.pairs(ctx, c); err != nil {
			return err
		}
	}
	if err := d.leave(ctx, d.work(ctx, c, p, use, pairs)); err != nil || !use.back {
		return err
	}
	if err := g.gpuQ.Copy(c.Dst.At, use.out.At, c.Dst.Bytes()); err != nil {
		return err
	}
	return g.wait(ctx, g.gpuQ)
}

// prepare checks the memory of a call and finds what the others can use of it: the memory itself, or scratch that stands for it.
func (d *direct) prepare(ctx context.Context, c *Call, p *planned) (buffers, error) {
	use := buffers{in: c.Src, out: c.Dst}
	in, err := d.segment(c.Src)
	if err != nil {
		return use, err
	}
	out, err := d.segment(c.Dst)
	if err != nil {
		return use, err
	}
	overlap := c.Src.Bytes() > 0 && c.Dst.Bytes() > 0 && c.Src.At < c.Dst.At+gpu.Ptr(c.Dst.Bytes()) && c.Dst.At < c.Src.At+gpu.Ptr(c.Src.Bytes())
	queued := false
	scaled := c.Reduce == reduce.PreMulSum
	if c.Src.Bytes() > 0 && (scaled || overlap && (!p.form.InPlace || c.Sends != nil) || in.Kind != gpu.Plain) {
		if !scaled && in.Kind != gpu.Plain {
			d.warn("input", in.Kind)
		}
		if use.in, in, err = d.stand(0, c.Src); err != nil {
			return use, err
		}
		if scaled {
			err = d.g.gpuQ.Reduce(&gpu.Reduction{Type: c.Src.Type, Op: reduce.PreMulSum, Srcs: []gpu.Ptr{c.Src.At}, Dsts: []gpu.Ptr{use.in.At}, Bytes: c.Src.Bytes(), Factor: c.Factor})
		} else {
			err = d.g.gpuQ.Copy(use.in.At, c.Src.At, c.Src.Bytes())
		}
		if err != nil {
			return use, err
		}
		queued = true
	}
	if c.Dst.Bytes() > 0 && out.Kind != gpu.Plain && (p.form.Pushes || d.shared) {
		d.warn("output", out.Kind)
		if use.out, out, err = d.stand(1, c.Dst); err != nil {
			return use, err
		}
		use.back = true
	}
	if queued {
		if err := d.g.wait(ctx, d.g.gpuQ); err != nil {
			return use, err
		}
	}
	if err := d.put(d.mine[entryIn:], use.in, in); err != nil {
		return use, err
	}
	if out.Kind != gpu.Plain {
		return use, nil // nobody else stores to it
	}
	return use, d.put(d.mine[entryOut:], use.out, out)
}

// segment is what memory of a call lies in.
func (d *direct) segment(m Memory) (gpu.Segment, error) {
	if m.Count == 0 {
		return gpu.Segment{Kind: gpu.Plain}, nil
	}
	return d.g.dev.Segment(m.At, m.Bytes())
}

// warn tells once that a kind of memory costs a copy.
func (d *direct) warn(what string, k gpu.Kind) {
	if key := what + k.String(); d.g.cfg.Log != nil && !d.g.warned[key] {
		d.g.warned[key] = true
		d.g.cfg.Log.Warn("other processes cannot see this memory: it is copied inside the GPU for every operation", "rank", d.g.Rank(), "what", what, "memory", k)
	}
}

// stand gives scratch as long as some memory.
func (d *direct) stand(i int, m Memory) (Memory, gpu.Segment, error) {
	s := &d.scratch[i]
	if s.Count < m.Bytes() {
		if s.At != 0 {
			if err := d.g.dev.Free(s.At); err != nil {
				return m, gpu.Segment{}, err
			}
			*s = Memory{}
		}
		at, err := d.g.dev.Alloc(m.Bytes())
		if err != nil {
			return m, gpu.Segment{}, err
		}
		*s = Memory{at, reduce.Uint8, m.Bytes()}
	}
	seg, err := d.g.dev.Segment(s.At, s.Count)
	return Memory{s.At, m.Type, m.Count}, seg, err
}

// put writes where a buffer lies: u64 base, u64 id, u64 distance from the base, u64 bytes of the segment, the handle.
func (d *direct) put(b []byte, m Memory, s gpu.Segment) error {
	if m.Count == 0 {
		return nil
	}
	h, known := d.names[s.Base]
	if !known || h.id != s.ID {
		handle, err := d.g.dev.Export(s)
		if err != nil {
			return err
		}
		h = named{s.ID, handle}
		d.names[s.Base] = h
	}
	le := binary.LittleEndian
	le.PutUint64(b, uint64(s.Base))
	le.PutUint64(b[8:], s.ID)
	le.PutUint64(b[16:], uint64(m.At-s.Base))
	le.PutUint64(b[24:], uint64(s.Bytes))
	copy(b[32:], h.handle[:])
	return nil
}

// at is where a buffer of a rank lies for this one. Memory of other processes is mapped when it is first met, and kept: if a
// segment lies where another one did, that one was freed.
func (d *direct) at(rank, buffer int) (gpu.Ptr, error) {
	b := d.of(rank)[buffer:]
	le := binary.LittleEndian
	v := view{gpu.Ptr(le.Uint64(b)), le.Uint64(b[8:])}
	offset := gpu.Ptr(le.Uint64(b[16:]))
	if v.base == 0 {
		return 0, fmt.Errorf("rank %d did not tell where its memory lies", rank)
	}
	if d.cards[rank].Pid == os.Getpid() && !d.cards[rank].Info.Apart { // goroutines
		return v.base + offset, nil
	}
	if p, known := d.maps[rank][v]; known {
		return p + offset, nil
	}
	bytes := gpu.Ptr(le.Uint64(b[24:]))
	for old, p := range d.maps[rank] {
		if old.base < v.base+bytes && v.base <= old.base {
			delete(d.maps[rank], old)
			if err := d.g.dev.Drop(p); err != nil {
				return 0, err
			}
		}
	}
	var h gpu.Handle
	copy(h[:], b[32:])
	p, err := d.g.dev.Import(h)
	if err != nil {
		return 0, fmt.Errorf("memory of rank %d: %w", rank, err)
	}
	d.maps[rank][v] = p
	return p + offset, nil
}

// work does this rank's passes, or on a GPU that all share those of all ranks.
func (d *direct) work(ctx context.Context, c *Call, p *planned, use buffers, pairs []pair) error {
	g := d.g
	size := c.Dst.Type.Size()
	first, end := g.Rank(), g.Rank()+1
	if d.shared {
		first, end = 0, g.Size()
		if g.Rank() != 0 {
			return nil
		}
	}
	var list []pass
	if c.Sends != nil {
		list = passesOfPairs(pairs, size, first, end)
	} else {
		list = passesOf(p.program, p.form, chunks.New(p.program, size, c.count(g.Size()), c.Counts), first, end)
	}
	queued := 0
	for i := range list {
		n, err := d.pass(c, &list[i], use)
		if err != nil {
			return err
		}
		queued += n
	}
	if queued > 0 {
		return g.wait(ctx, g.gpuQ)
	}
	return nil
}

// pass queues one pass, and says how many pieces of work that is.
func (d *direct) pass(c *Call, p *pass, use buffers) (int, error) {
	find := func(list []place, buffer int, own Memory) ([]gpu.Ptr, error) {
		var at []gpu.Ptr
		for _, x := range list {
			base := own.At
			if x.rank != d.g.Rank() {
				var err error
				if base, err = d.at(x.rank, buffer); err != nil {
					return nil, err
				}
			}
			at = append(at, base+gpu.Ptr(x.at))
		}
		return at, nil
	}
	srcs, err := find(p.srcs, entryIn, use.in)
	if err != nil {
		return 0, err
	}
	dsts, err := find(p.dsts, entryOut, use.out)
	if err != nil {
		return 0, err
	}
	if len(srcs) > 1 {
		op := c.Reduce
		if op == reduce.PreMulSum {
			op = reduce.Sum // inputs were multiplied by their ranks
		}
		return 1, d.g.gpuQ.Reduce(&gpu.Reduction{Type: c.Dst.Type, Op: op, Srcs: srcs, Dsts: dsts, Bytes: p.bytes, Factor: float64(d.g.Size())})
	}
	queued := 0
	for _, to := range dsts {
		if to == srcs[0] {
			continue
		}
		if err := d.g.gpuQ.Copy(to, srcs[0], p.bytes); err != nil {
			return queued, err
		}
		queued++
	}
	return queued, nil
}

// leave waits until all ranks are done with their part, and tells whether theirs went well.
func (d *direct) leave(ctx context.Context, work error) error {
	d.verdict[0] = 0
	if work != nil {
		d.verdict[0] = int32(d.g.Rank() + 1)
	}
	if err := comm.AllReduce(ctx, d.g.c, d.verdict, comm.Max); err != nil {
		return errors.Join(work, err)
	}
	if work != nil {
		return fmt.Errorf("%w: %w", errBroken, work)
	}
	if v := d.verdict[0]; v != 0 {
		return fmt.Errorf("%w on rank %d: see its error", errBroken, v-1)
	}
	return nil
}

// close gives back what is mapped.
func (d *direct) close() error {
	var errs []error
	for _, m := range d.maps {
		for _, p := range m {
			errs = append(errs, d.g.dev.Drop(p))
		}
	}
	for _, s := range d.scratch {
		if s.At != 0 {
			errs = append(errs, d.g.dev.Free(s.At))
		}
	}
	return errors.Join(errs...)
}
