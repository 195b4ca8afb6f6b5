package comm

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/run/reduce"
)

// Edge cases that MPICH's and Gloo's own tests have, by their names there where
// they have one. Those between goroutines here run on the flat way and, with a
// program that is not flat, as scripts; processes have theirs in worlds_test.go.

var quick = Config{Timeout: 20 * time.Second}

// Zero size: operations on nothing end, and change nothing.
func TestZeroSize(t *testing.T) {
	for _, n := range []int{1, 2, 3, 5} {
		each(t, n, quick, func(c *Comm) error {
			for range 3 {
				if err := exercise[float32](c, Sum, 0, 0, false, false); err != nil {
					return err
				}
			}
			if err := AllGatherV(context.Background(), c, []int8(nil), nil, make([]int, n)); err != nil {
				return err
			}
			// Only one rank has anything.
			counts := make([]int, n)
			counts[n-1] = 3
			own := slices.Repeat([]int8{7}, counts[c.Rank()])
			all := make([]int8, 3)
			if err := AllGatherV(context.Background(), c, all, own, counts); err != nil {
				return err
			}
			if !slices.Equal(all, []int8{7, 7, 7}) {
				return fmt.Errorf("%v", all)
			}
			return nil
		})
	}
}

// One element, on odd numbers of ranks and around powers of two.
func TestOneElementOddRankCounts(t *testing.T) {
	for _, n := range bounded.First(8, 1, 2, 3, 5, 7, 9, 17, 33, 11, 13, 15, 31) {
		each(t, n, quick, func(c *Comm) error {
			for root := range n {
				if err := exercise[int64](c, Sum, 1, root, root%2 == 0, root%3 == 0); err != nil {
					return err
				}
				if n > 9 {
					break
				}
			}
			return nil
		})
	}
}

// Many outstanding: a thousand operations that nobody waits for until all are
// made, waited for in another order, and each with its own result.
func TestManyOutstanding(t *testing.T) {
	const many = 1000
	each(t, 3, quick, func(c *Comm) error {
		handles := make([]*Handle, many)
		bufs := make([][]int32, many)
		for i := range bufs {
			bufs[i] = slices.Repeat([]int32{int32(i * (c.Rank() + 1))}, i%40)
			handles[i] = AllReduceAsync(context.Background(), c, bufs[i], Sum)
		}
		order := rand.New(rand.NewPCG(uint64(c.Rank()), 1)).Perm(many)
		for _, i := range order {
			if err := handles[i].Wait(context.Background()); err != nil {
				return err
			}
			for _, v := range bufs[i] {
				if v != int32(i*6) {
					return fmt.Errorf("operation %d: %d, not %d", i, v, i*6)
				}
			}
		}
		return nil
	})
}

// Handles tell their end by Done and by Wait, as often as it is asked for. Whoever
// gives up waiting may wait again: the call goes on.
func TestHandles(t *testing.T) {
	ctx := context.Background()
	gone, cancel := context.WithCancel(ctx)
	cancel()
	each(t, 2, quick, func(c *Comm) error {
		for round := range int32(3) {
			b, got := []int32{round}, []int32{0}
			h := AllReduceAsync(ctx, c, b, Max)
			<-h.Done()
			if err := errors.Join(h.Wait(ctx), h.Wait(gone)); err != nil || b[0] != round {
				return fmt.Errorf("round %d: %v, %v", round, b, err)
			}
			h = RecvAsync(ctx, c, got, 1-c.Rank())
			if err := h.Wait(gone); !errors.Is(err, context.Canceled) { // the other sends after the barrier
				return fmt.Errorf("waited for with a context that has ended: %v", err)
			}
			if err := errors.Join(Barrier(ctx, c), Send(ctx, c, b, 1-c.Rank()), h.Wait(ctx)); err != nil || got[0] != round {
				return fmt.Errorf("round %d: received %v, %v", round, got, err)
			}
		}
		return nil
	})
}

// Sends and receives that do not wait for one another may be made in any order.
func TestMessagesInAnyOrder(t *testing.T) {
	for _, n := range []int{2, 3, 5} {
		each(t, n, quick, func(c *Comm) error {
			for seed := range uint64(20) {
				rnd := rand.New(rand.NewPCG(seed, uint64(c.Rank())))
				count := 1 + int(seed)*100
				var handles []*Handle
				in := make([][]int32, n)
				var calls []func() *Handle
				for p := range n {
					if p == c.Rank() {
						continue
					}
					out := slices.Repeat([]int32{int32(100*c.Rank() + p)}, count)
					in[p] = make([]int32, count)
					calls = append(calls,
						func() *Handle { return SendAsync(context.Background(), c, out, p) },
						func() *Handle { return RecvAsync(context.Background(), c, in[p], p) })
				}
				rnd.Shuffle(len(calls), func(i, j int) { calls[i], calls[j] = calls[j], calls[i] })
				for _, do := range calls {
					handles = append(handles, do())
				}
				if err := WaitAll(context.Background(), handles...); err != nil {
					return err
				}
				for p := range n {
					for _, v := range in[p] {
						if v != int32(100*p+c.Rank()) {
							return fmt.Errorf("from rank %d: %d", p, v)
						}
					}
				}
			}
			return nil
		})
	}
}

// A rank may send to itself.
func TestSelfSend(t *testing.T) {
	each(t, 2, quick, func(c *Comm) error {
		for i := range int32(10) {
			if err := Send(context.Background(), c, []int32{i, i + 1}, c.Rank()); err != nil {
				return err
			}
		}
		for i := range int32(10) {
			b := make([]int32, 2)
			if err := Recv(context.Background(), c, b, c.Rank()); err != nil || b[0] != i {
				return fmt.Errorf("message %d: %v, %v", i, b, err)
			}
		}
		return nil
	})
}

// Messages from one rank to another keep their order, and collectives do not
// wait for them.
func TestMessagesKeepTheirOrder(t *testing.T) {
	each(t, 2, quick, func(c *Comm) error {
		const many = 500
		handles := make([]*Handle, many)
		bufs := make([][]int32, many)
		for i := range bufs {
			bufs[i] = []int32{int32(i)}
			if c.Rank() == 0 {
				handles[i] = SendAsync(context.Background(), c, bufs[i], 1)
			} else {
				bufs[i][0] = -1
				handles[i] = RecvAsync(context.Background(), c, bufs[i], 0)
			}
		}
		if err := Barrier(context.Background(), c); err != nil {
			return err
		}
		if err := WaitAll(context.Background(), handles...); err != nil {
			return err
		}
		for i, b := range bufs {
			if b[0] != int32(i) {
				return fmt.Errorf("message %d has %d", i, b[0])
			}
		}
		return nil
	})
}

// Split: the order of ranks is that of keys, then of ranks; a negative color
// gets nothing; every color may be its own; splits can be split.
func TestSplitOrderAndColors(t *testing.T) {
	const n = 6
	each(t, n, quick, func(c *Comm) error {
		me := c.Rank()
		for _, x := range []struct {
			name       string
			color, key func(r int) int
		}{
			{"keys turn the order round", func(int) int { return 0 }, func(r int) int { return -r }},
			{"equal keys keep it", func(r int) int { return r % 2 }, func(int) int { return 5 }},
			{"singletons", func(r int) int { return r }, func(int) int { return 0 }},
			{"negative colors get none", func(r int) int { return r%3 - 1 }, func(r int) int { return r }},
			{"large keys", func(int) int { return 1 << 40 }, func(r int) int { return (r*4)%n - 1<<50 }},
		} {
			sub, err := c.Split(context.Background(), x.color(me), x.key(me))
			if err != nil {
				return err
			}
			var want []int
			for r := range n {
				if x.color(r) == x.color(me) {
					want = append(want, r)
				}
			}
			slices.SortStableFunc(want, func(a, b int) int { return x.key(a) - x.key(b) })
			if x.color(me) < 0 {
				if sub != nil {
					return fmt.Errorf("%s: a communicator for color %d", x.name, x.color(me))
				}
				continue
			}
			got := make([]int64, len(want))
			if sub.Size() != len(want) {
				return fmt.Errorf("%s: %d ranks of %d", x.name, sub.Size(), len(want))
			}
			if err := AllGather(context.Background(), sub, got, []int64{int64(me)}); err != nil {
				return err
			}
			for i := range want {
				if got[i] != int64(want[i]) {
					return fmt.Errorf("%s: order %v, not %v", x.name, got, want)
				}
			}
			if want[sub.Rank()] != me {
				return fmt.Errorf("%s: rank %d is %d", x.name, me, sub.Rank())
			}
			if err := sub.Close(); err != nil {
				return err
			}
		}
		half, err := c.Split(context.Background(), me/3, 0)
		if err != nil {
			return err
		}
		one, err := half.Split(context.Background(), min(half.Rank(), 1), -half.Rank())
		if err != nil {
			return err
		}
		b := []int32{int32(me)}
		if err := AllReduce(context.Background(), one, b, Sum); err != nil {
			return err
		}
		if want := []int32{0, 3, 3, 3, 9, 9}[me]; b[0] != want {
			return fmt.Errorf("nested: %d, not %d", b[0], want)
		}
		return errors.Join(one.Close(), half.Close())
	})
}

// A duplicate's operations are independent of the original's: ranks may order
// the two differently, and one's failure is not the other's.
func TestDupIsIndependent(t *testing.T) {
	each(t, 3, quick, func(c *Comm) error {
		d, err := c.Dup(context.Background())
		if err != nil {
			return err
		}
		a, b := []int32{1}, []int32{10}
		first, second := c, d
		if c.Rank() == 1 {
			first, second, a, b = d, c, b, a
		}
		ha, hb := AllReduceAsync(context.Background(), first, a, Sum), AllReduceAsync(context.Background(), second, b, Sum)
		if err := WaitAll(context.Background(), hb, ha); err != nil {
			return err
		}
		if a[0]+b[0] != 33 {
			return fmt.Errorf("%d and %d", a[0], b[0])
		}
		if c.Rank() == 0 {
			d.Abort(errors.New("enough"))
		}
		var f *Failure
		if err := Barrier(context.Background(), d); !errors.As(err, &f) || f.Kind != Aborted || !slices.Equal(f.Culprits, []int{0}) ||
			!strings.Contains(err.Error(), "enough") {
			return fmt.Errorf("the aborted one: %v", err)
		}
		if err := Barrier(context.Background(), c); err != nil {
			return fmt.Errorf("the original: %w", err)
		}
		return d.Close()
	})
}

// A thousand splits and closes leave memory, files and goroutines as they were.
func splits(c *Comm) error {
	count := func() (heap uint64, files, routines int) {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		links, _ := filepath.Glob("/proc/self/fd/*")
		return m.HeapAlloc, len(links), runtime.NumGoroutine()
	}
	one := func(i int) error {
		sub, err := c.Split(context.Background(), c.Rank()%2, i)
		if err != nil {
			return err
		}
		b := make([]float32, 300)
		if err := AllReduce(context.Background(), sub, b, Sum); err != nil {
			return err
		}
		if sub.Size() > 1 && i%50 == 0 { // a port of its own for messages
			next := (sub.Rank() + 1) % sub.Size()
			if err := SendRecv(context.Background(), sub, make([]float32, 300), b, (sub.Rank()+sub.Size()-1)%sub.Size(), next); err != nil {
				return err
			}
		}
		return sub.Close()
	}
	for i := range 100 {
		if err := one(i); err != nil {
			return err
		}
	}
	if err := Barrier(context.Background(), c); err != nil {
		return err
	}
	heap, files, routines := count()
	times := bounded.Times(100, 1000)
	for i := range times {
		if err := one(i); err != nil {
			return err
		}
	}
	if err := Barrier(context.Background(), c); err != nil {
		return err
	}
	kept := 0
	bounded.Holds(10*time.Second, func() bool { // over tcp others say that they let go of a board with a message nobody waits for
		c.world.sweep()
		c.world.mu.Lock()
		defer c.world.mu.Unlock()
		kept = len(c.world.retired)
		return kept <= 20
	})
	heap2, files2, routines2 := count()
	if int64(heap2)-int64(heap) > max(1<<20, 4<<20*int64(times)/1000) || files2 > files+2 || routines2 > routines+8 || kept > 20 {
		return fmt.Errorf("after %d splits: heap %d to %d bytes, %d to %d files, %d to %d goroutines, %d boards kept",
			times, heap, heap2, files, files2, routines, routines2, kept)
	}
	return nil
}

func TestManySplits(t *testing.T) {
	for _, transport := range []string{"shm", "tcp"} {
		t.Run(transport, func(t *testing.T) {
			list := startProcs(t, 4, transport, "splits")
			list.await("done")
			list.finish()
		})
	}
}

// Huge: more than 2^31 elements of a byte, over registered memory that is
// mostly never written to before.
func huge(c *Comm) error {
	const count = 1<<31 + 5
	b, err := Alloc[int8](c, count)
	if err != nil {
		return err
	}
	spots := []int{0, 1<<30 + 1, 1<<31 - 1, 1 << 31, count - 1}
	for i, at := range spots {
		b[at] = int8((c.Rank() + 1) * (i + 1))
	}
	if err := AllReduce(context.Background(), c, b, Sum); err != nil {
		return err
	}
	want := int8(0)
	for r := range c.Size() {
		want += int8(r + 1)
	}
	for i, at := range spots {
		if b[at] != want*int8(i+1) {
			return fmt.Errorf("element %d is %d, not %d", at, b[at], want*int8(i+1))
		}
	}
	if err := Barrier(context.Background(), c); err != nil {
		return err
	}
	return Free(c, b)
}

func TestHugeCounts(t *testing.T) {
	if !bounded.Long() {
		t.Skip("needs 5 GiB of memory and half a minute of a processor: make long")
	}
	if have := available(t); have < 10<<30 {
		t.Skipf("needs 5 GiB of memory with room to spare; %d bytes are available", have)
	}
	list := startProcs(t, 2, "shm", "huge", "WEFT_TIMEOUT=2m")
	list.await("done")
	list.finish()
}

// available is the memory that could be used, in bytes.
func available(t *testing.T) int64 {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Skip(err)
	}
	for line := range strings.Lines(string(b)) {
		var kb int64
		if _, err := fmt.Sscanf(line, "MemAvailable: %d kB", &kb); err == nil {
			return kb << 10
		}
	}
	return 0
}

// In place, as NCCL has it, with blocks of different lengths and all sizes.
func TestInPlaceOverlaps(t *testing.T) {
	each(t, 4, quick, func(c *Comm) error {
		for _, count := range []int{1, 9, 1500, 70000} {
			for _, registered := range []bool{false, true} {
				for _, op := range []reduce.Op{Sum, Avg, Min} {
					if err := exercise[float64](c, op, count, count%4, registered, true); err != nil {
						return err
					}
				}
			}
		}
		return nil
	})
}

// What is wrong with a call is told before anybody else hears of it, and the
// communicator stays usable.
func TestBadCallsAreRefused(t *testing.T) {
	each(t, 2, quick, func(c *Comm) error {
		ctx := context.Background()
		one, two, five := make([]float32, 1), make([]float32, 2), make([]float32, 5)
		for name, err := range map[string]error{
			"lengths":    AllReduceTo(ctx, c, one, two, Sum),
			"root":       Broadcast(ctx, c, one, 2),
			"reduction":  AllReduce(ctx, c, one, BXor),
			"gather":     AllGather(ctx, c, one, one),
			"counts":     AllGatherV(ctx, c, two, one, []int{1}),
			"negative":   AllGatherV(ctx, c, one, one, []int{2, -1}),
			"peer":       Send(ctx, c, one, 5),
			"not blocks": AllToAll(ctx, c, one, one),
			"overlap":    AllReduceTo(ctx, c, five[1:], five[:4], Sum),
			"overlap 2":  Reduce(ctx, c, five[:4], five[1:], Sum, c.Rank()), // each would be the root
		} {
			if err == nil {
				return fmt.Errorf("%s: no error", name)
			}
		}
		return Barrier(ctx, c)
	})
}
