//go:build linux && (amd64 || arm64) && !static

package ucx

import (
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/weft-fabric/weft/run/transport"
)

// links are the connections with the other ranks: who is there, who is gone, and what is sent to them.
type links struct {
	*worker
	rank, size int
	world      uint64
	self       *peer       // of this rank
	peers      []*peer     // nil for this rank
	parted     func(*peer) // ends what waits for a rank that is gone, outside of UCX
	count      struct{ sent, received, bytesOut, bytesIn, refused, old, stale, mismatch uint64 }
}

// peer is another rank.
type peer struct {
	rank     int
	pid      int
	ep       uintptr
	gone     atomic.Pointer[transport.Gone]
	told     uint64 // number of the last message to it
	heard    uint64 // number up to which all have come from it
	early    map[uint64]*inbound
	open     map[uint64]*inbound // long messages that are still with it
	hello    bool
	heardBye bool
	cut      bool
	ended    bool // its process has

	ops       []*op // that have not begun
	far       map[uint64]*remote
	unflushed bool
	lanes     []lane
}

// post sends a message; the caller holds the lock, outside of UCX.
func (l *links) post(p *peer, h header, b []byte) *slot {
	s := l.slot(b)
	s.to = p
	p.told++
	h.world, h.number, h.rank = l.world, p.told, uint32(l.rank)
	h.put(&s.header)
	if h.kind != kindData {
		s.param.mask |= attrFlags
		s.param.flags = amEager
	}
	l.count.sent++
	l.count.bytesOut += uint64(len(b))
	data := address(b)
	if len(b) == 0 {
		data = 0
	}
	s.begin(l.lib.send, p.ep, 0, ptrOf(&s.header), headerSize, data, uintptr(len(b)), s.params())
	return s
}

// sending reports whether UCX is at work for a rank that is still there.
func (l *links) sending() bool {
	return slices.ContainsFunc(l.flying, func(s *slot) bool { return s.to == nil || !s.to.ended })
}

// control sends what has no user.
func (l *links) control(p *peer, h header, b []byte) {
	if p == nil || p.ep == 0 || p.cut || p.gone.Load() != nil && h.kind != kindByeAck {
		return
	}
	l.forget(l.post(p, h, b))
}

// lost notes that a rank can no longer be reached.
func (l *links) lost(p *peer, why string) {
	if p == nil || !p.gone.CompareAndSwap(nil, &transport.Gone{Rank: p.rank, Why: why}) {
		return
	}
	l.parts(p)
}

// left notes that a rank has closed its endpoint.
func (l *links) left(p *peer) {
	if p.gone.CompareAndSwap(nil, &transport.Gone{Rank: p.rank, Why: "it closed its endpoint", Left: true}) {
		l.parts(p)
	}
}

// parts ends what waits for a rank that is gone.
func (l *links) parts(p *peer) {
	l.moved = true
	l.later(func() { l.parted(p) })
}

// cut ends the connection with a peer, and everything that is under way with it.
func (l *links) cut(p *peer) {
	if p == nil || p.ep == 0 || p.cut {
		return
	}
	p.cut = true
	for _, f := range p.far {
		if f.rkey != 0 && f.using == 0 {
			l.lib.call("ucp_rkey_destroy", f.rkey)
			f.rkey, f.gone = 0, true
		}
	}
	s := l.slot(nil)
	s.param.mask |= attrFlags
	s.param.flags = 1 // by force
	s.begin(l.lib.at["ucp_ep_close_nbx"], p.ep, s.params())
	l.forget(s)
}

// alive is nil, or why a rank can no longer be reached.
func (l *links) alive(rank int) error {
	if rank < 0 || rank >= l.size {
		return fmt.Errorf("rank %d of %d", rank, l.size)
	}
	if p := l.peers[rank]; p != nil {
		if g := p.gone.Load(); g != nil {
			return g
		}
	}
	return nil
}

// counters are what happened so far.
func (l *links) counters() []transport.Counter {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := &l.count
	return []transport.Counter{{Name: "messages_sent", Value: c.sent}, {Name: "messages_received", Value: c.received},
		{Name: "bytes_sent", Value: c.bytesOut},
		{Name: "bytes_received", Value: c.bytesIn}, {Name: "messages_refused", Value: c.refused}, {Name: "messages_of_old_epochs", Value: c.old},
		{Name: "messages_dropped", Value: c.stale}, {Name: "messages_of_other_calls", Value: c.mismatch}}
}

// lanesTo asks UCX which ways it took to a peer. It prints them; there is no call before 1.15 that tells.
func (l *links) lanesTo(p *peer) []lane {
	l.mu.Lock()
	defer l.mu.Unlock()
	return parseLanes(l.lib.printed("ucp_ep_print_info", p.ep))
}
