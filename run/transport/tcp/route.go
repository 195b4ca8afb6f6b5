//go:build linux

package tcp

import (
	"slices"
	"sync/atomic"

	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/internal/frame"
	"github.com/weft-fabric/weft/run/transport/match"
	"github.com/weft-fabric/weft/run/transport/wire"
)

// Route finds out where the piece of a stream's header goes. It is false if
// the piece shall stay in the socket, as nobody waits for it and enough is
// waiting already.
func (a above) Route(s *wire.Stream, call *match.Call, eager bool) bool {
	p := a.e.portOf(s, call)
	if p == nil {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	h, pr := s.Head(), s.Link()
	x, why := p.find(pr.Rank, call, h)
	if x == nil {
		why.Add(1)
		return true
	}
	switch {
	case x.done.Load() || x.got+h.Length > x.total:
		a.e.stale.Add(1)
		return true
	case x.take != nil && !x.handing && x.handed == int(h.Offset) && h.Flags&frame.FlagSum == 0:
		// A piece with a checksum is not handed out before that was looked at.
		s.Land(x, wire.Take, nil)
		x.handing = true
	case x.asked && x.whole && s.Holds():
		x.here = s.Here()
		switch {
		case x.here >= x.total:
			s.Land(x, wire.Whole, x.dst)
			x.sure = true
		case x.patient:
			return false
		default:
			s.Land(x, wire.Part, nil)
		}
	case x.asked && x.whole:
		s.Land(x, wire.Part, nil)
	case x.asked && x.take == nil && !slices.Contains(x.direct, int(h.Offset)):
		s.Land(x, wire.Direct, x.dst[h.Offset:][:h.Length])
		if h.Piece > 0 {
			x.direct = append(x.direct, int(h.Offset))
		}
	default:
		if !eager && !x.asked && !pr.Awaited() && !a.e.wire.Stuck() && pr.Buffered.Load()+int64(h.Length) > earlyBytes {
			return false
		}
		s.Land(x, wire.Part, nil)
	}
	x.busy++
	return true
}

// find is the slot of a message, or the counter of what it is instead; the
// caller holds mu.
func (p *port) find(from int, call *[transport.CallSize]byte, h *frame.Header) (*slot, *atomic.Uint64) {
	e := p.e
	channel, form := transport.Way(int(h.Channel)), transport.FormOf(int(h.Channel), int(h.Total))
	me := p.Of(from)
	if h.Piece == 0 {
		p.Saw(me, call)
	} else {
		p.SawLater(me, call)
	}
	switch p.Place(me, call) {
	case match.Stranger:
		return nil, &e.stale
	case match.Ahead:
		return p.findAhead(me, from, channel, call, h, form)
	case match.Late:
		// A piece that comes again, as its stream broke, may have come in the meantime.
		if h.Kind != frame.Data || h.Piece == 0 || !e.wire.Link(from).Have(h.Piece) {
			p.strays(me, call, h.Piece)
		}
		return nil, &e.stale
	case match.Other:
		p.disagree(me, call, h.Kind != frame.Call)
		return nil, &e.mismatch
	}
	if p.err.Load() != nil {
		return nil, &e.stale
	}
	w := p.way(me, channel)
	x := p.at(w, from, channel, h.Msgno)
	if x == nil {
		return nil, &e.stale
	}
	if !x.is(form) {
		p.failed(p.Unlike(me, int(x.channel), form, x.form))
		return nil, &e.mismatch
	}
	return x, nil
}

// findAhead is find for a message of a call that has not begun.
func (p *port) findAhead(me, from, channel int, call *match.Call, h *frame.Header, form transport.Form) (*slot, *atomic.Uint64) {
	stale := &p.e.stale
	if h.Kind == frame.Call {
		return nil, stale
	}
	if p.Begun && me >= 0 {
		p.strays(me, call, h.Piece)
	}
	k := aheadKey{from, uint32(channel), h.Msgno, match.Seq(call)}
	x := p.early[k]
	if x == nil {
		x = p.slot()
		x.from, x.channel, x.msgno, x.call, x.piece = from, uint32(channel), h.Msgno, *call, h.Piece
		if p.early == nil {
			p.early = map[aheadKey]*slot{}
		}
		p.early[k] = x
		p.keep(x)
	}
	if !x.is(form) || x.call != *call {
		return nil, stale
	}
	return x, nil
}
