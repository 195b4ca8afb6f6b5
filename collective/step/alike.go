package step

import "github.com/weft-fabric/weft/collective/sched"

// Alike gives for every channel the first one that does the same at the same position: the same operations of the same
// size in the same order, with peers at the same positions. Which chunks they move is not asked. Channels of one group
// differ only where the text uses the channel's number.
func (k *Code) Alike() []int {
	first, differs := make([]int, 0, k.prog.Channels()), make([]bool, k.prog.Channels())
	for _, g := range k.prog.Groups {
		start := len(first)
		for range g.Count {
			first = append(first, start)
		}
	}
	k.each(func(c int, e *sched.Expr, _ bool, _ []*sched.Loop) bool {
		if e.Uses(sched.ChannelSlot) {
			differs[first[c]] = true
		}
		return true
	})
	for c := range first {
		if differs[first[c]] {
			first[c] = c
		}
	}
	return first
}

// Position is where a rank stands on a channel: itself unless the channel has an order.
func (k *Code) Position(c int, r sched.Rank) int64 { return k.pos(c, r) }

// Drop ends a channel before it began.
func (m *Machine) Drop(c int32) {
	if ch := &m.chans[c]; !ch.ended {
		ch.ended = true
		m.left--
	}
}
