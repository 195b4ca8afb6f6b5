package differential

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"
	"unsafe"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/internal/reference"
	"github.com/weft-fabric/weft/run/comm"
)

// Case is one call of a program: what every rank is told.
type Case struct {
	Program  string // its text
	Seed     uint64 // of the inputs
	Count    int    // elements of a block
	Lengths  []int  // elements of each rank's block, where they differ; nil if all have Count
	Type     string // float32, float64 or int32
	Op       string // sum, min, max, prod or avg
	Tricky   bool   // sums depend on their order, to the last bit
	InPlace  []bool // by rank
	Plain    []bool // by rank: buffers are not of the library
	Messages bool   // action by action, even in shared memory
	Chosen   bool   // what comm chooses for the call, rather than Program, which has the same result

	Frozen int           // the process that is stopped during the call, from 1 on; 0 for none
	After  time.Duration // and when
}

func (c Case) String() string {
	way := "as comm chooses"
	if c.Messages {
		way = "by messages"
	}
	if c.Chosen {
		way = "the program that comm chooses"
	}
	if c.Frozen > 0 {
		way += fmt.Sprintf(", rank %d stopped after %s", c.Frozen-1, c.After)
	}
	if c.Lengths != nil {
		return fmt.Sprintf("blocks of %v elements of %s, %s, in place %v, plain %v, %s", c.Lengths, c.Type, c.Op, c.InPlace, c.Plain, way)
	}
	return fmt.Sprintf("%d elements of %s, %s, tricky %v, in place %v, plain %v, %s", c.Count, c.Type, c.Op, c.Tricky, c.InPlace, c.Plain, way)
}

// mostTricky is the length of the longest inputs whose sums are compared chunk by chunk.
const mostTricky = 3000

// sizes are counts of elements, around the borders that comm has.
var sizes = []int{1, 2, 3, 7, 8, 15, 16, 17, 24, 25, 100, 255, 256, 1000, 1023, 1024, 1025, 2048, 2999, 4096, 5000, 20000, 40001, 70001,
	131072, 262145, 400003, 1 << 20}

// DrawCase draws a call of a program.
func DrawCase(rng *rand.Rand, p *sched.Program) Case {
	c := Case{Program: p.String(), Seed: rng.Uint64(), Type: []string{"float32", "float32", "float64", "int32"}[rng.IntN(4)],
		Op: []string{"sum", "sum", "sum", "min", "max", "prod", "avg"}[rng.IntN(7)]}
	if c.Op == "avg" && c.Type == "int32" {
		c.Op = "sum"
	}
	most := len(sizes)
	if rng.IntN(4) > 0 {
		most -= 8 // mostly short ones
	}
	c.Count = sizes[rng.IntN(most)]
	if p.Op.Blocks() {
		c.Count = max(c.Count/p.Ranks, 1)
	}
	if dealt(p.Op) && rng.IntN(3) == 0 {
		c.drawLengths(rng, p.Ranks)
	}
	c.Tricky = c.Op == "sum" && c.Count <= mostTricky && c.Lengths == nil
	inPlace, plain := rng.IntN(3), rng.IntN(3)
	for range p.Ranks {
		c.InPlace = append(c.InPlace, allOrSome(rng, inPlace))
		c.Plain = append(c.Plain, allOrSome(rng, plain))
	}
	return c
}

// drawLengths gives every rank a length of its own: none at all, or up to twice as many elements.
func (c *Case) drawLengths(rng *rand.Rand, ranks int) {
	for range ranks {
		c.Lengths = append(c.Lengths, max(0, rng.IntN(2*c.Count+2)-1))
	}
}

// allOrSome is true for all ranks where kind is 0, for about half of them where it is 1, and else for none.
func allOrSome(rng *rand.Rand, kind int) bool { return kind == 0 || kind == 1 && rng.IntN(2) == 0 }

// dealt says whether a collective has a block for every rank whose length may be its own.
func dealt(op sched.Collective) bool {
	return op == sched.AllGather || op == sched.Gather || op == sched.ReduceScatter || op == sched.Scatter
}

// block is where the block of a rank begins, and its length.
func (c *Case) block(r int) (at, n int) {
	if c.Lengths == nil {
		return r * c.Count, c.Count
	}
	for _, n := range c.Lengths[:r] {
		at += n
	}
	return at, c.Lengths[r]
}

// Run makes the call of a rank, and gives its output as bytes; nil where it is promised none.
func (c *Case) Run(ctx context.Context, m *comm.Comm) ([]byte, error) {
	p, err := sched.Parse(c.Program)
	if err != nil {
		return nil, err
	}
	switch c.Type {
	case "float64":
		return run[float64](ctx, m, c, p)
	case "int32":
		return run[int32](ctx, m, c, p)
	}
	return run[float32](ctx, m, c, p)
}

// number is what the tests compute with.
type number interface {
	~int32 | ~float32 | ~float64
}

// input is that of a rank. Tricky ones differ by many orders of magnitude and hold
// infinities and different NaNs; the others are small, so that any order of sums is exact.
func input[T number](c *Case, rank, n int) []T {
	rng := rand.New(rand.NewPCG(c.Seed, uint64(rank)))
	out := make([]T, n)
	for i := range out {
		small := rng.IntN(200) - 100
		out[i] = T(small)
		if c.Op == "prod" {
			out[i] = T(rng.IntN(3) - 1)
		}
		if c.Tricky {
			tricky(&out[i], rng, rank)
		}
	}
	return out
}

// tricky draws an element whose sums depend on their order. NaNs carry the rank, which shows whose has won.
func tricky[T number](to *T, rng *rand.Rand, rank int) {
	switch x := any(to).(type) {
	case *float32:
		*x = float32(math.Ldexp(rng.Float64()-0.5, rng.IntN(60)-30))
		switch rng.IntN(12) {
		case 0:
			*x = math.Float32frombits(0x7fc00001 + uint32(rank)<<8 + uint32(rng.IntN(200)))
		case 1:
			*x = float32(math.Inf(1 - 2*rng.IntN(2)))
		case 2:
			*x = float32(math.Copysign(0, -1))
		}
	case *float64:
		*x = math.Ldexp(rng.Float64()-0.5, rng.IntN(120)-60)
		if rng.IntN(12) == 0 {
			*x = math.Float64frombits(0x7ff8000000000001 + uint64(rank)<<8 + uint64(rng.IntN(200)))
		}
	case *int32:
		*x = int32(rng.Uint32())
	}
}

// reduction is the reference's. A result that is a NaN has all bits set, whatever
// it was made of, as package reduce says.
func reduction[T number](op string) func(a, b T) T {
	plain := func(a, b T) T { return a + b }
	switch op {
	case "min":
		plain = func(a, b T) T { return min(a, b) }
	case "max":
		plain = func(a, b T) T { return max(a, b) }
	case "prod":
		plain = func(a, b T) T { return a * b }
	}
	return func(a, b T) T {
		c := plain(a, b)
		if c == c {
			return c
		}
		switch x := any(&c).(type) {
		case *float32:
			*x = math.Float32frombits(math.MaxUint32)
		case *float64:
			*x = math.Float64frombits(math.MaxUint64)
		}
		return c
	}
}

// lengths gives the elements of in and out of a rank.
func (c *Case) lengths(p *sched.Program, r int) (in, out int) {
	if c.Lengths != nil {
		at, n := c.block(p.Ranks - 1)
		_, own := c.block(r)
		if p.Op == sched.AllGather || p.Op == sched.Gather {
			return own, at + n
		}
		return at + n, own
	}
	in, out = c.Count, c.Count
	switch p.Op {
	case sched.Barrier:
		return 0, 0
	case sched.AllGather, sched.Gather:
		out *= p.Ranks
	case sched.ReduceScatter, sched.Scatter:
		in *= p.Ranks
	case sched.AllToAll:
		in, out = in*p.Ranks, out*p.Ranks
	}
	return in, out
}

func asBytes[T number](s []T) []byte {
	if len(s) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&s[0])), len(s)*int(unsafe.Sizeof(s[0])))
}

func run[T number](ctx context.Context, m *comm.Comm, c *Case, p *sched.Program) ([]byte, error) {
	r := m.Rank()
	if p.Op == sched.Barrier {
		return nil, comm.Barrier(ctx, m, c.options(p)...)
	}
	ins, outs := c.lengths(p, r)
	at, own := c.block(r)
	alloc := func(k int) ([]T, error) {
		if c.Plain[r] {
			return make([]T, k), nil
		}
		return comm.Alloc[T](m, k)
	}
	whole, err := alloc(max(ins, outs))
	if err != nil {
		return nil, err
	}
	other, err := alloc(min(ins, outs))
	if err != nil {
		return nil, err
	}
	// The larger buffer is the first; in place the smaller one is the rank's block of it.
	in, out := whole[:ins], other[:min(outs, len(other))]
	if outs > ins {
		in, out = other[:ins], whole[:outs]
	}
	if c.InPlace[r] || p.Op == sched.Broadcast {
		switch p.Op {
		case sched.ReduceScatter, sched.Scatter:
			out = in[at:][:own]
		case sched.AllGather, sched.Gather:
			in = out[at:][:own]
		default:
			out = in
		}
	}
	const junk = 113
	for i := range out {
		out[i] = junk
	}
	given := input[T](c, r, ins)
	copy(in, given)
	opts := c.options(p)
	op := map[string]comm.Op{"sum": comm.Sum, "min": comm.Min, "max": comm.Max, "prod": comm.Prod, "avg": comm.Avg}[c.Op]
	switch {
	case c.Lengths != nil && p.Op == sched.AllGather:
		err = comm.AllGatherV(ctx, m, out, in, c.Lengths, opts...)
	case c.Lengths != nil && p.Op == sched.Gather:
		err = comm.GatherV(ctx, m, out, in, c.Lengths, p.Root, opts...)
	case c.Lengths != nil && p.Op == sched.ReduceScatter:
		err = comm.ReduceScatterV(ctx, m, out, in, c.Lengths, op, opts...)
	case c.Lengths != nil && p.Op == sched.Scatter:
		err = comm.ScatterV(ctx, m, out, in, c.Lengths, p.Root, opts...)
	case p.Op == sched.AllReduce:
		err = comm.AllReduceTo(ctx, m, out, in, op, opts...)
	case p.Op == sched.ReduceScatter:
		err = comm.ReduceScatter(ctx, m, out, in, op, opts...)
	case p.Op == sched.AllGather:
		err = comm.AllGather(ctx, m, out, in, opts...)
	case p.Op == sched.Broadcast:
		err = comm.Broadcast(ctx, m, out, p.Root, opts...)
	case p.Op == sched.Reduce:
		err = comm.Reduce(ctx, m, out, in, op, p.Root, opts...)
	case p.Op == sched.AllToAll:
		err = comm.AllToAll(ctx, m, out, in, opts...)
	case p.Op == sched.Gather:
		err = comm.Gather(ctx, m, out, in, p.Root, opts...)
	case p.Op == sched.Scatter:
		err = comm.Scatter(ctx, m, out, in, p.Root, opts...)
	default:
		err = fmt.Errorf("no call for %s", p.Op)
	}
	if err != nil {
		return nil, err
	}
	if !c.InPlace[r] && p.Op != sched.Broadcast && !bytes.Equal(asBytes(in), asBytes(given)) {
		return nil, fmt.Errorf("rank %d: the input was changed", r)
	}
	var result []byte
	if p.Op != sched.Reduce && p.Op != sched.Gather || r == p.Root {
		result = bytes.Clone(asBytes(out))
	}
	if !c.Plain[r] {
		// Nobody may still be looking at the memory of a rank that left early.
		if err := comm.Barrier(ctx, m); err != nil {
			return nil, err
		}
		if err := comm.Free(m, whole); err != nil {
			return nil, err
		}
		if err := comm.Free(m, other); err != nil {
			return nil, err
		}
	} else if err := comm.Barrier(ctx, m); err != nil {
		return nil, err
	}
	return result, nil
}

// options are those of the call.
func (c *Case) options(p *sched.Program) []comm.Option {
	if c.Chosen {
		return nil
	}
	opts := []comm.Option{comm.Using(p)}
	if c.Messages {
		opts = append(opts, comm.ByMessages())
	}
	return opts
}

// Check compares the outputs of all ranks with the reference.
func (c *Case) Check(outs [][]byte) error {
	p, err := sched.Parse(c.Program)
	if err != nil {
		return err
	}
	switch c.Type {
	case "float64":
		return check[float64](c, p, outs)
	case "int32":
		return check[int32](c, p, outs)
	}
	return check[float32](c, p, outs)
}

// exact compares the outputs of those ranks that are promised one.
func exact[T number](want [][]T, outs [][]byte) error {
	for r := range want {
		if want[r] != nil && !bytes.Equal(outs[r], asBytes(want[r])) {
			return differ[T](r, outs[r], want[r])
		}
	}
	return nil
}

func check[T number](c *Case, p *sched.Program, outs [][]byte) error {
	if p.Op == sched.Barrier {
		return nil // it ended
	}
	in := make([][]T, p.Ranks)
	for r := range in {
		ins, _ := c.lengths(p, r)
		in[r] = input[T](c, r, ins)
	}
	if !c.Tricky || !p.Op.Reduces() {
		return exact(plain(c, p, in), outs)
	}
	return c.chunkwise(p, func(chunkIn [][]byte) ([][]byte, error) {
		typed := make([][]T, len(chunkIn))
		for r, b := range chunkIn {
			typed[r] = unsafe.Slice((*T)(unsafe.Pointer(&b[0])), len(b)/int(unsafe.Sizeof(in[0][0])))
		}
		got, err := reference.RunWith(p, typed, reduction[T](c.Op), nil)
		if err != nil {
			return nil, err
		}
		result := make([][]byte, len(got))
		for r := range got {
			result[r] = asBytes(got[r])
		}
		return result, nil
	}, func(r int) []byte { return asBytes(in[r]) }, int(unsafe.Sizeof(in[0][0])), outs)
}

// plain is what the collective promises, where the order of sums does not matter.
func plain[T number](c *Case, p *sched.Program, in [][]T) [][]T {
	switch p.Op {
	case sched.AllReduce, sched.ReduceScatter, sched.Reduce:
		total := total(c, in)
		out := make([][]T, p.Ranks)
		for r := range out {
			switch {
			case p.Op == sched.AllReduce || p.Op == sched.Reduce && r == p.Root:
				out[r] = total
			case p.Op == sched.ReduceScatter:
				at, n := c.block(r)
				out[r] = total[at : at+n]
			}
		}
		return out
	}
	if c.Lengths != nil {
		return varied(c, p, in)
	}
	return reference.Promised(p.Op, p.Root, in)
}

// total reduces all inputs. The mean is the sum times a rounded factor, as reduce.Finish says.
func total[T number](c *Case, in [][]T) []T {
	reduce := reduction[T](c.Op)
	total := slices.Clone(in[0])
	for _, x := range in[1:] {
		for i := range total {
			total[i] = reduce(total[i], x[i])
		}
	}
	if c.Op == "avg" {
		for i := range total {
			total[i] *= T(1 / float64(len(in)))
		}
	}
	return total
}

// varied is what is promised where ranks have blocks of different lengths.
func varied[T number](c *Case, p *sched.Program, in [][]T) [][]T {
	out := make([][]T, p.Ranks)
	for r := range out {
		switch at, n := c.block(r); {
		case p.Op == sched.Scatter:
			out[r] = in[p.Root][at : at+n]
		case p.Op == sched.AllGather || r == p.Root:
			out[r] = slices.Concat(in...)
		}
	}
	return out
}

func differ[T number](r int, got []byte, want []T) error {
	w := asBytes(want)
	if len(got) != len(w) {
		return fmt.Errorf("rank %d has %d bytes, not %d", r, len(got), len(w))
	}
	size := int(unsafe.Sizeof(want[0]))
	wrong, first := 0, -1
	for i := range want {
		if !bytes.Equal(got[i*size:][:size], w[i*size:][:size]) {
			if wrong++; first < 0 {
				first = i
			}
		}
	}
	return fmt.Errorf("rank %d has %d wrong elements of %d; element %d is %x, not %x (%v)",
		r, wrong, len(want), first, got[first*size:][:size], w[first*size:][:size], want[first])
}

// chunkwise compares sums that depend on their order. How elements are dealt out to the
// chunks of a block is comm's business, so the reference computes every element in every
// chunk of its block; on all ranks it must be what one and the same chunk gives.
func (c *Case) chunkwise(p *sched.Program, run func([][]byte) ([][]byte, error), in func(r int) []byte, size int, outs [][]byte) error {
	blocks := 1
	if p.Op.Blocks() {
		blocks = p.Ranks
	}
	per := p.NumChunks(sched.In) / blocks
	length := c.Count * size // bytes of a block
	wide := make([][]byte, p.Ranks)
	for r := range wide {
		for b := range blocks {
			for range per {
				wide[r] = append(wide[r], in(r)[b*length:(b+1)*length]...)
			}
		}
	}
	want, err := run(wide)
	if err != nil {
		return err
	}
	home := func(r, b int) (at, from int, ok bool) { // of block b in out of the call, and of the reference
		switch {
		case p.Op == sched.ReduceScatter:
			return 0, 0, r == b
		case p.Op == sched.Reduce:
			return 0, 0, r == p.Root
		}
		return 0, 0, true
	}
	for b := range blocks {
		for i := range c.Count {
			chunks := make([]bool, per)
			for j := range chunks {
				chunks[j] = true
			}
			left := per
			for r := range outs {
				at, from, ok := home(r, b)
				if !ok {
					continue
				}
				got := outs[r][at+i*size:][:size]
				for j := range chunks {
					if chunks[j] && !bytes.Equal(got, want[r][from+j*length+i*size:][:size]) {
						chunks[j] = false
						left--
					}
				}
				if left == 0 {
					return fmt.Errorf("rank %d, block %d: element %d is %x, which no chunk of the block gives; chunk 0 gives %x",
						r, b, i, got, want[r][from+i*size:][:size])
				}
			}
		}
	}
	return nil
}
