package shared

import (
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/run/comm/internal/board"
	"github.com/weft-fabric/weft/run/comm/internal/flat"
	"github.com/weft-fabric/weft/run/comm/internal/plan"
	"github.com/weft-fabric/weft/run/reduce"
	"github.com/weft-fabric/weft/run/transport"
)

// view is a member in the operation under way: its input, or a copy of it, and its output if it is seen.
type view struct {
	in, out []byte
	entry   plan.Entry
	addr    uintptr          // of an input that must be pulled
	base    uint64           // of a growing stage: pieces that were staged before it
	block   transport.Handle // of an input that its owner moves to this rank, the root
}

// look finds another rank's memory as its entry says.
func (x *run) look(i int, e plan.Entry, line board.Line) error {
	v, o, n := &x.views[i], x.o, x.o.InBytes(i, x.g.Size())
	v.entry, v.addr, v.block = e, 0, 0
	at := transport.Handle(line.In())
	var err error
	switch e.Input() {
	case plan.InEntry:
		v.in = line.Data()[:n]
	case plan.InSmall:
		v.in = x.g.Boards[i].Small(o.Call.Seq)[:n]
	case plan.Pulled:
		v.addr = uintptr(at)
	case plan.InSlots:
		v.in, err = x.g.At(i, at, slots*pieceSize)
	case plan.Lent:
		if o.Op == sched.Gather && x.mine&plan.OutSeen != 0 {
			v.block = at // its owner moves it, and may be done with it already
			break
		}
		v.in, err = x.g.At(i, at, n)
	case plan.Staged:
		v.base = line.Out()
		v.in, err = x.g.At(i, at, n)
	}
	if err == nil && e&plan.OutSeen != 0 {
		v.out, err = x.g.At(i, transport.Handle(line.Out()), o.OutBytes(i, x.g.Size()))
	}
	return err
}

// source is a chunk of a member's input.
func (x *run) source(c flat.Chunk) []byte {
	lo, hi := x.o.InSpan(c)
	return x.views[c.Rank].in[lo:hi]
}

// sources are the chunks that a kernel reads.
func (x *run) sources(k *flat.Kernel) [][]byte {
	x.srcs = x.srcs[:0]
	for _, c := range k.Srcs {
		x.srcs = append(x.srcs, x.source(c))
	}
	return x.srcs
}

// length is that of a kernel's chunks.
func (x *run) length(k *flat.Kernel) int {
	lo, hi := x.o.InSpan(k.Srcs[0])
	return hi - lo
}

// apply computes a sum in an order into dst, and into also if it is not nil.
func (r *Runner) apply(t reduce.Type, op reduce.Op, srcs [][]byte, order *reduce.Order, dst, also []byte) {
	r.dsts = append(r.dsts[:0], dst)
	if also != nil && op != reduce.Avg {
		r.dsts = append(r.dsts, also)
	}
	reduce.ApplyAll(t, op, r.dsts, srcs, order)
	reduce.Finish(t, op, dst, r.g.Size())
	if also != nil && op == reduce.Avg {
		copy(also, dst)
	}
}
