// Package flat finds the flat form of a program, which needs no messages where memory is shared.
package flat

import (
	"fmt"
	"slices"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/step"
	"github.com/weft-fabric/weft/run/comm/internal/chunks"
	"github.com/weft-fabric/weft/run/reduce"
)

// A program is flat if every sum in it is computed by one rank out of inputs alone. Where ranks see one another's memory such a
// program needs no messages: the rank that sums reads the inputs where they lie, each once, and stores the sum to all outputs
// that the program sends it to; what is only moved is read by its receiver. The interpreter says which, by running the program
// with names of chunks in place of bytes.

// Form is the flat form of a program.
type Form struct {
	InPlace bool // no input that is overwritten in place is read by another kernel
	Pushes  bool // some sums go to outputs of other ranks
	Rooted  bool // all outputs are one rank's

	parts  []*Rank // by rank; of a form from a table those that were read
	table  []int32
	orders []*reduce.Order // of the table
}

// Size is the number of ranks.
func (f *Form) Size() int { return len(f.parts) }

// Rank is what a rank does.
func (f *Form) Rank(rank int) *Rank {
	if f.parts[rank] == nil {
		part, err := f.read(rank)
		if err != nil {
			panic(err) // the rank that wrote the table runs the same build, and nobody else writes there
		}
		f.parts[rank] = part
	}
	return f.parts[rank]
}

// Rank is what one rank does.
type Rank struct {
	Sums    []Kernel
	Moves   []Kernel // one source, one destination: in of some rank to the rank's own out
	First   int      // of the moves: the first of the own in, done while the entries of others come
	Fetches []Fetch  // sums of others that end in the rank's out
	Exports []int32  // chunks of its in that others read, in order
	Reads   []int32  // ranks whose entry it must read before it works: those whose in it reads, or all
	Readers []int32  // ranks that it must wait for before its in may change
	OneWay  bool     // it has no Reads or no Readers
	Helps   []int32  // the root and, in a reduce, the others: ranks whose entry it must read before it works for the root
}

// Kernel is one pass over chunks of one size: dsts = the sum of srcs.
type Kernel struct {
	Srcs  []Chunk       // of in
	Dsts  []Chunk       // of out
	Order *reduce.Order // in which the program sums
}

// Chunk is a chunk of a rank's in or out.
type Chunk struct{ Rank, Index int32 }

// Fetch is a sum that another rank computes for this one.
type Fetch struct {
	Rank, Sum int32 // the rank that computes it, and which of its sums
	Chunk     int32 // of own out
}

// worth is what a chunk is worth while a program runs on names: an input, or the sum of two.
type worth struct {
	a, b *worth // nil for an input as it is
	src  Chunk  // the input, or the first of a sum
	n    int    // inputs in all
	at   int32  // the rank that computed it, -1 for an input as it is
	dsts []Chunk
}

// before reports whether the operand x of a sum is told before y: the one with more inputs, or with the lower rank's. Sums are the
// same bits either way, and those that go on from one input to the next, or that are canonical, are told as such.
func before(x, y *worth) bool {
	if x.n != y.n {
		return x.n > y.n
	}
	return x.src.Rank < y.src.Rank
}

// tell appends the inputs of a sum and how they are combined, see reduce.NewOrder.
func (w *worth) tell(srcs []Chunk, merges []uint8) ([]Chunk, []uint8) {
	if w.a == nil {
		return append(srcs, w.src), append(merges, 0)
	}
	srcs, merges = w.a.tell(srcs, merges)
	srcs, merges = w.b.tell(srcs, merges)
	merges[len(merges)-1]++
	return srcs, merges
}

// orders are those of a program's sums, each made once.
type orders map[string]*reduce.Order

// kernel is the pass that computes a sum, or moves an input.
func (o orders) kernel(w *worth, dsts []Chunk) (Kernel, error) {
	srcs, merges := w.tell(nil, nil)
	order, known := o[string(merges)]
	if !known {
		var err error
		if order, err = reduce.NewOrder(merges); err != nil {
			return Kernel{}, err
		}
		o[string(merges)] = order
	}
	return Kernel{Srcs: srcs, Dsts: dsts, Order: order}, nil
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

// Reduce makes sums of what a rank has: inputs, and its own sums.
func (n *names) Reduce(r sched.Rank, _ *step.Action, left, right []*worth) ([]*worth, error) {
	sums := make([]*worth, len(left))
	for i, x := range left {
		y := right[i]
		if x.at != -1 && x.at != int32(r) || y.at != -1 && y.at != int32(r) {
			return nil, fmt.Errorf("%s: rank %d adds to a sum of another rank", n.p.Name, r)
		}
		if before(y, x) {
			x, y = y, x
		}
		sums[i] = &worth{a: x, b: y, src: x.src, n: x.n + y.n, at: int32(r)}
	}
	return sums, nil
}

// Store puts what they are worth into chunks.
func (n *names) Store(r sched.Rank, _ *step.Action, c step.Chunks, v []*worth) error {
	copy(n.mem[r][c.Buf][c.Index:], v)
	return nil
}

func newForm(ranks int) *Form {
	f, all := &Form{parts: make([]*Rank, ranks)}, make([]Rank, ranks)
	for r := range all {
		f.parts[r] = &all[r]
	}
	return f
}

// New finds the flat form of a program; the error says why there is none.
func New(p *sched.Program) (*Form, error) {
	if p.Switches > 0 {
		return nil, fmt.Errorf("%s: switches that compute have no memory here", p.Name)
	}
	w := &names{p: p, mem: make([][4][]*worth, p.Ranks)}
	for r := range w.mem {
		for _, b := range []sched.Buffer{sched.In, sched.Out, sched.Tmp} {
			w.mem[r][b] = make([]*worth, p.NumChunks(b))
		}
		for c := range w.mem[r][sched.In] {
			w.mem[r][sched.In][c] = &worth{src: Chunk{int32(r), int32(c)}, n: 1, at: -1}
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
	f := newForm(p.Ranks)
	if p.Op == sched.Barrier {
		f.meet(nil)
		return f, nil
	}
	var sums []*worth
	made := orders{}
	for r := range mem {
		for c, w := range mem[r][sched.Out] {
			if w == nil || p.Op == sched.Reduce && r != p.Root || p.Op == sched.Gather && r != p.Root {
				continue
			}
			here := Chunk{int32(r), int32(c)}
			if w.at == -1 {
				f.parts[r].Moves = append(f.parts[r].Moves, Kernel{Srcs: []Chunk{w.src}, Dsts: []Chunk{here}})
				continue
			}
			if w.dsts == nil {
				sums = append(sums, w)
			}
			w.dsts = append(w.dsts, here)
		}
	}
	for _, w := range sums {
		at := f.parts[w.at]
		if !slices.ContainsFunc(w.dsts, func(d Chunk) bool { return d.Rank == w.at }) {
			return nil, fmt.Errorf("%s: rank %d computes a sum that it does not keep", p.Name, w.at)
		}
		for _, d := range w.dsts {
			if d.Rank != w.at {
				f.Pushes = true
				f.parts[d.Rank].Fetches = append(f.parts[d.Rank].Fetches, Fetch{Rank: w.at, Sum: int32(len(at.Sums)), Chunk: d.Index})
			}
		}
		k, err := made.kernel(w, w.dsts)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.Name, err)
		}
		at.Sums = append(at.Sums, k)
	}
	f.finish(p)
	return f, nil
}

// finish works out which ranks export which chunks, and whether the program may run in place.
func (f *Form) finish(p *sched.Program) {
	type use struct {
		reader int32
		kernel *Kernel
	}
	readers := map[Chunk][]use{}
	kernels := func(do func(rank int32, k *Kernel)) {
		for r := range f.parts {
			for i := range f.parts[r].Sums {
				do(int32(r), &f.parts[r].Sums[i])
			}
			for i := range f.parts[r].Moves {
				do(int32(r), &f.parts[r].Moves[i])
			}
		}
	}
	kernels(func(rank int32, k *Kernel) {
		for _, s := range k.Srcs {
			readers[s] = append(readers[s], use{rank, k})
		}
	})
	needs := map[[2]int32]bool{}
	kernels(func(rank int32, k *Kernel) {
		for _, s := range k.Srcs {
			needs[[2]int32{rank, s.Rank}] = true
		}
	})
	if f.Pushes {
		needs = nil
	}
	f.meet(needs)
	f.helps(p)
	for r := range f.parts {
		at := f.parts[r]
		at.First = max(slices.IndexFunc(at.Moves, func(k Kernel) bool { return k.Srcs[0].Rank == int32(r) }), 0)
	}
	for r := range f.parts {
		for c := range p.NumChunks(sched.In) {
			for _, u := range readers[Chunk{int32(r), int32(c)}] {
				if u.reader != int32(r) {
					f.parts[r].Exports = append(f.parts[r].Exports, int32(c))
					break
				}
			}
		}
	}
	s := chunks.New(p, 1, 1, nil)
	f.InPlace = true
	kernels(func(rank int32, k *Kernel) {
		for _, d := range k.Dsts {
			a := s.Alias(p.Op, int(d.Rank), int(d.Index))
			if a < 0 || len(k.Srcs) == 1 && k.Srcs[0] == (Chunk{d.Rank, int32(a)}) { // nothing to do in place
				continue
			}
			for _, u := range readers[Chunk{d.Rank, int32(a)}] {
				if u.kernel != k {
					f.InPlace = false
				}
			}
		}
	})
}

// helps sets whose entries a rank must read before it works for the root, in operations that end at one.
func (f *Form) helps(p *sched.Program) {
	f.Rooted = p.Op == sched.Gather || p.Op == sched.Reduce
	for r := range f.parts {
		at := f.parts[r]
		if f.Rooted && r != p.Root {
			at.Helps = append(at.Helps, int32(p.Root))
		}
		for k := 1; k < p.Ranks && p.Op == sched.Reduce; k++ {
			if i := (r + k) % p.Ranks; i != p.Root {
				at.Helps = append(at.Helps, int32(i))
			}
		}
	}
}

// meet sets which entries each rank must read: those of the ranks whose input it needs, or of all ranks if needs is nil. Each
// begins with the rank after it.
func (f *Form) meet(needs map[[2]int32]bool) {
	n := int32(len(f.parts))
	for r := range n {
		at := f.parts[r]
		for k := int32(1); k < n; k++ {
			i := (r + k) % n
			if needs == nil || needs[[2]int32{r, i}] {
				at.Reads = append(at.Reads, i)
			}
			if needs == nil || needs[[2]int32{i, r}] {
				at.Readers = append(at.Readers, i)
			}
		}
		at.OneWay = len(at.Reads) == 0 || len(at.Readers) == 0
	}
}
