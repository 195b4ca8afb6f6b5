package device

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/run/comm"
	"github.com/weft-fabric/weft/run/comm/internal/chunks"
	"github.com/weft-fabric/weft/run/gpu"
	"github.com/weft-fabric/weft/run/reduce"
	"github.com/weft-fabric/weft/run/transport/wait"
)

// direct is the way on which ranks map one another's memory. An operation is
//
//	enter   all ranks tell what they call and where their memory lies
//	work    each rank queues its passes, behind the inputs of all
//	leave   all ranks tell that theirs are queued; each queues that it waits for the others' to be done
//
// Entering and leaving are small collectives of the host. Between ranks whose processes share lines (see there), the host waits
// for no GPU: inputs and outputs are waited for on the GPUs. Else ranks enter when their inputs are complete, and leave when
// their passes are done.
//
// Ranks that share one GPU leave the passes of all to rank 0: its kernels have the whole GPU, which the others' would only
// take turns with. What is read, added and stored, and in which order, stays the program's.
type direct struct {
	entries
	cards   []card
	verdict []int32            // who failed
	maps    []map[view]mapping // by rank: memory of it that is mapped here
	handles []map[view]gpu.Handle
	scratch [2]Memory // what stands for in and out where they cannot be used themselves
	names   map[gpu.Ptr]named
	shared  bool // all ranks are on one GPU
	lines   *lines
}

// view is a segment of another process.
type view struct {
	base gpu.Ptr
	id   uint64
}

// mapping is where it lies here.
type mapping struct {
	at    gpu.Ptr
	bytes gpu.Ptr
}

// named is the handle of a segment, and whether the other ranks were told.
type named struct {
	id     uint64
	handle gpu.Handle
	told   bool
}

// newDirect prepares calls in which GPUs read one another's memory. Every rank calls it at the same time, as it meets
// the others. The common kernels are compiled here rather than in the first call, by rank 0 alone where all ranks share
// a GPU.
func newDirect(ctx context.Context, g *Group, cards []card) (*direct, error) {
	d := &direct{cards: cards, names: map[gpu.Ptr]named{}}
	var err error
	if d.entries, err = newEntries(ctx, g); err != nil {
		return nil, err
	}
	if d.verdict, err = comm.Alloc[int32](g.c, 1); err != nil {
		return nil, err
	}
	d.shared = true
	for _, c := range cards {
		d.maps, d.handles = append(d.maps, map[view]mapping{}), append(d.handles, map[view]gpu.Handle{})
		d.shared = d.shared && c.Info.ID == cards[0].Info.ID
	}
	if !d.shared || g.Rank() == 0 {
		for _, t := range []reduce.Type{reduce.Float32, reduce.BFloat16, reduce.Float16} {
			_ = g.dev.Prepare(t, reduce.Sum, reduce.Tree(g.Size())) // what gradients need; an error is told by the call that does
		}
	}
	d.lines, err = newLines(ctx, g)
	return d, err
}

// buffers are in and out as the other ranks are to use them.
type buffers struct {
	in, out Memory
	queued  bool // the input comes to be there on the rank's queue
	back    bool // out is scratch, to be copied to the call's
}

// run carries out an operation, or queues it on the GPUs; wrong is why this rank cannot take part.
func (d *direct) run(ctx context.Context, w *Work, p *planned, wrong error) error {
	c := &w.call
	d.begin()
	use := buffers{queued: w.noted || d.g.queue.airborne()}
	if wrong == nil {
		use, wrong = d.prepare(ctx, c, p, use)
	}
	if wrong == nil {
		wrong = d.ready(ctx, use)
	}
	if err := d.enter(ctx, c, p, wrong); err != nil {
		return err
	}
	d.learn()
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
	if err := d.leave(ctx, d.work(ctx, c, p, use, pairs)); err != nil {
		return err
	}
	if d.lines != nil {
		if err := d.fly(w, use); err != nil {
			return fmt.Errorf("%w: %w", errBroken, err)
		}
		return nil
	}
	if !use.back {
		return nil
	}
	if err := d.g.gpuQ.Copy(c.Dst.At, use.out.At, c.Dst.Bytes()); err != nil {
		return err
	}
	return d.g.wait(ctx, d.g.gpuQ)
}

// ready tells the other GPUs when this rank's input is complete, or waits until it is.
func (d *direct) ready(ctx context.Context, use buffers) error {
	switch {
	case d.lines != nil && use.queued:
		return d.g.gpuQ.Post(d.lines.in(d.g.Rank()), uint32(d.number))
	case d.lines != nil:
		d.lines.set(d.lines.in(d.g.Rank()), uint32(d.number))
		return nil
	case use.queued:
		return d.g.wait(ctx, d.g.gpuQ)
	}
	return nil
}

// workers are the ranks that have passes.
func (d *direct) workers() int {
	if d.shared {
		return 1
	}
	return d.g.Size()
}

// fly queues the end of an operation: what comes behind it on this rank's queue finds all passes done.
func (d *direct) fly(w *Work, use buffers) error {
	g, number, me := d.g, uint32(d.number), d.g.Rank()
	if !use.back && d.soon(number) {
		return nil
	}
	f := &flight{began: time.Now()}
	queued := use.queued || use.back || w.async
	if queued {
		for r := range d.workers() {
			if r == me || d.lines.has(d.lines.out(r), number) {
				continue
			}
			if err := g.gpuQ.Await(d.lines.out(r), number); err != nil {
				return err
			}
		}
		if use.back {
			if err := g.gpuQ.Copy(w.call.Dst.At, use.out.At, w.call.Dst.Bytes()); err != nil {
				return err
			}
		}
		var err error
		if f.stamp, err = g.gpuQ.Stamp(); err != nil {
			return err
		}
	}
	mark, err := uint64(0), error(nil)
	if queued || me < d.workers() {
		if mark, err = g.gpuQ.Mark(); err != nil {
			return err
		}
	}
	f.over = func() (bool, error) {
		if mark != 0 {
			if over, err := g.gpuQ.Reached(mark); !over || err != nil {
				return false, err
			}
		}
		for r := range d.workers() {
			if !d.lines.has(d.lines.out(r), number) {
				return false, nil
			}
		}
		if d.lines.get(d.lines.cut()) > 0 {
			return false, cmp.Or(d.dead(), fmt.Errorf("%w: another rank gave up", errBroken))
		}
		return true, nil
	}
	w.flight = f
	return nil
}

// soon waits a moment for an operation whose inputs are all complete, and says whether it is over: then nothing has to be queued to
// wait for it. On a GPU that processes share by time slices, a wait of each of them costs more than the operation.
func (d *direct) soon(number uint32) bool {
	for r := range d.g.Size() {
		if !d.lines.has(d.lines.in(r), number) {
			return false
		}
	}
	for began := time.Now(); ; {
		left := 0
		for r := range d.workers() {
			if !d.lines.has(d.lines.out(r), number) {
				left++
			}
		}
		switch {
		case d.lines.get(d.lines.cut()) > 0:
			return false
		case left == 0:
			return true
		case time.Since(began) > moment:
			return false
		}
		wait.Yield() // a goroutine that C called has its thread to itself: giving way to other goroutines would put it to sleep
	}
}

// moment is how long the host waits for a kernel that has all it needs: those on some 100 KiB take 10 to 20 us.
const moment = 50 * time.Microsecond

// culprit is what the word for a cut says of a rank that is gone. Below it nobody is named.
const culprit = 2

// letGo ends all waits of GPUs for one another. The first rank that does so tells the others who is at fault: it may be gone itself
// when they look.
func (d *direct) letGo(why error) {
	if d == nil || d.lines == nil {
		return
	}
	word := uint32(1)
	if f := (*comm.Failure)(nil); errors.As(why, &f) && f.Kind == comm.Dead && len(f.Culprits) == 1 {
		word = culprit + uint32(f.Culprits[0])
	}
	d.lines.first(d.lines.cut(), word)
	for r := range d.g.Size() {
		d.lines.set(d.lines.in(r), uint32(d.number)+1<<30)
		d.lines.set(d.lines.out(r), uint32(d.number)+1<<30)
	}
}

// blamed is the rank that was named when waits were cut; below 0 for none.
func (d *direct) blamed() int {
	if d.lines == nil {
		return -1
	}
	return int(d.lines.get(d.lines.cut())) - culprit
}

// dead is the error of a rank whose process is gone.
func (d *direct) dead() error {
	if d == nil { // a group of one rank
		return nil
	}
	r := d.blamed()
	if r < 0 {
		if r = slices.IndexFunc(d.cards, func(c card) bool { return c.Pid != os.Getpid() && gone(c.Pid) }); r < 0 {
			return nil
		}
		// It may have ended because another one did, and said so first.
		if named := d.blamed(); named >= 0 {
			r = named
		}
	}
	return &comm.Failure{Kind: comm.Dead, Rank: d.g.Rank(), Culprits: []int{r}, Seq: d.number, Call: "operation on memory of GPUs",
		Err: fmt.Errorf("rank %d (process %d) is gone", r, d.cards[r].Pid)}
}

// missing says what is waited for.
func (d *direct) missing() string {
	if d == nil {
		return "its stream has not come to it"
	}
	var in, out []int
	for r := range d.g.Size() {
		if !d.lines.has(d.lines.in(r), uint32(d.number)) {
			in = append(in, r)
		}
		if r < d.workers() && !d.lines.has(d.lines.out(r), uint32(d.number)) {
			out = append(out, r)
		}
	}
	return fmt.Sprintf("the streams of ranks %v have not come to it, and the kernels of ranks %v are not done", in, out)
}

// prepare checks the memory of a call and finds what the others can use of it: the memory itself, or scratch that stands for it.
func (d *direct) prepare(ctx context.Context, c *Call, p *planned, use buffers) (buffers, error) {
	use.in, use.out = c.Src, c.Dst
	in, err := d.segment(c.Src)
	if err != nil {
		return use, err
	}
	out := in
	if c.Src != c.Dst {
		if out, err = d.segment(c.Dst); err != nil {
			return use, err
		}
	}
	overlap := c.Src.Bytes() > 0 && c.Dst.Bytes() > 0 && c.Src.At < c.Dst.At+gpu.Ptr(c.Dst.Bytes()) &&
		c.Dst.At < c.Src.At+gpu.Ptr(c.Src.Bytes())
	scaled := c.Reduce == reduce.PreMulSum
	if c.Src.Bytes() > 0 && (scaled || overlap && (!p.form.InPlace || c.Sends != nil) || in.Kind != gpu.Plain) {
		if !scaled && in.Kind != gpu.Plain {
			d.warn("input", in.Kind)
		}
		if use.in, in, err = d.stand(ctx, 0, c.Src); err != nil {
			return use, err
		}
		if scaled {
			err = d.g.gpuQ.Reduce(&gpu.Reduction{Type: c.Src.Type, Op: reduce.PreMulSum, Srcs: []gpu.Ptr{c.Src.At}, Dsts: []gpu.Ptr{use.in.At},
				Bytes: c.Src.Bytes(), Factor: c.Factor})
		} else {
			err = d.g.gpuQ.Copy(use.in.At, c.Src.At, c.Src.Bytes())
		}
		if err != nil {
			return use, err
		}
		use.queued = true
	}
	if c.Dst.Bytes() > 0 && out.Kind != gpu.Plain && (p.form.Pushes || d.shared) {
		d.warn("output", out.Kind)
		if use.out, out, err = d.stand(ctx, 1, c.Dst); err != nil {
			return use, err
		}
		use.back = true
	}
	if err := d.put(entryIn, moreIn, use.in, in); err != nil {
		return use, err
	}
	if out.Kind != gpu.Plain {
		return use, nil // nobody else stores to it
	}
	return use, d.put(entryOut, moreOut, use.out, out)
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
		d.g.cfg.Log.Warn("other processes cannot see this memory: it is copied inside the GPU for every operation",
			"rank", d.g.Rank(), "what", what, "memory", k)
	}
}

// stand gives scratch as long as some memory.
func (d *direct) stand(ctx context.Context, i int, m Memory) (Memory, gpu.Segment, error) {
	s := &d.scratch[i]
	if s.Count < m.Bytes() {
		if s.At != 0 {
			if err := d.g.wait(ctx, d.g.gpuQ); err != nil { // others may still use it
				return m, gpu.Segment{}, err
			}
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

// put writes where a buffer lies: u64 base, u64 id, u64 distance from the base, u64 bytes of the segment; and the segment's handle, if
// the others do not know it yet.
func (d *direct) put(at, more int, m Memory, s gpu.Segment) error {
	if m.Count == 0 {
		return nil
	}
	h, known := d.names[s.Base]
	if !known || h.id != s.ID {
		handle, err := d.g.dev.Export(s)
		if err != nil {
			return err
		}
		h = named{id: s.ID, handle: handle}
	}
	if !h.told {
		copy(d.tells()[more:], h.handle[:])
	}
	d.names[s.Base] = h
	b, le := d.mine[at:], binary.LittleEndian
	le.PutUint64(b, uint64(s.Base))
	le.PutUint64(b[8:], s.ID)
	le.PutUint64(b[16:], uint64(m.At-s.Base))
	le.PutUint64(b[24:], uint64(s.Bytes))
	return nil
}

// learn takes note of handles that ranks told.
func (d *direct) learn() {
	if !d.news {
		return
	}
	for base, h := range d.names {
		if !h.told {
			h.told = true
			d.names[base] = h
		}
	}
	for r := range d.g.Size() {
		for _, x := range [2]struct{ at, more int }{{entryIn, moreIn}, {entryOut, moreOut}} {
			var h gpu.Handle
			if copy(h[:], d.moreOf(r)[x.more:]); h != (gpu.Handle{}) {
				d.handles[r][viewOf(d.of(r)[x.at:])] = h
			}
		}
	}
}

// viewOf is the segment that a rank wrote of.
func viewOf(b []byte) view {
	return view{gpu.Ptr(binary.LittleEndian.Uint64(b)), binary.LittleEndian.Uint64(b[8:])}
}

// at is where a buffer of a rank lies for this one. Memory of other processes is mapped when it is first met, and kept: if a
// segment lies where another one did, that one was freed.
func (d *direct) at(ctx context.Context, rank, buffer int) (gpu.Ptr, error) {
	b := d.of(rank)[buffer:]
	le := binary.LittleEndian
	v := viewOf(b)
	offset := gpu.Ptr(le.Uint64(b[16:]))
	if v.base == 0 {
		return 0, fmt.Errorf("rank %d did not tell where its memory lies", rank)
	}
	if d.cards[rank].Pid == os.Getpid() && !d.cards[rank].Info.Apart { // goroutines
		return v.base + offset, nil
	}
	if m, known := d.maps[rank][v]; known {
		return m.at + offset, nil
	}
	bytes := gpu.Ptr(le.Uint64(b[24:]))
	for old, m := range d.maps[rank] {
		if old.base < v.base+bytes && v.base < old.base+m.bytes {
			if err := d.g.wait(ctx, d.g.gpuQ); err != nil { // kernels may still use it
				return 0, err
			}
			delete(d.maps[rank], old)
			delete(d.handles[rank], old)
			if err := d.g.dev.Drop(m.at); err != nil {
				return 0, err
			}
		}
	}
	h, told := d.handles[rank][v]
	if !told {
		return 0, fmt.Errorf("rank %d did not send the handle of its memory", rank)
	}
	p, err := d.g.dev.Import(h)
	if err != nil {
		return 0, fmt.Errorf("memory of rank %d: %w", rank, err)
	}
	d.maps[rank][v] = mapping{p, bytes}
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
	switch count := c.count(g.Size()); {
	case c.Sends != nil:
		list = passesOfPairs(pairs, size, first, end)
	case c.Counts != nil:
		list = passesOf(p.program, p.form, chunks.New(p.program, size, count, c.Counts), first, end)
	default:
		list = p.passes(size, count, first, end)
	}
	if d.lines != nil {
		for r := range g.Size() {
			if r == g.Rank() || d.lines.has(d.lines.in(r), uint32(d.number)) {
				continue
			}
			if err := g.gpuQ.Await(d.lines.in(r), uint32(d.number)); err != nil {
				return err
			}
		}
	}
	queued := 0
	for i := range list {
		n, err := d.pass(ctx, c, &list[i], use)
		if err != nil {
			return err
		}
		queued += n
	}
	if d.lines != nil {
		return g.gpuQ.Post(d.lines.out(g.Rank()), uint32(d.number))
	}
	if queued > 0 {
		return g.wait(ctx, g.gpuQ)
	}
	return nil
}

// pass queues one pass, and says how many pieces of work that is.
func (d *direct) pass(ctx context.Context, c *Call, p *pass, use buffers) (int, error) {
	find := func(list []place, buffer int, own Memory) ([]gpu.Ptr, error) {
		at := make([]gpu.Ptr, 0, len(list))
		for _, x := range list {
			base := own.At
			if x.rank != d.g.Rank() {
				var err error
				if base, err = d.at(ctx, x.rank, buffer); err != nil {
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
		return 1,
			d.g.gpuQ.Reduce(&gpu.Reduction{Type: c.Dst.Type, Op: op, Srcs: srcs, Dsts: dsts, Order: p.order, Bytes: p.bytes,
				Factor: float64(d.g.Size())})
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
	for _, list := range d.maps {
		for _, m := range list {
			errs = append(errs, d.g.dev.Drop(m.at))
		}
	}
	for _, s := range d.scratch {
		if s.At != 0 {
			errs = append(errs, d.g.dev.Free(s.At))
		}
	}
	if d.lines != nil {
		errs = append(errs, d.lines.close(d.g.dev))
	}
	return errors.Join(errs...)
}
