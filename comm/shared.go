package comm

import (
	"runtime"
	"sync/atomic"
	"unsafe"

	"github.com/weft-fabric/weft/reduce"
	"github.com/weft-fabric/weft/sched"
	"github.com/weft-fabric/weft/transport"
)

// The flat way to run a program, for ranks that see one another's memory:
//
//	enter   everybody says what it calls and where its input lies, and waits for all
//	work    sums and moves, straight out of the inputs of the others
//	leave   everybody waits until nobody uses its memory any more
//
// Inputs that the others do not see are copied to where they do, or pulled: copied
// by the kernel from one process to another (process_vm_readv), where it allows it.
// Small inputs lie in the board, twice, so nobody has to wait to leave: a line
// written, the others' lines read, that is the operation.
//
// Sums that go to other ranks are pushed: stored straight to all outputs, if
// all inputs and outputs are seen by everybody. Otherwise they are committed:
// every rank leaves its sums in shared memory, and once all are there each
// copies them to its own output; so a rank whose buffers the others do not see
// has an unchanged input until the operation can no longer fail. Two ranks on large
// buffers keep a copy of what they overwrite instead (trade.go). What ends at one rank
// is pushed there by the others, if they see its output (rooted.go).
//
// A rank that dies in the middle of pushing has an heir, the lowest rank alive,
// that goes on where it stopped. In place, sums overwrite inputs, so they keep a
// log (reduce.ApplyAllLogged).

// lent, among the modes of all ranks, says that some rank's input is read where
// it lies, so that nobody may leave before all are done.
const lent = 1 << 63

// view is a member in the operation under way: its input, or a copy of it, and
// its output if it is seen.
type view struct {
	in, out []byte
	addr    uintptr // of an input that must be pulled
	mode    uint64
	base    uint64 // of a growing one: pieces that were staged before it

	block transport.Handle // of an input that its owner moves to this rank, the root
}

// Inputs are pulled rather than copied to shared memory first from these lengths
// on. A pull takes 0.5 us and 0.1 us a page; what was copied is read out of another
// core's cache. On a Xeon with 2 MiB of second-level cache and 16 cores an
// all-reduce of 2 MiB takes 1.05 to 1.2 times as long with pulls, of 16 MiB 0.75 to
// 0.9 times (2 to 8 ranks, 2026-11-15). What is only moved is copied once instead
// of twice.
const (
	pullSums  = 8 << 20
	pullMoves = 64 << 10
)

func (c *Comm) runShared(o *op) error {
	f := o.ready.flat
	seq := o.call.Seq
	c.phase = entering
	if err := c.enter(o, f); err != nil {
		return err
	}
	if c.views[c.rank].mode&growing != 0 {
		c.grow(o)
	}
	var all entries
	own := &f.ranks[c.rank]
	if err := c.hearThem(o, own.reads, &all); err != nil {
		return err
	}
	if f.rooted && c.rank != o.root && c.mayHelp(o) {
		if err := c.hearTheRoot(o, own, &all); err != nil {
			return err
		}
	}
	if all.heard == len(c.members)-1 {
		c.low = seq
	}
	if len(o.in) > smallSize || f.pushes {
		c.waiter.Settle() // after small work run does it
	}
	read := all.modes
	all.add(c.views[c.rank].mode)
	if len(o.in) > smallSize {
		o.entered = ticks()
	}
	switch {
	case f.rooted && c.allHands(o):
		return c.together(o)
	case f.rooted && c.mayHelp(o) && c.views[o.root].mode&pooled != 0:
		return c.pool(o)
	case f.pushes && !all.hidden:
		o.overlaid = all.modes&overlaid != 0
		c.push(o, c.rank, o.overlaid || o.red == reduce.Avg)
		return c.quit(o, own.readers, true)
	case f.pushes && c.couple(o):
		if c.bothIn(inSlots) {
			return c.trade(o)
		}
		if err := c.stageInstead(o); err != nil {
			return err
		}
		if c.bothIn(inStage) {
			return c.swap(o)
		}
		return c.commit(o)
	case f.pushes:
		return c.commit(o)
	}
	if o.op != sched.Broadcast || c.rank != o.root { // which has it where it belongs
		if err := c.sumHere(o); err != nil {
			return err
		}
	}
	switch mine := entriesOf(c.views[c.rank].mode); {
	case mine&(lent|once) != 0:
		return c.quit(o, own.readers, false)
	case read&(lent|once) != 0:
		return c.quit(o, nil, false)
	}
	return nil
}

// hearThem waits for the entries of other ranks and finds their memory.
func (c *Comm) hearThem(o *op, ranks []int32, all *entries) error {
	for _, k := range ranks {
		i := int(k)
		line, err := c.hear(o, i)
		if err != nil {
			return err
		}
		m := *line.word(wordMode)
		all.add(m)
		if err := c.look(o, i, m, line); err != nil {
			return err
		}
	}
	all.heard += len(ranks)
	return nil
}

// entries is what the entries of all ranks come to.
type entries struct {
	heard  int    // ranks, but for the own
	modes  uint64 // overlaid, once and lent, where any rank is
	hidden bool   // some rank's input or output is not seen by the others
}

func (t *entries) add(mode uint64) {
	t.modes |= mode & (overlaid | once)
	in := mode & inMask
	if in == inPlain || in == inPulled {
		t.modes |= lent
	}
	if in != inPlain && in != inNowhere || mode&outSeen == 0 {
		t.hidden = true
	}
}

// entriesOf is what the entry of one rank comes to.
func entriesOf(mode uint64) uint64 {
	var t entries
	t.add(mode)
	return t.modes
}

// enter says what this rank calls and where its input lies.
func (c *Comm) enter(o *op, f *flat) error {
	seq := o.call.Seq
	mine := c.boards[c.rank]
	if err := c.mayEnter(o); err != nil {
		return err
	}
	line := mine.entry(seq)
	in := o.in // as sums read it
	mode := uint64(inNowhere)
	if len(f.ranks[c.rank].exports) > 0 && len(o.in) > 0 {
		switch n := len(o.in); {
		case n <= inlineSize && !f.pushes:
			mode = inEntry
			o.inline(line[entryData:])
		case n <= smallSize && !f.pushes:
			mode = inSmall
			if err := c.makeSmall(o); err != nil {
				return err
			}
			o.export(mine.small(seq)[:n])
			in = o.image(mine.small(seq)[:n])
		default:
			if h, ok := c.world.mem.Handle(o.in); ok && o.red != reduce.PreMulSum && (!o.overlap || f.inPlace) {
				mode = inPlain
				*line.word(wordIn) = uint64(h)
				break
			}
			least := pullMoves
			if o.red != 0 {
				least = pullSums
			}
			grows := !f.pushes && c.grows(o, n)
			if !grows && c.world.pulls && n >= least && !c.couple(o) && o.red != reduce.PreMulSum && (!o.overlap || f.inPlace || f.pushes) {
				mode = inPulled
				*line.word(wordIn) = uint64(uintptr(unsafe.Pointer(&o.in[0]))) // o holds it for as long as others read it
				break
			}
			if c.trades(o, f) {
				b, h, err := c.stages.room(c.world, &c.stages.slots, tradeSlots*tradePiece)
				if err != nil {
					return err
				}
				mode, c.staged = inSlots, b
				*line.word(wordIn) = uint64(h)
				break
			}
			mode = inStage
			if err := c.makeStage(o); err != nil {
				return err
			}
			b, h, single, err := c.stages.input(c.world, seq, n, f.pushes)
			if err != nil {
				return err
			}
			c.staged = b
			if single {
				mode |= once
			}
			if grows {
				mode |= growing
				*line.word(wordBase) = c.grown
			} else if o.red == reduce.PreMulSum {
				reduce.ScaleTo(o.t, b, o.in, o.factor)
				in = b
			} else {
				for _, k := range f.ranks[c.rank].exports {
					lo, hi := o.shape.span(o.call.Op, sched.In, c.rank, int(k))
					reduce.Copy(b[lo:hi], o.in[lo:hi])
				}
			}
			*line.word(wordIn) = uint64(h)
		}
	}
	if o.red == reduce.PreMulSum && mode == inEntry {
		in = line[entryData:][:len(o.in)]
	}
	if o.red == reduce.PreMulSum && mode == inNowhere && len(o.in) > 0 {
		if err := c.makeStage(o); err != nil {
			return err
		}
		b, _, _, err := c.stages.input(c.world, seq, len(o.in), f.pushes)
		if err != nil {
			return err
		}
		reduce.ScaleTo(o.t, b, o.in, o.factor)
		in = b
	}
	if f.pushes {
		if h, ok := c.world.mem.Handle(o.out); ok {
			mode |= outSeen
			*line.word(wordOut) = uint64(h)
			if err := c.stages.journal(c.world, mine); err != nil {
				return err
			}
			reduce.ResetLog(c.stages.log)
		}
		if o.overlap {
			mode |= overlaid
		}
	}
	if f.rooted && (o.red == 0 && len(o.out) > smallSize || o.red != 0 && len(o.in) >= shareFrom) {
		var err error
		if mode, err = c.offer(o, line, mode); err != nil {
			return err
		}
	}
	c.announce(o, line, mode, f.ranks[c.rank].oneWay && max(len(o.in), len(o.out)) <= smallSize)
	v := &c.views[c.rank]
	v.in, v.out, v.addr, v.mode = in, o.out, 0, mode
	return nil
}

// mayEnter returns once the entry of an operation may be written, or with a
// failure: who waits for nobody would not hear of it otherwise.
func (c *Comm) mayEnter(o *op) error {
	if atomicAt(c.boards[c.rank], atWord).Load() != 0 {
		if f := c.heard(); f != nil {
			return f
		}
	}
	return c.makeRoom(o)
}

// announce lets the others see the own entry, of which the line holds the rest. An
// operation that may be swift starts when it turns out that it is not.
func (c *Comm) announce(o *op, line board, mode uint64, swift bool) {
	seq, mine := o.call.Seq, c.boards[c.rank]
	o.call.Put(mine.call(seq))
	line.flag().RaiseWith(seq, o.sig, mode, mine.sleepers(), c.waiter)
	mine.entry(seq + 1).flag().Own()
	// The others can go on; what follows is done while their entries are on their way.
	if !swift {
		c.starts(o)
	}
	if n := max(len(o.in), len(o.out)); placed && (seq&63 == 0 || n > smallSize) { // it takes 50 ns
		c.place()
	}
}

// hear waits for the entry of another rank and compares its call.
func (c *Comm) hear(o *op, i int) (board, error) {
	seq := o.call.Seq
	line := c.boards[i].entry(seq)
	if line.flag().Load() >= seq {
		if o.began == 0 { // then that of the next operation is likely to be there, too
			c.boards[i].entry(seq + 1).flag().Fetch()
		}
	} else {
		if o.began == 0 {
			c.starts(o)
		}
		if err := line.flag().WaitAs(seq, c.boards[i].sleepers(), c.waiter, c.stopFn); err != nil {
			return nil, err
		}
	}
	if *line.word(wordSig) != o.sig {
		return nil, c.mismatch(o, i)
	}
	return line, nil
}

// inline puts an input into an entry, of which dst is the end. The second line
// comes first: others look at the first one all the time, and would take it away
// between a store to it and the flag's, which is 0.13 us each time.
func (o *op) inline(dst []byte) {
	const first = 32
	n := len(o.in)
	if o.red == reduce.PreMulSum || n <= first {
		o.export(dst[:n])
		return
	}
	copy(dst[first:n], o.in[first:])
	copy(dst[:first], o.in)
}

// export copies the input, multiplied if the reduction wants it so.
func (o *op) export(dst []byte) {
	if o.red == reduce.PreMulSum {
		reduce.ScaleTo(o.t, dst, o.in, o.factor)
		return
	}
	copy(dst, o.in)
}

// image is the own input as sums read it: the multiplied copy if there is one.
func (o *op) image(b []byte) []byte {
	if o.red == reduce.PreMulSum {
		return b
	}
	return o.in
}

// look finds another rank's memory as its entry says.
func (c *Comm) look(o *op, i int, mode uint64, line board) error {
	v := &c.views[i]
	*v = view{mode: mode}
	n := o.shape.bytes(o.call.Op, sched.In, i, len(c.members))
	var err error
	switch mode & inMask {
	case inEntry:
		v.in = line[entryData:][:n]
	case inSmall:
		v.in = c.boards[i].small(o.call.Seq)[:n]
	case inPulled:
		v.addr = uintptr(*line.word(wordIn))
	case inSlots:
		v.in, err = c.world.mem.At(c.members[i], transport.Handle(*line.word(wordIn)), tradeSlots*tradePiece)
	case inPlain:
		h := transport.Handle(*line.word(wordIn))
		if o.op == sched.Gather && c.views[c.rank].mode&outSeen != 0 {
			v.block = h // whose owner may be done with it already
			break
		}
		v.in, err = c.world.mem.At(c.members[i], h, n)
	case inStage:
		v.base = *line.word(wordBase)
		v.in, err = c.world.mem.At(c.members[i], transport.Handle(*line.word(wordIn)), n)
	}
	if err == nil && mode&outSeen != 0 {
		v.out, err = c.world.mem.At(c.members[i], transport.Handle(*line.word(wordOut)), o.shape.bytes(o.call.Op, sched.Out, i, len(c.members)))
	}
	return err
}

// sumHere does the sums and moves that end in the own output.
func (c *Comm) sumHere(o *op) error {
	f := &o.ready.flat.ranks[c.rank]
	for k := range f.sums {
		s := &f.sums[k]
		lo, hi := o.shape.span(o.call.Op, sched.Out, c.rank, int(s.dsts[0].chunk))
		if err := c.sum(o, s, 0, o.out[lo:hi], nil); err != nil {
			return err
		}
	}
	stride := len(o.out) + 1
	if n := len(o.in); o.op == sched.AllGather && n >= strideFrom && n <= strideUpTo && c.world.local <= runtime.NumCPU() {
		stride = moveStride
	}
	for done, more := 0, true; more; done += stride {
		more = false
		for k := range f.moves {
			m := &f.moves[(k+f.first)%len(f.moves)]
			lo, hi := o.shape.span(o.call.Op, sched.Out, c.rank, int(m.dsts[0].chunk))
			if lo += done; lo >= hi {
				continue
			}
			if hi-lo > stride {
				hi, more = lo+stride, true
			}
			if err := c.move(o, m.srcs[0], done, o.out[lo:hi]); err != nil {
				return err
			}
		}
	}
	return nil
}

// Large blocks that all ranks read are moved by parts, the same part of all of
// them at a time: what one rank reads another one has just read, and is still in a
// cache that both share. An all-gather of 4 MiB between two Xeon cores takes 275 us
// so and 337 block after block, of 16 MiB 1210 and 1430, where blocks are pulled
// 1.05 times as long in one go; larger blocks are stored past the caches, which is
// worth more, and of smaller ones both ways take as long (2026-11-15).
const (
	moveStride = 256 << 10
	strideFrom = 2 << 20
	strideUpTo = 8 << 20
)

// move copies what a rank has from a byte of a chunk on.
func (c *Comm) move(o *op, from place, skip int, dst []byte) error {
	v := &c.views[from.rank]
	at, _ := o.shape.span(o.call.Op, sched.In, int(from.rank), int(from.chunk))
	at += skip
	switch {
	case v.addr != 0:
		return c.world.mem.Pull(c.members[from.rank], v.addr+uintptr(at), dst)
	case v.mode&growing != 0 && int(from.rank) != c.rank:
		return c.copyBehind(o, int(from.rank), at, dst)
	}
	if src := v.in[at:][:len(dst)]; &src[0] != &dst[0] {
		reduce.Copy(dst, src)
	}
	return nil
}

// sum computes a sum into dst, from a byte of its chunks on, and into also if there is
// such. Inputs that must be pulled come in pieces that stay in the second-level cache.
func (c *Comm) sum(o *op, k *kernel, from int, dst, also []byte) error {
	if len(dst) == 0 {
		return nil
	}
	pulled := 0
	for _, s := range k.srcs {
		if c.views[s.rank].addr != 0 {
			pulled++
		}
		if c.views[s.rank].mode&growing != 0 {
			return c.sumBehind(o, k, dst)
		}
	}
	if pulled == 0 {
		srcs := c.sources(o, k)
		for i, s := range srcs {
			srcs[i] = s[from:][:len(dst)]
		}
		c.apply(o, srcs, dst, also)
		return nil
	}
	piece := max(pieces/pulled&^4095, 4096)
	var room []byte
	if pulled > 1 || overlap(dst, o.in) { // else it goes to where the sum will be
		room = c.stages.scratch(useIn, pulled*piece)
	}
	for at := 0; at < len(dst); at += piece {
		n := min(piece, len(dst)-at)
		o.srcs = o.srcs[:0]
		next := 0
		for _, s := range k.srcs {
			lo, _ := o.shape.span(o.call.Op, sched.In, int(s.rank), int(s.chunk))
			v := &c.views[s.rank]
			if v.addr == 0 {
				o.srcs = append(o.srcs, v.in[lo+from+at:][:n])
				continue
			}
			b := dst[at : at+n]
			if room != nil {
				b = room[next:][:n]
			}
			next += piece
			if err := c.world.mem.Pull(c.members[s.rank], v.addr+uintptr(lo+from+at), b); err != nil {
				return err
			}
			o.srcs = append(o.srcs, b)
		}
		var more []byte
		if also != nil {
			more = also[at : at+n]
		}
		c.apply(o, o.srcs, dst[at:at+n], more)
	}
	return nil
}

// apply computes a sum into one place or two.
func (c *Comm) apply(o *op, srcs [][]byte, dst, also []byte) {
	o.dsts = append(o.dsts[:0], dst)
	if also != nil && o.red != reduce.Avg {
		o.dsts = append(o.dsts, also)
	}
	reduce.ApplyAll(o.t, o.red, o.dsts, srcs)
	reduce.Finish(o.t, o.red, dst, len(c.members))
	if also != nil && o.red == reduce.Avg {
		copy(also, dst)
	}
}

// pieces is how many bytes are pulled at a time from all ranks together.
const pieces = 256 << 10

// source is a chunk of a member's input.
func (c *Comm) source(o *op, s place) []byte {
	lo, hi := o.shape.span(o.call.Op, sched.In, int(s.rank), int(s.chunk))
	return c.views[s.rank].in[lo:hi]
}

// length is that of a chunk of an input.
func (o *op) length(s place) int {
	lo, hi := o.shape.span(o.call.Op, sched.In, int(s.rank), int(s.chunk))
	return hi - lo
}

func (c *Comm) sources(o *op, k *kernel) [][]byte {
	o.srcs = o.srcs[:0]
	for _, s := range k.srcs {
		o.srcs = append(o.srcs, c.source(o, s))
	}
	return o.srcs
}

// commit leaves the own sums where the others see them, and once all are there
// copies everybody's to the own output.
func (c *Comm) commit(o *op) error {
	seq := o.call.Seq
	f := &o.ready.flat.ranks[c.rank]
	total := 0
	for k := range f.sums {
		total += o.length(f.sums[k].srcs[0])
	}
	sums, h, err := c.stages.result(c.world, total)
	if err != nil {
		return err
	}
	own := func(k *kernel) []byte { // of the output; a sum that goes to others goes to who computes it as well (newFlat)
		for _, d := range k.dsts {
			if int(d.rank) == c.rank {
				lo, hi := o.shape.span(o.call.Op, sched.Out, c.rank, int(d.chunk))
				return o.out[lo:hi]
			}
		}
		return nil
	}
	at := 0
	for k := range f.sums {
		n := o.length(f.sums[k].srcs[0])
		var also []byte
		if !o.overlap { // else the input stays what it is until all sums are there
			also = own(&f.sums[k])
		}
		if err := c.sum(o, &f.sums[k], 0, sums[at:at+n], also); err != nil {
			return err
		}
		at += n
	}
	if err := c.meetMid(seq, h); err != nil {
		return err
	}
	at = 0
	for k := range f.sums {
		n := o.length(f.sums[k].srcs[0])
		if o.overlap {
			reduce.Copy(own(&f.sums[k]), sums[at:at+n])
		}
		at += n
	}
	for _, x := range f.fetches {
		lo, hi := o.shape.span(o.call.Op, sched.Out, c.rank, int(x.chunk))
		if hi == lo {
			continue
		}
		theirs := &o.ready.flat.ranks[x.rank]
		at := 0
		for k := range x.sum {
			at += o.length(theirs.sums[k].srcs[0])
		}
		h := atomic.LoadUint64(c.boards[x.rank].mid().word(wordResult))
		b, err := c.world.mem.At(c.members[x.rank], transport.Handle(h), at+hi-lo)
		if err != nil {
			return err
		}
		reduce.Copy(o.out[lo:hi], b[at:])
	}
	return nil
}
