package comm

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/run/reduce"
)

// sample is one reduction of those that all worlds do alike.
type sample struct {
	op         sched.Collective
	typ        reduce.Type
	by         reduce.Op
	count      int // elements of a rank's share, or of all
	root       int
	inPlace    bool
	registered bool
	counts     []int // of a reduce-scatter with blocks of different lengths
	part       bool  // on a communicator of the ranks with an even number, or an odd one
	together   bool  // twice at once
	seed       uint64
}

var samples = map[bool]int{false: 20, true: 60}[bounded.Long()]

// samplesOf draws reductions for n ranks.
func samplesOf(seed uint64, n int) []sample {
	rnd := rand.New(rand.NewPCG(seed, 17))
	types := []reduce.Type{reduce.Float32, reduce.Float64, reduce.Float16, reduce.BFloat16, reduce.Float8E4M3, reduce.Float8E5M2}
	ops := []reduce.Op{reduce.Sum, reduce.Sum, reduce.Avg, reduce.Prod, reduce.PreMulSum}
	counts := []int{1, 3, 150001, 7, 63, 100, 1000, 4097, 2, 30011}
	kinds := []sched.Collective{sched.AllReduce, sched.AllReduce, sched.ReduceScatter, sched.Reduce}
	var list []sample
	for i := range samples {
		x := sample{op: kinds[rnd.IntN(4)], typ: types[rnd.IntN(len(types))], by: ops[rnd.IntN(len(ops))], count: counts[i%len(counts)],
			root:    rnd.IntN(n),
			inPlace: rnd.IntN(2) == 0, registered: rnd.IntN(2) == 0, part: n > 3 && rnd.IntN(4) == 0, together: rnd.IntN(4) == 0, seed: rnd.Uint64()}
		if x.count > 10000 && x.typ != reduce.Float32 && x.typ != reduce.Float16 {
			x.typ = reduce.Float32
		}
		if x.op == sched.ReduceScatter && rnd.IntN(3) == 0 {
			x.part = false
			for range n {
				x.counts = append(x.counts, rnd.IntN(x.count+1))
			}
			x.count = total(x.counts)
		} else if x.op == sched.ReduceScatter {
			x.count = max(x.count/n, 1)
		}
		if x.part {
			x.root /= 2
			x.root = min(x.root, n/2-1)
		}
		list = append(list, x)
	}
	return list
}

// inputOf is a rank's input: numbers of about one magnitude, and of all, infinities and all kinds of NaN among them.
func inputOf(x *sample, rank, elements int) []byte {
	size := x.typ.Size()
	rnd := rand.New(rand.NewPCG(x.seed, uint64(rank)))
	b := make([]byte, elements*size)
	for i := 0; i < len(b); i += 8 {
		var word [8]byte
		binary.NativeEndian.PutUint64(word[:], rnd.Uint64())
		copy(b[i:], word[:])
	}
	for i := range elements {
		e := b[i*size:][:size]
		if (i+int(x.seed%12))%12 == rank%12 {
			continue // any bits
		}
		top, low := &e[size-1], int(e[0]>>3&3) // little endian: the exponent is on top
		switch x.typ {
		case reduce.Float32:
			*top, e[2] = *top&0x80|0x3f, e[2]&0x7f|byte(low&1)<<7
		case reduce.BFloat16:
			*top, e[0] = *top&0x80|0x3f, e[0]&0x7f|byte(low&1)<<7
		case reduce.Float64:
			*top, e[6] = *top&0x80|0x3f, e[6]&0x0f|byte(0xc+low)<<4
		case reduce.Float16:
			*top = *top&0x83 | byte(0x30+4*low)
		}
	}
	return b
}

// plainSum is what a reduction gives, computed pair by pair in the canonical order.
func plainSum(x *sample, ins [][]byte) []byte {
	var sum func(lo, hi int) []byte
	sum = func(lo, hi int) []byte {
		if hi == lo+1 {
			b := bytes.Clone(ins[lo])
			if x.by == reduce.PreMulSum {
				reduce.Scale(x.typ, b, float64(lo)+0.5)
			}
			return b
		}
		half := 1
		for 2*half < hi-lo {
			half *= 2
		}
		a, b := sum(lo, lo+half), sum(lo+half, hi)
		reduce.Apply(x.typ, x.by, a, a, b)
		return a
	}
	b := sum(0, len(ins))
	reduce.Finish(x.typ, x.by, b, len(ins))
	return b
}

// doSample does one reduction and gives what this rank has of the result.
func doSample[T Element](c, half *Comm, x *sample) ([]byte, error) {
	ctx := context.Background()
	c0 := c
	if x.part {
		c = half
	}
	n := c.Size()
	whole := x.count
	if x.op == sched.ReduceScatter && x.counts == nil {
		whole *= n
	}
	opts := []Option{}
	if x.by == reduce.PreMulSum {
		opts = append(opts, Factor(float64(c.Rank())+0.5))
	}
	mem := buffers[T]{c: c0, registered: x.registered}
	once := func(more ...Option) ([]T, error) {
		opts := append(slices.Clone(opts), more...)
		src := mem.get(whole)
		copy(reduce.Bytes(src), inputOf(x, c0.Rank(), whole))
		dst := src
		switch x.op {
		case sched.AllReduce, sched.Reduce:
			if !x.inPlace {
				dst = mem.get(whole)
			}
		default:
			mine, from := x.count, c.Rank()*x.count
			if x.counts != nil {
				mine, from = x.counts[c.Rank()], total(x.counts[:c.Rank()])
			}
			if dst = src[from:][:mine]; !x.inPlace {
				dst = mem.get(mine)
			}
		}
		var err error
		switch {
		case x.op == sched.AllReduce:
			err = AllReduceTo(ctx, c, dst, src, x.by, opts...)
		case x.op == sched.Reduce:
			err = Reduce(ctx, c, dst, src, x.by, x.root, opts...)
			if c.Rank() != x.root {
				dst = nil
			}
		case x.counts != nil:
			err = ReduceScatterV(ctx, c, dst, src, x.counts, x.by, opts...)
		default:
			err = ReduceScatter(ctx, c, dst, src, x.by, opts...)
		}
		return dst, err
	}
	var got, other []T
	var err error
	if x.together {
		err = Together(ctx,
			func(o Option) (err error) { got, err = once(o); return err },
			func(o Option) (err error) { other, err = once(o); return err })
		if err == nil && !bytes.Equal(reduce.Bytes(got), reduce.Bytes(other)) {
			err = errors.New("two of the same have different bits")
		}
	} else {
		got, err = once()
	}
	if err != nil {
		return nil, fmt.Errorf("%+v: %w", *x, err)
	}
	result := bytes.Clone(reduce.Bytes(got))
	if err := Barrier(ctx, c0); err != nil {
		return nil, err
	}
	return result, mem.free()
}

// canonicalSamples does all of them and gives the digest of each result.
func canonicalSamples(c *Comm, seed uint64) ([]string, error) {
	var half *Comm
	if c.Size() > 3 {
		var err error
		if half, err = c.Split(context.Background(), c.Rank()%2, c.Rank()); err != nil {
			return nil, err
		}
		defer half.Close()
	}
	var list []string
	for _, x := range samplesOf(seed, c.Size()) {
		do := map[reduce.Type]func(c, half *Comm, x *sample) ([]byte, error){
			reduce.Float32: doSample[float32], reduce.Float64: doSample[float64], reduce.Float16: doSample[Float16],
			reduce.BFloat16:   doSample[BFloat16],
			reduce.Float8E4M3: doSample[Float8E4M3], reduce.Float8E5M2: doSample[Float8E5M2]}[x.typ]
		b, err := do(c, half, &x)
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(b)
		list = append(list, fmt.Sprintf("%x", sum[:6]))
	}
	return list, Barrier(context.Background(), c)
}

// expected are the digests that a rank shall have. sums keeps the results by sample and first rank.
func expected(seed uint64, n, rank int, sums map[[2]int][]byte) []string {
	var list []string
	for i, x := range samplesOf(seed, n) {
		members, me := []int{}, 0
		for r := range n {
			if !x.part || r%2 == rank%2 {
				if r == rank {
					me = len(members)
				}
				members = append(members, r)
			}
		}
		whole := x.count
		if x.op == sched.ReduceScatter && x.counts == nil {
			whole *= len(members)
		}
		at := [2]int{i, members[0]}
		if sums[at] == nil {
			var ins [][]byte
			for _, r := range members {
				ins = append(ins, inputOf(&x, r, whole))
			}
			sums[at] = plainSum(&x, ins)
		}
		b, size := sums[at], x.typ.Size()
		switch {
		case x.op == sched.Reduce && me != x.root:
			b = nil
		case x.counts != nil:
			b = b[total(x.counts[:me])*size:][:x.counts[me]*size]
		case x.op == sched.ReduceScatter:
			b = b[me*x.count*size:][:x.count*size]
		}
		sum := sha256.Sum256(b)
		list = append(list, fmt.Sprintf("%x", sum[:6]))
	}
	return list
}

func init() {
	bodies["canonical"] = func(k *kid) error {
		var o order
		for {
			if err := k.orders.Decode(&o); err != nil {
				return err
			}
			if o.Do == "leave" {
				return nil
			}
			list, err := canonicalSamples(k.c, o.Seed)
			if err != nil {
				return err
			}
			k.say(event{At: o.Do, Data: fmt.Sprint(list)})
		}
	}
}

// With WEFT_CANONICAL=1 every reduction has the bits of the plain tree, NaNs included: between goroutines, in shared memory, over tcp,
// and for every layout of ranks on hosts; of every type, length, root and way to call, on parts of the ranks as well.
func TestSameBitsOverEveryTransport(t *testing.T) {
	check := func(seed uint64, world string, n int, got [][]string) {
		t.Helper()
		list, sums := samplesOf(seed, n), map[[2]int][]byte{}
		for r := range n {
			for i, want := range expected(seed, n, r, sums) {
				if got[r][i] != want {
					t.Errorf("%d ranks, %s, seed %d, rank %d: %+v has other bits than the plain tree", n, world, seed, r, list[i])
				}
			}
		}
	}
	seed := uint64(1)
	for _, n := range bounded.First(2, 5, 8, 3, 2, 6, 7) {
		seed++
		got := make([][]string, n)
		each(t, n, Config{Canonical: true, Timeout: 30 * time.Second}, func(c *Comm) (err error) {
			got[c.Rank()], err = canonicalSamples(c, seed)
			return err
		})
		if !t.Failed() {
			check(seed, "mem", n, got)
		}
	}
	type world struct{ transport, hosts string }
	for _, w := range bounded.First(4, world{"shm", "aaaaa"}, world{"tcp", "abcd"}, world{"mixed", "aaab"}, world{"mixed", "aabbcc"},
		world{"mixed", "aabb"},
		world{"shm", "aaaa"}, world{"shm", "aa"}, world{"tcp", "ab"}, world{"tcp", "abc"}, world{"tcp", "abcdef"}, world{"mixed", "aaaabbbb"},
		world{"mixed", "aabbccdd"},
		world{"mixed", "abc"}, world{"mixed", "aaabbb"}, world{"mixed", "abab"}, world{"mixed", "abbcccd"}) {
		seed++
		n := len(w.hosts)
		env := []string{"WEFT_CANONICAL=1"}
		if w.transport == "mixed" {
			env = append(env, "hosts="+w.hosts)
		}
		list := startProcs(t, n, w.transport, "canonical", env...)
		var got [][]string
		for _, e := range list.all(order{Do: "canonical", Seed: seed}) {
			if e.Err != "" {
				t.Fatalf("%s %s: %s", w.transport, w.hosts, e.Err)
			}
			got = append(got, wordsOf(e.Data))
		}
		check(seed, w.transport+" "+w.hosts, n, got)
		list.finish()
	}
}

// wordsOf are the words of a printed list.
func wordsOf(s string) []string {
	return slices.Collect(func(yield func(string) bool) {
		for _, w := range bytes.Fields(bytes.Trim([]byte(s), "[]")) {
			if !yield(string(w)) {
				return
			}
		}
	})
}
