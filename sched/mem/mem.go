// Package mem runs programs on plain slices in one process: the simplest world
// behind sched/step, and the reference for the others. Every order that the
// interpreter's contract allows can be tried by choosing who goes next.
package mem

import (
	"fmt"

	"github.com/weft-fabric/weft/sched"
	"github.com/weft-fabric/weft/sched/step"
)

// Number is what a program can add.
type Number interface {
	~int32 | ~int64 | ~uint64 | ~float32 | ~float64
}

// Run carries out a program on the inputs of its ranks, which have all the same
// length, a multiple of the number of chunks of in, and gives their outputs.
// With pick, the thread that goes next is pick(k) of the k that wait; without,
// the order is step.Run's.
func Run[T Number](p *sched.Program, in [][]T, pick func(k int) int) ([][]T, error) {
	w, err := newWorld(p, in)
	if err != nil {
		return nil, err
	}
	if pick == nil {
		err = step.Run(p, w.do)
	} else {
		err = w.run(pick)
	}
	out := make([][]T, p.Ranks)
	for r := range out {
		out[r] = w.mem[r][sched.Out]
	}
	return out, err
}

type world[T Number] struct {
	p     *sched.Program
	chunk int
	mem   [][4][]T
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

// do carries out one action; a message is a copy of its elements.
func (w *world[T]) do(r sched.Rank, a *step.Action, message []T) ([]T, error) {
	if a.Op.Receives() && len(message) != int(a.Count)*w.chunk {
		return nil, fmt.Errorf("%s: rank %d (%s) expects %d chunks and gets %d", w.p.Name, r, a, a.Count, len(message)/w.chunk)
	}
	if a.Op == sched.Wait {
		return nil, nil
	}
	value := message
	if a.Op.Reads() {
		src := w.at(r, a.Src)
		left := message
		if a.Op == sched.LocalReduce {
			left = w.at(r, a.Dst)
		}
		value = append([]T(nil), src...)
		if a.Op.Reduces() {
			for i := range value {
				value[i] = left[i] + src[i]
			}
		}
	}
	if a.Op.Stores() {
		copy(w.at(r, a.Dst), value)
	}
	if !a.Op.Sends() {
		return nil, nil
	}
	return value, nil
}

// run tries the threads in the order of pick until nobody can go on.
func (w *world[T]) run(pick func(int) int) error {
	type thread struct {
		rank sched.Rank
		act  step.Action
	}
	machines := make([]*step.Machine, len(w.mem))
	queues := map[step.Conn][][]T{}
	var held []thread
	var buf []step.Action
	collect := func(r sched.Rank) error {
		buf = machines[r].Ready(buf[:0])
		for _, a := range buf {
			held = append(held, thread{r, a})
		}
		return machines[r].Err()
	}
	code := step.Compile(w.p)
	for r := range machines {
		machines[r] = code.Machine(sched.Rank(r))
		if err := collect(sched.Rank(r)); err != nil {
			return err
		}
	}
	for tried := 0; tried < len(held); {
		i := tried + pick(len(held)-tried)
		t := held[i]
		from, to := step.Conn{From: t.act.From, To: t.rank, Channel: t.act.Channel}, step.Conn{From: t.rank, To: t.act.To, Channel: t.act.Channel}
		if t.act.Op.Receives() && len(queues[from]) == 0 || t.act.Op.Sends() && len(queues[to]) >= w.p.Slots {
			held[i], held[tried] = held[tried], t // put aside until something moves
			tried++
			continue
		}
		var message []T
		if t.act.Op.Receives() {
			message = queues[from][0]
			queues[from] = queues[from][1:]
		}
		message, err := w.do(t.rank, &t.act, message)
		if err != nil {
			return err
		}
		if t.act.Op.Sends() {
			queues[to] = append(queues[to], message)
		}
		held[i] = held[len(held)-1]
		held, tried = held[:len(held)-1], 0
		machines[t.rank].Complete(t.act.Channel)
		if err := collect(t.rank); err != nil {
			return err
		}
	}
	for r, m := range machines {
		if !m.Done() {
			return fmt.Errorf("%s: rank %d is stuck", w.p.Name, r)
		}
	}
	left := 0
	for _, q := range queues {
		left += len(q)
	}
	if left > 0 {
		return fmt.Errorf("%s: %d messages are never taken", w.p.Name, left)
	}
	return nil
}

// Reference gives what a collective promises every rank, computed the plain
// way; nil for a rank that is promised nothing. The outputs of a barrier are
// not part of its promise.
func Reference[T Number](op sched.Collective, root int, in [][]T) [][]T {
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
