// Package script runs any program over any transport by messages, action by action. What of the input is overwritten in place
// is saved first, so an operation that fails has not changed it (undo.go).
package script

import (
	"errors"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/step"
	"github.com/weft-fabric/weft/run/comm/internal/chunks"
)

// Script is what one rank does in a program: by channel, the actions that the interpreter hands out.
type Script struct {
	channels [][]action
	in, out  int  // chunks
	tmp      int  // chunks of scratch
	pieces   bool // in place, what an action overwrites may be saved just before it
	clean    bool // in place, it stores nothing to the input but what is there
	slots    int  // messages under way that the program may rely on
	widest   int  // chunks of its longest message
	waits    bool // a channel waits for another
}

// action is an action, with the receives that may be announced before its send.
type action struct {
	step.Action
	left      step.Operand // what it computes: see step.Effect
	right     step.Operand
	sendOn    int32   // channel of the port
	recvOn    int32   // channel of the port
	announce  []int32 // receives, by their index in the channel
	announced bool    // it is among those of an action before it
	first     bool    // in place, it overwrites input
}

// New writes down the actions of a rank, for a port whose channels hold depth messages, or any number if it is 0.
func New(p *sched.Program, rank, depth int) (*Script, error) {
	m := step.New(p, sched.Rank(rank))
	s := &Script{channels: make([][]action, p.Channels()), in: p.NumChunks(sched.In), out: p.NumChunks(sched.Out), tmp: p.NumChunks(sched.Tmp)}
	var buf []step.Action
	for !m.Done() {
		buf = m.Ready(buf[:0])
		if err := m.Err(); err != nil {
			return nil, err
		}
		if len(buf) == 0 && !m.Done() {
			return nil, errors.New(p.Name + ": channels wait for one another")
		}
		for i := range buf {
			a := action{Action: buf[i], sendOn: buf[i].Channel, recvOn: buf[i].Channel}
			a.left, a.right = step.Effect(a.Op)
			s.widest = max(s.widest, int(a.Count))
			s.waits = s.waits || a.Op == sched.Wait
			s.channels[a.Channel] = append(s.channels[a.Channel], a)
			m.Complete(a.Channel)
		}
	}
	s.slots, s.clean = p.Slots, clean(p, rank, s.channels)
	newAnnouncer(p, rank, s.channels).announceAll(s.channels)
	s.pieces = firsts(s.channels...)
	if depth > 0 {
		return s, s.spread(p, depth)
	}
	return s, nil
}

// Clean reports whether the script, in place, stores nothing to the input but what is there.
func (s *Script) Clean() bool { return s.clean }

// announcer finds out which receives may be announced before which sends, so that a transport that fills memory by itself can
// do so while the send waits. A receive may be announced once nothing that comes before it touches its memory; in and out are
// taken for the same memory, as they are in place.
type announcer struct {
	op     sched.Collective
	rank   int
	layout chunks.Layout
	owner  map[cell]int32 // the only channel that touches it, -1 if several do
}

// cell is a chunk of the buffers: of scratch, or of in (odd) and out (even).
type cell struct {
	tmp   bool
	chunk int64
}

// newAnnouncer finds out which channel owns each cell that the program touches. A cell that several channels touch has
// no owner (-1), and its receives are not announced early.
func newAnnouncer(p *sched.Program, rank int, channels [][]action) *announcer {
	n := &announcer{op: p.Op, rank: rank, layout: chunks.New(p, 1, 1, nil), owner: map[cell]int32{}}
	for _, list := range channels {
		for i := range list {
			n.touch(&list[i].Action, func(c cell) {
				if o, seen := n.owner[c]; seen && o != list[i].Channel {
					n.owner[c] = -1
				} else {
					n.owner[c] = list[i].Channel
				}
			})
		}
	}
	return n
}

// cells names the memory of chunks.
func (n *announcer) cells(c step.Chunks, do func(cell)) {
	for k := c.Index; k < c.Index+c.Count; k++ {
		switch c.Buf {
		case sched.Tmp:
			do(cell{true, k})
		case sched.Out:
			do(cell{false, int64(n.layout.Alias(n.op, n.rank, int(k)))<<1 | 1})
			do(cell{false, k << 1})
		case sched.In:
			do(cell{false, k<<1 | 1})
		}
	}
}

// touch names the memory that an action reads and stores to.
func (n *announcer) touch(a *step.Action, do func(cell)) {
	if a.Op == sched.Wait {
		return
	}
	if a.Op.Reads() {
		n.cells(a.Src, do)
	}
	if a.Op.Stores() {
		n.cells(a.Dst, do)
	}
}

// atMost is how many receives are announced at most before they are due.
const atMost = 4

func (n *announcer) announceAll(channels [][]action) {
	for _, list := range channels {
		done := 0 // receives before this one are announced or due
		for i := range list {
			if list[i].Op.Sends() {
				done = max(n.announce(list, i, done), i+1)
			}
		}
	}
}

// announce finds the receives that may be announced before the send at i. Those before done are announced already.
func (n *announcer) announce(list []action, i, done int) int {
	used := map[cell]bool{}
	use := func(c cell) { used[c] = true }
	n.touch(&list[i].Action, use)
	found := 0
	for j := i + 1; j < len(list) && found < atMost; j++ {
		a := &list[j].Action
		if a.Op == sched.Wait {
			break
		}
		if a.Op == sched.Recv || a.Op == sched.RecvSend {
			found++
			free := true
			n.cells(a.Dst, func(c cell) { free = free && !used[c] && n.owner[c] == a.Channel })
			if !free {
				break
			}
			if j >= done {
				list[i].announce = append(list[i].announce, int32(j))
				list[j].announced = true
				done = j + 1
			}
		} else if a.Op.Receives() {
			break // receives of one way are announced in order
		}
		n.touch(a, use)
	}
	return done
}

// clean reports whether a rank that runs a program in place, its in being part of its out or the other way round, stores
// nothing to in but what is there.
func clean(p *sched.Program, rank int, channels [][]action) bool {
	layout := chunks.New(p, 1, 1, nil)
	for _, list := range channels {
		for i := range list {
			a := &list[i]
			for k := int64(0); a.Op.Stores() && a.Dst.Buf == sched.Out && k < a.Dst.Count; k++ {
				at := layout.Alias(p.Op, rank, int(a.Dst.Index+k))
				if at >= 0 && (a.Op != sched.Copy || a.Src.Buf != sched.In || a.Src.Index+k != int64(at)) {
					return false
				}
			}
		}
	}
	return true
}
