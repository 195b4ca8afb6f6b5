package comm

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/run/reduce"
)

func init() { bodies["bits"] = (*kid).bits }

// noise is a rank's input: numbers of all magnitudes, and every kind that sums
// treat in its own way, two NaNs with different bits among them.
func noise(seed uint64, rank, count int) []float32 {
	rnd := rand.New(rand.NewPCG(seed, uint64(rank)))
	b := make([]float32, count)
	special := []float32{float32(math.NaN()), math.Float32frombits(0x7fc12345), float32(math.Inf(1)), float32(math.Inf(-1)),
		float32(math.Copysign(0, -1)), 0,
		math.SmallestNonzeroFloat32, -math.SmallestNonzeroFloat32, math.Float32frombits(0x00400000), math.MaxFloat32}
	for i := range b {
		if rnd.IntN(20) == 0 {
			b[i] = special[rnd.IntN(len(special))]
			continue
		}
		b[i] = float32((rnd.Float64() - 0.5) * math.Pow(10, float64(rnd.IntN(16)-8)))
	}
	return b
}

// bitsOf runs an all-reduce of noise and gives a digest of the result's bits.
// The program is an algorithm's by name, or the one that is chosen.
func bitsOf(c *Comm, o order) (string, error) {
	var opts []Option
	if o.Type != "" {
		p, err := programOf(o.Type, c.Size(), o.Times)
		if err != nil {
			return "", err
		}
		opts = append(opts, Using(p))
	}
	mem := buffers[float32]{c: c, registered: o.Registered}
	src := mem.get(o.Count)
	copy(src, noise(o.Seed, c.Rank(), o.Count))
	dst := src
	if !o.InPlace {
		dst = mem.get(o.Count)
	}
	op := Sum
	for _, x := range reduce.Ops() {
		if x.String() == o.Op {
			op = x
		}
	}
	if err := AllReduceTo(context.Background(), c, dst, src, op, opts...); err != nil {
		return "", err
	}
	sum := sha256.Sum256(reduce.Bytes(dst))
	if err := Barrier(context.Background(), c); err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", sum[:8]), mem.free()
}

func programOf(name string, ranks, channels int) (*sched.Program, error) {
	a, err := algo.Find(name)
	if err != nil {
		return nil, err
	}
	return a.Program(algo.Spec{Op: sched.AllReduce, Ranks: ranks, Channels: max(channels, 1), Local: 2})
}

func (k *kid) bits() error {
	for {
		var o order
		if err := k.orders.Decode(&o); err != nil {
			return err
		}
		if o.Do == "leave" {
			return nil
		}
		s, err := bitsOf(k.c, o)
		if err != nil {
			return err
		}
		k.say(event{At: o.Do, Data: s})
	}
}

// goroutines runs bitsOf on a world of goroutines and gives every rank's digest.
func localBits(t *testing.T, n int, cfg Config, o order) []string {
	t.Helper()
	all := make([]string, n)
	each(t, n, cfg, func(c *Comm) error {
		var err error
		all[c.Rank()], err = bitsOf(c, o)
		return err
	})
	return all
}

// The same bits on all ranks, again and again, over every transport, for every
// program of an all-reduce.
func TestSameBitsEverywhere(t *testing.T) {
	const n = 4
	worlds := map[string]procs{}
	for _, transport := range []string{"shm", "tcp"} {
		worlds[transport] = startProcs(t, n, transport, "bits")
	}
	for i, a := range algo.All() {
		p, err := programOf(a.Name, n, 1+i%3)
		if err != nil || p.Switches > 0 {
			continue // does no all-reduce, not with four ranks, or with switches that compute
		}
		o := order{Do: "bits", Type: a.Name, Times: 1 + i%3, Count: []int{37, 5000, 40001}[i%3], Seed: uint64(i), Op: "sum"}
		want := localBits(t, n, quick, o)
		for round, transport := range []string{"shm", "tcp", "shm", "tcp"} {
			again := o
			again.Registered, again.InPlace = round > 1, round%2 == 1
			for r, e := range worlds[transport].all(again) {
				if e.Data != want[0] || want[r] != want[0] {
					t.Errorf("%s: rank %d has %s over %s, rank 0 %s and rank %d %s between goroutines", a.Name, r, e.Data, transport, want[0], r, want[r])
				}
			}
		}
	}
	for _, w := range worlds {
		w.finish()
	}
}

// tree is the sum of noise of ranks [lo, hi): that of the first ones, the largest power of two below their number, and the rest.
func tree(op reduce.Op, seed uint64, lo, hi, count int) []float32 {
	if hi == lo+1 {
		return noise(seed, lo, count)
	}
	half := 1
	for 2*half < hi-lo {
		half *= 2
	}
	a, b := tree(op, seed, lo, lo+half, count), tree(op, seed, lo+half, hi, count)
	reduce.Apply(reduce.Float32, op, reduce.Bytes(a), reduce.Bytes(a), reduce.Bytes(b))
	return a
}

// canonicalBits is the digest of the reduction of all ranks' noise in the canonical order.
func canonicalBits(op reduce.Op, seed uint64, n, count int) string {
	acc := tree(op, seed, 0, n, count)
	reduce.Finish(reduce.Float32, op, reduce.Bytes(acc), n)
	sum := sha256.Sum256(reduce.Bytes(acc))
	return fmt.Sprintf("%x", sum[:8])
}

// In the canonical mode the bits are those of a plain tree over the ranks,
// whatever the size, the number of ranks and the transport.
func TestCanonicalIsTheTree(t *testing.T) {
	sizes := []int{1, 7, 16, 100, 1000, 1025, 5000, 70000, 300001}
	check := func(n int, name string, get func(o order) []string) {
		for i, count := range sizes {
			op := []reduce.Op{Sum, Avg, Prod, Max}[i%4]
			o := order{Do: "bits", Op: op.String(), Count: count, Seed: uint64(n*100 + i), Registered: i%2 == 0, InPlace: i%3 == 0}
			want := canonicalBits(op, o.Seed, n, count)
			for r, s := range get(o) {
				if s != want {
					t.Errorf("%s of %d floats on %d ranks over %s: rank %d has %s, the tree %s", op, count, n, name, r, s, want)
				}
			}
		}
	}
	for _, n := range bounded.First(3, 2, 3, 7, 4, 8) {
		check(n, "mem", func(o order) []string { return localBits(t, n, Config{Canonical: true, Timeout: quick.Timeout}, o) })
	}
	type world struct {
		transport string
		n         int
	}
	for _, x := range bounded.First(2, world{"shm", 4}, world{"tcp", 3}, world{"shm", 3}, world{"tcp", 4}) {
		list := startProcs(t, x.n, x.transport, "bits", "WEFT_CANONICAL=1")
		check(x.n, x.transport, func(o order) []string {
			var all []string
			for _, e := range list.all(o) {
				all = append(all, e.Data)
			}
			return all
		})
		list.finish()
	}
}

// Blocks of reduce-scatter and reduce have the same canonical bits as all-reduce.
func TestCanonicalOfOtherReductions(t *testing.T) {
	const n, count, seed = 5, 1200, 9
	fold := tree(Sum, seed, 0, n, n*count)
	same := func(a, b []float32) bool {
		return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
	}
	each(t, n, Config{Canonical: true, Timeout: quick.Timeout}, func(c *Comm) error {
		src := noise(seed, c.Rank(), n*count)
		part := make([]float32, count)
		if err := ReduceScatter(context.Background(), c, part, src, Sum); err != nil {
			return err
		}
		if !same(part, fold[c.Rank()*count:][:count]) {
			return fmt.Errorf("reduce-scatter has other bits")
		}
		whole := make([]float32, n*count)
		if err := Reduce(context.Background(), c, whole, src, Sum, 3); err != nil {
			return err
		}
		if c.Rank() == 3 && !same(whole, fold) {
			return fmt.Errorf("reduce has other bits")
		}
		return nil
	})
}

// Flight recorders: what they write can be read, holds the last operations and
// has its times in order.
func TestFlightRecorder(t *testing.T) {
	const keep = 10
	var mu sync.Mutex
	each(t, 3, Config{Flight: keep, Timeout: quick.Timeout}, func(c *Comm) error {
		p, err := programOf("ring", 3, 2)
		if err != nil {
			return err
		}
		for i := range 25 {
			var opts []Option
			if i%2 == 0 {
				opts = append(opts, Using(p))
			}
			if err := AllReduce(context.Background(), c, make([]float32, 100*i), Sum, opts...); err != nil {
				return err
			}
		}
		mu.Lock()
		defer mu.Unlock()
		return checkFlight(c.Flight(), c.Rank(), 25, keep)
	})
}

// trace is the part of Chrome's format that is used.
type trace struct {
	TraceEvents []struct {
		Ph, Name, Cat string
		Pid, Tid      int
		Ts, Dur       float64
	}
}

func checkFlight(f *Flight, rank int, last uint64, keep int) error {
	var text, chrome writer
	if err := f.WriteJSON(&text); err != nil {
		return err
	}
	if err := f.WriteChrome(&chrome); err != nil {
		return err
	}
	return checkDump(text, chrome, rank, last, keep)
}

type writer []byte

func (w *writer) Write(b []byte) (int, error) {
	*w = append(*w, b...)
	return len(b), nil
}

// checkDump reads what a recorder wrote.
func checkDump(text, chrome []byte, rank int, last uint64, keep int) error {
	var dump struct {
		Rank    int
		Records []Record
	}
	if err := json.Unmarshal(text, &dump); err != nil {
		return err
	}
	if dump.Rank != rank || len(dump.Records) != keep {
		return fmt.Errorf("%d records of rank %d, not %d of %d", len(dump.Records), dump.Rank, keep, rank)
	}
	for i, r := range dump.Records {
		if want := last - uint64(keep-1-i); r.Seq != want {
			return fmt.Errorf("record %d is of operation %d, not %d", i, r.Seq, want)
		}
		if r.Began <= 0 || r.Ended < r.Began || i > 0 && r.Began < dump.Records[i-1].Began || len(r.Digest) < 16 || r.Program == "" {
			return fmt.Errorf("record %d: %+v after %+v", i, r, dump.Records[max(i-1, 0)])
		}
		ended := map[int32]int64{}
		for _, s := range r.Steps {
			if s.Ended < ended[s.Channel] || s.Ended < r.Began-1000 {
				return fmt.Errorf("record %d: step %+v after %d", i, s, ended[s.Channel])
			}
			ended[s.Channel] = s.Ended
		}
		if (r.Way == "script") != (len(r.Steps) > 0) && r.Bytes > 0 && r.Err == "" {
			return fmt.Errorf("record %d: way %s with %d steps", i, r.Way, len(r.Steps))
		}
	}
	var tr trace
	if err := json.Unmarshal(chrome, &tr); err != nil {
		return err
	}
	operations := 0
	for _, e := range tr.TraceEvents {
		if e.Cat == "operation" {
			operations++
		}
		if e.Pid != rank || e.Ph == "X" && (e.Ts <= 0 || e.Dur < 0) {
			return fmt.Errorf("event %+v", e)
		}
	}
	if operations != keep {
		return fmt.Errorf("%d operations in the trace, not %d", operations, keep)
	}
	return nil
}

// A failure leaves the recorders of all ranks where WEFT_FLIGHT_DIR says.
func TestFlightIsWrittenOnFailure(t *testing.T) {
	for _, transport := range []string{"shm", "tcp"} {
		dir := filepath.Join(t.TempDir(), "flight")
		list := startProcs(t, 3, transport, "serve", "WEFT_FLIGHT_DIR="+dir)
		list.all(order{Do: "dup"})
		list.all(order{Do: "op", Op: "all-reduce", Count: 5000, Times: 4})
		rest := list.without(1)
		rest.order(order{Do: "op", Op: "all-gather", Count: 7, Limit: limit})
		for _, e := range rest.await("op") {
			if e.Err == "" {
				t.Fatal("nobody minds that a rank is missing")
			}
		}
		for _, rank := range []int{0, 2} {
			text, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("rank-%d.json", rank)))
			if err != nil {
				t.Fatal(err)
			}
			chrome, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("rank-%d.trace.json", rank)))
			if err != nil {
				t.Fatal(err)
			}
			if err := checkDump(text, chrome, rank, 5, 5); err != nil {
				t.Error(err)
			}
			var dump struct {
				Failure string
				Records []Record
			}
			if err := json.Unmarshal(text, &dump); err != nil {
				t.Fatal(err)
			}
			if last := dump.Records[4]; !strings.Contains(dump.Failure, "rank 1") || last.Err == "" || last.Op != "all-gather" ||
				dump.Records[3].Err != "" {
				t.Errorf("rank %d over %s: %q, %+v", rank, transport, dump.Failure, last)
			}
		}
		list.finish()
	}
}
