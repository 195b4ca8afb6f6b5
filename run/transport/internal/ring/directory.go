package ring

import (
	"github.com/weft-fabric/weft/run/transport"
)

// A port's memory can be given back once nobody looks at it: it is no longer in
// the directory, and each member has never looked, is finished, or is dead. A
// port stays in the directory while messages of it wait for members that may
// still come for them. So closed ports go through a list of retired ones, which is
// looked through whenever a port is made or closed. A rank that is killed in the
// microsecond in which it looks something up in the directory remains a visitor
// there, and what is closed from that bucket later stays until the endpoint ends.

type retiredPort struct {
	block   []byte // of the port
	head    *portHead
	members []int
	ways    [][]byte
	stages  [][]byte
	out     bool // of the directory
}

func (h *Hub) bucketOf(rank int, id, epoch uint32) *bucket {
	x := (uint64(id)<<32 | uint64(epoch)) * 0x9e3779b97f4a7c15
	return &h.heads[rank].directory[x>>32%buckets]
}

// enlist puts an own port into the directory. The hub is locked.
func (h *Hub) enlist(block []byte, p *portHead) {
	at, _ := h.s.Registered(block)
	b := h.bucketOf(h.rank, p.id, p.epoch)
	p.next.Store(b.first.Load())
	b.first.Store(uint64(at))
}

// strike takes an own port out of the directory. The hub is locked.
func (h *Hub) strike(block []byte, p *portHead) {
	at, _ := h.s.Registered(block)
	link := &h.bucketOf(h.rank, p.id, p.epoch).first
	for l := link.Load(); l != 0; l = link.Load() {
		if l == uint64(at) {
			link.Store(p.next.Load())
			return
		}
		link = &h.portAt(h.rank, l).next
	}
}

// portAt is the port at a handle that was found in a directory.
func (h *Hub) portAt(rank int, at uint64) *portHead {
	b, err := h.s.At(rank, transport.Handle(at), portSize(0))
	if err != nil {
		return nil
	}
	p := as[portHead](b)
	// The words behind it must be there, too, before anybody looks at them.
	b, err = h.s.At(rank, transport.Handle(at), portSize(int(p.members)))
	if err != nil {
		return nil
	}
	return as[portHead](b)
}

// visit finds the port of a rank, as the member me of its communicator, and
// keeps it from being given back until leave; nil if it is not there yet.
func (h *Hub) visit(rank int, id, epoch uint32, members, me int, state uint32) *portHead {
	b := h.bucketOf(rank, id, epoch)
	b.visitors.Add(1)
	defer b.visitors.Add(-1)
	for at := b.first.Load(); at != 0; {
		p := h.portAt(rank, at)
		if p == nil {
			return nil
		}
		if p.id == id && p.epoch == epoch && int(p.members) == members {
			p.words()[me].state.Store(state)
			return p
		}
		at = p.next.Load()
	}
	return nil
}

// retire gives the memory of a closed port back, as soon as that is possible. The
// hub is locked.
func (h *Hub) retire(g retiredPort) error {
	h.retired = append(h.retired, g)
	return h.sweep()
}

// sweep gives back what it can. The hub is locked.
func (h *Hub) sweep() error {
	kept := h.retired[:0]
	var first error
	for _, g := range h.retired {
		if !g.out && g.delivered(h) {
			h.strike(g.block, g.head)
			g.out = true
		}
		if !g.out || h.bucketOf(h.rank, g.head.id, g.head.epoch).visitors.Load() != 0 || g.visited(h) {
			kept = append(kept, g)
			continue
		}
		for _, lists := range [][][]byte{g.stages, g.ways, {g.block}} {
			for _, b := range lists {
				if err := h.s.Free(b); err != nil && first == nil {
					first = err
				}
			}
		}
	}
	clear(h.retired[len(kept):])
	h.retired = kept
	return first
}

// delivered reports whether nobody will come for a message any more.
func (g *retiredPort) delivered(h *Hub) bool {
	words := g.head.words()
	for m, r := range g.members {
		if words[m].state.Load() == finished || r == h.rank || h.s.Alive(r) != nil {
			continue
		}
		for at := words[m].first.Load(); at != 0; {
			w := h.wayAt(h.rank, at)
			if w.holds(w.taken.Load()) {
				return false
			}
			at = w.next
		}
	}
	return true
}

// visited reports whether a member still holds pointers into the port.
func (g *retiredPort) visited(h *Hub) bool {
	words := g.head.words()
	for m, r := range g.members {
		if words[m].state.Load() == visiting && r != h.rank && h.s.Alive(r) == nil {
			return true
		}
	}
	return false
}
