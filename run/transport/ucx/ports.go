//go:build linux && (amd64 || arm64) && !static

package ucx

import (
	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/match"
)

// ports are the communicators of a rank, and bring messages to them.
type ports struct {
	*waiter
	open match.Table[*port]
}

// port makes the port of a communicator.
func (ps *ports) port(g transport.Group) (transport.Port, error) {
	if err := match.Check(&g, ps.rank, ps.size); err != nil {
		return nil, err
	}
	ps.mu.Lock()
	defer ps.unlock()
	if ps.closed {
		return nil, transport.ErrClosed
	}
	k := match.Key{Epoch: g.Epoch, ID: g.ID}
	if _, err := ps.open.Begin(k); err != nil {
		return nil, err
	}
	p, fate := ps.open.Find(k)
	if fate != match.Here {
		p = ps.newPort(k)
	}
	if err := p.Attach(&g, ps.rank, ps.size); err != nil {
		return nil, err
	}
	p.ways = make([][]*way, len(g.Members))
	for _, x := range p.ahead {
		p.Saw(p.Of(x.from.rank), &x.h.call)
	}
	return p, nil
}

func (ps *ports) newPort(k match.Key) *port {
	p := &port{ps: ps, Port: match.Port{ID: k.ID, Epoch: k.Epoch}}
	ps.open.Put(k, p)
	return p
}

// portOf is the port of a message, made if need be; nil if its epoch or the port has ended.
func (ps *ports) portOf(h *header) *port {
	k := match.KeyOf(&h.call)
	p, fate := ps.open.Find(k)
	switch {
	case fate == match.Here:
		return p
	case fate == match.Old:
		ps.count.old++
		return nil
	case fate == match.Ended || ps.closed:
		ps.count.stale++
		return nil
	}
	return ps.newPort(k)
}

// dispatch brings a message to its port.
func (ps *ports) dispatch(in *inbound) {
	if in.desc != 0 {
		in.from.open[in.h.number] = in
	}
	p := ps.portOf(&in.h)
	if p == nil {
		ps.discard(in)
		return
	}
	h := &in.h
	me := p.Of(in.from.rank)
	if h.kind == kindCredit {
		if me >= 0 {
			p.Repaid(in.from.rank, int64(h.length))
		}
		return
	}
	in.form = transport.FormOf(int(h.channel), int(h.length))
	p.Saw(me, &h.call)
	switch place := p.Place(me, &h.call); {
	case place == match.Stranger, place == match.Ahead && h.kind == kindCall:
		ps.count.stale++
		ps.discard(in)
	case place == match.Ahead:
		if p.Begun {
			p.strays(me, &h.call)
		}
		p.ahead = append(p.ahead, in)
		ps.offer(in)
	default:
		p.match(in, me)
	}
}

// direct copies a short message to the memory of whoever asked for it; false if nobody did.
func (ps *ports) direct(in *inbound, data []byte) bool {
	if in.h.kind != kindData {
		return false
	}
	q, fate := ps.open.Find(match.KeyOf(&in.h.call))
	if fate != match.Here || !q.Begun || q.err != nil || in.h.call != q.Enc {
		return false
	}
	me := q.Of(in.from.rank)
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

// revoked is a message that its sender gave up.
func (ps *ports) revoked(in *inbound) {
	if in.dead || in.whole && in.fetch == nil {
		return
	}
	in.dead = true
	if q := ps.portOf(&in.h); q != nil && q.Begun && in.h.call == q.Enc {
		if me := q.Of(in.from.rank); me >= 0 {
			q.failed(gaveUp(me, in))
		}
	}
	ps.discard(in)
}
