package comm

import (
	"fmt"

	"github.com/weft-fabric/weft/comm/calls"
)

// Ranks wait only for those whose inputs they read: the root of a broadcast for
// nobody, the others for the root; the root of a reduction for all, the others for
// nobody. So a rank may be operations ahead of another, and may not write again
// what the other has yet to read. The rules:
//
//  1. What a rank reads of another's board or stages in operation v it has read
//     before it enters v+1.
//  2. A rank writes the entry and the call of operation v once everybody entered
//     v-63, so that by rule 1 nobody reads those of v-64, which lie in the same
//     place, any more. The same goes for a small input, with 16 in place of 64, and
//     for a stage, with the number of operations since it was last used.
//  3. Memory that is read where it lies (lent) is waited for at the end of its
//     operation, by its owner, for those who read it (quit).
//
// Nobody waits in a circle: the rank that entered the fewest operations is waited
// for by others, but everybody entered what it needs. Who has to wait by rule 2
// waits until the others are half of the way ahead of that, so that a look at
// their entries, 0.1 us each, is needed once in many operations only.
//
// Calls are compared by who reads an entry, and by who looks at one by rule 2.
// Every signature has that of the operation before mixed in, so ranks that differ
// in a call that neither of them compared differ in all that follow, and the first
// entry that one reads of the other tells. Then the calls on both boards tell in
// which operation it was.

// clear returns once everybody entered operation w, which this rank did before.
func (c *Comm) clear(o *op, w uint64) error {
	mine := c.boards[c.rank].entry(w).sig().Load()
	for k := 1; k < len(c.members); k++ {
		i := (c.rank + k) % len(c.members)
		line := c.boards[i].entry(w)
		if err := line.flag().WaitAs(w, c.boards[i].sleepers(), c.waiter, c.stopFn); err != nil {
			return err
		}
		// The signature is that of w unless the rank is about to write its entry of w+64.
		if line.sig().Load() != mine && c.boards[i].entry(w+maxAhead-1).flag().Load() < w+maxAhead-1 {
			return c.mismatch(o, i)
		}
	}
	c.low = w
	return nil
}

// makeRoom returns once the entry of an operation may be written.
func (c *Comm) makeRoom(o *op) error {
	if seq := o.call.Seq; seq-c.low >= maxAhead {
		return c.clear(o, seq-maxAhead/2)
	}
	return nil
}

// makeSmall returns once the small input of an operation may be written.
func (c *Comm) makeSmall(o *op) error {
	if seq := o.call.Seq; seq-c.low >= smallAhead {
		return c.clear(o, seq-smallAhead/2)
	}
	return nil
}

// makeStage returns once the stage of an operation may be written.
func (c *Comm) makeStage(o *op) error {
	last := &c.stagedAt[o.call.Seq&1]
	if *last >= c.low && *last > 0 {
		if err := c.clear(o, *last+1); err != nil {
			return err
		}
	}
	*last = o.call.Seq
	return nil
}

// mismatch names this rank and another that entered a different call, now or
// before.
func (c *Comm) mismatch(o *op, i int) error {
	m := calls.Mismatch(c.rank, i, &o.call, &o.call)
	m.Note = fmt.Sprintf("they differ in an operation more than %d before it", maxAhead-1)
	for seq := o.call.Seq; seq > 0 && o.call.Seq-seq < maxAhead; seq-- {
		mine := o.call
		if seq != o.call.Seq {
			var known bool
			if mine, _, known = c.boards[c.rank].callOf(seq); !known {
				break
			}
		}
		if theirs, _, known := c.boards[i].callOf(seq); known && signature(&theirs) != signature(&mine) {
			m = calls.Mismatch(c.rank, i, &mine, &theirs)
		}
	}
	return m
}
