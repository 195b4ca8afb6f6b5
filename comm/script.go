package comm

import (
	"errors"
	"sync"

	"github.com/weft-fabric/weft/comm/calls"
	"github.com/weft-fabric/weft/reduce"
	"github.com/weft-fabric/weft/sched"
	"github.com/weft-fabric/weft/sched/step"
	"github.com/weft-fabric/weft/transport"
	"github.com/weft-fabric/weft/transport/wait"
)

// script is what one rank does in a program: by channel, the actions that the
// interpreter hands out.
type script struct {
	channels [][]action
	in, out  int  // chunks
	tmp      int  // of scratch
	pieces   bool // in place, what an action overwrites may be kept just before it
	double   bool // it is of the form of doubles
	clean    bool // where in and out are the same memory it stores nothing there but what is there
	slots    int  // messages under way that the program may rely on
	widest   int  // chunks of its longest message
}

// action is one of them, and the receives that may be announced before its send.
type action struct {
	step.Action
	left      step.Operand // what it computes: see step.Effect
	right     step.Operand
	sendOn    int32   // channels of the port
	recvOn    int32   //
	announce  []int32 // places in the channel
	announced bool    // it is among those of an action before it
	first     bool    // in place, it overwrites input
}

// newScript writes down the actions of a rank.
func newScript(p *sched.Program, rank int) (*script, error) {
	m := step.New(p, sched.Rank(rank))
	s := &script{channels: make([][]action, p.Channels()), in: p.NumChunks(sched.In), out: p.NumChunks(sched.Out), tmp: p.NumChunks(sched.Tmp)}
	var buf []step.Action
	for !m.Done() {
		buf = m.Ready(buf[:0])
		if err := m.Err(); err != nil {
			return nil, err
		}
		if len(buf) == 0 && !m.Done() {
			return nil, errors.New(p.Name + ": channels wait for one another")
		}
		for i := range buf {
			a := action{Action: buf[i], sendOn: buf[i].Channel, recvOn: buf[i].Channel}
			a.left, a.right = step.Effect(a.Op)
			s.widest = max(s.widest, int(a.Count))
			s.channels[a.Channel] = append(s.channels[a.Channel], a)
			m.Complete(a.Channel)
		}
	}
	s.slots, s.clean = p.Slots, clean(p, rank, s.channels)
	s.plan(p, rank)
	s.pieces = len(s.channels) == 1 && firsts(s.channels[0])
	s.double = s.doubles(p)
	return s, nil
}

// ahead is how many receives are announced at most before they are due.
const ahead = 4

// plan finds out which receives may be announced before which sends, so that a
// transport that fills memory by itself can do so while the send waits. A
// receive may be announced once nothing that comes before it touches its
// memory; in and out are taken for the same memory, as they are in place.
func (s *script) plan(p *sched.Program, rank int) {
	type cell struct {
		tmp   bool
		chunk int64
	}
	shape := newShape(p, 1, 1, nil)
	cells := func(c step.Chunks, do func(cell)) {
		for k := c.Index; k < c.Index+c.Count; k++ {
			switch c.Buf {
			case sched.Tmp:
				do(cell{true, k})
			case sched.Out:
				do(cell{false, int64(shape.alias(p.Op, rank, int(k)))<<1 | 1})
				do(cell{false, k << 1})
			case sched.In:
				do(cell{false, k<<1 | 1})
			}
		}
	}
	owner := map[cell]int32{} // the only channel that touches it, -1 if several do
	touch := func(a *step.Action, do func(cell)) {
		if a.Op == sched.Wait {
			return
		}
		if a.Op.Reads() {
			cells(a.Src, do)
		}
		if a.Op.Stores() {
			cells(a.Dst, do)
		}
	}
	for _, list := range s.channels {
		for i := range list {
			touch(&list[i].Action, func(c cell) {
				if o, seen := owner[c]; seen && o != list[i].Channel {
					owner[c] = -1
				} else {
					owner[c] = list[i].Channel
				}
			})
		}
	}
	for _, list := range s.channels {
		announced := 0 // receives before this place are announced or due
		for i := range list {
			if !list[i].Op.Sends() {
				continue
			}
			used := map[cell]bool{}
			touch(&list[i].Action, func(c cell) { used[c] = true })
			found := 0
			for j := i + 1; j < len(list) && found < ahead; j++ {
				a := &list[j].Action
				if a.Op == sched.Wait {
					break
				}
				if a.Op == sched.Recv || a.Op == sched.RecvSend {
					found++
					free := true
					cells(a.Dst, func(c cell) { free = free && !used[c] && owner[c] == a.Channel })
					if !free {
						break
					}
					if j >= announced {
						list[i].announce = append(list[i].announce, int32(j))
						list[j].announced = true
						announced = j + 1
					}
				} else if a.Op.Receives() {
					break // receives of one way are announced in order
				}
				touch(a, func(c cell) { used[c] = true })
			}
			announced = max(announced, i+1)
		}
	}
}

// space is where the chunks of an operation lie.
type space struct {
	o    *op
	rank int
	in   []byte
	out  []byte
	tmp  []byte
	layout

	unsaved bool // in place, and nothing was stored yet
	inPlace bool // the program may read its input where it stores its output
	pieces  bool // in place, and what is overwritten is kept piece by piece
	last    bool // there is no run after this
}

// layout is what of a space depends on nothing but the program and the shape.
type layout struct {
	stride int // of chunks of tmp; and of in and out if they are padded
	padded bool
	ins    int // bytes of in
	outs   int // and of out
}

func (s *space) at(c step.Chunks) []byte {
	if c.Buf == sched.Tmp {
		return s.tmp[int(c.Index)*s.stride:][:int(c.Count)*s.stride]
	}
	b := s.in
	if c.Buf == sched.Out {
		b = s.out
	}
	if s.padded {
		return b[int(c.Index)*s.stride:][:int(c.Count)*s.stride]
	}
	shape := &s.o.shape
	if c.Buf == sched.Out && s.o.shapes != nil {
		shape = s.o.shapes
	}
	lo, hi := shape.span(s.o.call.Op, c.Buf, s.rank, int(c.Index))
	if c.Count > 1 {
		_, hi = shape.span(s.o.call.Op, c.Buf, s.rank, int(c.Index+c.Count-1))
	}
	return b[lo:max(lo, hi)]
}

// runScript carries out a program action by action.
func (c *Comm) runScript(o *op) error {
	s, err := o.ready.scriptOf(c.rank, c.world.ep.Can().Depth)
	if err != nil {
		return err
	}
	if !o.overlap && !s.clean && (o.op != sched.Broadcast || c.rank == o.root) {
		o.overlap = overlap(o.in, o.out)
	}
	if c.port == nil {
		if c.port, err = c.world.ep.Port(transport.Group{ID: c.id, Epoch: c.epoch, Members: c.members, Words: calls.Words{}}); err != nil {
			return err
		}
		if c.world.ep.Can().Overlaps {
			c.swapper = c.port
		}
	}
	mine := c.boards[c.rank]
	if c.world.mem != nil {
		err = c.arrive(o)
	} else {
		mine.setCall(&o.call, o.began)
		mine.entry(o.call.Seq).flag().Set(o.call.Seq)
	}
	if err != nil {
		return err
	}
	c.phase = moving
	c.port.Begin(o.call.Wire(), c.stopFn)
	o.kept.in, o.kept.spans = o.in, o.kept.spans[:0]
	o.many = len(s.channels) > 1
	if c.mayDouble(o, s) {
		err = c.double(o, s.channels[0])
	} else {
		err = c.runRuns(o, s)
	}
	mine.waitsFor(-1, 0, 0)
	if err != nil {
		_ = c.port.Close() // what still comes must not go where the caller's memory is
		o.kept.restore()
		return err
	}
	if c.world.mem != nil {
		mine.leave().Post(o.call.Seq)
	} else {
		mine.leave().Set(o.call.Seq)
	}
	if o.red != 0 {
		reduce.Finish(o.t, o.red, o.out, len(c.members))
	}
	return nil
}

// runRuns carries out a program on one run of elements after another, so that no message
// is longer than it should be (choice.Table.Message).
func (c *Comm) runRuns(o *op, s *script) error {
	if o.counts != nil || o.many || o.op == sched.Barrier || (o.count+o.shape.per-1)/o.shape.per*o.shape.size <= o.ready.undivided {
		return c.runRun(o, s, false)
	}
	whole := o.shape
	defer func() { o.shape = whole }()
	each := whole.per * (o.ready.message / whole.size)
	for from := 0; from < o.count; from += each {
		o.shape = whole.run(from, min(each, o.count-from))
		if err := c.runRun(o, s, from+each < o.count); err != nil {
			return err
		}
	}
	return nil
}

// runRun carries out a program on a run of elements; more says that others follow.
func (c *Comm) runRun(o *op, s *script, more bool) error {
	sp := c.space(o, s)
	sp.last = !more
	if b, ok := c.port.(transport.Bounded); ok && (o.many || s.slots*(s.widest*sp.stride+128) > b.Bound()) {
		b.Unbound() // it may need more under way: see slots.go
	}
	var err error
	if o.many {
		err = c.runChannels(o, sp, s)
	} else {
		err = c.runChannel(o, sp, s.channels[0], &c.stages.sum, nil)
	}
	if err == nil && sp.padded {
		c.gather(o, sp, more)
	}
	return err
}

// arrive waits until everybody entered the operation and compares their calls.
func (c *Comm) arrive(o *op) error {
	c.phase = entering
	if err := c.makeRoom(o); err != nil {
		return err
	}
	mine := c.boards[c.rank]
	line := mine.entry(o.call.Seq)
	wait.Release(line.sig(), o.sig)
	*line.word(wordMode) = inNowhere
	mine.setCall(&o.call, o.began)
	line.flag().RaiseFor(o.call.Seq, mine.sleepers(), c.waiter)
	for k := 1; k < len(c.members); k++ {
		i := (c.rank + k) % len(c.members)
		line := c.boards[i].entry(o.call.Seq)
		if err := line.flag().WaitAs(o.call.Seq, c.boards[i].sleepers(), c.waiter, c.stopFn); err != nil {
			return err
		}
		if line.sig().Load() != o.sig {
			return c.mismatch(o, i)
		}
	}
	c.waiter.Settle()
	c.low = o.call.Seq
	return nil
}

// The uses of private scratch.
const (
	useIn = iota
	useOut
	useTmp
	useKept
)

// space lays the buffers out. In place, the program reads a copy of the input:
// it need not be one that may run in place, and the input survives a failure.
// A program with scratch moves chunks through it whose length must not depend on
// which they are, so if some are short all are padded.
func (c *Comm) space(o *op, s *script) *space {
	sp := &c.stages.space
	*sp = space{o: o, rank: c.rank, in: o.in, out: o.out}
	if o.op == sched.Barrier { // has no bytes of its own, and empty messages are not sent
		sp.stride, sp.padded = 1, true
		sp.in, sp.out = c.stages.scratch(useIn, s.in), c.stages.scratch(useOut, s.out)
		sp.tmp = c.stages.scratch(useTmp, s.tmp)
		return sp
	}
	sp.layout = c.layout(o, s)
	if s.tmp > 0 {
		sp.tmp = c.stages.scratch(useTmp, s.tmp*sp.stride)
	}
	scaled := o.red == reduce.PreMulSum
	// Ranks that are not the root pass on what they do not keep.
	none := len(o.in) == 0
	if none && sp.ins > 0 {
		sp.in = c.stages.scratch(useIn, sp.ins)
	}
	if len(o.out) == 0 && sp.outs > 0 && o.shapes == nil {
		sp.out = c.stages.scratch(useOut, sp.outs)
	}
	switch {
	case sp.padded:
		sp.in = c.stages.scratch(useIn, s.in*sp.stride)
		sp.out = c.stages.scratch(useOut, s.out*sp.stride)
		for k := range s.in {
			if none {
				break
			}
			lo, hi := o.shape.span(o.call.Op, sched.In, c.rank, k)
			dst := sp.in[k*sp.stride:][:sp.stride]
			if scaled {
				reduce.ScaleTo(o.t, dst[:hi-lo], o.in[lo:hi], o.factor)
			} else {
				copy(dst, o.in[lo:hi])
			}
			clear(dst[hi-lo:])
		}
	case scaled:
		sp.in = c.stages.scratch(useIn, len(o.in))
		lo, hi := o.runOf()
		reduce.ScaleTo(o.t, sp.in[lo:hi], o.in[lo:hi], o.factor)
		sp.unsaved = o.overlap
	case o.overlap:
		sp.inPlace = o.ready.inPlace()
		sp.pieces = sp.inPlace && s.pieces && !o.op.Blocks() && len(o.in) >= piecesFrom
		sp.unsaved = !sp.pieces
	}
	if o.overlap {
		o.kept.copy = c.stages.scratch(useKept, len(o.in))
	}
	if sp.unsaved && o.many {
		sp.save()
	}
	return sp
}

// layout works out what of the space the shape says, or knows it of the operation
// before.
func (c *Comm) layout(o *op, s *script) layout {
	usual := o.counts == nil && o.shape.full == 0
	if l := o.ready.layout; usual && l != nil {
		return *l
	}
	l := &layout{ins: o.shape.bytes(o.op, sched.In, c.rank, len(c.members)), outs: o.shape.bytes(o.op, sched.Out, c.rank, len(c.members))}
	least := -1
	for _, x := range [...]struct {
		buf sched.Buffer
		n   int
	}{{sched.In, s.in}, {sched.Out, s.out}} { // of which the larger one has all blocks, on every rank
		for k := range x.n {
			lo, hi := o.shape.span(o.op, x.buf, c.rank, k)
			l.stride = max(l.stride, hi-lo)
			if least < 0 || hi-lo < least {
				least = hi - lo
			}
		}
	}
	if least != l.stride {
		l.padded = s.tmp > 0 || !o.ready.straight(o.counts != nil)
	}
	if usual {
		o.ready.layout = l
	}
	return *l
}

// runOf is where the input of the run under way begins and ends, where it is one
// piece; else the whole input.
func (o *op) runOf() (lo, hi int) {
	if o.shape.full == 0 || o.op.Blocks() {
		return 0, len(o.in)
	}
	return o.shape.from * o.shape.size, (o.shape.from + o.shape.count) * o.shape.size
}

// save keeps a copy of what the run under way may overwrite. With a single channel
// that can wait until the first store: what was sent before is on its way by then,
// and the input is in the caches. The copy of a large one is not: it is needed if
// the operation fails.
func (s *space) save() {
	s.unsaved = false
	o := s.o
	lo, hi := o.runOf()
	if n := len(o.kept.spans); lo < hi && (n == 0 || o.kept.spans[n-1].hi != hi) { // else it is that of the run before, too
		o.kept.save(o.in[lo:hi])
	}
	if o.red != reduce.PreMulSum && !s.inPlace {
		s.in = o.kept.copy
	}
}

// keep copies what an action is about to overwrite of the input.
func (s *space) keep(a *action, b []byte) {
	if s.pieces && a.first && len(b) > 0 {
		s.o.kept.save(b)
	}
}

// gather takes the result out of padded buffers; more says that the operation
// may still fail after it.
func (c *Comm) gather(o *op, sp *space, more bool) {
	if more && o.overlap {
		sp.save()
	}
	p := o.ready.program
	if p.Op == sched.Barrier || (p.Op == sched.Reduce || p.Op == sched.Gather) && c.rank != p.Root {
		return
	}
	for k := range o.ready.script.out {
		lo, hi := o.shape.span(o.call.Op, sched.Out, c.rank, k)
		copy(o.out[lo:hi], sp.out[k*sp.stride:])
	}
}

// runChannels runs channels side by side, the first on the caller's goroutine.
func (c *Comm) runChannels(o *op, sp *space, s *script) error {
	done := newMarks(len(s.channels))
	errs := make([]error, len(s.channels))
	var wg sync.WaitGroup
	for k := 1; k < len(s.channels); k++ {
		wg.Go(func() {
			errs[k] = c.runChannel(o, sp, s.channels[k], &summer{}, done)
			done.end(errs[k])
		})
	}
	errs[0] = c.runChannel(o, sp, s.channels[0], &c.stages.sum, done)
	done.end(errs[0])
	wg.Wait()
	for _, err := range errs {
		if err != nil && !errors.Is(err, errOther) {
			return err
		}
	}
	return errors.Join(errs...)
}

// summer adds up what comes piece by piece.
type summer struct {
	t        reduce.Type
	red      reduce.Op
	acc, dst []byte
	off      int
	kept     *kept        // where what dst holds has to be saved, or nil
	bounce   []byte       // room for sums that are only passed on
	add      func([]byte) // the method, bound once
}

// set makes the summer ready for an operation.
func (s *summer) set(o *op) {
	s.t, s.red = o.t, o.red
	if o.op == sched.Barrier {
		s.red = reduce.BOr
	}
	if s.add == nil {
		s.add = s.take
	}
}

// begin makes the summer ready for a message.
func (s *summer) begin(acc, dst []byte, kept *kept) { s.acc, s.dst, s.off, s.kept = acc, dst, 0, kept }

// take adds a piece of a message to what is there: src first, as step.Effect says.
func (s *summer) take(piece []byte) {
	dst, acc := s.dst[s.off:s.off+len(piece)], s.acc[s.off:s.off+len(piece)]
	s.off += len(piece)
	if s.kept != nil {
		s.kept.sum(s.t, s.red, dst, acc, piece)
	} else {
		reduce.Apply(s.t, s.red, dst, acc, piece)
	}
}

// pending is a message that is to be sent, if there is one: with the next that is
// received, where the transport can do both at once and the program lets it.
type pending struct {
	b  []byte // nil if there is none
	a  *action
	at int // its place
}

// runChannel carries out the actions of a channel in order.
func (c *Comm) runChannel(o *op, sp *space, list []action, sum *summer, done *marks) error {
	sum.set(o)
	var out pending
	end := sp.ends(c.port, list)
	for i := range list {
		a := &list[i]
		ch := int(a.Channel)
		var err error
		var next []byte // what is sent after what was received
		if sp.unsaved && (a.Op.Stores() && a.Dst.Buf == sched.Out || len(a.announce) > 0) {
			sp.save()
		}
		if out.b != nil && !a.Op.Receives() {
			if err := c.flush(o, &out); err != nil {
				return err
			}
		}
		switch {
		case a.left == step.Nothing:
			err = done.wait(int(a.On), a.Done)
		case a.left == step.Message:
			next = sp.at(a.Dst)
			if i == end {
				err = c.receiveWhole(o, sp, &out, a, i, next)
				break
			}
			if !a.announced {
				sp.keep(a, next)
			}
			err = c.receive(o, &out, a, i, transport.Incoming{N: len(next), Dst: next}, next)
		case a.right == step.Message: // src + message
			acc := sp.at(a.Src)
			var kept *kept
			if sp.pieces && a.first {
				kept = &o.kept
			}
			if a.Op.Stores() {
				next = sp.at(a.Dst)
			} else {
				if len(sum.bounce) < len(acc) {
					sum.bounce = make([]byte, len(acc))
				}
				next = sum.bounce[:len(acc)]
			}
			sum.begin(acc, next, kept)
			err = c.receive(o, &out, a, i, transport.Incoming{N: len(acc), Take: sum.add}, next)
		case a.right == step.Dst: // src + dst
			if d := sp.at(a.Dst); len(d) > 0 {
				sp.keep(a, d)
				reduce.Apply(o.t, sum.red, d, sp.at(a.Src), d)
			}
		case a.Op.Stores():
			if d, s := sp.at(a.Dst), sp.at(a.Src); len(d) > 0 && &d[0] != &s[0] {
				sp.keep(a, d)
				reduce.Copy(d, s)
			}
		default:
			next = sp.at(a.Src)
		}
		if err == nil && a.Op.Sends() {
			for _, j := range a.announce {
				if d := sp.at(list[j].Dst); len(d) > 0 && int(j) != end {
					sp.keep(&list[j], d)
					c.port.Expect(int(list[j].From), int(list[j].recvOn), d)
				}
			}
			if len(next) > 0 { // messages of no bytes are not sent: both sides know that they are empty
				out.b, out.a, out.at = next, a, i
			}
			if c.swapper == nil || done != nil {
				err = c.flush(o, &out)
			}
		}
		if err != nil {
			return err
		}
		if done != nil {
			done.mark(ch)
		}
		if a.Op != sched.Wait && out.a != a { // waits are between channels of one rank, nothing that the others take part in
			o.step(a, ticks())
		}
	}
	return c.flush(o, &out)
}

// flush sends what is pending.
func (c *Comm) flush(o *op, out *pending) error {
	if out.b == nil {
		return nil
	}
	to, ch := int(out.a.To), int(out.a.Channel)
	c.boards[c.rank].waitsFor(to, ch, out.at)
	err := c.port.Send(to, int(out.a.sendOn), out.b)
	out.b = nil
	o.step(out.a, ticks())
	return err
}

// receive receives a message into dst, or adds it up there, and sends what is pending
// meanwhile.
func (c *Comm) receive(o *op, out *pending, a *action, at int, in transport.Incoming, dst []byte) error {
	from, ch := int(a.From), int(a.Channel)
	if out.b != nil && overlap(out.b, dst) {
		// Sums may follow what is sent, in step with it.
		if in.After = in.Take != nil && &out.b[0] == &dst[0]; !in.After {
			if err := c.flush(o, out); err != nil {
				return err
			}
		}
	}
	if in.N == 0 {
		return nil
	}
	c.boards[c.rank].waitsFor(from, ch, at)
	if out.b != nil {
		in.From, in.Channel = from, int(a.recvOn)
		err := c.swapper.Exchange(transport.Outgoing{To: int(out.a.To), Channel: int(out.a.sendOn), Bytes: out.b}, in, nil)
		out.b = nil
		o.step(out.a, ticks())
		return err
	}
	if in.Dst != nil {
		return c.port.Recv(from, int(a.recvOn), in.Dst)
	}
	return c.port.Take(from, int(a.recvOn), in.N, in.Take)
}

// errOther is why a channel stopped that waited for one that failed.
var errOther = errors.New("another channel failed")

// marks count what the channels of a script have done, for those that wait for it.
type marks struct {
	mu     sync.Mutex
	cond   sync.Cond
	done   []int64
	failed bool
}

func newMarks(channels int) *marks {
	m := &marks{done: make([]int64, channels)}
	m.cond.L = &m.mu
	return m
}

func (m *marks) mark(channel int) {
	m.mu.Lock()
	m.done[channel]++
	m.mu.Unlock()
	m.cond.Broadcast()
}

func (m *marks) end(err error) {
	if err != nil {
		m.mu.Lock()
		m.failed = true
		m.mu.Unlock()
		m.cond.Broadcast()
	}
}

func (m *marks) wait(channel int, done int64) error {
	if m == nil {
		return nil // a single channel waits for nothing but itself
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for m.done[channel] < done {
		if m.failed {
			return errOther
		}
		m.cond.Wait()
	}
	return nil
}
