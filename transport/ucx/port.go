//go:build linux && (amd64 || arm64) && !static

package ucx

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/weft-fabric/weft/transport"
)

// port is a communicator's ways. It may exist before Port was called, to hold what members sent that were quicker.
// The endpoint's lock guards it.
type port struct {
	e         *Endpoint
	id, epoch uint32

	members []int // endpoint ranks by rank
	index   []int // ranks by endpoint rank, -1 for those that are no members
	rank    int
	words   transport.Words

	attached, begun bool
	call            transport.Call
	enc             [transport.CallSize]byte
	stop            transport.Stop
	err             error // why the call's waits end
	ways            [][]*way
	used            []*way
	ahead           []*inbound // messages of calls that have not begun, as they came
	last            [][transport.CallSize]byte
	seen            []bool
	stray           map[int][transport.CallSize]byte // ranks that are in another call than this, and in which

	deep bool    // the call may have any number of bytes under way
	lent []int64 // cost of what was sent and not yet taken, by rank
	owed []int64 // cost of what was taken and not yet told its sender
}

// way is the messages from one rank on one channel within a call.
type way struct {
	used      bool
	come      []*inbound // not yet asked for
	wants     []*want    // asked for, and not yet there
	announced []*want    // by Expect, and not yet received
}

type portKey struct{ epoch, id uint32 }

// A communicator may have this much under way to a peer that the peer has not taken; its senders wait then.
const creditLimit = 16 << 20

// cost is what a message counts: its bytes and what goes with it.
func cost(n int) int64 { return int64(n) + 256 }

func seqOf(call *[transport.CallSize]byte) uint64 { return binary.LittleEndian.Uint64(call[8:]) }

// Port makes the port of a communicator.
func (e *Endpoint) Port(g transport.Group) (transport.Port, error) {
	rank := slices.Index(g.Members, e.rank)
	if rank < 0 {
		return nil, fmt.Errorf("rank %d is not one of the members %v of communicator %d", e.rank, g.Members, g.ID)
	}
	for i, m := range g.Members {
		if m < 0 || m >= e.size || slices.Index(g.Members, m) != i {
			return nil, fmt.Errorf("members %v of communicator %d: %d is not a rank of %d, or named twice", g.Members, g.ID, m, e.size)
		}
	}
	e.mu.Lock()
	defer e.unlock()
	if e.closed {
		return nil, transport.ErrClosed
	}
	if newest := e.epochs[g.ID]; g.Epoch < newest {
		return nil, fmt.Errorf("communicator %d is in epoch %d already, not %d", g.ID, newest, g.Epoch)
	}
	e.epochs[g.ID] = g.Epoch
	k := portKey{g.Epoch, g.ID}
	p := e.ports[k]
	if p == nil {
		p = &port{e: e, id: g.ID, epoch: g.Epoch}
		e.ports[k] = p
	}
	if p.attached {
		return nil, fmt.Errorf("communicator %d of epoch %d has a port already", g.ID, g.Epoch)
	}
	e.reopen(k)
	p.attached, p.rank, p.members, p.words = true, rank, slices.Clone(g.Members), g.Words
	p.index = make([]int, e.size)
	for i := range p.index {
		p.index[i] = -1
	}
	for i, m := range g.Members {
		p.index[m] = i
	}
	n := len(g.Members)
	p.ways, p.last, p.seen = make([][]*way, n), make([][transport.CallSize]byte, n), make([]bool, n)
	p.lent, p.owed = make([]int64, n), make([]int64, n)
	for _, x := range p.ahead {
		if i := p.index[x.from.rank]; i >= 0 {
			p.last[i], p.seen[i] = x.h.call, true
		}
	}
	return p, nil
}

// portOf is the port of a message, made if need be; nil if its epoch or the port has ended.
func (e *Endpoint) portOf(h *header) *port {
	le := binary.LittleEndian
	k := portKey{le.Uint32(h.call[0:]), le.Uint32(h.call[4:])}
	if p := e.ports[k]; p != nil {
		return p
	}
	if k.epoch < e.epochs[k.id] {
		e.count.old++
		return nil
	}
	if e.isEnded(k) || e.closed {
		e.count.stale++
		return nil
	}
	p := &port{e: e, id: k.id, epoch: k.epoch}
	e.ports[k] = p
	return p
}

func (p *port) indexOf(rank int) int {
	if !p.attached {
		return -1
	}
	return p.index[rank]
}

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

// failed ends the call's waits.
func (p *port) failed(err error) {
	if p.err == nil {
		p.err = err
		p.e.moved = true
	}
}

// dispatch brings a message to its port.
func (e *Endpoint) dispatch(in *inbound) {
	if in.desc != 0 {
		in.from.open[in.h.number] = in
	}
	p := e.portOf(&in.h)
	if p == nil {
		e.discard(in)
		return
	}
	h := &in.h
	me := p.indexOf(in.from.rank)
	if h.kind == kindCredit {
		if me >= 0 {
			p.lent[me] -= int64(h.length)
		}
		return
	}
	in.form = transport.FormOf(int(h.channel), int(h.length))
	seq := seqOf(&h.call)
	if me >= 0 {
		p.last[me], p.seen[me] = h.call, true
	}
	if !p.begun || seq > p.call.Seq {
		if p.attached && me < 0 || h.kind == kindCall {
			e.count.stale++
			e.discard(in)
			return
		}
		if p.begun {
			p.strays(me, &h.call)
		}
		p.ahead = append(p.ahead, in)
		e.offer(in)
		return
	}
	if me < 0 {
		e.count.stale++
		e.discard(in)
		return
	}
	p.match(in, me, seq)
}

// match finds what a message of the current call, or of an earlier one, is for.
func (p *port) match(in *inbound, me int, seq uint64) {
	e := p.e
	switch {
	case seq < p.call.Seq:
		p.strays(me, &in.h.call)
		e.count.stale++
		p.drop(in, me)
		return
	case in.h.call != p.enc:
		p.disagree(me, &in.h.call, in.h.kind != kindCall)
		e.count.mismatch++
		p.drop(in, me)
		return
	case in.h.kind == kindCall:
		return
	case p.err != nil:
		e.count.stale++
		p.drop(in, me)
		return
	}
	w := p.way(me, int(in.h.channel))
	if len(w.wants) == 0 {
		w.come = append(w.come, in)
		e.offer(in)
		return
	}
	x := w.wants[0]
	w.wants = w.wants[1:]
	p.meet(in, x, me)
}

// meet gives a message to whoever asked for it.
func (p *port) meet(in *inbound, x *want, me int) {
	e := p.e
	if f := transport.FormOf(x.channel, x.n); f != in.form {
		p.failed(&transport.Mismatch{Rank: p.rank, Peer: me, Mine: p.call, Theirs: p.call, Channel: transport.Way(x.channel), Sent: in.form, Want: f, Words: p.words})
		e.count.mismatch++
		p.drop(in, me)
		return
	}
	x.in = in
	e.moved = true
	switch {
	case in.desc != 0 && x.take:
		in.parcel = e.buffer(x.n)[:x.n]
		e.fetchTo(in, in.parcel)
	case in.desc != 0:
		in.into = x
		e.fetchTo(in, x.dst)
	}
}

// drop discards a message of the port; it counts as taken.
func (p *port) drop(in *inbound, me int) {
	if in.h.kind == kindData {
		p.repay(me, int(in.h.length))
	}
	p.e.discard(in)
}

// offer notes a long message that nobody asked for yet.
func (e *Endpoint) offer(in *inbound) {
	if in.desc != 0 {
		e.offered = append(e.offered, in)
	}
}

// repay counts a message that was taken, and tells its sender now and then.
func (p *port) repay(me, n int) {
	if me == p.rank {
		return
	}
	p.owed[me] += cost(n)
	if p.owed[me] < creditLimit/4 {
		return
	}
	h := header{kind: kindCredit, length: uint64(p.owed[me]), call: p.enc}
	p.owed[me] = 0
	e, to := p.e, p.e.peers[p.members[me]]
	e.later(func() { e.control(to, h, nil) })
}

// disagree ends the call, as a rank does another under the same number, and tells that rank if it cannot know yet.
func (p *port) disagree(me int, call *[transport.CallSize]byte, tell bool) {
	m := &transport.Mismatch{Rank: p.rank, Peer: me, Mine: p.call, Words: p.words}
	m.Theirs.Get(call[:])
	p.failed(m)
	if tell {
		h := header{kind: kindCall, call: p.enc}
		e, to := p.e, p.e.peers[p.members[me]]
		e.later(func() { e.control(to, h, nil) })
	}
}

// strays notes that a rank is in another call than this: it sends nothing more in this one.
func (p *port) strays(me int, call *[transport.CallSize]byte) {
	if me < 0 {
		return
	}
	if p.stray == nil {
		p.stray = map[int][transport.CallSize]byte{}
	}
	if _, known := p.stray[me]; !known {
		p.stray[me] = *call
		p.e.moved = true
	}
}

// Begin starts a call.
func (p *port) Begin(c transport.Call, stop transport.Stop) {
	p.detach()
	e := p.e
	e.mu.Lock()
	defer e.unlock()
	p.empty()
	p.call, p.stop, p.begun, p.deep, p.err = c, stop, true, false, nil
	p.call.Epoch, p.call.Comm = p.epoch, p.id
	p.call.Put(p.enc[:])
	clear(p.stray)
	if e.closed || !p.attached {
		p.err = transport.ErrClosed
	}
	if len(p.ahead) == 0 {
		return
	}
	list := p.ahead
	p.ahead = nil
	for _, in := range list {
		me := p.index[in.from.rank]
		switch seq := seqOf(&in.h.call); {
		case me < 0:
			e.count.stale++
			e.discard(in)
		case seq > c.Seq:
			p.strays(me, &in.h.call)
			p.ahead = append(p.ahead, in)
		default:
			p.match(in, me, seq)
		}
	}
	e.settle()
}

// empty ends what is left of the last call; nothing is fetched to its memory any more.
func (p *port) empty() {
	for me, ws := range p.ways {
		for _, w := range ws {
			if w == nil || !w.used {
				continue
			}
			for _, in := range w.come {
				p.drop(in, me)
			}
			clear(w.come)
			*w = way{come: w.come[:0]}
		}
	}
	p.used = p.used[:0]
}

// detach takes the memory of the last call back: once it returns, UCX writes nothing there any more.
func (p *port) detach() {
	e := p.e
	for {
		var x *inbound
		e.mu.Lock()
		for _, w := range p.used {
			for _, a := range w.announced {
				if a.in != nil && a.in.fetch != nil {
					if e.fetched(a.in); a.in.fetch != nil && !a.in.from.ended {
						x = a.in
					}
				}
			}
		}
		e.unlock()
		if x == nil {
			return
		}
		e.reclaim(x.from, x.fetch)
	}
}

// Close gives the port back.
func (p *port) Close() error {
	p.detach()
	e := p.e
	e.mu.Lock()
	defer e.unlock()
	if !p.attached || e.closed {
		return nil
	}
	p.empty()
	for me, in := range p.ahead {
		_ = me
		e.discard(in)
	}
	p.ahead = nil
	p.attached, p.err = false, transport.ErrClosed
	k := portKey{p.epoch, p.id}
	delete(e.ports, k)
	e.end(k)
	return nil
}

// Disagrees is why the call has ended although nobody waits here.
func (p *port) Disagrees() error {
	p.e.mu.Lock()
	defer p.e.mu.Unlock()
	return p.err
}

// Bound is what a peer may leave waiting; of what it took, it may not have told a quarter.
func (p *port) Bound() int { return creditLimit - creditLimit/4 }

// Unbound lets the call go on whatever its peers leave waiting.
func (p *port) Unbound() {
	p.e.mu.Lock()
	p.deep = true
	p.e.mu.Unlock()
}

// Last is what a peer was last seen doing.
func (p *port) Last(rank int) (c transport.Call, ok bool) {
	p.e.mu.Lock()
	defer p.e.mu.Unlock()
	if rank < 0 || rank >= len(p.seen) || !p.seen[rank] {
		return c, false
	}
	c.Get(p.last[rank][:])
	return c, true
}

// Holder is nil: a long message goes straight to its place.
func (p *port) Holder() transport.Holder { return nil }

// member checks a rank and a channel.
func (p *port) member(rank, channel int) error {
	if rank < 0 || rank >= len(p.members) {
		return fmt.Errorf("rank %d of a communicator of %d", rank, len(p.members))
	}
	if !transport.ValidChannel(channel) {
		return transport.ErrChannel(channel)
	}
	return nil
}

// outbound is a message that is sent.
type outbound struct {
	p       *port
	me, ch  int
	b       []byte
	s       *slot
	number  uint64
	settled bool
}

// try goes on with sending, and says whether the memory is the caller's again. The caller holds the lock.
func (o *outbound) try() (bool, error) {
	p, e := o.p, o.p.e
	if o.settled {
		return true, nil
	}
	to := e.peers[p.members[o.me]]
	if o.s == nil {
		if p.err != nil {
			return false, p.err
		}
		if to == nil { // to itself
			o.toSelf()
			o.settled = true
			return true, nil
		}
		if g := to.gone.Load(); g != nil {
			return false, g
		}
		if p.lent[o.me] >= creditLimit && !p.deep {
			return false, nil
		}
		p.lent[o.me] += cost(len(o.b))
		h := header{kind: kindData, channel: uint32(o.ch), length: uint64(len(o.b)), call: p.enc}
		if p.deep {
			h.flags = flagDeep
		}
		o.s = e.post(to, h, o.b)
		o.number = to.told
	}
	if !o.s.ended() {
		if p.err != nil {
			return false, p.err
		}
		if g := to.gone.Load(); g != nil {
			return false, g
		}
		return false, nil
	}
	status := o.s.status.Load()
	e.put(o.s)
	o.s, o.settled = nil, true
	if status < 0 {
		if to.gone.Load() == nil {
			e.lost(to, "UCX: "+e.lib.words(status))
		}
		return false, to.gone.Load()
	}
	return true, nil
}

// toSelf delivers a message of this rank to itself.
func (o *outbound) toSelf() {
	p, e := o.p, o.p.e
	in := &inbound{from: e.self, whole: true, parcel: append(e.buffer(len(o.b)), o.b...)}
	in.h = header{kind: kindData, rank: uint32(e.rank), channel: uint32(o.ch), length: uint64(len(o.b)), call: p.enc}
	e.dispatch(in)
}

// abandon takes the memory of a message back that was not sent to its end.
func (o *outbound) abandon() {
	if o.s == nil || o.settled {
		return
	}
	e, to := o.p.e, o.p.e.peers[o.p.members[o.me]]
	s := o.s
	e.mu.Lock()
	if !s.ended() {
		e.control(to, header{kind: kindRevoke, length: o.number}, nil)
	}
	e.unlock()
	if !s.ended() {
		e.reclaim(to, s)
	}
	e.mu.Lock()
	e.forget(s)
	o.s, o.settled = nil, true
	e.unlock()
}

// ask asks for the next message of a way; the caller holds the lock.
func (p *port) ask(me, channel, n int, dst []byte, take bool) *want {
	w := p.way(me, channel)
	x := &want{channel: channel, n: n, dst: dst, take: take}
	if len(w.come) > 0 && len(w.wants) == 0 {
		in := w.come[0]
		w.come[0] = nil
		if w.come = w.come[1:]; len(w.come) == 0 {
			w.come = nil
		}
		p.meet(in, x, me)
		return x
	}
	w.wants = append(w.wants, x)
	return x
}

// got looks whether what was asked for is there; the caller holds the lock.
func (p *port) got(x *want, me int) (bool, error) {
	e := p.e
	if in := x.in; in != nil {
		e.fetched(in)
		if in.whole && !in.dead {
			return true, nil
		}
	}
	if p.err != nil {
		return false, p.err
	}
	if x.in == nil || x.in.dead {
		if call, ok := p.stray[me]; ok {
			m := &transport.Mismatch{Rank: p.rank, Peer: me, Mine: p.call, Words: p.words}
			m.Theirs.Get(call[:])
			p.failed(m)
			return false, m
		}
		if q := e.peers[p.members[me]]; q != nil {
			if g := q.gone.Load(); g != nil {
				return false, g
			}
		}
	}
	return false, nil
}

// taken is the end of a message that came: what it holds is given back; the caller holds the lock.
func (p *port) taken(x *want, me int) {
	in := x.in
	p.repay(me, x.n)
	p.e.reuse(in.parcel)
	in.parcel, x.in = nil, nil
	p.e.settle()
}

// refuse takes a want back whose wait has failed.
func (p *port) refuse(x *want, me int) {
	e := p.e
	for {
		e.mu.Lock()
		in := x.in
		if in == nil || in.fetch == nil || in.into != x {
			break
		}
		if e.fetched(in); in.fetch == nil || in.from.ended {
			break
		}
		s := in.fetch
		e.unlock()
		e.reclaim(in.from, s)
	}
	w := p.way(me, x.channel)
	w.wants = slices.DeleteFunc(w.wants, func(y *want) bool { return y == x })
	if x.in != nil {
		in := x.in
		x.in = nil
		p.drop(in, me)
	}
	e.unlock()
}

// Send gives b to a peer.
func (p *port) Send(to, channel int, b []byte) error {
	if err := p.member(to, channel); err != nil {
		return err
	}
	if err := p.e.enter(); err != nil {
		return err
	}
	defer p.e.leave()
	o := outbound{p: p, me: to, ch: channel, b: b}
	p.e.mu.Lock()
	ok, err := o.try()
	p.e.settle()
	p.e.unlock()
	if !ok && err == nil {
		err = p.e.await(p.stop, o.try)
	}
	if err != nil {
		o.abandon()
	}
	return err
}

// Expect announces where the next message of a way will be wanted.
func (p *port) Expect(from, channel int, dst []byte) {
	if p.member(from, channel) != nil || p.e.enter() != nil {
		return // Recv says so
	}
	defer p.e.leave()
	p.e.mu.Lock()
	defer p.e.unlock()
	if p.err != nil {
		return
	}
	w := p.way(from, channel)
	w.announced = append(w.announced, p.ask(from, channel, len(dst), dst, false))
	p.e.settle()
}

// next is what Recv or Take waits for: what was announced, or a new one; the caller holds the lock.
func (p *port) next(from, channel, n int, dst []byte, take bool) *want {
	w := p.way(from, channel)
	if len(w.announced) > 0 && !take {
		x := w.announced[0]
		w.announced[0] = nil
		if w.announced = w.announced[1:]; len(w.announced) == 0 {
			w.announced = nil
		}
		return x
	}
	return p.ask(from, channel, n, dst, take)
}

// Recv takes the next message of a way into dst.
func (p *port) Recv(from, channel int, dst []byte) error {
	return p.receive(transport.Incoming{From: from, Channel: channel, N: len(dst), Dst: dst})
}

// Take takes the next message of a way and hands it out.
func (p *port) Take(from, channel, n int, f func(piece []byte)) error {
	return p.receive(transport.Incoming{From: from, Channel: channel, N: n, Take: f})
}

func (p *port) receive(in transport.Incoming) error {
	if err := p.member(in.From, in.Channel); err != nil {
		return err
	}
	e := p.e
	if err := e.enter(); err != nil {
		return err
	}
	defer e.leave()
	e.mu.Lock()
	x := p.next(in.From, in.Channel, in.N, in.Dst, in.Take != nil)
	ok, err := p.got(x, in.From)
	e.settle()
	e.unlock()
	if !ok && err == nil {
		err = e.await(p.stop, func() (bool, error) { return p.got(x, in.From) })
	}
	return p.finish(x, in, err)
}

// finish hands out what came, or takes the want back.
func (p *port) finish(x *want, in transport.Incoming, err error) error {
	if err != nil {
		p.refuse(x, in.From)
		return err
	}
	e := p.e
	if in.Take != nil {
		if len(x.in.parcel) > 0 {
			in.Take(x.in.parcel)
		}
	} else if x.in.into != x && len(in.Dst) > 0 {
		copy(in.Dst, x.in.parcel)
	}
	e.mu.Lock()
	p.taken(x, in.From)
	e.unlock()
	return nil
}

// Exchange sends and receives at once.
func (p *port) Exchange(out transport.Outgoing, in transport.Incoming, waits func(sending bool)) error {
	if err := p.member(out.To, out.Channel); err != nil {
		return err
	}
	if err := p.member(in.From, in.Channel); err != nil {
		return err
	}
	e := p.e
	if err := e.enter(); err != nil {
		return err
	}
	defer e.leave()
	o := outbound{p: p, me: out.To, ch: out.Channel, b: out.Bytes}
	sent, came, told := false, false, false
	var x *want
	both := func() (_ bool, err error) {
		if !sent {
			if sent, err = o.try(); err != nil {
				return false, err
			}
		}
		if !came {
			if came, err = p.got(x, in.From); err != nil {
				return false, err
			}
		}
		return sent && came, nil
	}
	e.mu.Lock()
	x = p.next(in.From, in.Channel, in.N, in.Dst, in.Take != nil)
	ok, err := both()
	e.settle()
	e.unlock()
	if !ok && err == nil {
		err = e.await(func() error {
			if came && !sent && !told && waits != nil {
				told = true
				waits(true)
			}
			if p.stop == nil {
				return nil
			}
			return p.stop()
		}, both)
	}
	if err != nil {
		o.abandon()
	}
	return p.finish(x, in, err)
}

var (
	_ transport.Port      = (*port)(nil)
	_ transport.Bounded   = (*port)(nil)
	_ transport.Disagreer = (*port)(nil)
)
