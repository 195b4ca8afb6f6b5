package comm

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"time"

	"github.com/weft-fabric/weft/comm/calls"
	"github.com/weft-fabric/weft/reduce"
	"github.com/weft-fabric/weft/sched"
	"github.com/weft-fabric/weft/transport"
	"github.com/weft-fabric/weft/transport/wait"
)

// pairs is what a communicator has for messages between two of its ranks: a port
// of their own, so that they neither wait for collectives nor hold them up.
// Messages from one rank to another keep their order.
type pairs struct {
	port transport.Port
	c    *Comm
	self chan own

	mu     sync.Mutex
	out    []turns // by rank
	in     []turns
	active []*pair
	shown  bool // the others were told whom this rank waits for
	places places
}

// pair is a send or receive under way.
type pair struct {
	ctx   context.Context
	limit int64 // of the clock; 0 until somebody asks
	peer  int
	what  string
	idle  bool // of a send and a receive at once: the other one is waited for
}

const (
	sending   = "send to"
	receiving = "receive from"
)

// turns lets calls go one after another in the order in which they were made. It
// is guarded by the mutex of pairs.
type turns struct {
	pair  pair // the one whose turn it is
	busy  bool
	queue []chan struct{}

	// Of a send that is made at once with a receive, whose turn both are.
	with  *turns
	waits func(sending bool)
}

// take gives what to wait for before it is the caller's turn; nil if it is now.
func (t *turns) take() <-chan struct{} {
	if !t.busy {
		t.busy = true
		return nil
	}
	mine := make(chan struct{})
	t.queue = append(t.queue, mine)
	return mine
}

// done gives the turn to the next.
func (t *turns) done() {
	if len(t.queue) == 0 {
		t.busy = false
		return
	}
	close(t.queue[0])
	t.queue = t.queue[1:]
}

// channel is that of messages from one rank to another of n. A port's channel is for
// one goroutine at a time, so all sends and receives of a rank have their own: the
// distance tells those of one direction apart, and the lowest bit in which the two
// ranks differ, with its value at the sender, those of a rank's two directions (if
// that bit is the same for a message that comes and one that goes, its value is not).
func channel(from, to, n int) int {
	bit := bits.TrailingZeros(uint(from ^ to))
	return (to-from+n)%n*2*bits.Len(uint(n-1)) + 2*bit + from>>bit&1
}

// pairsOf makes the port when it is first needed.
func (c *Comm) pairsOf() (*pairs, error) {
	if f := c.failed.Load(); f != nil {
		return nil, f
	}
	if p := c.pairs.Load(); p != nil {
		return p, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pairs.Load() == nil {
		port, err := c.world.ep.Port(transport.Group{ID: c.id | 1<<31, Epoch: c.epoch, Members: c.members, Words: calls.Words{}})
		if err != nil {
			return nil, err
		}
		p := &pairs{port: port, c: c, out: make([]turns, len(c.members)), in: make([]turns, len(c.members)), self: make(chan own, 1024)}
		call := calls.Call{Epoch: c.epoch, Comm: c.id, Seq: 1, Op: sched.SendRecv, Variant: calls.PointToPoint, Root: -1}
		port.Begin(call.Wire(), p.stop)
		c.pairs.Store(p)
	}
	return c.pairs.Load(), nil
}

// stop ends the waits of the port: when the communicator failed, or when the
// time of a message under way is over, which is a failure, too.
func (p *pairs) stop() error {
	if f := p.c.failed.Load(); f != nil {
		return f
	}
	if f := p.c.heard(); f != nil {
		return f
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := clock()
	p.show()
	for _, a := range p.active {
		if a.idle {
			continue
		}
		if err := a.ctx.Err(); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return &Failure{Kind: Aborted, Rank: p.c.rank, Culprits: []int{p.c.rank}, Err: fmt.Errorf("%s rank %d: %w", a.what, a.peer, err)}
		}
		if a.limit == 0 { // the first look comes some 30 us after the call
			a.limit = p.c.until(a.ctx, now)
		} else if now > a.limit {
			return p.late(a)
		}
		if p.c.hasClosed(a.peer) {
			a.limit = min(a.limit, now+int64(closing))
		}
	}
	return nil
}

// show tells the others whom this rank waits for: the sender of a message if
// there is one, as a send may be waited for by its receiver alone. The caller
// holds mu.
func (p *pairs) show() {
	who := -1
	for _, a := range p.active {
		if a.peer != p.c.rank && !a.idle && (who < 0 || a.what == receiving) {
			who = a.peer
			if a.what == receiving {
				break
			}
		}
	}
	p.shown = who >= 0
	if b := p.c.boards; b != nil {
		b[p.c.rank].pairsFor(who)
	}
}

// late is the failure of a message whose time limit passed. If the other rank
// waits for a third one in a send or receive, that one is at fault, and if it is
// in an operation that this rank has not entered, the two of them differ.
func (p *pairs) late(a *pair) *Failure {
	c := p.c
	if c.hasClosed(a.peer) {
		return c.gone(a.peer, &transport.Gone{Rank: c.members[a.peer], Left: true})
	}
	f := &Failure{Kind: Timeout, Rank: c.rank}
	why := fmt.Sprintf("time limit passed: %s rank %d", a.what, a.peer)
	boards := c.allBoards()
	mine, _, _ := boards[c.rank].called()
	at := a.peer
	for range boards {
		b := boards[at]
		if b == nil {
			f.Culprits, f.Err = []int{at}, fmt.Errorf("%s: rank %d does not answer%s", why, at, c.processState(at))
			return f
		}
		if call, began, ok := b.called(); ok && call.Seq > mine.Seq {
			f.Kind, f.Culprits = Mismatch, sorted(at, c.rank)
			f.Err = fmt.Errorf("%s: rank %d is in operation %d (%s)%s, which rank %d has not entered", why, at, call.Seq, &call, c.ago(at, began), c.rank)
			return f
		}
		if len(c.stopped([]int{at})) > 0 {
			break // whatever it waits for
		}
		next := b.pairing()
		if next == c.rank {
			f.Kind, f.Culprits = Mismatch, sorted(at, c.rank)
			f.Err = fmt.Errorf("%s, while rank %d waits for rank %d: they differ in what they send and receive", why, at, c.rank)
			return f
		}
		if next < 0 || next >= len(boards) || next == at {
			break
		}
		why += fmt.Sprintf(", which waits for rank %d", next)
		at = next
	}
	f.Culprits, f.Err = []int{at}, fmt.Errorf("%s, which did not come%s", why, c.processState(at))
	return f
}

// own is a message of a rank to itself.
type own struct {
	form transport.Form
	b    []byte
}

// message is one send or receive that waits for its turn.
type message struct {
	ctx    context.Context
	turns  *turns
	before <-chan struct{} // nil if its turn is now
	peer   int
	what   string
	t      reduce.Type
	b      []byte
}

// queue takes the turn of a message; the caller holds mu.
func (p *pairs) queue(m *message) {
	m.turns = &p.out[m.peer]
	if m.what == receiving {
		m.turns = &p.in[m.peer]
	}
	if m.before = m.turns.take(); m.before == nil {
		p.begin(m)
	}
	if p.c.crowded {
		p.places.part(p.c)
	}
}

// begin makes a message whose turn it is one that is under way; the caller holds mu.
func (p *pairs) begin(m *message) {
	// Field by field: a whole pair would be put together first and copied by larger
	// words than it was written by, for which the processor waits, some 10 ns a word.
	a := &m.turns.pair
	a.ctx, a.limit, a.peer, a.what, a.idle = m.ctx, 0, m.peer, m.what, false
	p.active = append(p.active, a)
}

// await returns when the turn of a message has come, with an error if it comes too late.
func (p *pairs) await(m *message) error {
	if m.before != nil {
		select {
		case <-m.before:
		case <-m.ctx.Done():
			_ = p.c.failIn(p.over(m), calls.Call{}) // which ends those before it
			<-m.before
		}
		p.mu.Lock()
		p.begin(m)
		p.mu.Unlock()
	}
	if m.ctx.Err() != nil {
		return p.over(m)
	}
	return nil
}

// over is the failure of a message whose context ended before its turn came.
func (p *pairs) over(m *message) *Failure {
	return p.c.ended(fmt.Sprintf("%s rank %d, which has not begun", m.what, m.peer), m.ctx.Err())
}

// end ends messages, with the error that they came to.
func (p *pairs) end(err error, list ...*message) error {
	if err != nil {
		err = p.c.failIn(err, calls.Call{})
		_ = p.port.Close() // what still comes must not go where the caller's memory is
		p.c.dump(err)
	}
	p.mu.Lock()
	for _, m := range list {
		if k := slices.Index(p.active, &m.turns.pair); k >= 0 {
			last := len(p.active) - 1
			p.active[k], p.active = p.active[last], p.active[:last]
		}
	}
	if p.shown && len(p.active) == 0 && err == nil { // after a failure, others may ask what this rank waited for
		p.show()
	}
	for _, m := range list {
		m.turns.done()
	}
	p.mu.Unlock()
	return err
}

// handleOf is where the end of a message is told, nil if its caller waits for it.
func handleOf(opts []Option) (h *Handle, err error) {
	for _, o := range opts {
		switch {
		case o.handle != nil:
			h = o.handle
		case o.want.program != nil:
			return nil, fmt.Errorf("send/recv: Using(%s) is for collectives; messages run no program", o.want.program.Name)
		case o.scaled:
			return nil, fmt.Errorf("send/recv: Factor(%v) is for reductions with PreMulSum", o.factor)
		}
	}
	return h, nil
}

// message carries out one send or receive.
func (p *pairs) message(ctx context.Context, peer int, what string, t reduce.Type, b []byte, opts []Option) error {
	h, err := handleOf(opts)
	if err != nil {
		return err
	}
	var m message
	m.ctx, m.peer, m.what, m.t, m.b = ctx, peer, what, t, b
	p.mu.Lock()
	p.queue(&m)
	p.mu.Unlock()
	if h == nil {
		return p.carry(&m)
	}
	own := m
	go func() { h.end(p.carry(&own)) }()
	return nil
}

// carry carries out a message when its turn comes.
func (p *pairs) carry(m *message) error {
	err := p.await(m)
	if err == nil {
		err = p.move(m)
	}
	return p.end(err, m)
}

// exchange carries out a send and a receive at once.
func (p *pairs) exchange(ctx context.Context, t reduce.Type, from int, dst []byte, to int, src []byte, opts []Option) error {
	h, err := handleOf(opts)
	if err != nil {
		return err
	}
	var out, in message // filled field by field, as begin says
	out.ctx, out.peer, out.what, out.t, out.b = ctx, to, sending, t, src
	in.ctx, in.peer, in.what, in.t, in.b = ctx, from, receiving, t, dst
	p.mu.Lock()
	p.queue(&out)
	p.queue(&in)
	if out.before == nil && in.before == nil && to != p.c.rank && from != p.c.rank {
		out.turns.pair.idle = true
	}
	p.mu.Unlock()
	if h == nil {
		return p.carryBoth(&out, &in)
	}
	o, i := out, in
	go func() { h.end(p.carryBoth(&o, &i)) }()
	return nil
}

// carryBoth carries out a send and a receive when their turns come.
func (p *pairs) carryBoth(out, in *message) error {
	me, n := p.c.rank, len(p.c.members)
	err := p.await(out)
	if in.before != nil { // what goes before may wait for an answer to what is sent here
		if err == nil {
			err = p.move(out)
		}
		return errors.Join(p.end(err, out), p.carry(in))
	}
	if err != nil {
		return p.end(err, out, in)
	}
	if out.peer == me || in.peer == me {
		err := p.move(out)
		if err == nil {
			err = p.move(in)
		}
		return p.end(err, out, in)
	}
	to, from := calls.Typed(channel(me, out.peer, n), out.t), calls.Typed(channel(in.peer, me, n), in.t)
	return p.end(p.port.Exchange(transport.Outgoing{To: out.peer, Channel: to, Bytes: out.b},
		transport.Incoming{From: in.peer, Channel: from, N: len(in.b), Dst: in.b}, p.both(out, in)), out, in)
}

// both begins a send and a receive at once, of which the receive is waited for
// first. What it returns is told when that changes.
func (p *pairs) both(out, in *message) func(sending bool) {
	t := out.turns
	if t.waits == nil {
		t.waits = func(sending bool) {
			if sending {
				p.awaits(t, t.with)
			} else {
				p.awaits(t.with, t)
			}
		}
	}
	t.with = in.turns
	if !t.pair.idle {
		p.awaits(in.turns, t)
	}
	return t.waits
}

// awaits says which one of a send and a receive at once is waited for.
func (p *pairs) awaits(one, other *turns) {
	p.mu.Lock()
	defer p.mu.Unlock()
	one.pair.idle, other.pair.idle = false, true
	if p.shown {
		p.show()
	}
}

// move moves the bytes of a message.
func (p *pairs) move(m *message) error {
	me, n := p.c.rank, len(p.c.members)
	switch {
	case m.peer != me && m.what == receiving:
		return p.port.Recv(m.peer, calls.Typed(channel(m.peer, me, n), m.t), m.b)
	case m.peer != me:
		return p.port.Send(m.peer, calls.Typed(channel(me, m.peer, n), m.t), m.b)
	}
	return p.toSelf(m)
}

// toSelf leaves a message of a rank to itself where it will look for it, or takes one.
func (p *pairs) toSelf(m *message) error {
	x := own{form: transport.FormOf(calls.Typed(0, m.t), len(m.b))}
	var out, in chan own
	if m.what == sending {
		out, x.b = p.self, slices.Clone(m.b)
	} else {
		in = p.self
	}
	look := time.NewTicker(wait.Slice)
	defer look.Stop()
	for {
		select {
		case out <- x:
			return nil
		case o := <-in:
			if o.form != x.form {
				return fmt.Errorf("rank %d sent itself %s and receives %s", p.c.rank, calls.Elements(o.form), calls.Elements(x.form))
			}
			copy(m.b, o.b)
			return nil
		case <-look.C:
			if err := p.stop(); err != nil {
				return err
			}
		}
	}
}

// Send sends buf to a rank, which receives it with Recv. Messages from one rank
// to another keep their order. It returns once buf may be changed; a rank that
// sends to itself must have the receive under way (RecvAsync) or the
// message fit in a thousand that are kept.
func Send[T Element](ctx context.Context, c *Comm, buf []T, to int, opts ...Option) error {
	p, err := c.pairing(to)
	if err != nil {
		return err
	}
	return p.message(ctx, to, sending, reduce.TypeOf[T](), reduce.Bytes(buf), opts)
}

// Recv receives what a rank sent, which must have as many elements as buf, of the
// same type.
func Recv[T Element](ctx context.Context, c *Comm, buf []T, from int, opts ...Option) error {
	p, err := c.pairing(from)
	if err != nil {
		return err
	}
	return p.message(ctx, from, receiving, reduce.TypeOf[T](), reduce.Bytes(buf), opts)
}

// SendRecv sends src to a rank and receives dst from one, which may be another, at
// once: neither waits for the other's end. The others may have Send and Recv for it.
// dst and src share nothing.
func SendRecv[T Element](ctx context.Context, c *Comm, dst, src []T, from, to int, opts ...Option) error {
	if from < 0 || from >= len(c.members) {
		return errNoRank(from, len(c.members))
	}
	if overlap(reduce.Bytes(dst), reduce.Bytes(src)) {
		return errors.New("send/recv: dst overlaps src; give two buffers that share nothing")
	}
	p, err := c.pairing(to)
	if err != nil {
		return err
	}
	return p.exchange(ctx, reduce.TypeOf[T](), from, reduce.Bytes(dst), to, reduce.Bytes(src), opts)
}

func (c *Comm) pairing(peer int) (*pairs, error) {
	if peer < 0 || peer >= len(c.members) {
		return nil, errNoRank(peer, len(c.members))
	}
	return c.pairsOf()
}

func errNoRank(rank, size int) error {
	return fmt.Errorf("rank %d is not in a communicator of %d", rank, size)
}
