package ring

import "github.com/weft-fabric/weft/run/transport"

// scan looks at the oldest message of every way to this rank that has not been
// taken. One of the current number that belongs to another call is a mismatch,
// whomever this rank is waiting for; one of an epoch that has ended is not. It looks at
// tags and epochs only, which are atomic, so it may run beside the lanes that receive them.
func (p *Port) scan() error {
	mine := p.tag & 0xffff
	for m := range p.members {
		b := p.peer(m)
		if b == nil || m == p.me {
			continue
		}
		for at := b.words()[p.me].first.Load(); at != 0; {
			w := p.h.wayAt(p.members[m], at)
			if w == nil {
				break
			}
			if k := w.taken.Load(); w.holds(k) {
				s := &w.slots[k%depth]
				tag, epoch := s.tag.Load(), uint32(s.epoch.Load())
				if tag&0xffff == mine && tag != p.tag && epoch >= p.call.Epoch && w.taken.Load() == k {
					return &transport.Mismatch{Rank: p.me, Peer: m, Mine: p.call, Theirs: p.theirs(m, tag, epoch), Words: p.words}
				}
			}
			at = w.next
		}
	}
	return nil
}

// Disagrees is scan for a caller that waits elsewhere.
func (p *Port) Disagrees() error {
	p.looking.Add(1)
	defer p.looking.Add(-1)
	if p.closed.Load() || p.h.closed.Load() {
		return transport.ErrClosed
	}
	return p.scan()
}

// theirs is the call of a message from a member: one of those that it keeps in
// its part of the port, or if it has gone on too far what the tag tells.
func (p *Port) theirs(member int, tag uint64, epoch uint32) transport.Call {
	if b := p.peer(member); b != nil {
		for i := range b.calls {
			if c, t, ok := b.calls[i].get(); ok && t == tag {
				return c
			}
		}
	}
	// The lower bits of the number tell which it is of those nearest to the own.
	seq := p.call.Seq + uint64(int64(int16(uint16(tag)-uint16(p.call.Seq))))
	return transport.Call{Epoch: epoch, Comm: p.id, Seq: seq}
}
