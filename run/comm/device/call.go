package device

import (
	"context"
	"fmt"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/run/gpu"
	"github.com/weft-fabric/weft/run/reduce"
)

// Call is an operation on memory of GPUs. Lengths are those of the functions of the same names in package comm.
type Call struct {
	Op       sched.Collective
	Reduce   reduce.Op // AllReduce, ReduceScatter, Reduce
	Root     int       // Broadcast, Reduce, Gather, Scatter
	Dst, Src Memory    // Broadcast has Dst alone
	Counts   []int     // elements of each rank's block where they differ: AllGather, ReduceScatter, Gather, Scatter; of AllToAll, what comes from each rank
	Sends    []int     // AllToAll with Counts: elements that go to each rank
	Factor   float64   // what PreMulSum multiplies this rank's input with
	Program  *sched.Program

	// Stream, if set, is where the input comes to be: the operation waits for what is queued there when the call is made.
	// Without it the input must be complete.
	Stream *gpu.Stream
}

// AllReduce leaves in dst of every rank the reduction of src of all. dst may be src.
func AllReduce(ctx context.Context, g *Group, dst, src Memory, op reduce.Op) error {
	return g.Do(ctx, Call{Op: sched.AllReduce, Reduce: op, Dst: dst, Src: src})
}

// ReduceScatter leaves in dst of rank r block r of the reduction of all src.
func ReduceScatter(ctx context.Context, g *Group, dst, src Memory, op reduce.Op) error {
	return g.Do(ctx, Call{Op: sched.ReduceScatter, Reduce: op, Dst: dst, Src: src})
}

// AllGather leaves in dst of every rank src of all, in their order.
func AllGather(ctx context.Context, g *Group, dst, src Memory) error {
	return g.Do(ctx, Call{Op: sched.AllGather, Dst: dst, Src: src})
}

// Broadcast leaves in m of every rank what the root has there.
func Broadcast(ctx context.Context, g *Group, m Memory, root int) error {
	return g.Do(ctx, Call{Op: sched.Broadcast, Dst: m, Root: root})
}

// Reduce leaves in dst of the root the reduction of src of all.
func Reduce(ctx context.Context, g *Group, dst, src Memory, op reduce.Op, root int) error {
	return g.Do(ctx, Call{Op: sched.Reduce, Reduce: op, Dst: dst, Src: src, Root: root})
}

// AllToAll sends block p of src to rank p, which has it in block r of dst.
func AllToAll(ctx context.Context, g *Group, dst, src Memory) error {
	return g.Do(ctx, Call{Op: sched.AllToAll, Dst: dst, Src: src})
}

// AllToAllV is AllToAll of blocks of different lengths: recvs[p] elements of dst come from rank p, sends[p] of src go to it.
func AllToAllV(ctx context.Context, g *Group, dst, src Memory, recvs, sends []int) error {
	return g.Do(ctx, Call{Op: sched.AllToAll, Dst: dst, Src: src, Counts: recvs, Sends: sends})
}

// Gather leaves in dst of the root src of all ranks, in their order.
func Gather(ctx context.Context, g *Group, dst, src Memory, root int) error {
	return g.Do(ctx, Call{Op: sched.Gather, Dst: dst, Src: src, Root: root})
}

// Scatter leaves in dst of rank r block r of src of the root.
func Scatter(ctx context.Context, g *Group, dst, src Memory, root int) error {
	return g.Do(ctx, Call{Op: sched.Scatter, Dst: dst, Src: src, Root: root})
}

// Barrier returns once every rank called it.
func Barrier(ctx context.Context, g *Group) error {
	return g.Do(ctx, Call{Op: sched.Barrier, Dst: Memory{Type: reduce.Uint8}})
}

// larger reports whether in or out of a collective with blocks holds all of them.
func (c *Call) larger(in bool) bool {
	switch c.Op {
	case sched.AllGather, sched.Gather:
		return !in
	case sched.ReduceScatter, sched.Scatter:
		return in
	}
	return c.Op.Blocks()
}

// complete fills in what a call leaves out and says what is wrong with it. The buffers that a rank does not use are emptied.
func (c *Call) complete(rank, size int) error {
	if c.Op == sched.Broadcast {
		c.Src = c.Dst
	}
	if !c.Op.Rooted() {
		c.Root = -1
	} else if c.Root < 0 || c.Root >= size {
		return fmt.Errorf("%s: root %d is not a rank of a group of %d", c.Op, c.Root, size)
	}
	if c.Op == sched.Scatter && rank != c.Root {
		c.Src = Memory{Type: c.Dst.Type}
	}
	if (c.Op == sched.Reduce || c.Op == sched.Gather) && rank != c.Root {
		c.Dst = Memory{Type: c.Src.Type}
	}
	if c.Src.Type != c.Dst.Type && c.Op != sched.Barrier {
		return fmt.Errorf("%s: dst has elements of %s, src of %s", c.Op, c.Dst.Type, c.Src.Type)
	}
	if !c.Dst.Type.Valid() {
		return fmt.Errorf("%s: %s is not an element type", c.Op, c.Dst.Type)
	}
	if c.Factor == 0 {
		c.Factor = 1
	}
	if reduces(c.Op) {
		if err := reduce.Check(c.Src.Type, c.Reduce); err != nil {
			return err
		}
		if c.Reduce == reduce.PreMulSum {
			if err := reduce.CheckScale(c.Src.Type, c.Factor); err != nil {
				return err
			}
		}
	} else {
		c.Reduce = 0
	}
	return c.lengths(rank, size)
}

// lengths checks those of the buffers.
func (c *Call) lengths(rank, size int) error {
	need := func(what string, have, want int) error {
		if have == want {
			return nil
		}
		return fmt.Errorf("%s: %s has %d elements, %d are needed", c.Op, what, have, want)
	}
	if c.Counts != nil || c.Sends != nil {
		return c.blocks(rank, size, need)
	}
	switch c.Op {
	case sched.AllReduce:
		return need("dst", c.Dst.Count, c.Src.Count)
	case sched.Reduce:
		if rank == c.Root {
			return need("dst", c.Dst.Count, c.Src.Count)
		}
	case sched.AllGather:
		return need("dst", c.Dst.Count, c.Src.Count*size)
	case sched.Gather:
		if rank == c.Root {
			return need("dst", c.Dst.Count, c.Src.Count*size)
		}
	case sched.ReduceScatter:
		return need("src", c.Src.Count, c.Dst.Count*size)
	case sched.Scatter:
		if rank == c.Root {
			return need("src", c.Src.Count, c.Dst.Count*size)
		}
	case sched.AllToAll:
		if c.Src.Count%size != 0 {
			return need("src", c.Src.Count, (c.Src.Count/size+1)*size)
		}
		return need("dst", c.Dst.Count, c.Src.Count)
	case sched.Broadcast, sched.Barrier:
	default:
		return fmt.Errorf("%s is not supported on GPU memory", c.Op)
	}
	return nil
}

// sum adds lengths of blocks.
func (c *Call) sum(name string, counts []int) (total int, err error) {
	for i, k := range counts {
		if k < 0 {
			return 0, fmt.Errorf("%s: %s[%d] is %d; want 0 or more", c.Op, name, i, k)
		}
		total += k
	}
	return total, nil
}

// pairs checks lengths where every two ranks have their own.
func (c *Call) pairs(rank, size int, need func(string, int, int) error) error {
	if err := need("sends", len(c.Sends), size); err != nil {
		return err
	}
	come, err := c.sum("counts", c.Counts)
	if err != nil {
		return err
	}
	went, err := c.sum("sends", c.Sends)
	if err != nil {
		return err
	}
	if err := need("dst", c.Dst.Count, come); err != nil {
		return err
	}
	if err := need("src", c.Src.Count, went); err != nil {
		return err
	}
	return need("the own block of dst", c.Counts[rank], c.Sends[rank])
}

// blocks checks lengths where blocks differ.
func (c *Call) blocks(rank, size int, need func(string, int, int) error) error {
	if err := need("counts", len(c.Counts), size); err != nil {
		return err
	}
	total, err := c.sum("counts", c.Counts)
	if err != nil {
		return err
	}
	all, one, name, other := c.Dst, c.Src, "dst", "src"
	switch c.Op {
	case sched.AllToAll:
		return c.pairs(rank, size, need)
	case sched.ReduceScatter, sched.Scatter:
		all, one, name, other = c.Src, c.Dst, "src", "dst"
	case sched.AllGather, sched.Gather:
	default:
		return fmt.Errorf("%s: blocks of different lengths are for all-gather, reduce-scatter, gather, scatter and all-to-all", c.Op)
	}
	if !c.Op.Rooted() || rank == c.Root {
		if err := need(name, all.Count, total); err != nil {
			return err
		}
	}
	return need(other, one.Count, c.Counts[rank])
}

// count is the elements of a block, as calls count them.
func (c *Call) count(size int) int {
	switch c.Op {
	case sched.ReduceScatter, sched.Scatter, sched.Broadcast:
		return c.Dst.Count
	case sched.AllToAll:
		return c.Src.Count / size
	}
	return c.Src.Count
}
