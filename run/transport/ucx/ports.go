//go:build linux && (amd64 || arm64) && !static

package ucx

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/weft-fabric/weft/run/transport"
)

// ports are the communicators of a rank, and bring messages to them.
type ports struct {
	*waiter
	open   map[portKey]*port
	epochs map[uint32]uint32
	gone   []portKey // that have ended, the last of them
	over   map[portKey]bool
}

type portKey struct{ epoch, id uint32 }

// port makes the port of a communicator.
func (ps *ports) port(g transport.Group) (transport.Port, error) {
	rank := slices.Index(g.Members, ps.rank)
	if rank < 0 {
		return nil, fmt.Errorf("rank %d is not one of the members %v of communicator %d", ps.rank, g.Members, g.ID)
	}
	for i, m := range g.Members {
		if m < 0 || m >= ps.size || slices.Index(g.Members, m) != i {
			return nil, fmt.Errorf("members %v of communicator %d: %d is not a rank of %d, or named twice", g.Members, g.ID, m, ps.size)
		}
	}
	ps.mu.Lock()
	defer ps.unlock()
	if ps.closed {
		return nil, transport.ErrClosed
	}
	if newest := ps.epochs[g.ID]; g.Epoch < newest {
		return nil, fmt.Errorf("communicator %d is in epoch %d already, not %d", g.ID, newest, g.Epoch)
	}
	ps.epochs[g.ID] = g.Epoch
	k := portKey{g.Epoch, g.ID}
	p := ps.open[k]
	if p == nil {
		p = &port{ps: ps, id: g.ID, epoch: g.Epoch}
		ps.open[k] = p
	}
	if p.attached {
		return nil, fmt.Errorf("communicator %d of epoch %d has a port already", g.ID, g.Epoch)
	}
	ps.reopen(k)
	p.attached, p.rank, p.members, p.words = true, rank, slices.Clone(g.Members), g.Words
	p.index = make([]int, ps.size)
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
func (ps *ports) portOf(h *header) *port {
	le := binary.LittleEndian
	k := portKey{le.Uint32(h.call[0:]), le.Uint32(h.call[4:])}
	if p := ps.open[k]; p != nil {
		return p
	}
	if k.epoch < ps.epochs[k.id] {
		ps.count.old++
		return nil
	}
	if ps.isEnded(k) || ps.closed {
		ps.count.stale++
		return nil
	}
	p := &port{ps: ps, id: k.id, epoch: k.epoch}
	ps.open[k] = p
	return p
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
			ps.count.stale++
			ps.discard(in)
			return
		}
		if p.begun {
			p.strays(me, &h.call)
		}
		p.ahead = append(p.ahead, in)
		ps.offer(in)
		return
	}
	if me < 0 {
		ps.count.stale++
		ps.discard(in)
		return
	}
	p.match(in, me, seq)
}

// direct copies a short message to the memory of whoever asked for it; false if nobody did.
func (ps *ports) direct(in *inbound, data []byte) bool {
	if in.h.kind != kindData {
		return false
	}
	le := binary.LittleEndian
	q := ps.open[portKey{le.Uint32(in.h.call[0:]), le.Uint32(in.h.call[4:])}]
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

// revoked is a message that its sender gave up.
func (ps *ports) revoked(in *inbound) {
	if in.dead || in.whole && in.fetch == nil {
		return
	}
	in.dead = true
	if q := ps.portOf(&in.h); q != nil && q.begun && in.h.call == q.enc {
		if me := q.indexOf(in.from.rank); me >= 0 {
			q.failed(gaveUp(me, in))
		}
	}
	ps.discard(in)
}

// end notes a port that has ended, so that what comes late for it is dropped. The last few thousand are known.
func (ps *ports) end(k portKey) {
	const most = 4096
	if len(ps.gone) >= most {
		delete(ps.over, ps.gone[0])
		ps.gone = ps.gone[1:]
	}
	ps.gone = append(ps.gone, k)
	ps.over[k] = true
}

func (ps *ports) isEnded(k portKey) bool { return ps.over[k] }

func (ps *ports) reopen(k portKey) { delete(ps.over, k) }
