package ckpt_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/weft-fabric/weft/run/ckpt"
	"github.com/weft-fabric/weft/run/ckpt/blob"
)

// large is a model of n bytes in a few tensors.
func large(n int) []ckpt.Tensor {
	data := make([]float32, n/4)
	for i := range data {
		data[i] = float32(i)
	}
	q := len(data) / 4
	return []ckpt.Tensor{
		ckpt.Of("embed", data[:2*q], 2, q), ckpt.Of("up", data[2*q:3*q]), ckpt.Of("down", data[3*q:]),
	}
}

// rounds runs contestants in turn, so that what else the machine does falls on all,
// and reports the best and the median rate of each, and the median of the ratios to
// the first one of the same round.
func rounds(b *testing.B, n, count int, names []string, run []func()) {
	rates := make([][]float64, len(run))
	ratios := make([][]float64, len(run))
	for range count {
		for i, f := range run {
			start := time.Now()
			f()
			rates[i] = append(rates[i], float64(n)/time.Since(start).Seconds()/1e9)
			last := len(rates[i]) - 1
			ratios[i] = append(ratios[i], rates[i][last]/rates[0][last])
		}
	}
	text := ""
	for i, name := range names {
		slices.Sort(rates[i])
		slices.Sort(ratios[i])
		text += fmt.Sprintf("| %s | %.3g (%.3g) | %.2f (%.2f) |\n", name, rates[i][count-1], rates[i][count/2],
			rates[i][count-1]/rates[0][count-1], ratios[i][count/2])
	}
	b.Logf("%d MiB, GB/s best (median) of %d; to the first, best to best (median of rounds)\n%s", n>>20, count, text)
}

// BenchmarkDisk writes the same bytes plainly, with one write and one fsync, and as
// checkpoints. WEFT_BENCH_DIR chooses the disk, WEFT_BENCH_MIB the size, with more
// rounds.
func BenchmarkDisk(b *testing.B) {
	dir := os.Getenv("WEFT_BENCH_DIR")
	if dir == "" {
		dir = b.TempDir()
	}
	n, count := 128<<20, 5
	if v, err := strconv.Atoi(os.Getenv("WEFT_BENCH_MIB")); err == nil {
		n, count = v<<20, 15
	}
	m := large(n)
	fail := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	plain := func() {
		path := filepath.Join(dir, "plain")
		f, err := os.Create(path)
		fail(err)
		for _, t := range m {
			_, err = f.Write(t.Data)
			fail(err)
		}
		fail(f.Sync())
		fail(f.Close())
	}
	step := int64(0)
	s := open(b, filepath.Join(dir, "ckpt"), ckpt.Options{Keep: 1})
	saved := func(async bool) func() {
		return func() {
			step++
			meta := ckpt.Meta{Step: step, World: 1}
			if async {
				fail(s.Async(b.Context(), meta, m))
				fail(s.Wait(b.Context()))
			} else {
				fail(s.Save(b.Context(), meta, m))
			}
		}
	}
	got := model(m).blank()
	load := func() {
		_, err := s.Load(b.Context(), step, got)
		fail(err)
	}
	for range b.N {
		plain()
		saved(true)() // the first touches its memory
		load()
		rounds(b, n, count, []string{"write and fsync", "Save", "Async and Wait", "Load"}, []func(){plain, saved(false), saved(true), load})
	}
	os.Remove(filepath.Join(dir, "plain"))
	os.RemoveAll(filepath.Join(dir, "ckpt"))
}

// nowhere takes blobs and keeps none.
type nowhere struct{ blob.Place }

func (nowhere) Put(context.Context, string, blob.Body) error      { return nil }
func (nowhere) List(context.Context, string) ([]blob.Info, error) { return nil, nil }
func (nowhere) Close()                                            {}
func (nowhere) Path(name string) string                           { return name }

// BenchmarkSnapshot is what a training step waits for: Async with a place that
// takes no time, beside the runtime's copy of the same bytes.
func BenchmarkSnapshot(b *testing.B) {
	for _, n := range []int{16 << 20, 256 << 20} {
		m := large(n)
		dst := make([]byte, n)
		s, err := ckpt.New(nowhere{}, ckpt.Options{})
		if err != nil {
			b.Fatal(err)
		}
		plain := func() {
			at := 0
			for _, t := range m {
				at += copy(dst[at:], t.Data)
			}
		}
		step := int64(0)
		async := func() {
			step++
			if err := s.Async(b.Context(), ckpt.Meta{Step: step, World: 1}, m); err != nil {
				b.Fatal(err)
			}
		}
		for range b.N {
			plain()
			async()
			rounds(b, n, 15, []string{"copy", "Async"}, []func(){plain, async})
		}
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
