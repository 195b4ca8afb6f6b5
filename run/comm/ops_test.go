package comm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/run/reduce"
)

// The verifiable inputs of nccl-tests' idea: small whole numbers, so that sums
// and products are exact in every type and order. They repeat after a prime
// number of elements, so that tests need not compute each of them anew and data
// that is out of place by any power of two is found.
const period = 61

func input[T reduce.Element](t reduce.Type, rank, i int) T {
	x := (rank*7 + i) % period
	return number[T](t, 1+x*x%period%3)
}

// inputs are those of n ranks and what they reduce to.
type inputs[T reduce.Element] struct {
	in     [][period]T
	folded [period]T
}

func newInputs[T reduce.Element](n int, op reduce.Op) *inputs[T] {
	t := reduce.TypeOf[T]()
	s := &inputs[T]{in: make([][period]T, n)}
	for r := range n {
		for i := range period {
			s.in[r][i] = input[T](t, r, i)
		}
	}
	sums := make([][]byte, n) // neighbours are summed, and their sums
	for r := range n {
		sums[r] = bytes.Clone(reduce.Bytes(s.in[r][:]))
	}
	for width := 1; width < n; width *= 2 {
		for r := 0; r+width < n; r += 2 * width {
			reduce.Apply(t, op, sums[r], sums[r], sums[r+width])
		}
	}
	copy(reduce.Bytes(s.folded[:]), sums[0])
	reduce.Finish(t, op, reduce.Bytes(s.folded[:]), n)
	return s
}

func (s *inputs[T]) at(rank, i int) T { return s.in[rank][i%period] }

// sum is element i of the reduction of all ranks in the canonical order.
func (s *inputs[T]) sum(i int) T { return s.folded[i%period] }

func (s *inputs[T]) fill(b []T, rank int) []T {
	for n := 0; n < len(b); {
		n += copy(b[n:], s.in[rank][:])
	}
	return b
}

func number[T reduce.Element](t reduce.Type, v int) T {
	var x any
	switch t {
	case reduce.Float16:
		x = reduce.ToF16(float32(v))
	case reduce.BFloat16:
		x = reduce.ToBF16(float32(v))
	case reduce.Float8E4M3:
		x = reduce.ToE4M3(float32(v))
	case reduce.Float8E5M2:
		x = reduce.ToE5M2(float32(v))
	case reduce.Float32:
		x = float32(v)
	case reduce.Float64:
		x = float64(v)
	case reduce.Int8:
		x = int8(v)
	case reduce.Uint8:
		x = uint8(v)
	case reduce.Int16:
		x = int16(v)
	case reduce.Uint16:
		x = uint16(v)
	case reduce.Int32:
		x = int32(v)
	case reduce.Uint32:
		x = uint32(v)
	case reduce.Int64:
		x = int64(v)
	case reduce.Uint64:
		x = uint64(v)
	}
	return x.(T)
}

// buffers hands out plain or registered memory and takes it back at the end.
type buffers[T reduce.Element] struct {
	c          *Comm
	registered bool
	all        [][]T
	err        error
}

func (b *buffers[T]) get(n int) []T {
	if !b.registered {
		return make([]T, n)
	}
	s, err := Alloc[T](b.c, n)
	if err != nil {
		b.err = err
		return make([]T, n)
	}
	b.all = append(b.all, s)
	return s
}

// free gives the memory back, once all ranks are done with it.
func (b *buffers[T]) free() error {
	for _, s := range b.all {
		if len(s) > 0 {
			b.err = errors.Join(b.err, Free(b.c, s))
		}
	}
	b.all = nil
	return b.err
}

// exercise runs every operation once with count elements a block and checks all
// of its results.
func exercise[T reduce.Element](c *Comm, op reduce.Op, count, root int, registered, inPlace bool, opts ...Option) error {
	ctx := context.Background()
	typ := reduce.TypeOf[T]()
	n, me := c.Size(), c.Rank()
	data := newInputs[T](n, op)
	fill := func(b []T) []T { return data.fill(b, me) }
	check := func(what string, got []T, want func(i int) T) error {
		for i := range got {
			if w := want(i); got[i] != w {
				return fmt.Errorf("%s of %d %s %s (root %d, registered %t, in place %t): element %d is %v, not %v",
					what, count, typ, op, root, registered, inPlace, i, got[i], w)
			}
		}
		return nil
	}
	mem := buffers[T]{c: c, registered: registered}
	get := mem.get

	src := fill(get(count))
	dst := src
	if !inPlace {
		dst = get(count)
	}
	if err := AllReduceTo(ctx, c, dst, src, op, opts...); err != nil {
		return err
	}
	if err := check("all-reduce", dst, func(i int) T { return data.sum(i) }); err != nil {
		return err
	}
	if !inPlace {
		if err := check("input of all-reduce", src, func(i int) T { return data.at(me, i) }); err != nil {
			return err
		}
	}

	src = fill(get(count * n))
	dst = src[me*count:][:count]
	if !inPlace {
		dst = get(count)
	}
	if err := ReduceScatter(ctx, c, dst, src, op); err != nil {
		return err
	}
	if err := check("reduce-scatter", dst, func(i int) T { return data.sum(me*count + i) }); err != nil {
		return err
	}

	dst = get(count * n)
	src = dst[me*count:][:count]
	if !inPlace {
		src = get(count)
	}
	fill(src)
	if err := AllGather(ctx, c, dst, src); err != nil {
		return err
	}
	if err := check("all-gather", dst, func(i int) T { return data.at(i/max(count, 1), i%max(count, 1)) }); err != nil {
		return err
	}

	src = fill(get(count))
	if err := Broadcast(ctx, c, src, root); err != nil {
		return err
	}
	if err := check("broadcast", src, func(i int) T { return data.at(root, i) }); err != nil {
		return err
	}

	src = fill(get(count))
	dst = src
	if !inPlace {
		dst = get(count)
	}
	if err := Reduce(ctx, c, dst, src, op, root); err != nil {
		return err
	}
	if me == root {
		if err := check("reduce", dst, func(i int) T { return data.sum(i) }); err != nil {
			return err
		}
	}

	src = fill(get(count * n))
	dst = src
	if !inPlace {
		dst = get(count * n)
	}
	if err := AllToAll(ctx, c, dst, src); err != nil {
		return err
	}
	if err := check("all-to-all", dst, func(i int) T { return data.at(i/max(count, 1), me*count+i%max(count, 1)) }); err != nil {
		return err
	}

	dst = get(count * n)
	src = dst[me*count:][:count]
	if !inPlace {
		src = get(count)
	}
	fill(src)
	if err := Gather(ctx, c, dst, src, root); err != nil {
		return err
	}
	if me == root {
		if err := check("gather", dst, func(i int) T { return data.at(i/max(count, 1), i%max(count, 1)) }); err != nil {
			return err
		}
	}

	src = fill(get(count * n))
	dst = src[me*count:][:count]
	if !inPlace {
		dst = get(count)
	}
	if err := Scatter(ctx, c, dst, src, root); err != nil {
		return err
	}
	if err := check("scatter", dst, func(i int) T { return data.at(root, me*count+i) }); err != nil {
		return err
	}
	if err := Barrier(ctx, c); err != nil {
		return err
	}
	return mem.free()
}

// exerciseV runs the operations with blocks of different lengths.
func exerciseV[T reduce.Element](c *Comm, seed uint64, root int, registered bool) error {
	ctx := context.Background()
	n, me := c.Size(), c.Rank()
	rnd := rand.New(rand.NewPCG(seed, 1))
	matrix := make([][]int, n) // what rank r sends to p
	for r := range matrix {
		matrix[r] = make([]int, n)
		for p := range matrix[r] {
			if rnd.IntN(3) > 0 {
				matrix[r][p] = rnd.IntN(2000)
			}
		}
	}
	counts := matrix[0]
	starts := func(counts []int) []int {
		s := make([]int, len(counts)+1)
		for i, k := range counts {
			s[i+1] = s[i] + k
		}
		return s
	}
	at := starts(counts)
	mem := buffers[T]{c: c, registered: registered}
	get := mem.get
	data := newInputs[T](n, Sum)
	fill := func(b []T) []T { return data.fill(b, me) }
	all := get(at[n])
	if err := AllGatherV(ctx, c, all, fill(get(counts[me])), counts); err != nil {
		return err
	}
	expect := func(what string, got []T) error {
		for p := range n {
			for i := range counts[p] {
				if got[at[p]+i] != data.at(p, i) {
					return fmt.Errorf("%s: element %d of block %d of %v", what, i, p, counts)
				}
			}
		}
		return nil
	}
	if err := expect("all-gather-v", all); err != nil {
		return err
	}
	gathered := get(at[n])
	if err := GatherV(ctx, c, gathered, fill(get(counts[me])), counts, root); err != nil {
		return err
	}
	if me == root {
		if err := expect("gather-v", gathered); err != nil {
			return err
		}
	}
	part := get(counts[me])
	if err := ScatterV(ctx, c, part, fill(get(at[n])), counts, root); err != nil {
		return err
	}
	for i := range part {
		if part[i] != data.at(root, at[me]+i) {
			return fmt.Errorf("scatter-v: element %d", i)
		}
	}
	if err := ReduceScatterV(ctx, c, part, fill(get(at[n])), counts, Sum); err != nil {
		return err
	}
	for i := range part {
		if part[i] != data.sum(at[me]+i) {
			return fmt.Errorf("reduce-scatter-v: element %d", i)
		}
	}
	recvs := make([]int, n)
	for r := range recvs {
		recvs[r] = matrix[r][me]
	}
	dst := get(total(recvs))
	if err := AllToAllV(ctx, c, dst, fill(get(total(matrix[me]))), recvs, matrix[me]); err != nil {
		return err
	}
	k := 0
	for r := range n {
		for i := range recvs[r] {
			if dst[k] != data.at(r, starts(matrix[r])[me]+i) {
				return fmt.Errorf("all-to-all-v: element %d of what rank %d sent", i, r)
			}
			k++
		}
	}
	if err := Barrier(ctx, c); err != nil {
		return err
	}
	return mem.free()
}

// everyType runs an operation on every type. Sums of numbers of 8 bits are only
// exact in the canonical order, so they are left out in others.
func everyType(c *Comm, op reduce.Op, count, root int, registered, inPlace, canonical bool) error {
	types := []func() error{
		func() error { return exercise[int8](c, op, count, root, registered, inPlace) },
		func() error { return exercise[uint8](c, op, count, root, registered, inPlace) },
		func() error { return exercise[int16](c, op, count, root, registered, inPlace) },
		func() error { return exercise[uint16](c, op, count, root, registered, inPlace) },
		func() error { return exercise[int32](c, op, count, root, registered, inPlace) },
		func() error { return exercise[uint32](c, op, count, root, registered, inPlace) },
		func() error { return exercise[int64](c, op, count, root, registered, inPlace) },
		func() error { return exercise[uint64](c, op, count, root, registered, inPlace) },
		func() error { return exercise[reduce.F16](c, op, count, root, registered, inPlace) },
		func() error { return exercise[reduce.BF16](c, op, count, root, registered, inPlace) },
		func() error { return exercise[float32](c, op, count, root, registered, inPlace) },
		func() error { return exercise[float64](c, op, count, root, registered, inPlace) },
		func() error { return exercise[reduce.E4M3](c, op, count, root, registered, inPlace) },
		func() error { return exercise[reduce.E5M2](c, op, count, root, registered, inPlace) },
	}
	if !canonical && op != Min && op != Max {
		types = types[:len(types)-2]
	}
	for _, do := range types {
		if err := do(); err != nil {
			return err
		}
	}
	return nil
}

// Every operation, type and reduction, in and out of place, with small, middle
// and odd counts, on goroutine ranks 1 to 16.
func TestEveryOperationTypeAndReduction(t *testing.T) {
	for n := 1; n <= 16; n++ {
		if testing.Short() && n > 4 {
			break
		}
		if !bounded.Long() && n > 3 && n != 5 && n != 8 {
			continue
		}
		each(t, n, Config{Timeout: 10 * time.Second, Canonical: true}, func(c *Comm) error {
			for k, op := range reduce.Ops() {
				if op == reduce.PreMulSum {
					continue
				}
				for _, inPlace := range []bool{false, true} {
					count := []int{0, 1, 5, 33, 130, 1030 * 4 / max(n, 4)}[(n+k)%6] // larger ones: TestSizesAroundBoundaries
					if op >= reduce.BAnd {
						if err := exercise[uint32](c, op, count, (n+k)%n, k%2 == 0, inPlace); err != nil {
							return err
						}
						continue
					}
					if err := everyType(c, op, count, (n+k)%n, k%2 == 0, inPlace, true); err != nil {
						return err
					}
				}
			}
			return nil
		})
	}
}

// Sizes around every boundary of the flat way: entry line, board, stages of a
// pair, single stages, several blocks of the journal.
func TestSizesAroundBoundaries(t *testing.T) {
	for _, n := range bounded.First(2, 2, 3, 5) {
		each(t, n, Config{Timeout: 10 * time.Second}, func(c *Comm) error {
			for i, count := range []int{7, 8, 9, 1023, 1024, 1025, 2047, 2048, 2049, 4096, 10000, 70001, 300001} {
				for _, registered := range []bool{false, true} {
					for _, inPlace := range []bool{false, true} {
						if (inPlace == registered) == ((i+n)%2 == 0) && !bounded.Long() {
							continue // the other numbers of ranks do
						}
						if err := exercise[float32](c, Sum, count, count%n, registered, inPlace); err != nil {
							return err
						}
						if registered && !bounded.Long() {
							continue
						}
						if err := exercise[float32](c, Avg, count, count%n, registered, inPlace); err != nil {
							return err
						}
					}
				}
			}
			return nil
		})
	}
}

func TestBlocksOfDifferentLengths(t *testing.T) {
	for n := 1; n <= 9; n++ {
		each(t, n, Config{Timeout: 10 * time.Second}, func(c *Comm) error {
			for seed := range uint64(4) {
				if err := exerciseV[float32](c, seed, int(seed)%n, seed%2 == 0); err != nil {
					return err
				}
				if err := exerciseV[int8](c, seed+100, int(seed)%n, seed%2 == 1); err != nil {
					return err
				}
			}
			return nil
		})
	}
}

// Every algorithm that does all-reduce gives the right sum as it is written,
// flat or as a script.
func TestEveryAlgorithm(t *testing.T) {
	for _, n := range bounded.First(3, 2, 3, 8, 4, 6) {
		each(t, n, Config{Timeout: 10 * time.Second}, func(c *Comm) error {
			for _, a := range algo.All() {
				for _, op := range a.Ops {
					if op != sched.AllReduce {
						continue
					}
					for _, channels := range []int{1, 3} {
						p, err := a.Program(algo.Spec{Op: op, Ranks: n, Channels: channels, Local: 2})
						if err != nil || p.Switches > 0 {
							continue // a count that it cannot do, or switches that compute
						}
						for _, count := range []int{1, 100, 5003} {
							for _, inPlace := range []bool{false, true} {
								src := make([]int32, count)
								for i := range src {
									src[i] = int32((c.Rank() + 1) * (i + 1))
								}
								dst := src
								if !inPlace {
									dst = make([]int32, count)
								}
								if err := AllReduceTo(context.Background(), c, dst, src, Sum, Using(p)); err != nil {
									return fmt.Errorf("%s: %w", a.Name, err)
								}
								for i := range dst {
									if want := int32(n * (n + 1) / 2 * (i + 1)); dst[i] != want {
										return fmt.Errorf("%s of %d ranks, %d channels, %d elements: element %d is %d, not %d",
											a.Name, n, channels, count, i, dst[i], want)
									}
								}
							}
						}
					}
				}
			}
			return nil
		})
	}
}

func TestPreMulSum(t *testing.T) {
	for _, n := range []int{1, 2, 4} {
		for _, count := range []int{3, 900, 5000, 300000} {
			each(t, n, Config{Timeout: 10 * time.Second}, func(c *Comm) error {
				for _, registered := range []bool{false, true} {
					mem := buffers[float32]{c: c, registered: registered}
					b := mem.get(count)
					for i := range b {
						b[i] = float32(i % 8)
					}
					if err := AllReduce(context.Background(), c, b, PreMulSum, Factor(float64(c.Rank()+1))); err != nil {
						return err
					}
					for i := range b {
						if want := float32(n*(n+1)/2) * float32(i%8); b[i] != want {
							return fmt.Errorf("element %d is %v, not %v", i, b[i], want)
						}
					}
					src, dst := slices.Repeat([]float32{2}, count), make([]float32, count)
					if err := Reduce(context.Background(), c, dst, src, PreMulSum, n-1, Factor(0.5)); err != nil {
						return err
					}
					if c.Rank() == n-1 && dst[count-1] != float32(n) {
						return fmt.Errorf("reduce: %v", dst[count-1])
					}
				}
				return nil
			})
		}
	}
}
