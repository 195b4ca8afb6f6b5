package differential

import (
	"bytes"
	"context"
	"fmt"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/run/comm/device"
	"github.com/weft-fabric/weft/run/reduce"
)

// RunOnGPU is Run on memory of a GPU.
func (c *Case) RunOnGPU(ctx context.Context, g *device.Group) ([]byte, error) {
	p, err := sched.Parse(c.Program)
	if err != nil {
		return nil, err
	}
	switch c.Type {
	case "float64":
		return runOnGPU[float64](ctx, g, c, p, reduce.Float64)
	case "int32":
		return runOnGPU[int32](ctx, g, c, p, reduce.Int32)
	}
	return runOnGPU[float32](ctx, g, c, p, reduce.Float32)
}

func runOnGPU[T number](ctx context.Context, g *device.Group, c *Case, p *sched.Program, typ reduce.Type) (result []byte, err error) {
	if p.Op == sched.Barrier {
		return nil, device.Barrier(ctx, g)
	}
	r := g.Rank()
	ins, outs := c.lengths(p, r)
	at, own := c.block(r)
	whole, err := g.Alloc(typ, max(ins, outs))
	if err != nil {
		return nil, err
	}
	other, err := g.Alloc(typ, min(ins, outs))
	if err != nil {
		return nil, err
	}
	in, out := whole.Part(0, ins), other
	if outs > ins {
		in, out = other, whole.Part(0, outs)
	}
	if c.InPlace[r] || p.Op == sched.Broadcast {
		switch p.Op {
		case sched.ReduceScatter, sched.Scatter:
			out = in.Part(at, at+own)
		case sched.AllGather, sched.Gather:
			in = out.Part(at, at+own)
		default:
			out = in
		}
	}
	given := asBytes(input[T](c, r, ins))
	if err := g.Put(ctx, out, bytes.Repeat([]byte{0x71}, out.Bytes())); err != nil {
		return nil, err
	}
	if err := g.Put(ctx, in, given); err != nil {
		return nil, err
	}
	op := map[string]reduce.Op{"sum": reduce.Sum, "min": reduce.Min, "max": reduce.Max, "prod": reduce.Prod, "avg": reduce.Avg}[c.Op]
	call := device.Call{Op: p.Op, Reduce: op, Root: p.Root, Dst: out, Src: in, Counts: c.Lengths}
	if !c.Chosen {
		call.Program = p
	}
	if err := g.Do(ctx, call); err != nil {
		return nil, err
	}
	if !c.InPlace[r] && p.Op != sched.Broadcast {
		left := make([]byte, in.Bytes())
		if err := g.Get(ctx, left, in); err != nil {
			return nil, err
		}
		if !bytes.Equal(left, given) {
			return nil, fmt.Errorf("rank %d: the input was changed", r)
		}
	}
	if p.Op != sched.Reduce && p.Op != sched.Gather || r == p.Root {
		result = make([]byte, out.Bytes())
		if err := g.Get(ctx, result, out); err != nil {
			return nil, err
		}
	}
	if err := device.Barrier(ctx, g); err != nil { // nobody may still be reading the memory of a rank that left early
		return nil, err
	}
	if err := g.Free(whole); err != nil {
		return nil, err
	}
	return result, g.Free(other)
}
