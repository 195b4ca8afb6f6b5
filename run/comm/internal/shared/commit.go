package shared

import (
	"github.com/weft-fabric/weft/run/comm/internal/blame"
	"github.com/weft-fabric/weft/run/comm/internal/flat"
	"github.com/weft-fabric/weft/run/comm/internal/plan"
	"github.com/weft-fabric/weft/run/reduce"
	"github.com/weft-fabric/weft/run/transport"
)

// commit leaves the own sums where the others see them, and once all are there copies everybody's to the own output. So a rank
// whose buffers the others do not see has an unchanged input until the operation can no longer fail.
func (x *run) commit() error {
	if x.all.Slots > 0 {
		if err := x.stageInstead(); err != nil {
			return err
		}
	}
	total := 0
	for i := range x.own.Sums {
		total += x.length(&x.own.Sums[i])
	}
	sums, h, err := x.staging.result(total)
	if err != nil {
		return err
	}
	for i, rest := 0, sums; i < len(x.own.Sums); i++ {
		k := &x.own.Sums[i]
		n := x.length(k)
		var also []byte
		if !x.o.Overlap { // else the input stays what it is until all sums are there
			also = x.kept(k)
		}
		if err := x.sum(k, 0, rest[:n], also); err != nil {
			return err
		}
		rest = rest[n:]
	}
	if err := x.meet(h); err != nil {
		return err
	}
	for i, rest := 0, sums; i < len(x.own.Sums) && x.o.Overlap; i++ {
		n := x.length(&x.own.Sums[i])
		reduce.Copy(x.kept(&x.own.Sums[i]), rest[:n])
		rest = rest[n:]
	}
	return x.fetchSums()
}

// kept is where a sum of this rank goes in its own output. A sum that goes to others goes to the rank that computes it as well.
func (x *run) kept(k *flat.Kernel) []byte {
	for _, d := range k.Dsts {
		if int(d.Rank) == x.g.Rank {
			lo, hi := x.o.OutSpan(d)
			return x.o.Out[lo:hi]
		}
	}
	return nil
}

// fetchSums copies the sums of the others to the own output.
func (x *run) fetchSums() error {
	for _, f := range x.own.Fetches {
		lo, hi := x.o.OutSpan(flat.Chunk{Rank: int32(x.g.Rank), Index: f.Chunk})
		if hi == lo {
			continue
		}
		at := 0
		for i := range f.Sum {
			at += x.length(&x.o.Form.Rank(int(f.Rank)).Sums[i])
		}
		b, err := x.g.At(int(f.Rank), x.g.Boards[f.Rank].Mid().Where(), at+hi-lo)
		if err != nil {
			return err
		}
		reduce.Copy(x.o.Out[lo:hi], b[at:])
	}
	return nil
}

// meet says that the own sums are there, at a handle, and waits for those of the others.
func (x *run) meet(h transport.Handle) error {
	if err := x.stands(); err != nil { // the others may use what is told from here on
		return err
	}
	g, seq := x.g, x.o.Call.Seq
	g.Wait.Phase = blame.Sums
	g.Mine().Mid().SetWhere(h)
	g.Raise(g.Mine().Mid().Flag(), seq)
	for k := 1; k < g.Size(); k++ {
		i := (g.Rank + k) % g.Size()
		if err := g.Await(i, g.Boards[i].Mid().Flag(), seq); err != nil {
			return err
		}
	}
	g.Waiter.Settle()
	return nil
}

// stageInstead stages the input of a rank that would have given it by pieces to a rank that gives its own otherwise, for example
// having memory that the other sees.
func (x *run) stageInstead() error {
	g, o := x.g, x.o
	g.Wait.Phase, g.Wait.Flag = blame.Pieces, stepFlag(o.Call.Seq, allSteps)
	if x.mine.Input() == plan.InSlots {
		b, h, err := x.staging.input(o.Call.Seq, len(o.In), true)
		if err != nil {
			return err
		}
		reduce.Copy(b, o.In)
		g.Mine().Steps().SetWhere(h)
		g.Raise(g.Mine().Steps().Flag(), g.Wait.Flag)
		g.Waiter.Settle()
		return nil
	}
	other := 1 - g.Rank
	line := g.Boards[other].Steps()
	if err := g.Await(other, line.Flag(), g.Wait.Flag); err != nil {
		return err
	}
	var err error
	x.views[other].in, err = g.At(other, line.Where(), len(o.In))
	return err
}
