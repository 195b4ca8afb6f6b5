package comm

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync"

	"github.com/weft-fabric/weft/reduce"
	"github.com/weft-fabric/weft/sched"
	"github.com/weft-fabric/weft/transport"
)

// pairs is what a communicator has for messages between two of its ranks: a port
// of their own, so that they neither wait for collectives nor hold them up.
// Messages from one rank to another keep their order.
type pairs struct {
	port transport.Port
	c    *Comm
	out  []turns // by rank
	in   []turns
	self chan []byte

	mu     sync.Mutex
	active []*pair
	shown  bool // the others were told whom this rank waits for
}

// pair is a send or receive under way.
type pair struct {
	ctx   context.Context
	limit int64 // of the clock; 0 until somebody asks
	peer  int
	what  string
}

const receiving = "receive from"

// turns lets calls go one after another in the order in which they were made.
type turns struct {
	pair pair // the one whose turn it is; guarded by the mutex of pairs

	mu    sync.Mutex
	busy  bool
	queue []chan struct{}
}

// take gives what to wait for before it is the caller's turn; nil if it is now.
func (t *turns) take() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
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
	t.mu.Lock()
	defer t.mu.Unlock()
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
	c.mu.Lock()
	defer c.mu.Unlock()
	if f := c.failed.Load(); f != nil {
		return nil, f
	}
	if c.pairs == nil {
		port, err := c.world.ep.Port(c.id|1<<31, c.epoch, c.members)
		if err != nil {
			return nil, err
		}
		p := &pairs{port: port, c: c, out: make([]turns, len(c.members)), in: make([]turns, len(c.members)), self: make(chan []byte, 1024)}
		port.Begin(&transport.Call{Epoch: c.epoch, Comm: c.id, Seq: 1, Op: sched.SendRecv, Variant: transport.PointToPoint, Root: -1}, p.stop)
		c.pairs = p
	}
	return c.pairs, nil
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
		if err := a.ctx.Err(); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return &Failure{Kind: Aborted, Rank: p.c.rank, Culprits: []int{p.c.rank}, Err: fmt.Errorf("%s rank %d: %w", a.what, a.peer, err)}
		}
		if a.limit == 0 { // the first look comes some 30 us after the call
			a.limit = p.c.until(a.ctx, now)
		} else if now > a.limit {
			return p.late(a)
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
		if a.peer != p.c.rank && (who < 0 || a.what == receiving) {
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
	f := &Failure{Kind: Timeout, Rank: c.rank, Call: transport.Call{}}
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

// message carries out one send or receive.
func (p *pairs) message(ctx context.Context, peer int, what string, b []byte, opts []Option) error {
	var h *Handle
	for _, o := range opts {
		if o.handle != nil {
			h = o.handle
		} else if o.group != nil {
			h = o.group.add()
		}
	}
	t := &p.out[peer]
	if what == receiving {
		t = &p.in[peer]
	}
	before := t.take()
	if h == nil {
		return p.carry(ctx, peer, what, b, t, before)
	}
	h.begin()
	go func() { _ = h.end(p.carry(ctx, peer, what, b, t, before)) }()
	return nil
}

// carry carries out a message when its turn comes.
func (p *pairs) carry(ctx context.Context, peer int, what string, b []byte, t *turns, before <-chan struct{}) error {
	defer t.done()
	if before != nil {
		<-before
	}
	a := &t.pair
	p.mu.Lock()
	*a = pair{ctx: ctx, peer: peer, what: what}
	p.active = append(p.active, a)
	p.mu.Unlock()
	err := p.move(ctx, peer, what, b)
	p.mu.Lock()
	p.active = slices.DeleteFunc(p.active, func(x *pair) bool { return x == a })
	if p.shown && len(p.active) == 0 && err == nil { // after a failure, others may ask what this rank waited for
		p.show()
	}
	p.mu.Unlock()
	if err != nil {
		err = p.c.fail(err)
		_ = p.port.Close() // what still comes must not go where the caller's memory is
		p.c.dump(err)
	}
	return err
}

// move moves the bytes of a message.
func (p *pairs) move(ctx context.Context, peer int, what string, b []byte) error {
	me, n := p.c.rank, len(p.c.members)
	switch {
	case peer != me && what == receiving:
		return p.port.Recv(peer, channel(peer, me, n), b)
	case peer != me:
		return p.port.Send(peer, channel(me, peer, n), b)
	case what == receiving:
		select {
		case m := <-p.self:
			if len(m) != len(b) {
				return fmt.Errorf("rank %d sent itself %d bytes and receives %d", me, len(m), len(b))
			}
			copy(b, m)
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	select {
	case p.self <- slices.Clone(b):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Send sends buf to a rank, which receives it with Recv. Messages from one rank
// to another keep their order. It returns once buf may be changed; a rank that
// sends to itself must have the receive under way (Async or a Group) or the
// message fit in a thousand that are kept.
func Send[T reduce.Element](ctx context.Context, c *Comm, buf []T, to int, opts ...Option) error {
	return c.sendTo(ctx, reduce.Bytes(buf), to, opts)
}

func (c *Comm) sendTo(ctx context.Context, b []byte, to int, opts []Option) error {
	p, err := c.pairing(to)
	if err != nil {
		return err
	}
	return p.message(ctx, to, "send to", b, opts)
}

// Recv receives what a rank sent, which must have the length of buf.
func Recv[T reduce.Element](ctx context.Context, c *Comm, buf []T, from int, opts ...Option) error {
	return c.recvFrom(ctx, reduce.Bytes(buf), from, opts)
}

func (c *Comm) recvFrom(ctx context.Context, b []byte, from int, opts []Option) error {
	p, err := c.pairing(from)
	if err != nil {
		return err
	}
	return p.message(ctx, from, receiving, b, opts)
}

func (c *Comm) pairing(peer int) (*pairs, error) {
	if peer < 0 || peer >= len(c.members) {
		return nil, fmt.Errorf("rank %d is not in a communicator of %d", peer, len(c.members))
	}
	return c.pairsOf()
}
