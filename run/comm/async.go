package comm

import (
	"context"
)

// AllReduceAsync begins an AllReduce and returns at once.
func AllReduceAsync[T Element](ctx context.Context, c *Comm, buf []T, op Op, opts ...Option) *Handle {
	return async(ctx, opts, func(o []Option) error { return AllReduce(ctx, c, buf, op, o...) })
}

// AllReduceToAsync begins an AllReduceTo and returns at once.
func AllReduceToAsync[T Element](ctx context.Context, c *Comm, dst, src []T, op Op, opts ...Option) *Handle {
	return async(ctx, opts, func(o []Option) error { return AllReduceTo(ctx, c, dst, src, op, o...) })
}

// ReduceScatterAsync begins a ReduceScatter and returns at once.
func ReduceScatterAsync[T Element](ctx context.Context, c *Comm, dst, src []T, op Op, opts ...Option) *Handle {
	return async(ctx, opts, func(o []Option) error { return ReduceScatter(ctx, c, dst, src, op, o...) })
}

// AllGatherAsync begins an AllGather and returns at once.
func AllGatherAsync[T Element](ctx context.Context, c *Comm, dst, src []T, opts ...Option) *Handle {
	return async(ctx, opts, func(o []Option) error { return AllGather(ctx, c, dst, src, o...) })
}

// BroadcastAsync begins a Broadcast and returns at once.
func BroadcastAsync[T Element](ctx context.Context, c *Comm, buf []T, root int, opts ...Option) *Handle {
	return async(ctx, opts, func(o []Option) error { return Broadcast(ctx, c, buf, root, o...) })
}

// ReduceAsync begins a Reduce and returns at once.
func ReduceAsync[T Element](ctx context.Context, c *Comm, dst, src []T, op Op, root int, opts ...Option) *Handle {
	return async(ctx, opts, func(o []Option) error { return Reduce(ctx, c, dst, src, op, root, o...) })
}

// AllToAllAsync begins an AllToAll and returns at once.
func AllToAllAsync[T Element](ctx context.Context, c *Comm, dst, src []T, opts ...Option) *Handle {
	return async(ctx, opts, func(o []Option) error { return AllToAll(ctx, c, dst, src, o...) })
}

// GatherAsync begins a Gather and returns at once.
func GatherAsync[T Element](ctx context.Context, c *Comm, dst, src []T, root int, opts ...Option) *Handle {
	return async(ctx, opts, func(o []Option) error { return Gather(ctx, c, dst, src, root, o...) })
}

// ScatterAsync begins a Scatter and returns at once.
func ScatterAsync[T Element](ctx context.Context, c *Comm, dst, src []T, root int, opts ...Option) *Handle {
	return async(ctx, opts, func(o []Option) error { return Scatter(ctx, c, dst, src, root, o...) })
}

// BarrierAsync begins a Barrier and returns at once.
func BarrierAsync(ctx context.Context, c *Comm, opts ...Option) *Handle {
	return async(ctx, opts, func(o []Option) error { return Barrier(ctx, c, o...) })
}

// AllGatherVAsync begins an AllGatherV and returns at once.
func AllGatherVAsync[T Element](ctx context.Context, c *Comm, dst, src []T, counts []int, opts ...Option) *Handle {
	return async(ctx, opts, func(o []Option) error { return AllGatherV(ctx, c, dst, src, counts, o...) })
}

// ReduceScatterVAsync begins a ReduceScatterV and returns at once.
func ReduceScatterVAsync[T Element](ctx context.Context, c *Comm, dst, src []T, counts []int, op Op, opts ...Option) *Handle {
	return async(ctx, opts, func(o []Option) error { return ReduceScatterV(ctx, c, dst, src, counts, op, o...) })
}

// GatherVAsync begins a GatherV and returns at once.
func GatherVAsync[T Element](ctx context.Context, c *Comm, dst, src []T, counts []int, root int, opts ...Option) *Handle {
	return async(ctx, opts, func(o []Option) error { return GatherV(ctx, c, dst, src, counts, root, o...) })
}

// ScatterVAsync begins a ScatterV and returns at once.
func ScatterVAsync[T Element](ctx context.Context, c *Comm, dst, src []T, counts []int, root int, opts ...Option) *Handle {
	return async(ctx, opts, func(o []Option) error { return ScatterV(ctx, c, dst, src, counts, root, o...) })
}

// AllToAllVAsync begins an AllToAllV and returns at once.
func AllToAllVAsync[T Element](ctx context.Context, c *Comm, dst, src []T, recvs, sends []int, opts ...Option) *Handle {
	return async(ctx, opts, func(o []Option) error { return AllToAllV(ctx, c, dst, src, recvs, sends, o...) })
}

// SendAsync begins a Send and returns at once.
func SendAsync[T Element](ctx context.Context, c *Comm, buf []T, to int, opts ...Option) *Handle {
	return async(ctx, opts, func(o []Option) error { return Send(ctx, c, buf, to, o...) })
}

// RecvAsync begins a Recv and returns at once.
func RecvAsync[T Element](ctx context.Context, c *Comm, buf []T, from int, opts ...Option) *Handle {
	return async(ctx, opts, func(o []Option) error { return Recv(ctx, c, buf, from, o...) })
}

// SendRecvAsync begins a SendRecv and returns at once.
func SendRecvAsync[T Element](ctx context.Context, c *Comm, dst, src []T, from, to int, opts ...Option) *Handle {
	return async(ctx, opts, func(o []Option) error { return SendRecv(ctx, c, dst, src, from, to, o...) })
}
