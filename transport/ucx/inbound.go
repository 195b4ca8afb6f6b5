//go:build linux && (amd64 || arm64) && !static

package ucx

import (
	"encoding/binary"
	"fmt"

	"github.com/ebitengine/purego"

	"github.com/weft-fabric/weft/transport"
)

// inbound is a message on its receiver. The endpoint's lock guards it.
type inbound struct {
	from   *peer
	h      header
	form   transport.Form
	parcel []byte  // what came with it, or what was fetched to a place of its own
	desc   uintptr // of UCX, while a long message is still with its sender
	fetch  *slot   // while it is fetched
	into   *want   // whose memory it is fetched to; nil for parcel
	whole  bool    // all of it is here
	dead   bool    // nobody wants it, or its sender gave it up
}

// want is a message that is asked for.
type want struct {
	channel int
	n       int
	dst     []byte // nil if it is taken
	take    bool
	in      *inbound
}

// arrived is called by UCX for every message, with the lock held by whoever lets UCX work. It answers whether UCX
// shall keep what it has of the message.
func (e *Endpoint) arrived(head uintptr, headLength uintptr, data uintptr, length uintptr, rendezvous bool) uintptr {
	in := &inbound{}
	if err := in.h.parse(bytesAt(head, int(headLength)), e.world, e.size, int(length)); err != nil {
		e.count.refused++
		if e.log != nil && e.count.refused == 1 {
			e.log.Warn("ucx: a message was refused; more are counted", "why", err)
		}
		return 0
	}
	p := e.peers[in.h.rank]
	if p == nil {
		e.count.refused++
		return 0
	}
	in.from = p
	e.count.received++
	e.count.bytesIn += uint64(length)
	var answer uintptr
	if rendezvous {
		in.desc, answer = data, inProgress
	} else {
		// A message that is waited for, and next in order, is put where it belongs at once.
		if in.h.number != p.heard+1 || !e.direct(in, bytesAt(data, int(length))) {
			in.parcel, in.whole = append(e.buffer(int(length)), bytesAt(data, int(length))...), true
		}
	}
	if in.h.number != p.heard+1 {
		if p.early == nil {
			p.early = map[uint64]*inbound{}
		}
		p.early[in.h.number] = in
		return answer
	}
	for in != nil {
		p.heard++
		e.deliver(in)
		if in = p.early[p.heard+1]; in != nil {
			delete(p.early, p.heard+1)
		}
	}
	return answer
}

// direct copies a short message to the memory of whoever asked for it; false if nobody did.
func (e *Endpoint) direct(in *inbound, data []byte) bool {
	if in.h.kind != kindData {
		return false
	}
	le := binary.LittleEndian
	q := e.ports[portKey{le.Uint32(in.h.call[0:]), le.Uint32(in.h.call[4:])}]
	if q == nil || !q.begun || q.err != nil || in.h.call != q.enc {
		return false
	}
	me := q.indexOf(in.from.rank)
	if me < 0 {
		return false
	}
	w := q.way(me, int(in.h.channel))
	if len(w.come) > 0 || len(w.wants) == 0 {
		return false
	}
	x := w.wants[0]
	if x.take || transport.FormOf(x.channel, x.n) != transport.FormOf(int(in.h.channel), len(data)) {
		return false
	}
	copy(x.dst, data)
	in.whole, in.into = true, x
	return true
}

// deliver takes a message, in the order of its sender.
func (e *Endpoint) deliver(in *inbound) {
	p, h := in.from, &in.h
	switch h.kind {
	case kindData, kindCall, kindCredit:
		e.dispatch(in)
		return
	case kindHello:
		p.hello = true
	case kindBye:
		e.left(p)
		e.later(func() { e.control(p, header{kind: kindByeAck}, nil) })
	case kindByeAck:
		p.heardBye = true
	case kindRevoke:
		if x := p.open[h.length]; x != nil {
			e.revoked(x)
		}
	case kindNotice:
		e.done = append(e.done, transport.Completion{Peer: p.rank, Notice: uint32(h.length)})
	case kindAsk:
		number := h.length
		e.later(func() { e.tellKey(p, number) })
	case kindKey:
		packed := append([]byte(nil), in.parcel...)
		number, base := h.length, h.word
		e.later(func() { e.learnKey(p, number, base, packed) })
	case kindForget:
		number := h.length
		e.later(func() { e.dropKey(p, number) })
	case kindForgot:
		number := h.length
		e.later(func() { e.forgotten(p, number) })
	}
	e.discard(in)
}

// fetchTo has a long message fetched to b.
func (e *Endpoint) fetchTo(in *inbound, b []byte) {
	desc := in.desc
	in.desc = 0
	s := e.slot(b)
	s.param.callback = e.lib.received
	in.fetch = s
	start := func() { s.begin(e.lib.recv, e.worker, desc, address(b), uintptr(len(b)), s.params()) }
	if e.inside {
		e.later(start)
	} else {
		start()
	}
}

// fetched looks whether the fetching of a message has ended, and ends it; the caller holds the lock, outside of UCX.
func (e *Endpoint) fetched(in *inbound) {
	s := in.fetch
	if s == nil || !s.ended() {
		return
	}
	// A sender that gave the message up said so before it changed its memory: hear that first.
	for i := 0; i < 1000 && e.progress(1); i++ {
	}
	if in.fetch != s {
		return
	}
	in.fetch = nil
	status := s.status.Load()
	e.put(s)
	delete(in.from.open, in.h.number)
	switch {
	case in.dead:
		e.discard(in)
	case status < 0:
		in.dead = true
		e.lost(in.from, "UCX: "+e.lib.words(status))
	default:
		in.whole = true
	}
}

// takeIn fetches long messages that nobody asked for yet to places of their own: who waits for them to be taken may
// be what a wait here is for.
func (e *Endpoint) takeIn() {
	if len(e.offered) == 0 {
		return
	}
	list := e.offered
	e.offered = nil
	for _, in := range list {
		if in.desc == 0 || in.dead {
			continue
		}
		in.parcel = e.buffer(int(in.h.length))[:in.h.length]
		e.fetchTo(in, in.parcel)
	}
}

// revoked is a message that its sender gave up.
func (e *Endpoint) revoked(in *inbound) {
	if in.dead || in.whole && in.fetch == nil {
		return
	}
	in.dead = true
	if q := e.portOf(&in.h); q != nil && q.begun && in.h.call == q.enc {
		if me := q.indexOf(in.from.rank); me >= 0 {
			q.failed(fmt.Errorf("rank %d gave up sending a message of %d bytes", me, in.h.length))
		}
	}
	e.discard(in)
}

// discard gives back what a message holds.
func (e *Endpoint) discard(in *inbound) {
	in.dead = true
	if in.fetch != nil {
		if !in.fetch.ended() {
			e.dying = append(e.dying, in)
			return
		}
		e.put(in.fetch)
		in.fetch = nil
	}
	delete(in.from.open, in.h.number)
	if desc := in.desc; desc != 0 {
		in.desc = 0
		drop := func() { purego.SyscallN(e.lib.release, e.worker, desc) }
		if e.inside {
			e.later(drop)
		} else {
			drop()
		}
	}
	e.reuse(in.parcel)
	in.parcel = nil
}

// sweep ends messages that nobody wants once they have been fetched.
func (e *Endpoint) sweep() {
	if len(e.dying) == 0 {
		return
	}
	list := e.dying
	e.dying = nil
	for _, in := range list {
		e.discard(in)
	}
}

// buffer is memory for a message, empty, with room for n bytes.
func (e *Endpoint) buffer(n int) []byte {
	for i := len(e.buffers) - 1; i >= 0; i-- {
		if b := e.buffers[i]; cap(b) >= n && (cap(b) <= 4*n || cap(b) <= 8192) {
			last := len(e.buffers) - 1
			e.buffers[i] = e.buffers[last]
			e.buffers = e.buffers[:last]
			return b[:0]
		}
	}
	return make([]byte, 0, max(n, 256))
}

// reuse gives such memory back.
func (e *Endpoint) reuse(b []byte) {
	if cap(b) >= 256 && cap(b) <= 8<<20 && len(e.buffers) < 16 {
		e.buffers = append(e.buffers, b[:0])
	}
}
