package comm

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// overAll is the same test over goroutines, and in processes over shared memory, tcp and both.
func overAll(t *testing.T, n int, body string, do func(c *Comm) error) {
	t.Run("mem", func(t *testing.T) { each(t, n, Config{Timeout: 20 * time.Second}, do) })
	for _, transport := range []string{"shm", "tcp", "mixed"} {
		t.Run(transport, func(t *testing.T) {
			t.Parallel()
			list := startProcs(t, n, transport, "call", "WEFT_TEST_COMM_CALL="+body)
			for r, e := range list.all(order{Do: "call"}) {
				if e.Err != "" {
					t.Errorf("rank %d: %s", r, e.Err)
				}
			}
			list.finish()
		})
	}
}

func init() { bodies["call"] = (*kid).call }

var callBodies = map[string]func(c *Comm) error{"tags": tagsBody, "folds": foldsBody, "together": togetherBody}

// call runs one of callBodies when it is told to.
func (k *kid) call() error {
	for {
		var o order
		if err := k.orders.Decode(&o); err != nil {
			return err
		}
		if o.Do == "leave" {
			return nil
		}
		k.say(tell("call", callBodies[os.Getenv("WEFT_TEST_COMM_CALL")](k.c)))
	}
}

// Messages with tags: every rank sends messages of many sizes to every rank in a random order, and receives them in another: by rank,
// by tag, from any, after a probe.
func tagsBody(c *Comm) error {
	ctx, n, me := context.Background(), c.Size(), c.Rank()
	sizes := []int{0, 1, 7, 1000, 40_000, 300_000}
	fill := func(from, to, tag int) []int32 {
		b := make([]int32, sizes[tag%len(sizes)])
		for i := range b {
			b[i] = int32(from<<20 | to<<16 | tag<<8 | i&255)
		}
		return b
	}
	const each = 8
	sent := make(chan error, 1)
	go func() {
		r := rand.New(rand.NewPCG(uint64(me), 1))
		for _, k := range r.Perm(n * each) {
			if err := SendTag(ctx, c, fill(me, k%n, k/n), k%n, k/n); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	r := rand.New(rand.NewPCG(uint64(me), 2))
	left := map[[2]int]bool{}
	for k := range n * each {
		left[[2]int{k % n, k / n}] = true
	}
	for len(left) > 0 {
		// One that is still to come, chosen by rank and tag, by one of them, or by none.
		var keys [][2]int
		for k := range left {
			keys = append(keys, k)
		}
		slices.SortFunc(keys, func(a, b [2]int) int { return (a[0]-b[0])*1000 + a[1] - b[1] })
		k := keys[r.IntN(len(keys))]
		from, tag := k[0], k[1]
		mode := r.IntN(4)
		if mode&1 != 0 {
			from = AnyRank
		}
		if mode&2 != 0 {
			tag = AnyTag
		}
		s := Status{From: k[0], Tag: k[1], Count: sizes[k[1]%len(sizes)]}
		if mode != 0 {
			var err error
			if s, err = Probe(ctx, c, from, tag); err != nil {
				return err
			}
		}
		in := make([]int32, s.Count)
		got, err := RecvTag(ctx, c, in, s.From, s.Tag)
		if err != nil {
			return err
		}
		if got != s || !left[[2]int{got.From, got.Tag}] || !slices.Equal(in, fill(got.From, me, got.Tag)) {
			return fmt.Errorf("received %+v, expected %+v, or other bytes", got, s)
		}
		delete(left, [2]int{got.From, got.Tag})
	}
	if err := errors.Join(<-sent, Barrier(ctx, c)); err != nil {
		return err
	}
	if s, ok, err := TryProbe(c, AnyRank, AnyTag); ok || err != nil {
		return fmt.Errorf("a message is left: %+v %v", s, err)
	}
	if err := Barrier(ctx, c); err != nil {
		return err
	}
	// In the order in which they were sent.
	right, before := (me+1)%n, (me+n-1)%n
	for i := range 20 {
		if err := SendTag(ctx, c, []int32{int32(i)}, right, 5); err != nil {
			return err
		}
	}
	for i := range 20 {
		x := []int32{-1}
		if _, err := RecvTag(ctx, c, x, before, 5); err != nil || x[0] != int32(i) {
			return fmt.Errorf("message %d is %d: %v", i, x[0], err)
		}
	}
	// What does not fit is an error of its receive alone.
	if err := SendTag(ctx, c, []int32{1, 2, 3}, right, 6); err != nil {
		return err
	}
	want := fmt.Sprintf("rank %d receives from rank %d with tag 6: 3 int32 were sent, 2 int32 are received", me, before)
	if _, err := RecvTag(ctx, c, make([]int32, 2), AnyRank, 6); err == nil || err.Error() != want {
		return fmt.Errorf("%v, want %s", err, want)
	}
	return Barrier(ctx, c)
}

func TestTags(t *testing.T) { overAll(t, 3, "tags", tagsBody) }

func TestWrongTags(t *testing.T) {
	each(t, 2, Config{Timeout: 300 * time.Millisecond}, func(c *Comm) error {
		ctx := context.Background()
		for _, x := range []struct {
			err  error
			want string
		}{
			{SendTag(ctx, c, []int32{1}, 2, 0), "rank 2 is not in a communicator of 2"},
			{SendTag(ctx, c, []int32{1}, AnyRank, 0), "rank -1 is not in a communicator of 2"},
			{SendTag(ctx, c, []int32{1}, 0, -1), "tag -1: tags are 0 or more"},
		} {
			if x.err == nil || !strings.Contains(x.err.Error(), x.want) {
				return fmt.Errorf("%v, want %s", x.err, x.want)
			}
		}
		if c.Rank() == 1 {
			return nil
		}
		_, err := RecvTag(ctx, c, []int32{0}, AnyRank, 3)
		if !errors.Is(err, ErrTimeout) || !strings.Contains(err.Error(), "receive from any rank, tag 3: no such message arrived") {
			return err
		}
		return nil
	})
}

// A receive from a rank that dies, or from any, ends at once and names it.
func TestTagsOfTheDead(t *testing.T) {
	for _, from := range []int{1, AnyRank} {
		each(t, 2, Config{Timeout: 20 * time.Second}, func(c *Comm) error {
			if c.Rank() == 1 {
				return c.Close()
			}
			_, err := RecvTag(context.Background(), c, []int32{0}, from, 3)
			var f *Failure
			if !errors.As(err, &f) || !slices.Equal(f.Culprits, []int{1}) {
				return fmt.Errorf("%v", err)
			}
			return nil
		})
	}
}

type pairOf struct {
	A int32
	B [2]float64
}

// Reductions by functions, scans and locations, against a plain reference.
func foldsBody(c *Comm) error {
	ctx, n, me := context.Background(), c.Size(), c.Rank()
	for _, count := range []int{0, 1, 2, 5, 1000, 70_001} {
		// Composition of x -> ax+b: associative, not commutative.
		fn := func(r, i int) [2]int64 { return [2]int64{int64(r+2+i%3) % 7, int64(i+r) % 11} }
		compose := func(f, g [2]int64) [2]int64 { return [2]int64{f[0] * g[0] % 1009, (g[0]*f[1] + g[1]) % 1009} }
		make3 := func() (a, b, d [][2]int64) {
			for i := range count {
				a, b, d = append(a, fn(me, i)), append(b, fn(me, i)), append(d, fn(me, i))
			}
			return a, b, d
		}
		a, b, d := make3()
		if err := errors.Join(AllReduceBy(ctx, c, a, compose), ScanBy(ctx, c, b, compose), ExScanBy(ctx, c, d, compose)); err != nil {
			return err
		}
		for i := range count {
			upTo := func(k int) [2]int64 {
				x := fn(0, i)
				for r := 1; r < k; r++ {
					x = compose(x, fn(r, i))
				}
				return x
			}
			before := fn(me, i)
			if me > 0 {
				before = upTo(me)
			}
			if a[i] != upTo(n) || b[i] != upTo(me+1) || d[i] != before {
				return fmt.Errorf("%d elements, element %d: %v %v %v", count, i, a[i], b[i], d[i])
			}
		}
		x, y := make([]int32, count), make([]int32, count)
		for i := range x {
			x[i], y[i] = int32(me+i), int32(me+i)
		}
		if err := errors.Join(Scan(ctx, c, x, Sum), ExScan(ctx, c, y, Max)); err != nil {
			return err
		}
		for i := range x {
			max := int32(me + i)
			if me > 0 {
				max--
			}
			if x[i] != int32((me+1)*i+me*(me+1)/2) || y[i] != max {
				return fmt.Errorf("scan of %d: element %d: %d, %d", count, i, x[i], y[i])
			}
		}
		lo, hi := make([]Loc[float32], count), make([]Loc[float32], count)
		for i := range lo {
			v := float32((me*7 + i*3) % 5)
			if i == 3 && me == n-1 {
				v = float32(math.NaN())
			}
			lo[i], hi[i] = Loc[float32]{v, int64(me)}, Loc[float32]{v, int64(me)}
		}
		if err := errors.Join(AllReduceMin(ctx, c, lo), AllReduceMax(ctx, c, hi)); err != nil {
			return err
		}
		for i := range lo {
			min, max := Loc[float32]{9, 0}, Loc[float32]{-1, 0}
			for r := range n {
				v := float32((r*7 + i*3) % 5)
				if i == 3 && r == n-1 {
					min, max = Loc[float32]{float32(math.NaN()), int64(r)}, Loc[float32]{float32(math.NaN()), int64(r)}
					continue
				}
				if v < min.Value {
					min = Loc[float32]{v, int64(r)}
				}
				if v > max.Value {
					max = Loc[float32]{v, int64(r)}
				}
			}
			same := func(a, b Loc[float32]) bool {
				return a.Index == b.Index && (a.Value == b.Value || a.Value != a.Value && b.Value != b.Value)
			}
			if !same(lo[i], min) || !same(hi[i], max) {
				return fmt.Errorf("element %d: least %v (want %v), greatest %v (want %v)", i, lo[i], min, hi[i], max)
			}
		}
	}
	p := []pairOf{{int32(me), [2]float64{float64(me), 1}}}
	if err := AllReduceBy(ctx, c, p,
		func(a, b pairOf) pairOf { return pairOf{a.A + b.A, [2]float64{a.B[0] + b.B[0], a.B[1] + b.B[1]}} }); err != nil {
		return err
	}
	if p[0].B[1] != float64(n) || p[0].A != int32(n*(n-1)/2) {
		return fmt.Errorf("struct: %v", p)
	}
	if err := AllReduceBy(ctx, c, []string{"a"}, func(a, b string) string { return a + b }); !errors.Is(err, errNotPlain) {
		return fmt.Errorf("strings: %v", err)
	}
	if err := Scan(ctx, c, []float32{1}, Avg); err == nil || !strings.Contains(err.Error(), "avg is not for scans") {
		return fmt.Errorf("avg: %v", err)
	}
	return nil
}

func TestFolds(t *testing.T) { overAll(t, 3, "folds", foldsBody) }

// Calls at once, calls that are prepared, and writes with a notice.
func togetherBody(c *Comm) error {
	ctx, n, me := context.Background(), c.Size(), c.Rank()
	right, left := (me+1)%n, (me+n-1)%n
	out, in, sum := make([]float32, 300_000), make([]float32, 300_000), []int64{0}
	ring := []*Prepared{
		Prepare(func(o Option) error { return Send(ctx, c, out, right, o) }),
		Prepare(func(o Option) error { return Recv(ctx, c, in, left, o) }),
		Prepare(func(o Option) error { return AllReduce(ctx, c, sum, Sum, o) }),
	}
	for k := range 4 {
		for i := range out {
			out[i] = float32(me*10 + k)
		}
		sum[0] = int64(me + k)
		var handles []*Handle
		for _, p := range ring {
			handles = append(handles, p.Start(ctx))
		}
		if err := WaitAll(ctx, handles...); err != nil {
			return err
		}
		if in[0] != float32(left*10+k) || in[len(in)-1] != in[0] || sum[0] != int64(n*(n-1)/2+n*k) {
			return fmt.Errorf("round %d: %v %v", k, in[0], sum[0])
		}
	}
	if err := Together(ctx,
		func(o Option) error { return Send(ctx, c, out[:9], right, o) },
		func(o Option) error { return Recv(ctx, c, in[:9], left, o) }); err != nil {
		return err
	}
	mem, err := Alloc[int64](c, n)
	if err != nil {
		return err
	}
	key, err := KeyOf(c, mem)
	if err != nil {
		return err
	}
	keys := make([]uint64, n)
	if err := AllGather(ctx, c, keys, []uint64{uint64(key)}); err != nil {
		return err
	}
	if err := PutNotify(c, Key(keys[right])+Key(8*me), []int64{int64(100 + me)}, uint32(me), right).Wait(ctx); err != nil {
		return err
	}
	for end := time.Now().Add(20 * time.Second); ; {
		for _, x := range c.Notices() {
			if x.From != left || x.Value != uint32(left) || mem[left] != int64(100+left) {
				return fmt.Errorf("notice %+v, memory %v", x, mem)
			}
			return Barrier(ctx, c)
		}
		if time.Now().After(end) {
			return errors.New("no notice came")
		}
	}
}

func TestTogether(t *testing.T) { overAll(t, 3, "together", togetherBody) }
