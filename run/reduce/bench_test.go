package reduce_test

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weft-fabric/weft/run/reduce"
)

// sizes of one buffer, named after where three of them stay on the machine of
// docs/reference/performance.md (48 KiB, 2 MiB, 105 MiB shared).
var sizes = []struct {
	name  string
	bytes int
}{{"L1", 4 << 10}, {"L2", 256 << 10}, {"LLC", 4 << 20}, {"DRAM", 128 << 20}}

// subject is one row of the table.
type subject struct {
	name    string
	path    string
	past    int  // bytes from which on it stores past the caches
	buffers int  // read and written
	slow    bool // takes seconds on the largest buffers, and is left out there
	run     func(bufs [][]byte)
}

// with is a reduction under a path; past says whether it stores past the caches.
func with(path string, past bool, t reduce.Type, op reduce.Op, sources int) subject {
	s := subject{fmt.Sprintf("%v %v, %d sources, %s", t, op, sources, path), path, never, sources + 1, path == "portable" &&
		t != reduce.Float32, nil}
	if past {
		s.name, s.past = s.name+", past the caches", 1
	}
	s.run = func(bufs [][]byte) { reduce.ApplyN(t, op, bufs[0], bufs[1:sources+1]...) }
	return s
}

// plain is the memory add that kernels are held against: what a programmer writes.
func plain(bufs [][]byte) {
	d, a, b := floatsOf(bufs[0]), floatsOf(bufs[1]), floatsOf(bufs[2])
	a, b = a[:len(d)], b[:len(d)]
	for i := range d {
		d[i] = a[i] + b[i]
	}
}

// subjects are in such an order that those which push the destination out of the
// caches come last.
func subjects() []subject {
	list := []subject{
		{name: "copy (the runtime's)", buffers: 2, run: func(bufs [][]byte) { copy(bufs[0], bufs[1]) }},
		{name: "plain loop, float32 sum", buffers: 3, run: plain},
	}
	var past []subject
	for _, p := range reduce.Paths() {
		list = append(list, with(p, false, reduce.Float32, reduce.Sum, 2))
		if p != "portable" {
			past = append(past, with(p, true, reduce.Float32, reduce.Sum, 2))
		}
	}
	widest := reduce.Paths()[len(reduce.Paths())-1]
	place := with(widest, false, reduce.Float32, reduce.Sum, 2)
	place.name += ", in place"
	place.run = func(bufs [][]byte) { reduce.Apply(reduce.Float32, reduce.Sum, bufs[0], bufs[0], bufs[1]) }
	both := place
	both.name, both.buffers = place.name+" of both", 4
	both.run = func(bufs [][]byte) { reduce.ApplyAll(reduce.Float32, reduce.Sum, bufs[:2], bufs[:2], nil) }
	list = append(list, place, both)
	for _, n := range []int{4, 8} {
		list = append(list, with(widest, false, reduce.Float32, reduce.Sum, n))
		past = append(past, with(widest, true, reduce.Float32, reduce.Sum, n))
	}
	for _, t := range []reduce.Type{reduce.Float16, reduce.BFloat16, reduce.Float8E4M3, reduce.Float8E5M2} {
		for _, p := range reduce.Paths() {
			list = append(list, with(p, false, t, reduce.Sum, 2))
		}
	}
	list = append(list, with(widest, false, reduce.Float32, reduce.Max, 2), with(widest, false, reduce.Int8, reduce.Prod, 2))
	past = append(past, subject{name: "copy, " + widest + ", past the caches", path: widest, past: 1, buffers: 2,
		run: func(bufs [][]byte) { reduce.Copy(bufs[0], bufs[1]) }})
	for _, t := range []reduce.Type{reduce.Float16, reduce.BFloat16} {
		past = append(past, with(widest, true, t, reduce.Sum, 2))
	}
	return append(list, past...)
}

func floatsOf(b []byte) []float32 { return reduce.View[float32](b) }

// BenchmarkTable prints GB/s, counting every byte read and written, for every
// subject and size: the best and the median of rounds in which all subjects take
// turns, so that what else runs on the machine falls on all of them alike.
func BenchmarkTable(b *testing.B) {
	const rounds = 15
	list := subjects()
	best, median := make([][]float64, len(list)), make([][]float64, len(list))
	for _, size := range sizes {
		bufs := make([][]byte, 9)
		for i := range bufs {
			bufs[i] = make([]byte, size.bytes)
			for j := range floatsOf(bufs[i]) {
				floatsOf(bufs[i])[j] = float32(j%1000) + 1
			}
		}
		rates := make([][]float64, len(list))
		for range rounds {
			for i, s := range list {
				if s.slow && size.bytes > 1<<20 {
					rates[i] = append(rates[i], math.NaN())
					continue
				}
				restore := reduce.Use(s.path, s.past)
				repeat := max(1, 1<<20/size.bytes)
				if size.bytes <= 16<<20 {
					s.run(bufs) // brings into the caches what the subject before it stored past them
				}
				start := time.Now()
				for range repeat {
					s.run(bufs)
				}
				took := time.Since(start).Seconds()
				restore()
				rates[i] = append(rates[i], float64(s.buffers*size.bytes*repeat)/took/1e9)
			}
		}
		for i := range list {
			slices.Sort(rates[i])
			best[i] = append(best[i], rates[i][rounds-1])
			median[i] = append(median[i], rates[i][rounds/2])
		}
	}
	var out strings.Builder
	fmt.Fprintf(&out, "\n| GB/s, best (median) of %d |", rounds)
	for _, size := range sizes {
		fmt.Fprintf(&out, " %s |", size.name)
	}
	fmt.Fprint(&out, "\n|---|", strings.Repeat("---|", len(sizes)), "\n")
	for i, s := range list {
		fmt.Fprintf(&out, "| %s |", s.name)
		for j := range sizes {
			if math.IsNaN(best[i][j]) {
				fmt.Fprint(&out, " |")
				continue
			}
			fmt.Fprintf(&out, " %.3g (%.3g) |", best[i][j], median[i][j])
		}
		fmt.Fprintln(&out)
	}
	fmt.Println(out.String()) // b.Log cuts off after ten lines
	b.ReportMetric(0, "ns/op")
}

// BenchmarkApply is for comparing two states of the code with benchstat.
func BenchmarkApply(b *testing.B) {
	for _, t := range []reduce.Type{reduce.Float32, reduce.BFloat16, reduce.Float16} {
		for _, op := range []reduce.Op{reduce.Sum, reduce.Max} {
			for _, n := range []int{8, 4 << 10, 256 << 10} {
				for _, p := range reduce.Paths() {
					b.Run(fmt.Sprintf("%v/%v/%d/%s", t, op, n, p), func(b *testing.B) {
						defer reduce.Use(p, never)()
						dst, x, y := make([]byte, n), make([]byte, n), make([]byte, n)
						b.SetBytes(int64(3 * n))
						for b.Loop() {
							reduce.Apply(t, op, dst, x, y)
						}
					})
				}
			}
		}
	}
}

// BenchmarkThreshold finds from which size on stores past the caches pay: an add
// by itself, and an add whose result is read right after it, as the next step of a
// collective does. Each takes three new buffers out of a region much larger than
// the caches, and uses them four times.
func BenchmarkThreshold(b *testing.B) {
	region := make([]byte, 1<<30)
	for i := 0; i < len(region); i += 4096 {
		region[i] = 1
	}
	widest := reduce.Paths()[len(reduce.Paths())-1]
	var out strings.Builder
	fmt.Fprint(&out,
		"\n| bytes of a buffer | add through caches, us | past them | ratio | add and read, through | past | ratio |\n|---|---|---|---|---|---|---|\n")
	for size := 128 << 10; size <= 128<<20; size *= 2 {
		took := [4]float64{math.Inf(1), math.Inf(1), math.Inf(1), math.Inf(1)}
		for round := range 16 {
			for i, past := range []int{never, 1, never, 1} {
				at := (round*4 + i) * 3 * size % (len(region) - 3*size + 1) &^ 63
				d, x, y := region[at:at+size], region[at+size:at+2*size], region[at+2*size:at+3*size]
				restore := reduce.Use(widest, past)
				start := time.Now()
				for range 4 {
					reduce.Apply(reduce.Float32, reduce.Sum, d, x, y)
					if i >= 2 {
						b.ReportMetric(float64(bytes.Count(d, []byte{0xee})), "seen")
					}
				}
				took[i] = min(took[i], time.Since(start).Seconds()/4*1e6)
				restore()
			}
		}
		fmt.Fprintf(&out, "| %d Ki | %.1f | %.1f | %.2f | %.1f | %.1f | %.2f |\n", size>>10, took[0], took[1], took[0]/took[1], took[2], took[3],
			took[2]/took[3])
	}
	fmt.Println(out.String()) // b.Log cuts off after ten lines
	b.ReportMetric(0, "ns/op")
}

// BenchmarkLogged holds in-place sums of two buffers with a log against those
// without, as two ranks of one host do them: two threads that start together, each
// with one half of the buffers. Medians of rounds in which the two alternate, timed
// by the thread that ends last.
func BenchmarkLogged(b *testing.B) {
	const rounds = 201
	var out strings.Builder
	fmt.Fprint(&out, "\n| bytes of a buffer | path | without, us | with a log | ratio |\n|---|---|---|---|---|\n")
	for _, size := range []int{8 << 10, 128 << 10, 1 << 20, 2 << 20, 8 << 20} {
		bufs := [][]byte{make([]byte, size), make([]byte, size)}
		for _, p := range reduce.Paths() {
			restore := reduce.Use(p, never)
			var took [2][rounds]float64
			var arrived, ended atomic.Int64
			rank := func(k int) {
				half := [][]byte{bufs[0][k*size/2:][:size/2], bufs[1][k*size/2:][:size/2]}
				log := newLog()
				for i := range int64(2 * rounds) {
					for arrived.Add(1); arrived.Load() < 2*(i+1); {
						continue
					}
					began := time.Now()
					if i%2 == 0 {
						reduce.ApplyAll(reduce.Float32, reduce.Sum, half, half, nil)
					} else {
						reduce.ResetLog(log)
						reduce.ApplyAllLogged(reduce.Float32, reduce.Sum, half, half, nil, log, 0)
					}
					if ended.Add(1) == 2*(i+1) {
						took[i%2][i/2] = time.Since(began).Seconds() * 1e6
					}
				}
			}
			var other sync.WaitGroup
			other.Go(func() { rank(1) })
			rank(0)
			other.Wait()
			restore()
			slices.Sort(took[0][:])
			slices.Sort(took[1][:])
			without, with := took[0][rounds/2], took[1][rounds/2]
			fmt.Fprintf(&out, "| %d Ki | %s | %.2f | %.2f | %.2f |\n", size>>10, p, without, with, with/without)
		}
	}
	fmt.Println(out.String()) // b.Log cuts off after ten lines
	b.ReportMetric(0, "ns/op")
}
