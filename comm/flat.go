package comm

import (
	"fmt"
	"slices"

	"github.com/weft-fabric/weft/sched"
	"github.com/weft-fabric/weft/sched/step"
)

// A program is flat if every sum in it is computed by one rank out of inputs
// alone. Where ranks see one another's memory such a program needs no messages:
// the rank that sums reads the inputs where they lie, each once, and stores the
// sum to all outputs that the program sends it to; what is only moved is read
// by its receiver. The interpreter says which, by running the program with
// names of chunks in place of bytes.
type flat struct {
	ranks   []flatRank
	inPlace bool // no input that is overwritten in place is read by anybody but who overwrites it
	pushes  bool // some sums go to outputs of other ranks
	rooted  bool // all outputs are one rank's
}

// flatRank is what one rank does.
type flatRank struct {
	sums    []kernel
	moves   []kernel // one source, one destination: in of some rank to the rank's own out
	first   int      // of the moves: the first of the own in, for the time in which those of others come
	fetches []fetch  // sums of others that end in the rank's out
	exports []int32  // chunks of its in that others read, in order
	reads   []int32  // ranks that it must hear of before it works: those whose in it reads, or all
	readers []int32  // ranks that it must hear of before its in may change
	oneWay  bool     // it has none of the first or none of the second
	helps   []int32  // the root and, in a reduce, the others: whom it must hear of before it works for the root
}

// kernel is one pass over chunks of one size: dsts = srcs[0] + srcs[1] + ...
type kernel struct {
	srcs []place // of in
	dsts []place // of out
}

// from is the source that a rank gives.
func (k *kernel) from(rank int32) place {
	for _, s := range k.srcs {
		if s.rank == rank {
			return s
		}
	}
	panic("no source of the rank in a sum of all")
}

// place is a chunk of a rank's in or out.
type place struct{ rank, chunk int32 }

// fetch is a sum that another rank computes for this one.
type fetch struct {
	rank, sum int32 // whose, and which of its sums
	chunk     int32 // of own out
}

// worth is what a chunk is worth while a program runs on names.
type worth struct {
	srcs []place
	at   int32 // the rank that computed it, -1 for an input as it is
	dsts []place
}

// names is the memory of a program that runs on names of chunks.
type names struct {
	p   *sched.Program
	mem [][4][]*worth
}

// Load gives what chunks are worth.
func (n *names) Load(r sched.Rank, a *step.Action, c step.Chunks) ([]*worth, error) {
	list := n.mem[r][c.Buf][c.Index : c.Index+c.Count]
	if slices.Contains(list, nil) {
		return nil, fmt.Errorf("%s: rank %d (%s) reads %s before anything is written there", n.p.Name, r, a, c)
	}
	return slices.Clone(list), nil
}

// Reduce appends inputs to sums.
func (n *names) Reduce(r sched.Rank, _ *step.Action, left, right []*worth) ([]*worth, error) {
	sums := make([]*worth, len(left))
	for i, x := range left {
		if right[i].at != -1 || x.at != -1 && x.at != int32(r) {
			return nil, fmt.Errorf("%s: rank %d adds to a sum of another rank", n.p.Name, r)
		}
		sums[i] = &worth{srcs: append(slices.Clone(x.srcs), right[i].srcs[0]), at: int32(r)}
	}
	return sums, nil
}

// Store puts what they are worth into chunks.
func (n *names) Store(r sched.Rank, _ *step.Action, c step.Chunks, v []*worth) error {
	copy(n.mem[r][c.Buf][c.Index:], v)
	return nil
}

// newFlat finds the flat form of a program; the error says why there is none.
func newFlat(p *sched.Program) (*flat, error) {
	if p.Switches > 0 {
		return nil, fmt.Errorf("%s: switches that compute have no memory here", p.Name)
	}
	w := &names{p: p, mem: make([][4][]*worth, p.Ranks)}
	for r := range w.mem {
		for _, b := range []sched.Buffer{sched.In, sched.Out, sched.Tmp} {
			w.mem[r][b] = make([]*worth, p.NumChunks(b))
		}
		for c := range w.mem[r][sched.In] {
			w.mem[r][sched.In][c] = &worth{srcs: []place{{int32(r), int32(c)}}, at: -1}
		}
	}
	err := step.Run(p, func(r sched.Rank, a *step.Action, message []*worth) ([]*worth, error) {
		if a.Op.Receives() && int64(len(message)) != a.Count {
			return nil, fmt.Errorf("%s: rank %d expects %d chunks and gets %d", p.Name, r, a.Count, len(message))
		}
		return step.Do(w, r, a, message)
	})
	if err != nil {
		return nil, err
	}
	mem := w.mem
	f := &flat{ranks: make([]flatRank, p.Ranks)}
	if p.Op == sched.Barrier {
		f.meet(nil)
		return f, nil
	}
	var sums []*worth
	for r := range mem {
		for c, w := range mem[r][sched.Out] {
			if w == nil || p.Op == sched.Reduce && r != p.Root || p.Op == sched.Gather && r != p.Root {
				continue
			}
			here := place{int32(r), int32(c)}
			if w.at == -1 {
				f.ranks[r].moves = append(f.ranks[r].moves, kernel{srcs: w.srcs, dsts: []place{here}})
				continue
			}
			if w.dsts == nil {
				sums = append(sums, w)
			}
			w.dsts = append(w.dsts, here)
		}
	}
	for _, w := range sums {
		at := &f.ranks[w.at]
		if !slices.ContainsFunc(w.dsts, func(d place) bool { return d.rank == w.at }) {
			return nil, fmt.Errorf("%s: rank %d computes a sum that it does not keep", p.Name, w.at)
		}
		for _, d := range w.dsts {
			if d.rank != w.at {
				f.pushes = true
				f.ranks[d.rank].fetches = append(f.ranks[d.rank].fetches, fetch{rank: w.at, sum: int32(len(at.sums)), chunk: d.chunk})
			}
		}
		at.sums = append(at.sums, kernel{srcs: w.srcs, dsts: w.dsts})
	}
	f.finish(p)
	return f, nil
}

// finish works out who exports what and whether the program may run in place.
func (f *flat) finish(p *sched.Program) {
	type use struct {
		reader int32
		kernel *kernel
	}
	readers := map[place][]use{}
	kernels := func(do func(rank int32, k *kernel)) {
		for r := range f.ranks {
			for i := range f.ranks[r].sums {
				do(int32(r), &f.ranks[r].sums[i])
			}
			for i := range f.ranks[r].moves {
				do(int32(r), &f.ranks[r].moves[i])
			}
		}
	}
	kernels(func(rank int32, k *kernel) {
		for _, s := range k.srcs {
			readers[s] = append(readers[s], use{rank, k})
		}
	})
	needs := map[[2]int32]bool{}
	kernels(func(rank int32, k *kernel) {
		for _, s := range k.srcs {
			needs[[2]int32{rank, s.rank}] = true
		}
	})
	if f.pushes {
		needs = nil
	}
	f.meet(needs)
	f.helps(p)
	for r := range f.ranks {
		at := &f.ranks[r]
		at.first = max(slices.IndexFunc(at.moves, func(k kernel) bool { return k.srcs[0].rank == int32(r) }), 0)
	}
	for r := range f.ranks {
		for c := range p.NumChunks(sched.In) {
			for _, u := range readers[place{int32(r), int32(c)}] {
				if u.reader != int32(r) {
					f.ranks[r].exports = append(f.ranks[r].exports, int32(c))
					break
				}
			}
		}
	}
	s := newShape(p, 1, 1, nil)
	f.inPlace = true
	kernels(func(rank int32, k *kernel) {
		for _, d := range k.dsts {
			a := s.alias(p.Op, int(d.rank), int(d.chunk))
			if a < 0 || len(k.srcs) == 1 && k.srcs[0] == (place{d.rank, int32(a)}) { // nothing to do in place
				continue
			}
			for _, u := range readers[place{d.rank, int32(a)}] {
				if u.kernel != k {
					f.inPlace = false
				}
			}
		}
	})
}

// helps sets whom a rank must hear of before it works for the root, if there is such.
func (f *flat) helps(p *sched.Program) {
	f.rooted = p.Op == sched.Gather || p.Op == sched.Reduce
	for r := range f.ranks {
		at := &f.ranks[r]
		if f.rooted && r != p.Root {
			at.helps = append(at.helps, int32(p.Root))
		}
		for k := 1; k < p.Ranks && p.Op == sched.Reduce; k++ {
			if i := (r + k) % p.Ranks; i != p.Root {
				at.helps = append(at.helps, int32(i))
			}
		}
	}
}

// meet sets who must hear of whom: a rank of another whose in it needs, or
// everybody of everybody if needs is nil. Each begins with the rank after it.
func (f *flat) meet(needs map[[2]int32]bool) {
	n := int32(len(f.ranks))
	for r := range n {
		at := &f.ranks[r]
		for k := int32(1); k < n; k++ {
			i := (r + k) % n
			if needs == nil || needs[[2]int32{r, i}] {
				at.reads = append(at.reads, i)
			}
			if needs == nil || needs[[2]int32{i, r}] {
				at.readers = append(at.readers, i)
			}
		}
		at.oneWay = len(at.reads) == 0 || len(at.readers) == 0
	}
}
