// Package match decides which call a message belongs to, and how much may be under way. Transports ask it; it knows no sockets,
// clocks or goroutines, and takes no locks.
//
//	Table   which port a message is for, of this epoch or of one that has ended
//	Port    who takes part, which call is on, what a message is to it, and who is in another call
//	Credit  what was sent to each rank and not yet taken
//
// A message carries its call, 48 bytes. It is of the call that is on, or ahead of it, which is usual: a rank that need not wait may be
// dozens of calls further. Or it is late, which means that its sender strayed, or of another call under the same number, which
// ends the call on both sides.
package match

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/weft-fabric/weft/run/transport"
)

// Call is a call as it is on the wire.
type Call = [transport.CallSize]byte

// Seq is a call's number.
func Seq(call *Call) uint64 { return binary.LittleEndian.Uint64(call[8:]) }

// Place is what a message is to the call that is on.
type Place uint8

// The places.
const (
	Current  Place = iota
	Ahead          // of a call that has not begun here
	Late           // of a call that is over: its sender is in another call than this rank
	Other          // of another call under the same number: the ranks disagree
	Stranger       // of a rank that is no member
)

// Port is a communicator's members and the call that is on. It may exist before its owner attaches it, to hold what members sent that
// were quicker. Its owner's lock guards it.
type Port struct {
	ID, Epoch uint32

	Members []int // endpoint ranks by rank
	Index   []int // ranks by endpoint rank, -1 for those that are no members
	Rank    int
	Words   transport.Words

	Attached, Begun bool
	Call            transport.Call // that is on
	Enc             Call           // the same on the wire

	Credit

	last   []Call // that ranks were seen in
	seen   []bool
	strays map[int]Stray
}

// Stray is what a rank sent first of another call.
type Stray struct {
	Call  Call
	Piece uint64 // its number, if it has one
}

// Check says what is wrong with the members of a communicator.
func Check(g *transport.Group, own, size int) error {
	if !slices.Contains(g.Members, own) {
		return fmt.Errorf("rank %d is not one of the members %v of communicator %d", own, g.Members, g.ID)
	}
	for i, m := range g.Members {
		if m < 0 || m >= size || slices.Index(g.Members, m) != i {
			return fmt.Errorf("members %v of communicator %d: %d is not a rank of %d, or named twice", g.Members, g.ID, m, size)
		}
	}
	return nil
}

// Attach gives a port its members, which were checked.
func (p *Port) Attach(g *transport.Group, own, size int) error {
	if p.Attached {
		return fmt.Errorf("communicator %d of epoch %d has a port already", g.ID, g.Epoch)
	}
	p.Attached, p.Rank, p.Members, p.Words = true, slices.Index(g.Members, own), slices.Clone(g.Members), g.Words
	p.Index = make([]int, size)
	for i := range p.Index {
		p.Index[i] = -1
	}
	for i, m := range g.Members {
		p.Index[m] = i
	}
	p.last, p.seen = make([]Call, len(g.Members)), make([]bool, len(g.Members))
	p.Credit.lent, p.Credit.owed = make([]int64, size), make([]int64, size)
	return nil
}

// Begin starts a call. Nobody has strayed from it yet.
func (p *Port) Begin(c transport.Call) {
	p.Call, p.Begun, p.Deep = c, true, false
	p.Call.Epoch, p.Call.Comm = p.Epoch, p.ID
	p.Call.Put(p.Enc[:])
	clear(p.strays)
}

// Member checks a rank and a channel.
func (p *Port) Member(rank, channel int) error {
	if rank < 0 || rank >= len(p.Members) {
		return fmt.Errorf("rank %d of a communicator of %d", rank, len(p.Members))
	}
	if !transport.ValidChannel(channel) {
		return transport.ErrChannel(channel)
	}
	return nil
}

// Of is the rank of a rank of the endpoint; -1 if it is no member, as far as is known.
func (p *Port) Of(endpoint int) int {
	if !p.Attached {
		return -1
	}
	return p.Index[endpoint]
}

// Place is what a message from a rank, as Of gives it, is to the call that is on.
func (p *Port) Place(me int, call *Call) Place {
	switch seq := Seq(call); {
	case p.Attached && me < 0:
		return Stranger
	case !p.Begun || seq > p.Call.Seq:
		return Ahead
	case me < 0:
		return Stranger
	case seq < p.Call.Seq:
		return Late
	case *call != p.Enc:
		return Other
	}
	return Current
}

// Saw notes what a rank was last seen doing.
func (p *Port) Saw(me int, call *Call) {
	if me >= 0 {
		p.last[me], p.seen[me] = *call, true
	}
}

// SawLater is Saw of a message that may have been overtaken.
func (p *Port) SawLater(me int, call *Call) {
	if me >= 0 && Seq(call) >= Seq(&p.last[me]) {
		p.Saw(me, call)
	}
}

// Seen is what a rank was last seen doing.
func (p *Port) Seen(rank int) (c transport.Call, ok bool) {
	if rank < 0 || rank >= len(p.seen) || !p.seen[rank] {
		return c, false
	}
	c.Get(p.last[rank][:])
	return c, true
}

// Strays notes that a rank is in another call than this: it sends nothing more in this one. It reports whether that is new.
func (p *Port) Strays(me int, s Stray) bool {
	if _, known := p.strays[me]; known || me < 0 {
		return false
	}
	if p.strays == nil {
		p.strays = map[int]Stray{}
	}
	p.strays[me] = s
	return true
}

// Strayed is the other call that a rank is in.
func (p *Port) Strayed(me int) (Stray, bool) {
	s, ok := p.strays[me]
	return s, ok
}

// AnyStray reports whether any rank is in another call.
func (p *Port) AnyStray() bool { return len(p.strays) > 0 }

// Differs is the failure of a call in which a rank does another one.
func (p *Port) Differs(me int, theirs *Call) *transport.Mismatch {
	m := &transport.Mismatch{Rank: p.Rank, Peer: me, Mine: p.Call, Words: p.Words}
	m.Theirs.Get(theirs[:])
	return m
}

// Unlike is the failure of a call in which a message was sent in another form than it is received.
func (p *Port) Unlike(me, channel int, sent, want transport.Form) *transport.Mismatch {
	return &transport.Mismatch{Rank: p.Rank, Peer: me, Mine: p.Call, Theirs: p.Call,
		Channel: transport.Way(channel), Sent: sent, Want: want, Words: p.Words}
}

// Limit is what a communicator may have under way to a peer that the peer has not taken; its senders wait then. So a rank that is far
// ahead of another neither fills the other's memory nor holds up what other communicators send over the same connections.
// Receivers tell in steps of a quarter, one small message for 4 MiB.
const Limit = 16 << 20

// Credit is what was sent to each rank of the endpoint and not yet taken, and what was taken and not yet told.
type Credit struct {
	Most int64 // under way to a rank; Limit if zero
	Deep bool  // the call may have any number of bytes under way

	lent, owed []int64
}

// overhead is what goes with a message in its receiver's memory.
const overhead = 128

// Cost is what a message counts.
func Cost(n int) int64 { return int64(n) + overhead }

func (c *Credit) most() int64 {
	if c.Most > 0 {
		return c.Most
	}
	return Limit
}

// Full reports whether a peer has to take something before more is sent to it.
func (c *Credit) Full(to int) bool { return c.lent[to] >= c.most() && !c.Deep }

// Lend counts a message that is sent.
func (c *Credit) Lend(to, n int) { c.lent[to] += Cost(n) }

// Owe counts a message that was taken, and gives what its sender is to be told now; 0 for nothing.
func (c *Credit) Owe(from, n int) (tell uint64) {
	if c.owed[from] += Cost(n); c.owed[from] < c.most()/4 {
		return 0
	}
	tell, c.owed[from] = uint64(c.owed[from]), 0
	return tell
}

// Repaid takes what a peer told, and reports whether it may be sent more.
func (c *Credit) Repaid(from int, n int64) bool {
	c.lent[from] -= n
	return c.lent[from] < c.most()
}

// Bound is what a peer may leave waiting; of what it took, it may not have told a quarter.
func (c *Credit) Bound() int { return int(c.most() - c.most()/4) }
