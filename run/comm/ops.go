package comm

import (
	"context"
	"fmt"
	"slices"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/run/comm/internal/calls"
	"github.com/weft-fabric/weft/run/comm/internal/op"
	"github.com/weft-fabric/weft/run/reduce"
)

// AllReduce leaves in buf of every rank the reduction of all of them.
func AllReduce[T Element](ctx context.Context, c *Comm, buf []T, op Op, opts ...Option) error {
	return AllReduceTo(ctx, c, buf, buf, op, opts...)
}

// AllReduceTo leaves in dst of every rank the reduction of src of all of them.
// dst may be src, but not overlap it otherwise.
func AllReduceTo[T Element](ctx context.Context, c *Comm, dst, src []T, op Op, opts ...Option) error {
	if len(dst) != len(src) {
		return c.refuse(need(sched.AllReduce, "dst", len(dst), len(src)))
	}
	if strays(reduce.Bytes(dst), reduce.Bytes(src), 0) {
		return c.refuse(astray(sched.AllReduce, "dst", dst, "src", src, 0))
	}
	return c.do(ctx, &request{Op: sched.AllReduce, Type: reduce.TypeOf[T](), Reduce: op, Root: -1, Count: len(src),
		In: reduce.Bytes(src), Out: reduce.Bytes(dst)}, opts)
}

// ReduceScatter leaves in dst of rank r block r of the reduction of all src, which
// have a block of len(dst) elements for each rank. dst may be that block of src.
func ReduceScatter[T Element](ctx context.Context, c *Comm, dst, src []T, op Op, opts ...Option) error {
	if len(src) != len(dst)*c.Size() {
		return c.refuse(need(sched.ReduceScatter, "src", len(src), len(dst)*c.Size()))
	}
	if strays(reduce.Bytes(dst), reduce.Bytes(src), len(reduce.Bytes(dst))*c.Rank()) {
		return c.refuse(astray(sched.ReduceScatter, "dst", dst, "src", src, c.Rank()*len(dst)))
	}
	return c.do(ctx, &request{Op: sched.ReduceScatter, Type: reduce.TypeOf[T](), Reduce: op, Root: -1, Count: len(dst),
		In: reduce.Bytes(src), Out: reduce.Bytes(dst)}, opts)
}

// AllGather leaves in dst of every rank src of all, in their order. src may be
// the own block of dst.
func AllGather[T Element](ctx context.Context, c *Comm, dst, src []T, opts ...Option) error {
	if len(dst) != len(src)*c.Size() {
		return c.refuse(need(sched.AllGather, "dst", len(dst), len(src)*c.Size()))
	}
	if strays(reduce.Bytes(src), reduce.Bytes(dst), len(reduce.Bytes(src))*c.Rank()) {
		return c.refuse(astray(sched.AllGather, "src", src, "dst", dst, c.Rank()*len(src)))
	}
	return c.do(ctx, &request{Op: sched.AllGather, Type: reduce.TypeOf[T](), Root: -1, Count: len(src),
		In: reduce.Bytes(src), Out: reduce.Bytes(dst)}, opts)
}

// Broadcast leaves in buf of every rank what the root has there.
func Broadcast[T Element](ctx context.Context, c *Comm, buf []T, root int, opts ...Option) error {
	return c.do(ctx, &request{Op: sched.Broadcast, Type: reduce.TypeOf[T](), Root: root, Count: len(buf),
		In: reduce.Bytes(buf), Out: reduce.Bytes(buf)}, opts)
}

// Reduce leaves in dst of the root the reduction of src of all. dst is not used
// on other ranks and may be src, but not overlap it otherwise.
func Reduce[T Element](ctx context.Context, c *Comm, dst, src []T, op Op, root int, opts ...Option) error {
	if c.Rank() == root && len(dst) != len(src) {
		return c.refuse(need(sched.Reduce, "dst", len(dst), len(src)))
	}
	if c.Rank() != root {
		dst = nil
	}
	if strays(reduce.Bytes(dst), reduce.Bytes(src), 0) {
		return c.refuse(astray(sched.Reduce, "dst", dst, "src", src, 0))
	}
	return c.do(ctx, &request{Op: sched.Reduce, Type: reduce.TypeOf[T](), Reduce: op, Root: root, Count: len(src),
		In: reduce.Bytes(src), Out: reduce.Bytes(dst)}, opts)
}

// AllToAll sends block p of src to rank p, which has it in block r of dst. Both
// have a block for each rank. dst may be src.
func AllToAll[T Element](ctx context.Context, c *Comm, dst, src []T, opts ...Option) error {
	if len(dst) != len(src) {
		return c.refuse(need(sched.AllToAll, "dst", len(dst), len(src)))
	}
	if len(src)%c.Size() != 0 {
		return c.refuse(need(sched.AllToAll, "src", len(src), (len(src)/c.Size()+1)*c.Size()))
	}
	if strays(reduce.Bytes(dst), reduce.Bytes(src), 0) {
		return c.refuse(astray(sched.AllToAll, "dst", dst, "src", src, 0))
	}
	return c.do(ctx, &request{Op: sched.AllToAll, Type: reduce.TypeOf[T](), Root: -1, Count: len(src) / c.Size(),
		In: reduce.Bytes(src), Out: reduce.Bytes(dst)}, opts)
}

// Gather leaves in dst of the root src of all ranks, in their order. dst is not
// used on other ranks; at the root, src may be its block of dst.
func Gather[T Element](ctx context.Context, c *Comm, dst, src []T, root int, opts ...Option) error {
	if c.Rank() == root && len(dst) != len(src)*c.Size() {
		return c.refuse(need(sched.Gather, "dst", len(dst), len(src)*c.Size()))
	}
	if c.Rank() != root {
		dst = nil
	}
	if strays(reduce.Bytes(src), reduce.Bytes(dst), len(reduce.Bytes(src))*c.Rank()) {
		return c.refuse(astray(sched.Gather, "src", src, "dst", dst, c.Rank()*len(src)))
	}
	return c.do(ctx, &request{Op: sched.Gather, Type: reduce.TypeOf[T](), Root: root, Count: len(src),
		In: reduce.Bytes(src), Out: reduce.Bytes(dst)}, opts)
}

// Scatter leaves in dst of rank r block r of src of the root. src is not used on
// other ranks; at the root, dst may be its block of src.
func Scatter[T Element](ctx context.Context, c *Comm, dst, src []T, root int, opts ...Option) error {
	if c.Rank() == root && len(src) != len(dst)*c.Size() {
		return c.refuse(need(sched.Scatter, "src", len(src), len(dst)*c.Size()))
	}
	if c.Rank() != root {
		src = nil
	}
	if strays(reduce.Bytes(dst), reduce.Bytes(src), len(reduce.Bytes(dst))*c.Rank()) {
		return c.refuse(astray(sched.Scatter, "dst", dst, "src", src, c.Rank()*len(dst)))
	}
	return c.do(ctx, &request{Op: sched.Scatter, Type: reduce.TypeOf[T](), Root: root, Count: len(dst),
		In: reduce.Bytes(src), Out: reduce.Bytes(dst)}, opts)
}

// Barrier returns once every rank called it.
func Barrier(ctx context.Context, c *Comm, opts ...Option) error {
	return c.do(ctx, &request{Op: sched.Barrier, Type: reduce.Uint8, Root: -1}, opts)
}

// AllGatherV is AllGather of blocks of different lengths: rank p gives counts[p]
// elements. All ranks give the same counts.
func AllGatherV[T Element](ctx context.Context, c *Comm, dst, src []T, counts []int, opts ...Option) error {
	if err := blocksOf(c.Rank(), c.Size(), sched.AllGather, "dst", len(dst), counts, "src", len(src)); err != nil {
		return c.refuse(err)
	}
	if strays(reduce.Bytes(src), reduce.Bytes(dst), reduce.TypeOf[T]().Size()*total(counts[:c.Rank()])) {
		return c.refuse(astray(sched.AllGather, "src", src, "dst", dst, total(counts[:c.Rank()])))
	}
	return c.do(ctx, &request{Op: sched.AllGather, Variant: calls.AllGatherV, Type: reduce.TypeOf[T](), Root: -1, Counts: counts,
		In: reduce.Bytes(src), Out: reduce.Bytes(dst)}, opts)
}

// ReduceScatterV is ReduceScatter into blocks of different lengths: rank p gets
// counts[p] elements. All ranks give the same counts.
func ReduceScatterV[T Element](ctx context.Context, c *Comm, dst, src []T, counts []int, op Op, opts ...Option) error {
	if err := blocksOf(c.Rank(), c.Size(), sched.ReduceScatter, "src", len(src), counts, "dst", len(dst)); err != nil {
		return c.refuse(err)
	}
	if strays(reduce.Bytes(dst), reduce.Bytes(src), reduce.TypeOf[T]().Size()*total(counts[:c.Rank()])) {
		return c.refuse(astray(sched.ReduceScatter, "dst", dst, "src", src, total(counts[:c.Rank()])))
	}
	return c.do(ctx, &request{Op: sched.ReduceScatter, Variant: calls.ReduceScatterV, Type: reduce.TypeOf[T](), Reduce: op, Root: -1,
		Counts: counts,
		In:     reduce.Bytes(src), Out: reduce.Bytes(dst)}, opts)
}

// GatherV is Gather of blocks of different lengths. All ranks give the same counts.
func GatherV[T Element](ctx context.Context, c *Comm, dst, src []T, counts []int, root int, opts ...Option) error {
	have := len(dst)
	if c.Rank() != root {
		dst, have = nil, total(counts)
	}
	if err := blocksOf(c.Rank(), c.Size(), sched.Gather, "dst", have, counts, "src", len(src)); err != nil {
		return c.refuse(err)
	}
	if strays(reduce.Bytes(src), reduce.Bytes(dst), reduce.TypeOf[T]().Size()*total(counts[:c.Rank()])) {
		return c.refuse(astray(sched.Gather, "src", src, "dst", dst, total(counts[:c.Rank()])))
	}
	return c.do(ctx, &request{Op: sched.Gather, Variant: calls.GatherV, Type: reduce.TypeOf[T](), Root: root, Counts: counts,
		In: reduce.Bytes(src), Out: reduce.Bytes(dst)}, opts)
}

// ScatterV is Scatter of blocks of different lengths. All ranks give the same counts.
func ScatterV[T Element](ctx context.Context, c *Comm, dst, src []T, counts []int, root int, opts ...Option) error {
	have := len(src)
	if c.Rank() != root {
		src, have = nil, total(counts)
	}
	if err := blocksOf(c.Rank(), c.Size(), sched.Scatter, "src", have, counts, "dst", len(dst)); err != nil {
		return c.refuse(err)
	}
	if strays(reduce.Bytes(dst), reduce.Bytes(src), reduce.TypeOf[T]().Size()*total(counts[:c.Rank()])) {
		return c.refuse(astray(sched.Scatter, "dst", dst, "src", src, total(counts[:c.Rank()])))
	}
	return c.do(ctx, &request{Op: sched.Scatter, Variant: calls.ScatterV, Type: reduce.TypeOf[T](), Root: root, Counts: counts,
		In: reduce.Bytes(src), Out: reduce.Bytes(dst)}, opts)
}

// AllToAllV is AllToAll of blocks of different lengths: recvs[p] elements of dst
// come from rank p, and sends[p] elements of src go to it. What rank r sends to p
// is what p receives from r. dst may be src if sends are recvs.
func AllToAllV[T Element](ctx context.Context, c *Comm, dst, src []T, recvs, sends []int, opts ...Option) error {
	if err := countsOf(c.Size(), sched.AllToAll, "sends", sends); err != nil {
		return c.refuse(err)
	}
	if err := countsOf(c.Size(), sched.AllToAll, "recvs", recvs); err != nil {
		return c.refuse(err)
	}
	if len(src) != total(sends) {
		return c.refuse(need(sched.AllToAll, "src", len(src), total(sends)))
	}
	if len(dst) != total(recvs) {
		return c.refuse(need(sched.AllToAll, "dst", len(dst), total(recvs)))
	}
	if k := recvs[c.Rank()]; k != sends[c.Rank()] {
		return c.refuse(need(sched.AllToAll, "the own block of dst", k, sends[c.Rank()]))
	}
	if strays(reduce.Bytes(dst), reduce.Bytes(src), 0) {
		return c.refuse(astray(sched.AllToAll, "dst", dst, "src", src, 0))
	}
	if op.Overlap(reduce.Bytes(dst), reduce.Bytes(src)) && !slices.Equal(sends, recvs) {
		return c.refuse(fmt.Errorf("%s: dst is src, and sends %v are not recvs %v; give two buffers", sched.AllToAll, sends, recvs))
	}
	return c.do(ctx, &request{Op: sched.AllToAll, Variant: calls.AllToAllV, Type: reduce.TypeOf[T](), Root: -1, Counts: sends, Theirs: recvs,
		In: reduce.Bytes(src), Out: reduce.Bytes(dst)}, opts)
}
