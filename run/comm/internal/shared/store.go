package shared

import (
	"errors"

	"github.com/weft-fabric/weft/run/comm/internal/blame"
	"github.com/weft-fabric/weft/run/comm/internal/flat"
	"github.com/weft-fabric/weft/run/reduce"
)

// ErrInherit ends a wait for a rank that died between entry and exit: its heir does what it left undone.
var ErrInherit = errors.New("a rank died in the operation")

// storeAll stores the own sums to all outputs. In place, sums overwrite inputs, so they keep a log: the heir of a rank that
// died goes on at the very instruction.
func (x *run) storeAll() error {
	if err := x.g.Stands(x.o.Call.Seq); err != nil { // see allLeft
		return err
	}
	logged := x.all.Overlaid || x.o.Reduce == reduce.Avg
	x.store(x.g.Rank, logged)
	return x.leave(x.own.Readers, func(dead int) { x.store(dead, logged) })
}

// store stores the sums of a rank, this one or one that died, to all outputs. An heir does all of it again: with a log, what is
// done is skipped; without, inputs and outputs are apart and the same is stored once more.
func (x *run) store(rank int, logged bool) {
	sums, done := x.o.Form.Rank(rank).Sums, 0
	for i := range sums {
		done += x.storeSum(&sums[i], 0, x.length(&sums[i]), rank, logged, done)
	}
}

// Sums of more than a cache holds are computed from the front and from the back in turn. What was touched last is still in the
// cache then, by the operation before or by whoever filled the buffer from its front on. Without it a reduce of 2 MiB on
// registered memory takes 1.4 times as long between two ranks (2026-11-16). What is stored past the caches has no use for it.
const (
	turnFrom = 2 << 20 // bytes of all destinations
	turnUpTo = 8 << 20 // bytes of one
	turnPart = 64 << 10
)

// storeSum stores a part of a sum to all its destinations, and gives its length. done is what the rank's log has of the
// operation before it.
func (x *run) storeSum(k *flat.Kernel, first, hi, rank int, logged bool, done int) int {
	part, all := x.length(k), hi-first
	if x.o.Call.Seq%2 == 1 && part*len(k.Dsts) >= turnFrom && part < turnUpTo {
		part = turnPart
	}
	for hi > first {
		lo := max((hi-1)/part*part, first)
		x.storePart(k, lo, hi, rank, logged, done)
		done += hi - lo
		hi = lo
	}
	return all
}

// storePart stores some bytes of a sum to all its destinations.
func (x *run) storePart(k *flat.Kernel, lo, hi, rank int, logged bool, done int) {
	srcs := x.sources(k)
	for i, s := range srcs {
		srcs[i] = s[lo:hi]
	}
	x.dsts = x.dsts[:0]
	for _, d := range k.Dsts {
		at, _ := x.o.OutSpan(d)
		x.dsts = append(x.dsts, x.views[d.Rank].out[at+lo:at+hi])
	}
	if logged {
		reduce.ApplyAllLogged(x.o.Type, x.o.Reduce, x.dsts, srcs, k.Order, x.journal(rank), done)
	} else {
		reduce.ApplyAll(x.o.Type, x.o.Reduce, x.dsts, srcs, k.Order)
	}
}

// journal is a rank's.
func (x *run) journal(rank int) []byte {
	if rank == x.g.Rank {
		return x.staging.log.b
	}
	b, err := x.g.At(rank, x.g.Boards[rank].Mid().Journal(), reduce.LogSize)
	if err != nil {
		panic(err) // the rank wrote it down itself, before it entered
	}
	return b
}

// leave says that this rank is done with everybody's memory and waits for the readers of its own. What a rank that died left
// undone is done by its heir, with inherit, if that is not nil.
func (x *run) leave(readers []int32, inherit func(dead int)) error {
	return x.leaveTo(readers, inherit, inherit != nil)
}

// leaveTo is leave; heirs says that what a dead rank left undone is missed by others, too, so that its heir alone does it.
func (x *run) leaveTo(readers []int32, inherit func(dead int), heirs bool) error {
	g, seq := x.g, x.o.Call.Seq
	g.Wait.Phase, g.Wait.Heirs, g.Wait.Readers = blame.Exit, heirs, readers
	g.Waiter.Settle()
	g.Raise(g.Mine().Leave(), seq)
	for _, i := range readers {
		for {
			err := g.Await(int(i), g.Boards[i].Leave(), seq)
			if err == nil {
				break
			}
			if !errors.Is(err, ErrInherit) {
				return err
			}
			x.inherit(inherit)
		}
	}
	return x.stands()
}

// inherit does what ranks that died left undone, and says that they left.
func (x *run) inherit(do func(dead int)) {
	g, seq := x.g, x.o.Call.Seq
	for j, b := range g.Boards {
		if j == g.Rank || g.Alive(j) == nil || b.Leave().Load() >= seq {
			continue
		}
		if do != nil {
			do(j)
		}
		b.Leave().Post(seq)
		b.Leave().Wake() // its sleepers are counted apart
	}
}
