//go:build linux && (amd64 || arm64) && !static

package ucx

import (
	"fmt"
	"slices"
	"unsafe"

	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/match"
)

// port is a communicator's ways. It may exist before Port was called, to hold what members sent that were quicker.
// The endpoint's lock guards it.
type port struct {
	match.Port
	ps    *ports
	stop  transport.Stop
	err   error // why the call's waits end
	ways  [][]*way
	used  []*way
	ahead []*inbound // messages of calls that have not begun, as they came
}

// way is the messages from one rank on one channel within a call.
type way struct {
	used      bool
	come      []*inbound // not yet asked for
	wants     []*want    // asked for, and not yet there
	announced []*want    // by Expect, and not yet received
}

// way returns what is known of messages on one channel with a rank. The list grows to the highest channel in use.
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
		p.ps.moved = true
	}
}

// match finds what a message of the current call, or of an earlier one, is for.
func (p *port) match(in *inbound, me int) {
	ps := p.ps
	switch place := p.Place(me, &in.h.call); {
	case place == match.Late:
		p.strays(me, &in.h.call)
		ps.count.stale++
		p.drop(in, me)
		return
	case place == match.Other:
		p.disagree(me, &in.h.call, in.h.kind != kindCall)
		ps.count.mismatch++
		p.drop(in, me)
		return
	case in.h.kind == kindCall:
		return
	case p.err != nil:
		ps.count.stale++
		p.drop(in, me)
		return
	case in.dead: // given up before this call began here
		p.failed(gaveUp(me, in))
		p.drop(in, me)
		return
	}
	w := p.way(me, int(in.h.channel))
	if len(w.wants) == 0 {
		w.come = append(w.come, in)
		ps.offer(in)
		return
	}
	x := w.wants[0]
	w.wants = w.wants[1:]
	p.meet(in, x, me)
}

// gaveUp is why a call ends whose message its sender took back.
func gaveUp(me int, in *inbound) error {
	return fmt.Errorf("rank %d gave up sending a message of %d bytes", me, in.h.length)
}

// meet gives a message to whoever asked for it.
func (p *port) meet(in *inbound, x *want, me int) {
	ps := p.ps
	if f := transport.FormOf(x.channel, x.n); f != in.form {
		p.failed(p.Unlike(me, x.channel, in.form, f))
		ps.count.mismatch++
		p.drop(in, me)
		return
	}
	x.in = in
	ps.moved = true
	switch {
	case in.desc != 0 && x.take:
		in.parcel = ps.buffer(x.n)[:x.n]
		ps.fetchTo(in, in.parcel)
	case in.desc != 0:
		in.into = x
		ps.fetchTo(in, x.dst)
	}
}

// drop discards a message of the port; it counts as taken.
func (p *port) drop(in *inbound, me int) {
	if in.h.kind == kindData {
		p.repay(me, int(in.h.length))
	}
	p.ps.discard(in)
}

// repay counts a message that was taken, and tells its sender now and then.
func (p *port) repay(me, n int) {
	if me == p.Rank {
		return
	}
	tell := p.Owe(p.Members[me], n)
	if tell == 0 {
		return
	}
	h := header{kind: kindCredit, length: tell, call: p.Enc}
	ps, to := p.ps, p.ps.peers[p.Members[me]]
	ps.later(func() { ps.control(to, h, nil) })
}

// disagree ends the call, as a rank does another under the same number, and tells that rank if it cannot know yet.
func (p *port) disagree(me int, call *[transport.CallSize]byte, tell bool) {
	p.failed(p.Differs(me, call))
	if tell {
		h := header{kind: kindCall, call: p.Enc}
		ps, to := p.ps, p.ps.peers[p.Members[me]]
		ps.later(func() { ps.control(to, h, nil) })
	}
}

// strays notes that a rank is in another call than this: it sends nothing more in this one.
func (p *port) strays(me int, call *[transport.CallSize]byte) {
	if p.Strays(me, match.Stray{Call: *call}) {
		p.ps.moved = true
	}
}

// Begin starts a call.
func (p *port) Begin(c transport.Call, stop transport.Stop) {
	p.detach()
	ps := p.ps
	ps.mu.Lock()
	defer ps.unlock()
	p.empty()
	p.Port.Begin(c)
	p.stop, p.err = stop, nil
	if ps.closed || !p.Attached {
		p.err = transport.ErrClosed
	}
	if len(p.ahead) == 0 {
		return
	}
	list := p.ahead
	p.ahead = nil
	for _, in := range list {
		me := p.Index[in.from.rank]
		switch p.Place(me, &in.h.call) {
		case match.Stranger:
			ps.count.stale++
			ps.discard(in)
		case match.Ahead:
			p.strays(me, &in.h.call)
			p.ahead = append(p.ahead, in)
		default:
			p.match(in, me)
		}
	}
	ps.settle()
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
	ps := p.ps
	for {
		var x *inbound
		ps.mu.Lock()
		for _, w := range p.used {
			for _, a := range w.announced {
				if a.in != nil && a.in.fetch != nil {
					if ps.fetched(a.in); a.in.fetch != nil && !a.in.from.ended {
						x = a.in
					}
				}
			}
		}
		ps.unlock()
		if x == nil {
			return
		}
		ps.reclaim(x.from, x.fetch)
	}
}

// Close gives the port back.
func (p *port) Close() error {
	p.detach()
	ps := p.ps
	ps.mu.Lock()
	defer ps.unlock()
	if !p.Attached || ps.closed {
		return nil
	}
	p.empty()
	for _, in := range p.ahead {
		ps.discard(in)
	}
	p.ahead = nil
	p.Attached, p.err = false, transport.ErrClosed
	ps.open.End(match.Key{Epoch: p.Epoch, ID: p.ID})
	return nil
}

// Disagrees is why the call has ended although nobody waits here.
func (p *port) Disagrees() error {
	p.ps.mu.Lock()
	defer p.ps.mu.Unlock()
	return p.err
}

// Unbound lets the call go on whatever its peers leave waiting.
func (p *port) Unbound() {
	p.ps.mu.Lock()
	p.Deep = true
	p.ps.mu.Unlock()
}

// Last is what a peer was last seen doing.
func (p *port) Last(rank int) (c transport.Call, ok bool) {
	p.ps.mu.Lock()
	defer p.ps.mu.Unlock()
	return p.Seen(rank)
}

// Holder is nil: a long message goes straight to its place.
func (p *port) Holder() transport.Holder { return nil }

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
	p, ps := o.p, o.p.ps
	if o.settled {
		return true, nil
	}
	to := ps.peers[p.Members[o.me]]
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
		if p.Full(to.rank) {
			return false, nil
		}
		p.Lend(to.rank, len(o.b))
		h := header{kind: kindData, channel: uint32(o.ch), length: uint64(len(o.b)), call: p.Enc}
		if p.Deep {
			h.flags = flagDeep
		}
		o.s = ps.post(to, h, o.b)
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
	ps.put(o.s)
	o.s, o.settled = nil, true
	if status < 0 {
		if to.gone.Load() == nil {
			ps.lost(to, "UCX: "+ps.lib.words(status))
		}
		return false, to.gone.Load()
	}
	return true, nil
}

// toSelf delivers a message of this rank to itself.
func (o *outbound) toSelf() {
	p, ps := o.p, o.p.ps
	in := &inbound{from: ps.self, whole: true, parcel: append(ps.buffer(len(o.b)), o.b...)}
	in.h = header{kind: kindData, rank: uint32(ps.rank), channel: uint32(o.ch), length: uint64(len(o.b)), call: p.Enc}
	ps.dispatch(in)
}

// abandon takes the memory of a message back that was not sent to its end.
func (o *outbound) abandon() {
	if o.s == nil || o.settled {
		return
	}
	ps, to := o.p.ps, o.p.ps.peers[o.p.Members[o.me]]
	s := o.s
	ps.mu.Lock()
	if !s.ended() {
		ps.control(to, header{kind: kindRevoke, length: o.number}, nil)
	}
	ps.unlock()
	if !s.ended() {
		ps.reclaim(to, s)
	}
	ps.mu.Lock()
	ps.forget(s)
	o.s, o.settled = nil, true
	ps.unlock()
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
	ps := p.ps
	if in := x.in; in != nil {
		ps.fetched(in)
		if in.whole && !in.dead {
			return true, nil
		}
	}
	if p.err != nil {
		return false, p.err
	}
	if x.in == nil || x.in.dead {
		if x, ok := p.Strayed(me); ok {
			m := p.Differs(me, &x.Call)
			p.failed(m)
			return false, m
		}
		if q := ps.peers[p.Members[me]]; q != nil {
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
	p.ps.reuse(in.parcel)
	in.parcel, x.in = nil, nil
	p.ps.settle()
}

// refuse takes a want back whose wait has failed.
func (p *port) refuse(x *want, me int) {
	ps := p.ps
	for {
		ps.mu.Lock()
		in := x.in
		if in == nil || in.fetch == nil || in.into != x {
			break
		}
		if ps.fetched(in); in.fetch == nil || in.from.ended {
			break
		}
		s := in.fetch
		ps.unlock()
		ps.reclaim(in.from, s)
	}
	w := p.way(me, x.channel)
	w.wants = slices.DeleteFunc(w.wants, func(y *want) bool { return y == x })
	if x.in != nil {
		in := x.in
		x.in = nil
		p.drop(in, me)
	}
	ps.unlock()
}

// Send gives b to a peer.
func (p *port) Send(to, channel int, b []byte) error {
	if err := p.Member(to, channel); err != nil {
		return err
	}
	if err := p.ps.enter(); err != nil {
		return err
	}
	defer p.ps.leave()
	o := outbound{p: p, me: to, ch: channel, b: b}
	p.ps.mu.Lock()
	ok, err := o.try()
	p.ps.settle()
	p.ps.unlock()
	if !ok && err == nil {
		err = p.ps.await(p.stop, o.try)
	}
	if err != nil {
		o.abandon()
	}
	return err
}

// Expect announces where the next message of a way will be wanted.
func (p *port) Expect(from, channel int, dst []byte) {
	if p.Member(from, channel) != nil || p.ps.enter() != nil {
		return // Recv says so
	}
	defer p.ps.leave()
	p.ps.mu.Lock()
	defer p.ps.unlock()
	if p.err != nil {
		return
	}
	w := p.way(from, channel)
	w.announced = append(w.announced, p.ask(from, channel, len(dst), dst, false))
	p.ps.settle()
}

// next is what Recv or Take waits for: what was announced, or a new one; the caller holds the lock. What was announced is
// received where it was announced, and nowhere else.
func (p *port) next(in *transport.Incoming) (*want, error) {
	w := p.way(in.From, in.Channel)
	if len(w.announced) == 0 {
		return p.ask(in.From, in.Channel, in.N, in.Dst, in.Take != nil), nil
	}
	x := w.announced[0]
	if in.Take != nil || x.n != in.N || x.channel != in.Channel || unsafe.SliceData(x.dst) != unsafe.SliceData(in.Dst) {
		return nil, fmt.Errorf("channel %d from rank %d: %d bytes were announced, and are not received where they were",
			transport.Way(in.Channel), in.From, x.n)
	}
	w.announced[0] = nil
	if w.announced = w.announced[1:]; len(w.announced) == 0 {
		w.announced = nil
	}
	return x, nil
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
	if err := p.Member(in.From, in.Channel); err != nil {
		return err
	}
	ps := p.ps
	if err := ps.enter(); err != nil {
		return err
	}
	defer ps.leave()
	ps.mu.Lock()
	x, err := p.next(&in)
	if err != nil {
		ps.unlock()
		return err
	}
	ok, err := p.got(x, in.From)
	ps.settle()
	ps.unlock()
	if !ok && err == nil {
		err = ps.await(p.stop, func() (bool, error) { return p.got(x, in.From) })
	}
	return p.finish(x, in, err)
}

// finish hands out what came, or takes the want back.
func (p *port) finish(x *want, in transport.Incoming, err error) error {
	if err != nil {
		p.refuse(x, in.From)
		return err
	}
	ps := p.ps
	if in.Take != nil {
		if len(x.in.parcel) > 0 {
			in.Take(x.in.parcel)
		}
	} else if x.in.into != x && len(in.Dst) > 0 {
		copy(in.Dst, x.in.parcel)
	}
	ps.mu.Lock()
	p.taken(x, in.From)
	ps.unlock()
	return nil
}

// Exchange sends and receives at once.
func (p *port) Exchange(out transport.Outgoing, in transport.Incoming, waits func(sending bool)) error {
	if err := p.Member(out.To, out.Channel); err != nil {
		return err
	}
	if err := p.Member(in.From, in.Channel); err != nil {
		return err
	}
	ps := p.ps
	if err := ps.enter(); err != nil {
		return err
	}
	defer ps.leave()
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
	ps.mu.Lock()
	var err error
	if x, err = p.next(&in); err != nil {
		ps.unlock()
		return err
	}
	ok, err := both()
	ps.settle()
	ps.unlock()
	if !ok && err == nil {
		err = ps.await(func() error {
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
