package world

import (
	"bytes"
	"errors"
	"time"

	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/match"
)

// credit is how many bytes a rank may have sent to another that were not taken.
const credit = 1 << 20

// port is a transport.Port and its Holder.
type port struct {
	match.Port
	e       *Endpoint
	box     *box
	stop    transport.Stop
	closed  bool
	numbers map[[2]int]uint64  // messages sent, by peer and channel
	wanted  map[[2]int][]*want // announced, by rank of the endpoint and channel
	told    map[int]match.Call
}

// want is memory that was announced for a message.
type want struct {
	dst  []byte
	form transport.Form
}

// Begin starts a call.
func (p *port) Begin(c transport.Call, stop transport.Stop) {
	_ = p.e.step(0)
	p.e.w.mu.Lock()
	defer p.e.w.mu.Unlock()
	p.Port.Begin(c)
	p.stop = stop
	clear(p.wanted)
}

// enter begins an operation: it is a step, and locks mu unless it fails.
func (p *port) enter(rank, channel int) error {
	if err := p.Member(rank, channel); err != nil {
		return err
	}
	if err := p.e.step(transport.Way(channel)); err != nil {
		return err
	}
	p.e.w.mu.Lock()
	if p.closed {
		p.e.w.mu.Unlock()
		return transport.ErrClosed
	}
	return nil
}

// Send gives b to a peer.
func (p *port) Send(to, channel int, b []byte) error {
	if err := p.enter(to, channel); err != nil {
		return err
	}
	defer p.e.w.mu.Unlock()
	return p.finish(p.start(to, channel, b), to, channel, b, false)
}

// outgoing is a message on its way.
type outgoing struct {
	copy  []byte
	taken bool
	err   error
}

// start sends a message once there is credit; the caller holds mu.
func (p *port) start(to, channel int, b []byte) *outgoing {
	e, rank := p.e, p.Members[to]
	o := &outgoing{copy: bytes.Clone(b)}
	o.err = e.wait(transport.Way(channel), func() bool {
		return !p.Full(rank) || p.closed || e.w.missing(e.rank, rank) != nil || p.odd() != nil
	}, p.stop)
	if o.err == nil {
		o.err = p.over(rank)
	}
	if o.err != nil {
		return o
	}
	p.Lend(rank, len(b))
	way := transport.Way(channel)
	k := lineKey{e.rank, rank, p.ID, p.Epoch, way}
	m := &message{call: p.Enc, form: transport.FormOf(channel, len(b)), b: o.copy, torn: -1,
		took: func() { p.Repaid(rank, match.Cost(len(b))) }}
	no := p.numbers[[2]int{to, way}]
	p.numbers[[2]int{to, way}]++
	deliver := func(w *World) {
		o.taken = true
		w.eps[rank].arrive(e.rank, k, m)
	}
	if rank == e.rank {
		deliver(e.w)
		return o
	}
	e.w.post(k, deliver, func(w *World) {
		if w.draw(1, 6, k.hash(), no) == 0 {
			return // not a byte of it came
		}
		m.torn = int(w.draw(time.Duration(len(m.b)), 7, k.hash(), no))
		w.eps[rank].arrive(e.rank, k, m)
	})
	return o
}

// over is nil, or why a call cannot go on with a rank; the caller holds mu.
func (p *port) over(rank int) error {
	if p.closed {
		return transport.ErrClosed
	}
	if m := p.odd(); m != nil {
		return m
	}
	if g := p.e.w.missing(p.e.rank, rank); g != nil {
		return g
	}
	return nil
}

// finish waits until a message is out; the caller holds mu. Some messages are out
// at once, others when they have come.
func (p *port) finish(o *outgoing, to, channel int, b []byte, changes bool) error {
	e, rank := p.e, p.Members[to]
	if o.err != nil {
		return o.err
	}
	if e.w.draw(2, 8, uint64(len(b)), uint64(rank), p.Call.Seq) == 0 {
		o.taken = true
	}
	err := e.wait(transport.Way(channel), func() bool {
		return o.taken || p.closed || e.w.missing(e.rank, rank) != nil || p.odd() != nil
	}, p.stop)
	if !changes && !bytes.Equal(o.copy, b) {
		e.w.problem("rank %d changed %d bytes in operation %d while they were sent to rank %d", e.rank, len(b), p.Call.Seq, rank)
	}
	if err == nil && !o.taken {
		err = p.over(rank)
	}
	return err
}

// arrive takes in a message; the caller holds mu.
func (e *Endpoint) arrive(from int, k lineKey, m *message) {
	if e.w.dead[e.rank] || e.closed {
		return
	}
	b := e.box(match.Key{ID: k.id, Epoch: k.epoch})
	if b == nil {
		return
	}
	at := [2]int{from, k.channel}
	b.lines[at] = append(b.lines[at], m)
	if m.torn < 0 {
		b.last[from] = m.call
	}
	if p := b.port; p != nil {
		p.store(at)
	}
}

// store puts messages into the memory that was announced for them; the caller
// holds mu.
func (p *port) store(at [2]int) {
	for i, m := range p.box.lines[at] {
		if i >= len(p.wanted[at]) || m.call != p.Enc {
			return
		}
		if a := p.wanted[at][i]; m.stored == nil && a.form == m.form {
			m.stored = a
			copy(a.dst, m.come())
		}
	}
}

// come is the bytes that came.
func (m *message) come() []byte {
	if m.torn >= 0 {
		return m.b[:m.torn]
	}
	return m.b
}

// Expect announces where a message will be wanted.
func (p *port) Expect(from, channel int, dst []byte) {
	if p.Member(from, channel) != nil {
		return
	}
	p.e.w.mu.Lock()
	defer p.e.w.mu.Unlock()
	at := [2]int{p.Members[from], transport.Way(channel)}
	p.wanted[at] = append(p.wanted[at], &want{dst, transport.FormOf(channel, len(dst))})
	p.store(at)
}

// odd is a message of the current number that belongs to another call, as an
// error; the caller holds mu.
func (p *port) odd() error {
	for i, r := range p.Members {
		if c, ok := p.box.told[r]; ok && p.Place(i, &c) == match.Other {
			return p.Differs(i, &c)
		}
		for at, list := range p.box.lines {
			if at[0] == r && len(list) > 0 && list[0].torn < 0 && p.Place(i, &list[0].call) == match.Other {
				p.tell(r)
				return p.Differs(i, &list[0].call)
			}
		}
	}
	return nil
}

// tell lets a rank know that this one is in another call; the caller holds mu.
func (p *port) tell(rank int) {
	w, me, c := p.e.w, p.e.rank, p.Enc
	if p.told[rank] == c {
		return
	}
	p.told[rank] = c
	w.post(lineKey{me, rank, p.ID, p.Epoch, -3}, func(w *World) {
		if e := w.eps[rank]; !w.dead[rank] && !e.closed {
			if b := e.box(match.Key{ID: p.ID, Epoch: p.Epoch}); b != nil {
				b.told[me] = c
			}
		}
	}, nil)
}

// next waits for the next message of a way and takes it; the caller holds mu. A
// message of which only a part came is given with the error.
func (p *port) next(from, channel, n int) (*message, error) {
	e, rank := p.e, p.Members[from]
	at := [2]int{rank, transport.Way(channel)}
	err := e.wait(at[1], func() bool {
		list := p.box.lines[at]
		return len(list) > 0 && list[0].torn < 0 || p.closed || p.odd() != nil || e.w.missing(e.rank, rank) != nil
	}, p.stop)
	if err != nil {
		return nil, err
	}
	if p.closed {
		return nil, transport.ErrClosed
	}
	list := p.box.lines[at]
	if len(list) == 0 || list[0].torn >= 0 {
		err = p.over(rank)
		if _, ok := errors.AsType[*transport.Gone](err); ok && len(list) > 0 && list[0].call == p.Enc &&
			list[0].form == transport.FormOf(channel, n) {
			return list[0], err
		}
		return nil, err
	}
	m := list[0]
	if m.call != p.Enc {
		return nil, p.Differs(from, &m.call)
	}
	if want := transport.FormOf(channel, n); m.form != want {
		return nil, p.Unlike(from, channel, m.form, want)
	}
	p.box.lines[at] = list[1:]
	m.took()
	return m, nil
}

// Recv takes the next message into dst.
func (p *port) Recv(from, channel int, dst []byte) error {
	if err := p.enter(from, channel); err != nil {
		return err
	}
	defer p.e.w.mu.Unlock()
	return p.recv(from, channel, dst, false)
}

// recv is Recv; if whole, nothing is stored of a message that did not come. The
// caller holds mu.
func (p *port) recv(from, channel int, dst []byte, whole bool) error {
	at := [2]int{p.Members[from], transport.Way(channel)}
	if a := p.wanted[at]; len(a) > 0 {
		defer func() {
			if w := p.wanted[at]; len(w) > 0 && w[0] == a[0] {
				p.wanted[at] = w[1:]
			}
		}()
	}
	m, err := p.next(from, channel, len(dst))
	if m != nil && m.stored == nil && !(whole && err != nil) {
		copy(dst, m.come())
	} else if m != nil && err == nil {
		copy(dst, m.stored.dst) // it was announced, maybe for elsewhere
	}
	return err
}

// Take takes the next message piece after piece.
func (p *port) Take(from, channel, n int, f func(piece []byte)) error {
	if err := p.enter(from, channel); err != nil {
		return err
	}
	defer p.e.w.mu.Unlock()
	return p.take(from, channel, n, f)
}

func (p *port) take(from, channel, n int, f func(piece []byte)) error {
	m, err := p.next(from, channel, n)
	if m == nil {
		return err
	}
	rest := m.come()
	if err != nil {
		rest = rest[:len(rest)&^63]
	}
	for k := uint64(0); len(rest) > 0; k++ {
		piece := rest[:min(len(rest), 64+64*int(p.e.w.draw(40, 9, uint64(n), k, p.Call.Seq)))]
		if len(m.b) > 1<<20 {
			piece = rest[:min(len(rest), 256<<10)]
		}
		rest = rest[len(piece):]
		p.e.w.mu.Unlock()
		f(piece)
		bad := p.e.step(transport.Way(channel))
		p.e.w.mu.Lock()
		if bad != nil {
			return bad
		}
	}
	return err
}

// Exchange sends a message and receives another meanwhile.
func (p *port) Exchange(out transport.Outgoing, in transport.Incoming, waits func(sending bool)) error {
	if err := p.Member(in.From, in.Channel); err != nil {
		return err
	}
	if err := p.enter(out.To, out.Channel); err != nil {
		return err
	}
	defer p.e.w.mu.Unlock()
	o := p.start(out.To, out.Channel, out.Bytes)
	if o.err != nil {
		return o.err
	}
	var err error
	if in.Take != nil {
		if !p.e.w.cfg.Overlaps {
			if err := p.finish(o, out.To, out.Channel, out.Bytes, false); err != nil {
				return err
			}
			return p.take(in.From, in.Channel, in.N, in.Take)
		}
		err = p.take(in.From, in.Channel, in.N, in.Take)
	} else {
		err = p.recv(in.From, in.Channel, in.Dst, false)
	}
	if err != nil {
		return err
	}
	if waits != nil && !o.taken {
		p.e.w.mu.Unlock()
		waits(true)
		p.e.w.mu.Lock()
	}
	return p.finish(o, out.To, out.Channel, out.Bytes, in.After)
}

// Holder is the port, if messages may wait.
func (p *port) Holder() transport.Holder {
	if p.e.w.cfg.Holds {
		return p
	}
	return nil
}

// Holds is true of messages of up to 2 MiB.
func (p *port) Holds(peer, n int) bool { return n <= 2<<20 }

// SendWhole is Send.
func (p *port) SendWhole(to, channel int, b []byte) error { return p.Send(to, channel, b) }

// RecvWhole is Recv of a message all of which came.
func (p *port) RecvWhole(from, channel int, dst []byte) error {
	if err := p.enter(from, channel); err != nil {
		return err
	}
	defer p.e.w.mu.Unlock()
	return p.recv(from, channel, dst, true)
}

// Last is what a peer was last seen doing.
func (p *port) Last(rank int) (transport.Call, bool) {
	p.e.w.mu.Lock()
	defer p.e.w.mu.Unlock()
	if rank < 0 || rank >= len(p.Members) {
		return transport.Call{}, false
	}
	enc, ok := p.box.last[p.Members[rank]]
	c := transport.Call{}
	c.Get(enc[:])
	return c, ok
}

// Close gives the port up: what still comes is dropped.
func (p *port) Close() error {
	p.e.w.mu.Lock()
	defer p.e.w.mu.Unlock()
	p.closed = true
	p.e.boxes.End(match.Key{ID: p.ID, Epoch: p.Epoch})
	clear(p.wanted)
	clear(p.box.lines)
	return nil
}
