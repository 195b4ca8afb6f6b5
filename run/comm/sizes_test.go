package comm

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strconv"
	"testing"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/run/reduce"
)

func init() { bodies["sizes"] = manySizes }

// heap is the memory in use, in bytes.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// randomSizes sums buffers of random lengths, alone and as blocks of different lengths, and checks every result.
func randomSizes(c *Comm, rng *rand.Rand, calls int) error {
	ctx, n := context.Background(), c.Size()
	buf := make([]int32, 60_000)
	for i := range calls {
		if i%4 == 3 {
			counts, total := make([]int, n), 0
			for r := range counts {
				counts[r] = rng.IntN(3000)
				total += counts[r]
			}
			mine, all := buf[:counts[c.Rank()]], buf[30_000:30_000+total]
			for j := range mine {
				mine[j] = int32(c.Rank() + j)
			}
			if err := AllGatherV(ctx, c, all, mine, counts); err != nil {
				return err
			}
			for r, at := 0, 0; r < n; r++ {
				for j := range counts[r] {
					if all[at+j] != int32(r+j) {
						return fmt.Errorf("call %d: element %d of rank %d is %d", i, j, r, all[at+j])
					}
				}
				at += counts[r]
			}
			continue
		}
		b := buf[:1+rng.IntN(6000)]
		for j := range b {
			b[j] = int32(c.Rank()*j + i)
		}
		if err := AllReduce(ctx, c, b, Sum); err != nil {
			return err
		}
		for j, x := range b {
			if want := int32(n*(n-1)/2*j + n*i); x != want {
				return fmt.Errorf("call %d of %d elements: element %d is %d, want %d", i, len(b), j, x, want)
			}
		}
	}
	return nil
}

// manySizes calls with thousands of different sizes, and tells how much memory that took for good.
func manySizes(k *kid) error {
	rng := rand.New(rand.NewPCG(7, 11))
	if err := randomSizes(k.c, rng, 2500); err != nil {
		return err
	}
	before := heap()
	if err := randomSizes(k.c, rng, 4000); err != nil {
		return err
	}
	k.say(event{At: "sizes", Data: fmt.Sprint((heap() - before) >> 10)})
	return k.once(nil)
}

// Memory stays flat, however many different sizes a communicator is called with, over every transport.
func TestManySizes(t *testing.T) {
	for _, transport := range []string{"shm", "tcp", "mixed"} {
		t.Run(transport, func(t *testing.T) {
			list := startProcs(t, 4, transport, "sizes")
			for r, e := range list.await("sizes") {
				kb, err := strconv.Atoi(e.Data)
				if err != nil || kb > 1024 {
					t.Errorf("rank %d keeps %s KB of 4,000 calls of random sizes", r, e.Data)
				}
				t.Logf("rank %d keeps %s KB of 4,000 calls of random sizes", r, e.Data)
			}
			list.await("done")
			list.finish()
		})
	}
}

// Calls of the last classes are prepared once: they are found again after as many others as a generation holds, and not after all others.
func TestRecentSizesAreKept(t *testing.T) {
	c, err := Local(1)
	if err != nil {
		t.Fatal(err)
	}
	defer c[0].Close()
	p := &c[0].library
	find := func(i int) *prepared { // a call of another class for each number
		r := &request{Op: []sched.Collective{sched.AllReduce, sched.ReduceScatter, sched.AllGather, sched.AllToAll}[i%4], Type: reduce.Int32,
			Root: -1, Count: (16 + i/4%16) << (i / 64)}
		if r.Op.Reduces() {
			r.Reduce = Sum
		}
		x, err := p.find(r, want{})
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	for _, x := range []struct {
		others int
		kept   bool
	}{{cacheSize - 1, true}, {2 * cacheSize, false}} {
		first := find(1)
		for i := range x.others {
			find(2 + i)
		}
		if again := find(1); (again == first) != x.kept {
			t.Errorf("after %d other sizes the first is prepared anew: %t", x.others, again != first)
		}
	}
	for i := range 1600 {
		find(i * i % 1600)
		if n := len(p.known.young) + len(p.known.old); n > 2*cacheSize {
			t.Fatalf("%d entries", n)
		}
	}
}

// A size class has the sizes of a sixteenth of a power of two, contains its own size, and grows with it.
func TestSizeClasses(t *testing.T) {
	last, classes := int64(0), 0
	for bytes := int64(0); bytes <= 1<<20; bytes++ {
		k := sizeClass(bytes)
		if k < bytes || k > bytes+bytes/16 || k < last || sizeClass(k) != k {
			t.Fatalf("%d bytes are of class %d, those before of %d", bytes, k, last)
		}
		if k != last {
			last, classes = k, classes+1
		}
	}
	for k := range 62 {
		if b := int64(1) << k; sizeClass(b) != b {
			t.Errorf("%d bytes are of class %d", b, sizeClass(b))
		}
	}
	if classes > 300 {
		t.Errorf("%d classes up to 1 MiB", classes)
	}
}
