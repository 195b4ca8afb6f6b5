package comm

import (
	"unsafe"

	"github.com/weft-fabric/weft/reduce"
	"github.com/weft-fabric/weft/sched"
	"github.com/weft-fabric/weft/transport"
)

// kept is what an operation in place has overwritten of its input, which is to be
// whole if the operation fails.
type kept struct {
	in, copy []byte
	spans    []span // of in that are in copy
}

type span struct{ lo, hi int }

// keptNear is up to which size copies of the input may stay in the caches. A
// copy of 256 KiB takes 9 us so and 18 past them, one of 16 MiB 2.2 ms and 1.4.
const keptNear = 512 << 10

// piecesFrom is from which size on input is kept piece by piece.
const piecesFrom = 64 << 10

// save copies input that is about to be overwritten for the first time.
func (k *kept) save(b []byte) {
	lo, hi := k.span(b)
	if len(k.in) <= keptNear {
		reduce.Copy(k.copy[lo:hi], b)
	} else {
		reduce.CopyAway(k.copy[lo:hi], b)
	}
	k.note(lo, hi)
}

// sum overwrites input with a sum, and saves it.
func (k *kept) sum(t reduce.Type, op reduce.Op, dst, acc, piece []byte) {
	if len(k.in) <= keptNear || unsafe.SliceData(dst) != unsafe.SliceData(acc) {
		k.save(dst)
		reduce.Apply(t, op, dst, acc, piece)
		return
	}
	lo, hi := k.span(dst)
	reduce.ApplyKept(t, op, dst, piece, k.copy[lo:hi])
	k.note(lo, hi)
}

// span is where a part of the input lies in it.
func (k *kept) span(b []byte) (lo, hi int) {
	lo = int(uintptr(unsafe.Pointer(unsafe.SliceData(b))) - uintptr(unsafe.Pointer(unsafe.SliceData(k.in))))
	return lo, lo + len(b)
}

// note writes down that a part of the input is saved.
func (k *kept) note(lo, hi int) {
	if n := len(k.spans); n > 0 && k.spans[n-1].hi == lo {
		k.spans[n-1].hi = hi
	} else {
		k.spans = append(k.spans, span{lo, hi})
	}
}

// restore makes the input what it was.
func (k *kept) restore() {
	for _, s := range k.spans {
		copy(k.in[s.lo:s.hi], k.copy[s.lo:s.hi])
	}
}

// firsts finds the actions that overwrite input in place, where in and out are the
// same memory: those that store a chunk for the first time. It is false if one does
// so to a part of its chunks only.
func firsts(list []action) bool {
	stored := map[int64]bool{}
	for i := range list {
		a := &list[i]
		if !a.Op.Stores() || a.Dst.Buf != sched.Out || a.Op == sched.Copy && a.Src.Buf == sched.In && a.Src.Index == a.Dst.Index {
			continue
		}
		fresh := int64(0)
		for k := a.Dst.Index; k < a.Dst.Index+a.Dst.Count; k++ {
			if !stored[k] {
				stored[k] = true
				fresh++
			}
		}
		if a.first = fresh > 0; a.first && fresh < a.Dst.Count {
			return false
		}
	}
	return true
}

// ends is the place of the last action, if that is a receive of a message that is there
// as a whole before any of it is stored: in place, what it overwrites need not be kept
// then, as nothing can fail any more. A message that is longer than usual is sent for
// that in any case, as ranks do not know of others whether they are in place. Else it
// is -1.
func (s *space) ends(p transport.Port, list []action) int {
	if !s.pieces && s.o.overlap || !s.last || len(s.o.in) < piecesFrom || len(list) == 0 {
		return -1
	}
	a := &list[len(list)-1]
	least := piecesFrom
	if !s.pieces {
		least = s.o.ready.message + 1
	}
	if a.Op != sched.Recv || a.Dst.Buf != sched.Out {
		return -1
	}
	h := p.Holder()
	if n := len(s.at(a.Dst)); h == nil || n < least || !h.Holds(int(a.From), n) {
		return -1
	}
	return len(list) - 1
}

// receiveWhole is the last receive of an operation, after what is pending was sent.
func (c *Comm) receiveWhole(o *op, sp *space, out *pending, a *action, at int, dst []byte) error {
	h, mine := c.port.Holder(), c.boards[c.rank]
	if out.b != nil {
		to, ch := int(out.a.To), int(out.a.Channel)
		mine.waitsFor(to, ch, out.at)
		err := h.SendWhole(to, ch, out.b)
		out.b = nil
		o.step(out.a, ticks())
		if err != nil {
			return err
		}
	}
	mine.waitsFor(int(a.From), int(a.Channel), at)
	if !sp.pieces { // nothing is overwritten
		return c.port.Recv(int(a.From), int(a.Channel), dst)
	}
	return h.RecvWhole(int(a.From), int(a.Channel), dst)
}
