// Package pair moves messages between two ranks of a communicator. They have a port of their own, so they neither wait for
// collectives nor hold them up. Messages from one rank to another keep their order.
package pair

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"time"

	"github.com/weft-fabric/weft/run/comm/internal/blame"
	"github.com/weft-fabric/weft/run/comm/internal/calls"
	"github.com/weft-fabric/weft/run/comm/internal/clock"
	"github.com/weft-fabric/weft/run/reduce"
	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/wait"
)

// World is what messages ask of their communicator.
type World interface {
	// Failed is why the communicator can no longer be used, or nil.
	Failed() error
	// Until is when what begins now must be over, by the clock.
	Until(ctx context.Context, now int64) int64
	// HasClosed reports whether a rank closed the communicator.
	HasClosed(rank int) bool
	// Late is the failure of a message whose time limit passed.
	Late(what string, peer int) error
	// Ended is the failure of a message whose context ended.
	Ended(what string, err error) error
	// Fail marks the communicator as failed, tells the others, and gives the error of the message.
	Fail(err error) error
	// Show tells the others which rank this one waits for, -1 for none.
	Show(rank int)
	// Begin is called before a message begins.
	Begin()
}

// Messages are those of a rank.
type Messages struct {
	port       transport.Port
	world      World
	rank, size int
	self       chan own

	mu     sync.Mutex
	out    []turns // by rank
	in     []turns
	active []*pair
	shown  bool // the others were told which rank this one waits for
}

// New makes the messages of a rank over a port of their own.
func New(w World, port transport.Port, call transport.Call, rank, size int) *Messages {
	p := &Messages{port: port, world: w, rank: rank, size: size, out: make([]turns, size), in: make([]turns, size), self: make(chan own, 1024)}
	port.Begin(call, p.stop)
	return p
}

// Close gives back the port.
func (p *Messages) Close() error { return p.port.Close() }

// pair is a send or receive under way.
type pair struct {
	ctx   context.Context
	limit int64 // of the clock; 0 until somebody asks
	peer  int
	what  string
	idle  bool // of a send and a receive at once: the other one is waited for
}

// What a message does, in words.
const (
	Sending   = "send to"
	Receiving = "receive from"
)

// turns lets calls go one after another in the order in which they were made. It
// is guarded by the mutex of Messages.
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

// stop ends the waits of the port: when the communicator failed, or when the
// time of a message under way is over, which is a failure, too.
func (p *Messages) stop() error {
	if err := p.world.Failed(); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := clock.Now()
	p.show()
	for _, a := range p.active {
		if a.idle {
			continue
		}
		if err := a.ctx.Err(); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return p.world.Ended(fmt.Sprintf("%s rank %d", a.what, a.peer), err)
		}
		if a.limit == 0 { // the first look comes some 30 us after the call
			a.limit = p.world.Until(a.ctx, now)
		} else if now > a.limit {
			return p.world.Late(a.what, a.peer)
		}
		if p.world.HasClosed(a.peer) {
			a.limit = min(a.limit, now+int64(blame.ClosedFor))
		}
	}
	return nil
}

// show tells the others whom this rank waits for: the sender of a message if
// there is one, as a send may be waited for by its receiver alone. The caller
// holds mu.
func (p *Messages) show() {
	who := -1
	for _, a := range p.active {
		if a.peer != p.rank && !a.idle && (who < 0 || a.what == Receiving) {
			who = a.peer
			if a.what == Receiving {
				break
			}
		}
	}
	p.shown = who >= 0
	p.world.Show(who)
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
func (p *Messages) queue(m *message) {
	m.turns = &p.out[m.peer]
	if m.what == Receiving {
		m.turns = &p.in[m.peer]
	}
	if m.before = m.turns.take(); m.before == nil {
		p.begin(m)
	}
	p.world.Begin()
}

// begin makes a message whose turn it is one that is under way; the caller holds mu.
func (p *Messages) begin(m *message) {
	// Field by field: a whole pair would be put together first and copied by larger
	// words than it was written by, for which the processor waits, some 10 ns a word.
	a := &m.turns.pair
	a.ctx, a.limit, a.peer, a.what, a.idle = m.ctx, 0, m.peer, m.what, false
	p.active = append(p.active, a)
}

// await returns when the turn of a message has come, with an error if it comes too late.
func (p *Messages) await(m *message) error {
	if m.before != nil {
		select {
		case <-m.before:
		case <-m.ctx.Done():
			_ = p.world.Fail(p.over(m)) // which ends those before it
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
func (p *Messages) over(m *message) error {
	return p.world.Ended(fmt.Sprintf("%s rank %d, which has not begun", m.what, m.peer), m.ctx.Err())
}

// end ends messages, with the error that they came to.
func (p *Messages) end(err error, list ...*message) error {
	if err != nil {
		err = p.world.Fail(err)
		_ = p.port.Close() // what still comes must not go where the caller's memory is
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

// Message is one send or receive. It runs now, or if later is not nil on a goroutine of its own that tells its end to later.
func (p *Messages) Message(ctx context.Context, peer int, what string, t reduce.Type, b []byte, later func(error)) error {
	var m message
	m.ctx, m.peer, m.what, m.t, m.b = ctx, peer, what, t, b
	p.mu.Lock()
	p.queue(&m)
	p.mu.Unlock()
	if later == nil {
		return p.carry(&m)
	}
	own := m
	go func() { later(p.carry(&own)) }()
	return nil
}

// carry carries out a message when its turn comes.
func (p *Messages) carry(m *message) error {
	err := p.await(m)
	if err == nil {
		err = p.move(m)
	}
	return p.end(err, m)
}

// Exchange is a send and a receive at once.
func (p *Messages) Exchange(ctx context.Context, t reduce.Type, from int, dst []byte, to int, src []byte, later func(error)) error {
	var out, in message // filled field by field, as begin says
	out.ctx, out.peer, out.what, out.t, out.b = ctx, to, Sending, t, src
	in.ctx, in.peer, in.what, in.t, in.b = ctx, from, Receiving, t, dst
	p.mu.Lock()
	p.queue(&out)
	p.queue(&in)
	if out.before == nil && in.before == nil && to != p.rank && from != p.rank {
		out.turns.pair.idle = true
	}
	p.mu.Unlock()
	if later == nil {
		return p.carryBoth(&out, &in)
	}
	o, i := out, in
	go func() { later(p.carryBoth(&o, &i)) }()
	return nil
}

// carryBoth carries out a send and a receive when their turns come.
func (p *Messages) carryBoth(out, in *message) error {
	me, n := p.rank, p.size
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
func (p *Messages) both(out, in *message) func(sending bool) {
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
func (p *Messages) awaits(one, other *turns) {
	p.mu.Lock()
	defer p.mu.Unlock()
	one.pair.idle, other.pair.idle = false, true
	if p.shown {
		p.show()
	}
}

// move moves the bytes of a message.
func (p *Messages) move(m *message) error {
	me, n := p.rank, p.size
	switch {
	case m.peer != me && m.what == Receiving:
		return p.port.Recv(m.peer, calls.Typed(channel(m.peer, me, n), m.t), m.b)
	case m.peer != me:
		return p.port.Send(m.peer, calls.Typed(channel(me, m.peer, n), m.t), m.b)
	}
	return p.toSelf(m)
}

// toSelf leaves a message of a rank to itself where it will look for it, or takes one.
func (p *Messages) toSelf(m *message) error {
	x := own{form: transport.FormOf(calls.Typed(0, m.t), len(m.b))}
	var out, in chan own
	if m.what == Sending {
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
				return fmt.Errorf("rank %d sent itself %s and receives %s", p.rank, calls.Elements(o.form), calls.Elements(x.form))
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
