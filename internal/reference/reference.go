// Package reference runs programs on plain slices in one process: the simplest
// world behind collective/step, which tests hold the others against. Every order that
// the interpreter's contract allows can be tried by choosing who goes next.
package reference

import (
	"fmt"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/step"
)

// Number is what a program can add.
type Number interface {
	~int32 | ~int64 | ~uint64 | ~float32 | ~float64
}

// Run carries out a program on the inputs of its ranks, which have all the same
// length, a multiple of the number of chunks of in, and gives their outputs.
// With pick, the channel that goes next is pick(k) of the k that may go on (see
// step.RunIn); without, the order is step.Run's.
func Run[T Number](p *sched.Program, in [][]T, pick func(k int) int) ([][]T, error) {
	return RunWith(p, in, func(a, b T) T { return a + b }, pick)
}

// RunWith is Run with another reduction than the sum.
func RunWith[T Number](p *sched.Program, in [][]T, reduce func(a, b T) T, pick func(k int) int) ([][]T, error) {
	w, err := newWorld(p, in)
	if err != nil {
		return nil, err
	}
	w.reduce = reduce
	err = step.RunIn(p, pick, func(r sched.Rank, a *step.Action, message []T) ([]T, error) {
		if a.Op.Receives() && len(message) != int(a.Count)*w.chunk {
			return nil, fmt.Errorf("%s: rank %d (%s) expects %d chunks and gets %d", p.Name, r, a, a.Count, len(message)/w.chunk)
		}
		return step.Do(w, r, a, message)
	})
	out := make([][]T, p.Ranks)
	for r := range out {
		out[r] = w.mem[r][sched.Out]
	}
	return out, err
}

type world[T Number] struct {
	p      *sched.Program
	chunk  int
	mem    [][4][]T
	reduce func(a, b T) T
}

func newWorld[T Number](p *sched.Program, in [][]T) (*world[T], error) {
	if len(in) != p.Ranks {
		return nil, fmt.Errorf("%s: %d inputs for %d ranks", p.Name, len(in), p.Ranks)
	}
	chunks := p.NumChunks(sched.In)
	w := &world[T]{p: p, chunk: len(in[0]) / chunks, mem: make([][4][]T, p.Ranks+p.Switches)}
	for r := range w.mem {
		w.mem[r][sched.Tmp] = make([]T, p.NumChunks(sched.Tmp)*w.chunk)
		if r >= p.Ranks {
			continue
		}
		if len(in[r]) != w.chunk*chunks || w.chunk == 0 {
			return nil, fmt.Errorf("%s: input %d has %d elements; want the same multiple of its %d chunks for all", p.Name, r, len(in[r]), chunks)
		}
		w.mem[r][sched.In] = in[r]
		w.mem[r][sched.Out] = make([]T, p.NumChunks(sched.Out)*w.chunk)
	}
	return w, nil
}

func (w *world[T]) at(r sched.Rank, c step.Chunks) []T {
	return w.mem[r][c.Buf][int(c.Index)*w.chunk : int(c.Index+c.Count)*w.chunk]
}

// Load gives a copy of chunks.
func (w *world[T]) Load(r sched.Rank, _ *step.Action, c step.Chunks) ([]T, error) {
	return append([]T(nil), w.at(r, c)...), nil
}

// Reduce reduces element by element.
func (w *world[T]) Reduce(_ sched.Rank, _ *step.Action, left, right []T) ([]T, error) {
	sum := make([]T, len(left))
	for i := range sum {
		sum[i] = w.reduce(left[i], right[i])
	}
	return sum, nil
}

// Store copies to chunks.
func (w *world[T]) Store(r sched.Rank, _ *step.Action, c step.Chunks, v []T) error {
	copy(w.at(r, c), v)
	return nil
}

// Promised gives what a collective promises every rank, computed the plain
// way; nil for a rank that is promised nothing. The outputs of a barrier are
// not part of its promise.
func Promised[T Number](op sched.Collective, root int, in [][]T) [][]T {
	n := len(in)
	out := make([][]T, n)
	size := len(in[0])
	sum := func() []T {
		total := make([]T, size)
		for _, x := range in {
			for i, v := range x {
				total[i] += v
			}
		}
		return total
	}
	gathered := func() []T {
		var all []T
		for _, x := range in {
			all = append(all, x...)
		}
		return all
	}
	for r := range n {
		switch op {
		case sched.AllReduce:
			out[r] = sum()
		case sched.ReduceScatter:
			out[r] = sum()[r*size/n : (r+1)*size/n]
		case sched.AllGather:
			out[r] = gathered()
		case sched.Broadcast:
			out[r] = in[root]
		case sched.Reduce:
			if r == root {
				out[r] = sum()
			}
		case sched.AllToAll:
			for p := range n {
				out[r] = append(out[r], in[p][r*size/n:(r+1)*size/n]...)
			}
		case sched.Gather:
			if r == root {
				out[r] = gathered()
			}
		case sched.Scatter:
			out[r] = in[root][r*size/n : (r+1)*size/n]
		case sched.SendRecv:
			out[r] = in[(r-1+n)%n]
		}
	}
	return out
}
