package xfer

import (
	"cmp"
	"fmt"
	"slices"
	"sync/atomic"
)

// Reclaim is a fence for readers and writers that come late as well as for those that are there:
//
//	epoch of the region   3               4                                       description made now: epoch 4
//	Reclaim(off, n)    ---+- enter: 4 ----+- leases that stand are awaited --+-- return, the owner fills --+- Publish ---
//	bytes [off, off+n)    |  read and written under descriptions of epoch 3  |        nobody               |  epoch 4 alone
//
// From its entry on nobody gets a lease on the bytes, whatever its description says, until Publish; afterwards only with a
// description that was made since. A list keeps the epoch of the description that it was prepared from.

// epochs is when the bytes of a region were last reclaimed. It is kept under the region's lock.
type epochs struct {
	now  uint64 // of a description that is made now
	list []span // in order, apart from one another; what no span covers was never reclaimed
}

// span is a run of bytes that were reclaimed.
type span struct {
	off, end int64
	epoch    uint64
	out      bool // and not published since
}

// withdraw begins an epoch of n bytes from off on.
func (e *epochs) withdraw(off, n int64) {
	e.now++
	e.put(span{off, off + n, e.now, true})
}

// publish lets descriptions of now reach n bytes from off on.
func (e *epochs) publish(off, n int64) {
	for _, s := range slices.Clone(e.over(off, n)) {
		s.off, s.end, s.out = max(s.off, off), min(s.end, off+n), false
		e.put(s)
	}
}

// over gives the spans that have bytes of a range.
func (e *epochs) over(off, n int64) []span {
	from, _ := slices.BinarySearchFunc(e.list, off, func(s span, off int64) int {
		if s.end <= off {
			return -1
		}
		return 1
	})
	to := from
	for to < len(e.list) && e.list[to].off < off+n {
		to++
	}
	return e.list[from:to]
}

// put enters a span in the place of what is there, and joins it with neighbours that are alike.
func (e *epochs) put(s span) {
	if s.off >= s.end {
		return
	}
	from, _ := slices.BinarySearchFunc(e.list, s.off, func(x span, off int64) int {
		if x.end < off { // one that ends here may be alike
			return -1
		}
		return 1
	})
	var in []span
	to := from
	for ; to < len(e.list) && e.list[to].off <= s.end; to++ {
		x := e.list[to]
		if x.epoch == s.epoch && x.out == s.out {
			s.off, s.end = min(s.off, x.off), max(s.end, x.end)
			continue
		}
		if x.off < s.off {
			in = append(in, span{x.off, min(x.end, s.off), x.epoch, x.out})
		}
		if x.end > s.end {
			in = append(in, span{max(x.off, s.end), x.end, x.epoch, x.out})
		}
	}
	at, _ := slices.BinarySearchFunc(in, s.off, func(x span, off int64) int { return cmp.Compare(x.off, off) })
	e.list = slices.Replace(e.list, from, to, slices.Insert(in, at, s)...)
}

// check says why n bytes from off on cannot be reached under a description of an epoch.
func (e *epochs) check(off, n int64, epoch uint64) error {
	for _, s := range e.over(off, n) {
		switch {
		case s.out:
			return fmt.Errorf("%w: %w: bytes %d to %d were reclaimed and are not published again", ErrLease, ErrWithdrawn, s.off, s.end)
		case s.epoch > epoch:
			return fmt.Errorf("%w: %w: bytes %d to %d were reclaimed in epoch %d, the description is of epoch %d; open a new one",
				ErrLease, ErrWithdrawn, s.off, s.end, s.epoch, epoch)
		}
	}
	return nil
}

// reach checks descriptors of the region against the epoch of a description. The caller holds mu.
func (r *Region) reach(descs []Desc, epoch uint64) error {
	for _, d := range descs {
		if d.Region == r.id {
			if err := r.epochs.check(d.Off, d.Len, epoch); err != nil {
				return fmt.Errorf("region %q: %w", r.name, err)
			}
		}
	}
	return nil
}

// Publish lets peers reach n bytes from off on again, which were reclaimed and are as they shall be now. Descriptions that were
// made before the bytes were reclaimed, and lists that were prepared from them, stay refused: describe the region anew.
func (r *Region) Publish(off, n int64) error {
	if err := bounds(Desc{r.id, off, n}, r.Size()); err != nil {
		return fmt.Errorf("publish region %q: %w", r.name, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.epochs.publish(off, n)
	return nil
}

// afterReads keeps the loads before it from being made after those behind it, on every processor: a lease is looked at after the
// last byte was read.
func afterReads() {
	var word atomic.Uint32
	word.Add(1)
}
