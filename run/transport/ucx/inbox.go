//go:build linux && (amd64 || arm64) && !static

package ucx

import (
	"github.com/ebitengine/purego"

	"github.com/weft-fabric/weft/run/transport"
)

// inbox is the messages that came and have not found their end: long ones that are still with their senders, those that
// are fetched in vain, and memory for those that come before they are asked for.
type inbox struct {
	*links
	offered []*inbound
	dying   []*inbound
	buffers [][]byte
}

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

// offer notes a long message that nobody asked for yet.
func (x *inbox) offer(in *inbound) {
	if in.desc != 0 {
		x.offered = append(x.offered, in)
	}
}

// fetchTo has a long message fetched to b.
func (x *inbox) fetchTo(in *inbound, b []byte) {
	desc := in.desc
	in.desc = 0
	s := x.slot(b)
	s.param.callback = x.lib.received
	in.fetch = s
	start := func() { s.begin(x.lib.recv, x.handle, desc, address(b), uintptr(len(b)), s.params()) }
	if x.inside {
		x.later(start)
	} else {
		start()
	}
}

// fetched looks whether the fetching of a message has ended, and ends it; the caller holds the lock, outside of UCX.
func (x *inbox) fetched(in *inbound) {
	s := in.fetch
	if s == nil || !s.ended() {
		return
	}
	// A sender that gave the message up said so before it changed its memory: hear that first.
	for i := 0; i < 1000 && x.progress(1); i++ {
	}
	if in.fetch != s {
		return
	}
	in.fetch = nil
	status := s.status.Load()
	x.put(s)
	delete(in.from.open, in.h.number)
	switch {
	case in.dead:
		x.discard(in)
	case status < 0:
		in.dead = true
		x.lost(in.from, "UCX: "+x.lib.words(status))
	default:
		in.whole = true
	}
}

// takeIn fetches long messages that nobody asked for yet to places of their own: who waits for them to be taken may
// be what a wait here is for.
func (x *inbox) takeIn() {
	if len(x.offered) == 0 {
		return
	}
	list := x.offered
	x.offered = nil
	for _, in := range list {
		if in.desc == 0 || in.dead {
			continue
		}
		in.parcel = x.buffer(int(in.h.length))[:in.h.length]
		x.fetchTo(in, in.parcel)
	}
}

// discard gives back what a message holds.
func (x *inbox) discard(in *inbound) {
	in.dead = true
	if in.fetch != nil {
		if !in.fetch.ended() {
			x.dying = append(x.dying, in)
			return
		}
		x.put(in.fetch)
		in.fetch = nil
	}
	delete(in.from.open, in.h.number)
	if desc := in.desc; desc != 0 {
		in.desc = 0
		drop := func() { purego.SyscallN(x.lib.release, x.handle, desc) }
		if x.inside {
			x.later(drop)
		} else {
			drop()
		}
	}
	x.reuse(in.parcel)
	in.parcel = nil
}

// sweep ends messages that nobody wants once they have been fetched.
func (x *inbox) sweep() {
	if len(x.dying) == 0 {
		return
	}
	list := x.dying
	x.dying = nil
	for _, in := range list {
		x.discard(in)
	}
}

// buffer is memory for a message, empty, with room for n bytes.
func (x *inbox) buffer(n int) []byte {
	for i := len(x.buffers) - 1; i >= 0; i-- {
		if b := x.buffers[i]; cap(b) >= n && (cap(b) <= 4*n || cap(b) <= 8192) {
			last := len(x.buffers) - 1
			x.buffers[i] = x.buffers[last]
			x.buffers = x.buffers[:last]
			return b[:0]
		}
	}
	return make([]byte, 0, max(n, 256))
}

// reuse gives such memory back.
func (x *inbox) reuse(b []byte) {
	if cap(b) >= 256 && cap(b) <= 8<<20 && len(x.buffers) < 16 {
		x.buffers = append(x.buffers, b[:0])
	}
}
