package comm

import (
	"context"
	"encoding/hex"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/weft-fabric/weft/comm/calls"
	"github.com/weft-fabric/weft/reduce"
	"github.com/weft-fabric/weft/sched"
	"github.com/weft-fabric/weft/sched/verify"
)

// request is a call as its user makes it.
type request struct {
	op      sched.Collective
	variant uint8
	t       reduce.Type
	red     reduce.Op
	root    int // -1 where there is none
	count   int // elements of a block
	counts  []int
	theirs  []int // all-to-all-v: the blocks of out
	in, out []byte
}

// op is an operation under way.
type op struct {
	request
	ctx      context.Context
	call     calls.Call
	sig      uint64
	ready    *ready
	shape    shape
	shapes   *shape // all-to-all-v: of out
	brief    *brief // nil if it has no such form
	factor   float64
	overlap  bool         // in and out overlap, and in is not to be lost by it
	overlaid bool         // they do on some rank
	trade    trade        // of two ranks by pieces
	began    int64        // in ticks
	entered  int64        // in ticks; 0 if it was not looked at
	swift    bool         // it ended when it began
	limit    atomic.Int64 // of the clock; set when it is first asked for, by any channel
	missed   atomic.Int64 // when a rank was first seen to be gone whose messages may suffice; not without a limit
	mixed    uint64       // of the call, but for its number
	usual    bool         // one of equal blocks by the program that is chosen: it may be made again as it is
	want     want
	handle   *Handle

	stepMu sync.Mutex
	many   bool     // several channels take steps
	steps  []passed // what the flight recorder will keep
	more   int

	srcs, dsts, parts [][]byte // reused
	kept              kept     // the input that was overwritten
}

// key is what the choice of a program depends on.
type key struct {
	op     sched.Collective
	blocks bool // of different lengths
	root   int
	bytes  int64
	want   want
}

// ready is a program with what running it needs, the same for all ranks.
type ready struct {
	key       key
	program   *sched.Program
	digest    uint64
	reason    string
	flat      *flat
	message   int    // how long its messages are at most
	undivided int    // with messages up to this, an operation is one run
	shape     shape  // of the last operation; used by the one under way
	brief     *brief // of that shape

	script *script // of this rank
	layout *layout // for the shape, nil if it is not known yet
	proof  *verify.Report
	err    error
}

// scriptOf gives the script of a rank, for a port whose channels hold depth messages,
// or any number if it is 0.
func (r *ready) scriptOf(rank, depth int) (*script, error) {
	if r.script == nil && r.err == nil {
		if r.script, r.err = newScript(r.program, rank); r.err == nil && depth > 0 {
			r.err = r.script.spread(r.program, depth)
		}
	}
	return r.script, r.err
}

// prepare makes a program ready to run on this communicator.
func (c *Comm) prepare(p *sched.Program) (*ready, error) {
	if p.Ranks != len(c.members) {
		return nil, fmt.Errorf("program %s is for %d ranks, the communicator has %d", p.Name, p.Ranks, len(c.members))
	}
	if p.Switches > 0 {
		return nil, fmt.Errorf("program %s needs %d switches that compute, which no transport here has", p.Name, p.Switches)
	}
	raw, err := hex.DecodeString(p.Digest()[:16])
	if err != nil {
		return nil, fmt.Errorf("digest of %s: %w", p.Name, err)
	}
	r := &ready{program: p}
	for _, b := range raw {
		r.digest = r.digest<<8 | uint64(b)
	}
	if c.world.mem != nil {
		if f, err := newFlat(p); err == nil {
			r.flat = f
		}
	}
	return r, nil
}

// find gives the program of a call.
func (c *Comm) find(r *request, want want) (*ready, error) {
	bytes := int64(r.count) * int64(r.t.Size())
	if r.counts != nil {
		bytes = 0
		for _, k := range r.counts {
			bytes += int64(k) * int64(r.t.Size())
		}
	} else if r.op.Blocks() {
		bytes *= int64(len(c.members))
	}
	if r.variant == calls.AllToAllV {
		bytes = 0 // ranks differ in it, and must not differ in the program
	}
	k := key{r.op, r.counts != nil, max(r.root, 0), bytes, want}
	if last := c.recent[r.op&7]; last != nil && last.key == k {
		return last, nil
	}
	if have := c.ready[k]; have != nil {
		c.recent[r.op&7] = have
		return have, nil
	}
	p, reason := want.program, "asked for by the caller"
	if p == nil {
		var err error
		if p, reason, err = c.pick(r, bytes); err != nil {
			return nil, err
		}
	} else if p.Op != r.op {
		return nil, fmt.Errorf("program %s does %s, not %s", p.Name, p.Op, r.op)
	} else if r.op.Rooted() && p.Root != r.root {
		return nil, fmt.Errorf("program %s has root %d, not %d", p.Name, p.Root, r.root)
	} else if r.variant == calls.AllToAllV && p.Scratch != nil {
		return nil, fmt.Errorf("program %s passes blocks on, and no rank knows how long all blocks of an all-to-all-v are; direct and pairwise do not", p.Name)
	} else if err := want.mayRun(); err != nil {
		return nil, err
	} else if want.unproven {
		reason = "asked for by the caller; not proven"
	}
	same := c.prepared[p]
	if same == nil {
		var err error
		if same, err = c.prepare(p); err != nil {
			return nil, err
		}
		c.prepared[p] = same
	}
	made := &ready{key: k, program: p, digest: same.digest, reason: reason, flat: same.flat, message: c.table().Message(), undivided: c.table().Undivided(r.op)}
	if want.messages {
		made.flat = nil
	}
	if spansBlocks(p) {
		made.undivided = math.MaxInt
	}
	if len(c.ready) > 4096 {
		clear(c.ready)
	}
	c.ready[k] = made
	c.recent[r.op&7] = made
	return made, nil
}

// do carries out a call, now or when its turn comes.
func (c *Comm) do(ctx context.Context, r *request, opts []Option) error {
	if len(opts) > 0 || !c.take() {
		return c.doLater(ctx, r, opts)
	}
	if o := &c.cur; o.again(r) && c.failed.Load() == nil && ctx.Err() == nil {
		c.seq++
		o.call.Seq = c.seq
		if c.world.mem == nil { // what went before is part of what ranks have to agree on
			o.call.Program = o.ready.digest ^ c.history
			o.mixed = unnumbered(&o.call)
		}
		o.ctx, o.in, o.out = ctx, r.in, r.out
		if o.brief != nil && c.swift(o) {
			return nil
		}
		return c.run(o, true)
	}
	return c.nowAlone(ctx, r, want{}, 1)
}

// nowAlone carries out a call and lets go of the communicator.
func (c *Comm) nowAlone(ctx context.Context, r *request, want want, factor float64) error {
	if err := c.start(ctx, r, want, factor); err != nil {
		c.disown()
		return err
	}
	return c.run(&c.cur, true)
}

// start makes a call the operation under way; the caller owns the communicator.
func (c *Comm) start(ctx context.Context, r *request, asks want, factor float64) error {
	if err := c.check(r, factor); err != nil {
		return err
	}
	if f := c.failed.Load(); f != nil {
		return f
	}
	ready, err := c.find(r, asks)
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		err = c.failIn(c.ended(r.op.String()+" was called too late", err), calls.Call{})
		c.dump(err)
		return err
	}
	c.seq++
	c.cur.begin(c, ctx, r, ready, factor)
	c.cur.usual = asks == (want{}) && factor == 1 && r.counts == nil
	return nil
}

// again reports whether a call is the one before once more, on any buffers.
func (o *op) again(r *request) bool {
	return o.usual && o.op == r.op && o.variant == r.variant && o.t == r.t && o.red == r.red && o.root == r.root &&
		o.count == r.count && r.counts == nil && len(o.in) == len(r.in) && len(o.out) == len(r.out)
}

// doLater is do for calls with options and for those that find others under way.
func (c *Comm) doLater(ctx context.Context, r *request, opts []Option) error {
	o := &op{request: *r, ctx: ctx, factor: 1}
	for i := range opts {
		switch x := &opts[i]; {
		case x.handle != nil:
			o.handle = x.handle
		case x.scaled && r.red != reduce.PreMulSum:
			return fmt.Errorf("%s: Factor(%v) is for PreMulSum", r.op, x.factor)
		case x.scaled:
			o.factor = x.factor
		default:
			o.want.add(x.want)
		}
	}
	if o.handle == nil && c.take() {
		return c.nowAlone(ctx, r, o.want, o.factor)
	}
	own := o.handle
	if own == nil {
		o.handle = newHandle(ctx)
	}
	c.mu.Lock()
	c.queue = append(c.queue, o)
	if c.turn(queued) == idle {
		go c.work()
	}
	c.mu.Unlock()
	if own == nil {
		return o.handle.wait()
	}
	return nil
}

// take makes the caller the one that carries operations out, unless somebody is.
func (c *Comm) take() bool {
	for at := &c.flight.at; ; {
		v := at.Load()
		if v&turnMask != idle {
			return false
		}
		if at.CompareAndSwap(v, v|running) {
			return true
		}
	}
}

// turn sets who carries operations out, and gives who did.
func (c *Comm) turn(to uint64) (from uint64) {
	for at := &c.flight.at; ; {
		v := at.Load()
		if at.CompareAndSwap(v, v&^turnMask|to) {
			return v & turnMask
		}
	}
}

// disown lets the next one carry operations out.
func (c *Comm) disown() {
	for at := &c.flight.at; ; {
		v := at.Load()
		if v&turnMask == queued { // somebody queued an operation meanwhile
			go c.work()
			return
		}
		if at.CompareAndSwap(v, v&^turnMask) {
			return
		}
	}
}

// own waits until what is queued is done and makes the caller the one that
// carries operations out.
func (c *Comm) own() {
	for !c.take() {
		c.mu.Lock()
		var last *Handle
		if n := len(c.queue); n > 0 {
			last = c.queue[n-1].handle
		}
		c.mu.Unlock()
		if last != nil {
			_ = last.wait()
		} else {
			runtime.Gosched()
		}
	}
}

// work carries out what is queued, in order, until nothing is. It is started by
// who takes the state from idle or running to queued, and ends with idle.
func (c *Comm) work() {
	for {
		c.mu.Lock()
		if len(c.queue) == 0 {
			c.turn(idle)
			c.mu.Unlock()
			return
		}
		o := c.queue[0]
		c.queue = c.queue[1:]
		c.mu.Unlock()
		err := c.start(o.ctx, &o.request, o.want, o.factor)
		if err == nil {
			err = c.run(&c.cur, false)
		}
		o.handle.end(err)
	}
}

// begin makes an operation of a request; the caller gave it its number.
func (o *op) begin(c *Comm, ctx context.Context, r *request, ready *ready, factor float64) {
	o.request, o.ctx, o.ready, o.factor = *r, ctx, ready, factor
	o.call = calls.Call{Epoch: c.epoch, Comm: c.id, Seq: c.seq, Op: r.op, Variant: r.variant, Type: r.t, Reduce: r.red,
		Root: int32(r.root), Count: uint64(r.count), Program: ready.digest}
	if r.counts != nil && r.variant != calls.AllToAllV {
		o.call.Count = uint64(total(r.counts))
		for _, k := range r.counts { // the total alone would not tell [1 2] from [2 1]
			o.call.Program = o.call.Program*0x9E3779B97F4A7C15 + uint64(k)
		}
	}
	o.call.Program ^= c.history
	o.mixed = unnumbered(&o.call)
	o.setShape(c)
}

// setShape works out where the chunks of the program lie.
func (o *op) setShape(c *Comm) {
	o.shapes, o.brief = nil, nil
	if o.counts == nil {
		if s := &o.ready.shape; s.size != o.t.Size() || s.count != o.count {
			*s = newShape(o.ready.program, o.t.Size(), o.count, nil)
			o.shape = *s
			if o.ready.brief == nil || s.per > 1 { // else it is that of other types of as many bytes, too
				o.ready.brief = newBrief(c, o)
			}
			o.ready.layout = nil
		}
		o.shape = o.ready.shape
		if o.red != reduce.PreMulSum {
			o.brief = o.ready.brief
		}
		return
	}
	o.shape = newShape(o.ready.program, o.t.Size(), 0, o.counts)
	if o.theirs != nil {
		s := newShape(o.ready.program, o.t.Size(), 0, o.theirs)
		o.shapes = &s
	}
}

// run carries out an operation, and lets go of the communicator if it is told to.
func (c *Comm) run(o *op, letGo bool) error {
	o.began = 0
	if o.limit.Load() != 0 {
		o.limit.Store(0)
		o.missed.Store(0)
	}
	o.sig = numbered(o.mixed^c.lastSig, o.call.Seq)
	o.entered, o.steps, o.more = 0, o.steps[:0], 0
	o.overlap = false
	if o.op != sched.Broadcast && o.op != sched.AllGather && o.op != sched.Gather && o.op != sched.Scatter {
		o.overlap = overlap(o.in, o.out)
	}
	var err error
	switch {
	case len(c.members) == 1:
		c.starts(o)
		c.alone(o)
	case o.brief != nil:
		err = c.runBrief(o)
	case o.ready.flat != nil && o.theirs == nil:
		err = c.runShared(o)
	default:
		c.starts(o)
		err = c.runScript(o)
	}
	o.swift = o.began == 0
	if o.swift { // or it could not even enter
		c.startsAt(o, c.about())
	}
	if err != nil {
		err = c.fail(err)
	} else if c.world.mem == nil {
		c.history = o.sig
	} else {
		c.lastSig = o.sig
	}
	c.flight.end(o, err)
	raised := c.waiter.Raised() // the waiter is another one's to use once this one lets go
	if c.flight.ended(letGo) {
		go c.work()
	}
	raised.Settled()
	if err != nil {
		c.dump(err)
	}
	return err
}

// starts takes the time of an operation's beginning. A swift one is over by then:
// it waited for nobody.
func (c *Comm) starts(o *op) {
	c.stamp = ticks() &^ loose
	c.startsAt(o, c.stamp)
}

func (c *Comm) startsAt(o *op, began int64) {
	o.began = began
	c.boards[c.rank].setBegan(o.call.Seq, began)
	c.flight.begin(o)
}

// about is the time for an operation that waits for nobody. Where these follow close
// upon one another, looking at the clock is a sixth of what they take, so only one of
// eight does; the others have the time that was seen last, marked as such.
func (c *Comm) about() int64 {
	if c.unseen > 0 {
		c.unseen--
		return c.stamp | loose
	}
	now := ticks() &^ loose
	if now-c.stamp < closeBy {
		c.unseen = 7
	}
	c.stamp = now
	return now
}

// closeBy, in ticks, is some 3 us: what eight operations take that wait for nobody.
const closeBy = 1 << 13

// alone is every operation of a single rank.
func (c *Comm) alone(o *op) {
	if len(o.out) == 0 || len(o.in) == 0 || o.op == sched.Barrier {
		return
	}
	if o.red == reduce.PreMulSum {
		reduce.ScaleTo(o.t, o.out, o.in, o.factor)
		return
	}
	if &o.out[0] != &o.in[0] {
		reduce.Copy(o.out, o.in)
	}
}

// check tells what is wrong with a call before anybody else hears of it.
func (c *Comm) check(r *request, factor float64) error {
	if r.red != 0 || r.op == sched.AllReduce || r.op == sched.ReduceScatter || r.op == sched.Reduce {
		if err := reduce.Check(r.t, r.red); err != nil {
			return err
		}
		if r.red == reduce.PreMulSum {
			if err := reduce.CheckScale(r.t, factor); err != nil {
				return err
			}
		}
	}
	if r.op.Rooted() && (r.root < 0 || r.root >= len(c.members)) {
		return fmt.Errorf("%s: root %d is no rank of a communicator of %d", r.op, r.root, len(c.members))
	}
	if len(r.counts) > 0 && len(r.counts) != len(c.members) {
		return fmt.Errorf("%s: %d counts for %d ranks", r.op, len(r.counts), len(c.members))
	}
	for i, k := range r.counts {
		if k < 0 {
			return fmt.Errorf("%s: count %d of rank %d", r.op, k, i)
		}
	}
	return nil
}

// need says that a buffer has not the length that a call asks for.
func need(op sched.Collective, what string, have, want int) error {
	return fmt.Errorf("%s: %s has %d elements, %d are needed", op, what, have, want)
}

// strays reports whether a buffer shares memory with another one otherwise than by
// beginning so many bytes behind its first: results would overwrite what is yet to be
// read.
func strays(part, whole []byte, at int) bool {
	return overlap(part, whole) && uintptr(unsafe.Pointer(&part[0])) != uintptr(unsafe.Pointer(&whole[0]))+uintptr(at)
}

// astray is the error for it.
func astray[T Element](op sched.Collective, name string, part []T, other string, whole []T, at int) error {
	by := (int(uintptr(unsafe.Pointer(&part[0]))) - int(uintptr(unsafe.Pointer(&whole[0])))) / int(unsafe.Sizeof(part[0]))
	return fmt.Errorf("%s: %s overlaps %s, it begins %d elements behind it; want %d, or two buffers that share nothing", op, name, other, by, at)
}

// overlap reports whether two buffers share memory.
func overlap(a, b []byte) bool {
	if len(a) == 0 || len(b) == 0 {
		return false
	}
	pa, pb := uintptr(unsafe.Pointer(&a[0])), uintptr(unsafe.Pointer(&b[0]))
	return pa < pb+uintptr(len(b)) && pb < pa+uintptr(len(a))
}

// elements is memory as elements of a type.
func elements[T Element](b []byte, n int) []T {
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(&b[0])), n)
}

// Option changes how a call is made: Using, Unproven, ByMessages, Factor.
type Option struct {
	handle *Handle
	want   want
	factor float64
	scaled bool
}

// Factor is what PreMulSum multiplies this rank's input with; 1 without it.
func Factor(f float64) Option { return Option{factor: f, scaled: true} }
