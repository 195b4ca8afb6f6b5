package ring

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/wait"
)

// Port is a transport.Port.
type Port struct {
	h         *Hub
	id, epoch uint32
	members   []int
	me        int // in the communicator
	words     transport.Words

	call       transport.Call
	tag        uint64
	stop       transport.Stop
	waiter     wait.Waiter // the hub's, for waits of this port that raise no flag
	generation uint64      // grows with every Begin

	block   []byte
	head    *portHead
	closed  atomic.Bool
	looking atomic.Int32 // calls of Last under way

	mu        sync.Mutex
	published atomic.Uint64 // the generation whose call stands in the head
	peers     []atomic.Pointer[portHead]
	lanes     atomic.Pointer[[]*lane] // by channel
}

// Port makes a rank's part of a communicator. An id is used once in an epoch.
func (h *Hub) Port(g transport.Group) (transport.Port, error) {
	id, epoch, members := g.ID, g.Epoch, g.Members
	me := slices.Index(members, h.rank)
	if me < 0 {
		return nil, fmt.Errorf("port %d: rank %d is not among the members %v", id, h.rank, members)
	}
	seen := make([]bool, h.size)
	for _, r := range members {
		if r < 0 || r >= h.size || seen[r] {
			return nil, fmt.Errorf("port %d: members %v: rank %d is there twice or is not one of 0 to %d", id, members, r, h.size-1)
		}
		seen[r] = true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ports == nil {
		return nil, transport.ErrClosed
	}
	if err := h.sweep(); err != nil {
		return nil, err
	}
	block, err := h.s.Alloc(portSize(len(members)))
	if err != nil {
		return nil, fmt.Errorf("port %d: %w", id, err)
	}
	p := &Port{h: h, id: id, epoch: epoch, members: slices.Clone(members), me: me, words: g.Words, block: block, head: as[portHead](block),
		peers: make([]atomic.Pointer[portHead], len(members)), waiter: *h.waiter}
	p.head.id, p.head.epoch, p.head.members, p.head.rank = id, epoch, uint32(len(members)), uint32(me)
	p.peers[me].Store(p.head)
	p.lanes.Store(new([]*lane))
	h.enlist(block, p.head)
	h.ports[p] = struct{}{}
	return p, nil
}

// Meanwhile sets what waits do between two looks; it is called before anything is sent or received.
func (p *Port) Meanwhile(f func() bool) { p.waiter.Meanwhile = f }

var _ transport.Idler = (*Port)(nil)

// Begin starts a call.
func (p *Port) Begin(c transport.Call, stop transport.Stop) {
	p.call, p.tag, p.stop = c, tagOf(&c), stop
	p.generation++
}

// tagOf is a hash of a call; its lower 16 bits are those of the number.
func tagOf(c *transport.Call) uint64 {
	var b [transport.CallSize]byte
	c.Put(b[:])
	x := uint64(0x9e3779b97f4a7c15)
	for i := 0; i < len(b); i += 8 {
		x = (x ^ binary.LittleEndian.Uint64(b[i:])) * 0xff51afd7ed558ccd
		x ^= x >> 32
	}
	return x&^0xffff | c.Seq&0xffff
}

// publish lets the peers see the current call, for their errors and reports.
func (p *Port) publish() {
	if p.published.Load() == p.generation {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.published.Load() == p.generation {
		return
	}
	var b [transport.CallSize]byte
	p.call.Put(b[:])
	s := &p.head.calls[p.call.Seq%recent]
	s.version.Add(1)
	s.tag.Store(p.tag)
	for i := range s.words {
		s.words[i].Store(binary.LittleEndian.Uint64(b[8*i:]))
	}
	s.version.Add(1)
	p.head.latest.Store(p.call.Seq)
	p.published.Store(p.generation)
}

// get reads a call that is not just being replaced.
func (s *callSlot) get() (c transport.Call, tag uint64, ok bool) {
	var b [transport.CallSize]byte
	for range 1000 {
		v := s.version.Load()
		if v == 0 {
			return c, 0, false
		}
		tag = s.tag.Load()
		for i := range s.words {
			binary.LittleEndian.PutUint64(b[8*i:], s.words[i].Load())
		}
		if v%2 == 0 && s.version.Load() == v {
			c.Get(b[:])
			return c, tag, true
		}
		runtime.Gosched() // its owner may have been killed within it: the loop ends
	}
	return c, 0, false
}

// Holder is nil: a message is read where it lies while its sender may still die.
func (p *Port) Holder() transport.Holder { return nil }

// Last is the last call of which a member sent a message to anybody.
func (p *Port) Last(member int) (transport.Call, bool) {
	if member < 0 || member >= len(p.members) {
		return transport.Call{}, false
	}
	p.looking.Add(1)
	defer p.looking.Add(-1)
	if p.closed.Load() || p.h.closed.Load() {
		return transport.Call{}, false
	}
	b := p.peer(member)
	if b == nil {
		return transport.Call{}, false
	}
	seq := b.latest.Load()
	if seq == 0 {
		return transport.Call{}, false
	}
	c, _, ok := b.calls[seq%recent].get()
	return c, ok
}

// peer is a member's part of the port; nil if it has not made it yet.
func (p *Port) peer(member int) *portHead {
	if b := p.peers[member].Load(); b != nil {
		return b
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if b := p.peers[member].Load(); b != nil {
		return b
	}
	b := p.h.visit(p.members[member], p.id, p.epoch, len(p.members), p.me, visiting)
	if b != nil {
		p.peers[member].Store(b)
	}
	return b
}

// lane is what a port keeps for a channel. One goroutine uses it at a time.
type lane struct {
	p       *Port
	channel int
	out     []*outWay // by member
	in      []*inWay
	inside  atomic.Int32
	count   traffic

	generation uint64   // of the call that announced is of
	announced  []*inWay // that have messages announced but not received

	waiter  wait.Waiter // of receives
	peer    int         // waited for
	asks    int         // of the current wait
	limit   int         // asks after which the wait ends with errLate; 0: never
	ask     func() error
	scratch []byte
}

// outWay is a way to a member.
type outWay struct {
	*way
	block  []byte
	next   uint64 // messages posted
	free   uint64 // messages that were seen to be taken
	bytes  uint64 // staged
	stages []stage
	spare  []byte // a stage to use again
}

// stage is the memory of a moved message.
type stage struct {
	until uint64 // until this number of messages have been taken
	b     []byte
}

// inWay is a way from a member. It is nil inside until the member made it.
type inWay struct {
	*way
	from  int
	next  uint64 // messages taken
	queue []announcement
	done  int // how many of the queue have been received

	looked uint64 // one more than what the bell was when the way was looked for in vain
}

type announcement struct {
	dst  []byte
	form transport.Form
	err  error
}

// enter gets the lane of a channel, for leave to give back.
func (p *Port) enter(channel int) (*lane, error) {
	l, err := p.lane(channel)
	if err != nil {
		return nil, err
	}
	l.inside.Add(1)
	if p.h.closed.Load() || p.closed.Load() {
		l.inside.Add(-1)
		return nil, transport.ErrClosed
	}
	return l, nil
}

// lane gets the lane of a channel, for a caller that is inside another lane of the port.
func (p *Port) lane(channel int) (*lane, error) {
	var l *lane
	if ls, way := *p.lanes.Load(), transport.Way(channel); way < len(ls) && transport.ValidChannel(channel) {
		l = ls[way]
	}
	if l == nil {
		var err error
		if l, err = p.newLane(channel); err != nil {
			return nil, err
		}
	}
	if l.generation != p.generation {
		l.generation = p.generation
		for _, w := range l.announced {
			w.queue, w.done = w.queue[:0], 0
		}
		l.announced = l.announced[:0]
	}
	return l, nil
}

func (l *lane) leave() { l.inside.Add(-1) }

// newLane makes a channel's lane. The list of lanes is copied, not changed: calls read it without a lock.
func (p *Port) newLane(channel int) (*lane, error) {
	if !transport.ValidChannel(channel) {
		return nil, transport.ErrChannel(channel)
	}
	channel = transport.Way(channel)
	p.mu.Lock()
	defer p.mu.Unlock()
	ls := *p.lanes.Load()
	if channel < len(ls) && ls[channel] != nil {
		return ls[channel], nil
	}
	grown := make([]*lane, max(channel+1, len(ls)))
	copy(grown, ls)
	l := &lane{p: p, channel: channel, out: make([]*outWay, len(p.members)), in: make([]*inWay, len(p.members)), waiter: p.waiter}
	l.ask = l.goOn
	grown[channel] = l
	p.lanes.Store(&grown)
	return l, nil
}

// drain waits until no lane is inside an operation. Waits end by themselves, as
// the port or the hub is closed.
func (p *Port) drain() {
	for _, l := range *p.lanes.Load() {
		for l != nil && l.inside.Load() != 0 {
			nap()
		}
	}
	for p.looking.Load() != 0 {
		nap()
	}
}

// Close gives back what the port holds, as soon as its peers no longer need it.
func (p *Port) Close() error {
	if p.closed.Swap(true) {
		return nil
	}
	p.drain()
	h := p.h
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ports == nil {
		return nil // the memory went with the endpoint
	}
	delete(h.ports, p)
	h.keep(p)
	for m, r := range p.members {
		if m == p.me {
			continue
		}
		if b := p.peers[m].Load(); b != nil {
			b.words()[p.me].state.Store(finished)
		} else {
			h.visit(r, p.id, p.epoch, len(p.members), p.me, finished)
		}
	}
	g := retiredPort{block: p.block, head: p.head, members: p.members}
	for _, l := range *p.lanes.Load() {
		if l == nil {
			continue
		}
		for _, o := range l.out {
			if o == nil {
				continue
			}
			g.ways = append(g.ways, o.block)
			for _, s := range o.stages {
				g.stages = append(g.stages, s.b)
			}
			if o.spare != nil {
				g.stages = append(g.stages, o.spare)
			}
		}
	}
	return h.retire(g)
}

// wayAt is a way of a rank.
func (h *Hub) wayAt(rank int, at uint64) *way {
	b, err := h.s.At(rank, transport.Handle(at), waySize)
	if err != nil {
		return nil
	}
	return as[way](b)
}
