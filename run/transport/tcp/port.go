//go:build linux

package tcp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/internal/frame"
	"github.com/weft-fabric/weft/run/transport/match"
	"github.com/weft-fabric/weft/run/transport/wire"
)

// port is a communicator's ways. It may exist before Port was called, to hold
// what members sent that were quicker.
type port struct {
	match.Port
	e   *Endpoint
	err atomic.Pointer[failure] // why the call's waits end

	mu      sync.Mutex
	closed  bool
	stop    transport.Stop
	ways    [][]*way // by rank, then channel
	used    []*way   // in this call
	free    []*slot
	ahead   []lead // messages of calls that have not begun, by the ranks they came from
	early   map[aheadKey]*slot
	expects []int // messages that were announced and have not come, by endpoint rank
	froms   []int // the endpoint ranks of which there are any

	side  atomic.Int32 // channels of the call that run side by side; 0 for one
	rooms []wire.Room  // senders that wait for their peer to take something
}

// lead are the messages of a rank that is ahead, in the order of their calls. A root that need not wait is often dozens of calls
// ahead, so that a call looks at those of its own and at one more.
type lead struct {
	from  int
	slots []*slot
}

// failure is an error behind a pointer.
type failure struct{ err error }

// earlyBytes is how much of a peer's messages is taken out of the socket though
// nobody asked for them yet nor waits for the peer: enough for all that is
// small. What is longer stays in the socket, from which it need not be copied once
// more, until someone waits; then all is taken, as what is wanted may come after it.
const earlyBytes = 64 << 10

// Port makes the ways of a communicator.
func (e *Endpoint) Port(g transport.Group) (transport.Port, error) {
	if err := match.Check(&g, e.Rank(), e.Size()); err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.wire.Closed() {
		return nil, transport.ErrClosed
	}
	k := match.Key{Epoch: g.Epoch, ID: g.ID}
	newer, err := e.ports.Begin(k)
	if err != nil {
		return nil, err
	}
	if newer {
		e.gen.Add(1)
	}
	p, fate := e.ports.Find(k)
	if fate != match.Here {
		p = e.newPort(k)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.Attach(&g, e.Rank(), e.Size()); err != nil {
		return nil, err
	}
	p.ways, p.expects = make([][]*way, len(g.Members)), make([]int, e.Size())
	for _, l := range p.ahead {
		if len(l.slots) > 0 {
			p.Saw(p.Of(l.from), &l.slots[len(l.slots)-1].call)
		}
	}
	return p, nil
}

// newPort makes the port of a key; the caller holds mu.
func (e *Endpoint) newPort(k match.Key) *port {
	p := &port{e: e, Port: match.Port{ID: k.ID, Epoch: k.Epoch}}
	e.ports.Put(k, p)
	return p
}

// portOf is the port of a frame, or nil if its epoch or the port has ended.
func (e *Endpoint) portOf(s *wire.Stream, call *match.Call) *port {
	k := match.KeyOf(call)
	if p, _ := s.Memo.(*port); p != nil && p.ID == k.ID && p.Epoch == k.Epoch && s.MemoGen == e.gen.Load() {
		return p
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	p, fate := e.ports.Find(k)
	switch fate {
	case match.Old:
		e.old.Add(1)
		return nil
	case match.Ended:
		e.stale.Add(1)
		return nil
	case match.Early:
		p = e.newPort(k)
	}
	s.Memo, s.MemoGen, s.Key = p, e.gen.Load(), binary.LittleEndian.Uint64(call[:])
	return p
}

// way is that of a rank and a channel; the caller holds mu.
func (p *port) way(rank, channel int) *way {
	channel = transport.Way(channel)
	ws := p.ways[rank]
	for len(ws) <= channel {
		ws = append(ws, nil)
	}
	p.ways[rank] = ws
	w := ws[channel]
	if w == nil {
		w = &way{}
		ws[channel] = w
	}
	if !w.used {
		w.used = true
		p.used = append(p.used, w)
	}
	return w
}

// failed ends the call's waits; the caller holds mu.
func (p *port) failed(err error) {
	if p.err.CompareAndSwap(nil, &failure{err}) {
		p.e.wire.WakeAll()
	}
}

// link is that with a rank of the communicator.
func (p *port) link(rank int) *wire.Link { return p.e.wire.Link(p.Members[rank]) }

// Err is why the call's waits end; nil while they go on.
func (p *port) Err() error {
	if f := p.err.Load(); f != nil {
		return f.err
	}
	return nil
}

// Stop is what the call's caller says.
func (p *port) Stop() error { return p.stop() }

// Expects adds the links over which announced messages have not come.
func (p *port) Expects(l *wire.Link, list []*wire.Link) (links []*wire.Link, here bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.froms {
		if r != l.Rank {
			list = append(list, p.e.wire.Link(r))
		}
	}
	return list, p.expects[l.Rank] > 0
}

// Serve lets in what others send, for a caller that waits in another transport: the senders of long messages wait for it.
func (p *port) Serve() bool { return p.e.wire.Serve() }

// Channels says how many channels the call has.
func (p *port) Channels(n int) {
	p.side.Store(int32(n))
	p.e.wire.Channels(n)
}

// streamOf is the number of the streams of a channel, or wire.AnyStream if it has none of its own.
func (p *port) streamOf(channel int) int {
	if p.side.Load() < 2 {
		return wire.AnyStream
	}
	return transport.Way(channel) % p.e.wire.StreamsPerRail()
}

// Disagrees is why the call has ended although nobody waits here: a message of
// another call has come, or its caller gave up.
func (p *port) Disagrees() error { return p.Err() }

// disagree ends the call, as a rank does another under the same number, and
// tells that rank if it cannot know yet. The caller holds mu.
func (p *port) disagree(rank int, call *match.Call, tell bool) {
	p.failed(p.Differs(rank, call))
	if tell {
		p.link(rank).Control(&wire.Outbound{H: frame.Header{Kind: frame.Call}, Call: p.Enc})
	}
}

// strays notes that a rank is in an earlier or later call than this: it sends
// nothing more in this one, so waits for it end. The caller holds mu.
func (p *port) strays(rank int, call *match.Call, piece uint64) {
	p.Strays(rank, match.Stray{Call: *call, Piece: piece})
	for _, w := range p.ways[rank] {
		if w == nil {
			continue
		}
		for _, s := range w.slots[w.head:] {
			if s.waited {
				p.lonely(s, rank)
			}
		}
	}
}

// lonely ends the call if a message is waited for whose sender strayed, unless
// it may have been overtaken: its receiver asks again before it sleeps. The
// caller holds mu.
func (p *port) lonely(s *slot, rank int) {
	if x, ok := p.Strayed(rank); ok && !s.came && s.busy == 0 && p.e.wire.Link(s.from).InOrder(x.Piece) {
		p.failed(p.Differs(rank, &x.Call))
	}
}

// Begin starts a call.
func (p *port) Begin(c transport.Call, stop transport.Stop) {
	p.e.wire.Home.Begin()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.froms) > 0 || p.err.Load() != nil {
		p.mu.Unlock()
		p.detach()
		p.mu.Lock()
	}
	for _, w := range p.used {
		p.empty(w)
		w.base, w.next, w.sent, w.used = 0, 0, 0, false
	}
	p.used = p.used[:0]
	p.Port.Begin(c)
	p.stop = stop
	p.side.Store(0)
	if p.err.Load() != nil {
		p.err.Store(nil)
	}
	if p.closed || p.e.wire.Closed() {
		p.err.Store(&failure{transport.ErrClosed})
	}
	if len(p.early) > 0 {
		for i := range p.ahead {
			p.catchUp(&p.ahead[i])
		}
	}
}

// keep keeps a message of a call that has not begun; the caller holds mu.
func (p *port) keep(s *slot) {
	i := slices.IndexFunc(p.ahead, func(l lead) bool { return l.from == s.from })
	if i < 0 {
		i, p.ahead = len(p.ahead), append(p.ahead, lead{from: s.from})
	}
	l, seq := &p.ahead[i], match.Seq(&s.call)
	at := len(l.slots)
	for at > 0 && match.Seq(&l.slots[at-1].call) > seq { // another stream was quicker
		at--
	}
	l.slots = slices.Insert(l.slots, at, s)
}

// catchUp takes what a rank sent ahead of the call that begins; the caller holds mu.
func (p *port) catchUp(l *lead) {
	me, n := p.Index[l.from], 0
	for ; n < len(l.slots); n++ {
		s := l.slots[n]
		place := p.Place(me, &s.call)
		if place == match.Ahead || place == match.Late {
			p.strays(me, &s.call, s.piece)
		}
		if place == match.Ahead {
			break
		}
		delete(p.early, aheadKey{s.from, s.channel, s.msgno, match.Seq(&s.call)})
		switch place {
		case match.Other:
			p.disagree(me, &s.call, true)
			p.e.mismatch.Add(1)
		case match.Stranger, match.Late:
			p.e.stale.Add(1)
		}
		if place != match.Current {
			p.drop(s)
			continue
		}
		w := p.way(me, int(s.channel))
		if p.at(w, s.from, int(s.channel), s.msgno) == nil {
			p.drop(s)
			continue
		}
		w.slots[w.head+int(s.msgno)] = s
	}
	clear(l.slots[:n])
	if n == len(l.slots) {
		l.slots = l.slots[:0] // and the room before them is kept
	} else {
		l.slots = l.slots[n:]
	}
}

// detach takes the receivers' memory back: once it returns, nothing is written
// there any more and no operand is handed out. It is for calls that failed;
// those that went well have nothing outstanding.
func (p *port) detach() {
	p.mu.Lock()
	if len(p.froms) == 0 && p.err.Load() == nil {
		p.mu.Unlock()
		return
	}
	var busy []*wire.Link
	for _, w := range p.used {
		for _, s := range w.slots[w.head:] {
			if s.busy > 0 {
				busy = append(busy, p.e.wire.Link(s.from))
			}
		}
		p.empty(w)
	}
	p.mu.Unlock()
	for _, pr := range busy {
		pr.Release(p.unwanted)
	}
}

// unwanted says which messages of this port nobody wants any more.
func (p *port) unwanted(x wire.Landing) bool {
	s := x.(*slot)
	return s.port == p && s.isDead()
}

func (s *slot) isDead() bool {
	s.port.mu.Lock()
	defer s.port.mu.Unlock()
	return s.dead
}

// fail ends the call with the first error there was.
func (p *port) fail(err error) error {
	p.mu.Lock()
	p.failed(err)
	p.mu.Unlock()
	p.detach()
	return p.err.Load().err
}

// Send gives b to a peer.
func (p *port) Send(to, channel int, b []byte) error { return p.send(to, channel, b, 0) }

// send is Send with frames of up to most bytes, if that is more than frame.PieceSize.
func (p *port) send(to, channel int, b []byte, most int) error {
	if err := p.Member(to, channel); err != nil {
		return p.fail(err)
	}
	if f := p.err.Load(); f != nil {
		return p.fail(f.err)
	}
	pr := p.link(to)
	if err := pr.Meet(p.stop); err != nil {
		return p.fail(err)
	}
	p.mu.Lock()
	if p.Full(pr.Rank) {
		p.mu.Unlock()
		if err := p.awaitCredit(pr); err != nil {
			return p.end(err)
		}
		p.mu.Lock()
	}
	w := p.way(to, channel)
	if len(b) <= wire.QuickSize && pr.Quick() || pr.Numbered && len(b) <= wire.KeepSize {
		return p.sendShort(pr, w, channel, b, nil)
	}
	o := p.outgoing(w, pr, channel, b)
	o.Most = most
	p.mu.Unlock()
	if pr.Rank == p.e.Rank() {
		p.self(o)
		return nil
	}
	pr.Messages.Add(1)
	if pr.Numbered {
		return p.end(pr.SendLong(p, p.streamOf(channel), o))
	}
	if err := pr.Alive(); err != nil {
		return err
	}
	s := pr.Streams()[0]
	s.Send(o)
	if o.Done.Load() {
		return nil
	}
	return p.awaitSent(pr, s, w, o, nil)
}

// sendShort is Send of a short message by the caller that holds mu, which it gives up. It tells
// waits, if there is one, when it has to.
func (p *port) sendShort(pr *wire.Link, w *way, channel int, b []byte, waits func(bool)) error {
	msgno := w.sent
	w.sent++
	p.Lend(pr.Rank, len(b))
	p.mu.Unlock()
	if err := pr.Alive(); err != nil {
		return err
	}
	if pr.Numbered {
		return p.end(pr.SendKept(p, p.streamOf(channel), short(channel, msgno, b), &p.Enc, b))
	}
	s := pr.Streams()[0]
	o := s.SendShort(short(channel, msgno, b), &p.Enc, b)
	if o == nil {
		return nil
	}
	return p.awaitSent(pr, s, w, o, waits)
}

// outgoing is the next message of a way; the caller holds mu.
func (p *port) outgoing(w *way, pr *wire.Link, channel int, b []byte) *wire.Outbound {
	o := w.out
	if o == nil {
		o = &wire.Outbound{}
		w.out = o
	}
	o.Begin(frame.Header{Kind: frame.Data, Total: uint64(len(b)), Channel: uint32(channel), Msgno: w.sent}, &p.Enc, b)
	w.sent++
	if pr.Rank != p.e.Rank() {
		p.Lend(pr.Rank, len(b))
	}
	return o
}

// awaitSent waits until a message is out, and tells waits from when to when.
func (p *port) awaitSent(pr *wire.Link, s *wire.Stream, w *way, o *wire.Outbound, waits func(bool)) error {
	if waits != nil {
		waits(true)
	}
	if err := pr.Await(p, wire.AnyStream, &o.Done, true, func(wt *wire.Waiter) { s.Tell(o, wt) }); err != nil {
		s.Cancel(o)
		p.mu.Lock()
		w.out = nil
		p.mu.Unlock()
		return p.end(err)
	}
	if waits != nil {
		waits(false)
	}
	return nil
}

// end is how a wait ends, which may have been in vain. That a rank is gone ends only the
// waits for it; anything else ends the call.
func (p *port) end(err error) error {
	if g := (*transport.Gone)(nil); err == nil || errors.As(err, &g) {
		return err
	}
	return p.fail(err)
}

// self is a message of a rank to itself.
func (p *port) self(o *wire.Outbound) {
	p.mu.Lock()
	h := o.H
	h.Length = len(o.B)
	x, why := p.find(p.e.Rank(), &o.Call, &h)
	if x == nil {
		why.Add(1)
		p.mu.Unlock()
		return
	}
	if x.asked && x.take == nil {
		copy(x.dst, o.B)
		x.got, x.came = h.Length, true
		p.settle(x)
		p.mu.Unlock()
		return
	}
	x.busy++
	p.mu.Unlock()
	x.Arrived(&h, wire.Part, slices.Clone(o.B))
}

// Expect announces where a message will be wanted.
func (p *port) Expect(from, channel int, dst []byte) {
	if p.Member(from, channel) != nil || p.err.Load() != nil {
		return // the Recv for it says so
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.way(from, channel)
	s := p.at(w, p.Members[from], channel, w.next)
	if s == nil {
		return
	}
	w.next++
	p.ask(s, from, dst, nil, transport.FormOf(channel, len(dst)))
}

// ask says where a message is wanted; the caller holds mu.
func (p *port) ask(s *slot, from int, dst []byte, take func([]byte), form transport.Form) {
	if !s.is(form) {
		p.failed(p.Unlike(from, int(s.channel), s.form, form))
		return
	}
	s.asked, s.dst, s.take = true, dst, take
	if s.done.Load() {
		if take == nil {
			p.adopt(s)
		} else {
			s.done.Store(false)
			p.hand(s)
			p.settle(s)
		}
		return
	}
	s.counted = true
	if p.expects[s.from]++; p.expects[s.from] == 1 {
		p.froms = append(p.froms, s.from)
	}
	if len(s.parts) > 0 && !s.whole {
		p.adopt(s)
	}
	p.settle(s)
}

// expectLess notes that a message that was announced has come.
func (p *port) expectLess(from int) {
	if p.expects[from]--; p.expects[from] == 0 {
		i := slices.Index(p.froms, from)
		p.froms[i] = p.froms[len(p.froms)-1]
		p.froms = p.froms[:len(p.froms)-1]
	}
}

// Recv takes the next message of a way into dst.
func (p *port) Recv(from, channel int, dst []byte) error {
	return p.receive(from, channel, len(dst), dst, nil)
}

// Take takes the next message of a way piece after piece.
func (p *port) Take(from, channel, n int, f func(piece []byte)) error {
	return p.receive(from, channel, n, nil, f)
}

func (p *port) receive(from, channel, n int, dst []byte, take func([]byte)) error {
	if err := p.Member(from, channel); err != nil {
		return p.fail(err)
	}
	if f := p.err.Load(); f != nil {
		return p.fail(f.err)
	}
	pr := p.link(from)
	if err := pr.Meet(p.stop); err != nil {
		return p.fail(err)
	}
	p.mu.Lock()
	w := p.way(from, channel)
	if n <= wire.QuickSize && p.fresh(w) && pr.Quick() && pr.Alive() == nil {
		p.mu.Unlock()
		if p.recvQuick(pr, from, channel, w, n, dst, take) {
			return nil
		}
		p.mu.Lock()
	}
	return p.receiveAny(pr, from, channel, w, n, dst, take)
}

// receiveAny is receive by the caller that holds mu, which it gives up.
func (p *port) receiveAny(pr *wire.Link, from, channel int, w *way, n int, dst []byte, take func([]byte)) error {
	s := p.at(w, pr.Rank, channel, w.base)
	announced := s.asked
	if !announced {
		if w.next == w.base {
			w.next++
		}
		p.ask(s, from, dst, take, transport.FormOf(channel, n))
	} else if form := transport.FormOf(channel, n); s.form != form {
		p.failed(fmt.Errorf("channel %d from rank %d: %s were announced and %s are received", transport.Way(channel), from, s.form, form))
	}
	p.mu.Unlock()
	return p.awaitMessage(pr, from, w, s, announced, dst, take)
}

// awaitMessage waits until a message that was asked for is in, and ends it.
func (p *port) awaitMessage(pr *wire.Link, from int, w *way, s *slot, announced bool, dst []byte, take func([]byte)) error {
	p.mu.Lock()
	if p.written(s) || s.done.Load() && p.err.Load() == nil {
		p.pop(w, s, announced, dst, take)
		p.mu.Unlock()
		return nil
	}
	s.waited = true
	p.lonely(s, from)
	p.mu.Unlock()
	err := pr.Await(p, p.streamOf(int(s.channel)), &s.done, false, func(wt *wire.Waiter) {
		p.mu.Lock()
		if s.wake = wt; wt != nil {
			p.lonely(s, from)
		}
		p.mu.Unlock()
	})
	p.mu.Lock()
	s.waited = false
	if p.written(s) || err == nil && p.err.Load() == nil {
		p.pop(w, s, announced, dst, take)
		p.mu.Unlock()
		return nil
	}
	if err == nil {
		err = p.err.Load().err
	}
	g, _ := errors.AsType[*transport.Gone](err)
	if g == nil || p.err.Load() != nil {
		p.mu.Unlock()
		return p.fail(err)
	}
	// The memory is the caller's again.
	if w.head < len(w.slots) && w.slots[w.head] == s {
		p.drop(s)
		w.shift()
	}
	p.mu.Unlock()
	pr.Release(p.unwanted)
	return err
}

// pop ends a message that is complete; the caller holds mu.
func (p *port) pop(w *way, s *slot, announced bool, dst []byte, take func([]byte)) {
	if announced && s.total > 0 && s.take == nil {
		if take != nil {
			take(s.dst)
		} else if unsafe.SliceData(s.dst) != unsafe.SliceData(dst) {
			copy(dst, s.dst)
		}
	}
	w.shift()
	p.repay(s.from, s.total)
	p.retire(s)
}

// Last is what a peer was last seen doing.
func (p *port) Last(rank int) (transport.Call, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.Seen(rank)
}

// Close gives back what the port holds.
func (p *port) Close() error {
	e := p.e
	e.mu.Lock()
	k := match.Key{Epoch: p.Epoch, ID: p.ID}
	if e.ports.Get(k) == p {
		e.ports.End(k)
		e.gen.Add(1)
	}
	e.mu.Unlock()
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	p.failed(transport.ErrClosed)
	for _, l := range p.ahead {
		for _, s := range l.slots {
			p.drop(s)
		}
	}
	p.ahead, p.early = nil, nil
	p.mu.Unlock()
	p.detach()
	return nil
}

var (
	_ transport.Port     = (*port)(nil)
	_ transport.Server   = (*port)(nil)
	_ transport.Parallel = (*port)(nil)
	_ wire.Caller        = (*port)(nil)
)
