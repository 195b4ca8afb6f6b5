package ckpt_test

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/weft-fabric/weft/run/ckpt"
)

// meeting is a minimum over ranks that are goroutines.
type meeting struct {
	mu      sync.Mutex
	n       int
	arrived int
	low     int64
	done    chan struct{}
	result  *int64
}

func newMeeting(n int) *meeting {
	return &meeting{n: n, low: math.MaxInt64, done: make(chan struct{}), result: new(int64)}
}

func (m *meeting) min(ctx context.Context, v int64) (int64, error) {
	m.mu.Lock()
	m.low = min(m.low, v)
	m.arrived++
	done, result := m.done, m.result
	if m.arrived == m.n {
		*result = m.low
		close(done)
		m.arrived, m.low, m.done, m.result = 0, math.MaxInt64, make(chan struct{}), new(int64)
	}
	m.mu.Unlock()
	select {
	case <-done:
		return *result, nil
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

// resumeAll resumes as several ranks, each reading its share.
func resumeAll(t *testing.T, dir string, world int, want func(rank int) []ckpt.Tensor) (steps []int64, errs []error) {
	t.Helper()
	m := newMeeting(world)
	steps, errs = make([]int64, world), make([]error, world)
	var wg sync.WaitGroup
	for rank := range world {
		s := open(t, dir, ckpt.Options{Min: m.min})
		wg.Go(func() {
			man, _, err := s.Resume(t.Context(), want(rank))
			errs[rank] = err
			if man != nil {
				steps[rank] = man.Step
			}
		})
	}
	wg.Wait()
	return steps, errs
}

// Damage that one rank sees alone makes all ranks take the checkpoint before.
func TestRanksResumeFromTheSameStep(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, ckpt.Options{})
	first, second := newModel(1), newModel(2)
	save(t, s, first, ckpt.Meta{Step: 1, World: 3})
	save(t, s, second, ckpt.Meta{Step: 2, World: 3})
	parts := make([]model, 3)
	read := func(rank int) []ckpt.Tensor {
		parts[rank] = model(first.shares(rank, 3)).blank()
		return parts[rank]
	}
	check := func(step int64, m model) {
		t.Helper()
		got, errs := resumeAll(t, dir, 3, read)
		for rank := range 3 {
			if errs[rank] != nil || got[rank] != step {
				t.Fatalf("rank %d: step %d, %v; want step %d", rank, got[rank], errs[rank], step)
			}
			model(m.shares(rank, 3)).equal(t, parts[rank])
		}
	}
	check(2, second)
	change(t, filepath.Join(folderOf(t, dir, 2), "rank-00002.safetensors"), func(b []byte) []byte { b[len(b)-1] ^= 4; return b })
	check(1, first)
	change(t, filepath.Join(folderOf(t, dir, 1), "rank-00000.safetensors"), func(b []byte) []byte { b[len(b)-1] ^= 4; return b })
	if _, errs := resumeAll(t, dir, 3, read); !errors.Is(errs[1], ckpt.ErrNone) || !errors.Is(errs[2], ckpt.ErrNone) {
		t.Errorf("with both damaged: %v", errs)
	}
}

// A rank with another model stops all of them instead of leaving them waiting.
func TestOneRankCannotResume(t *testing.T) {
	dir := t.TempDir()
	m := newModel(1)
	save(t, open(t, dir, ckpt.Options{}), m, ckpt.Meta{Step: 1, World: 3})
	_, errs := resumeAll(t, dir, 3, func(rank int) []ckpt.Tensor {
		if rank == 1 {
			return []ckpt.Tensor{ckpt.Of("other", []float32{1})}
		}
		return m.blank()
	})
	if bad := new(ckpt.Mismatch); !errors.As(errs[1], &bad) {
		t.Errorf("rank 1: %v", errs[1])
	}
	for _, rank := range []int{0, 2} {
		if errs[rank] == nil || !strings.Contains(errs[rank].Error(), "another rank could not load") {
			t.Errorf("rank %d: %v", rank, errs[rank])
		}
	}
}

func TestNothingToResume(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "none"), ckpt.Options{})
	if _, _, err := s.Resume(t.Context(), nil); !errors.Is(err, ckpt.ErrNone) {
		t.Errorf("%v", err)
	}
	if _, _, err := s.Latest(t.Context()); !errors.Is(err, ckpt.ErrNone) {
		t.Errorf("%v", err)
	}
	if err := s.Clean(t.Context()); err != nil {
		t.Errorf("%v", err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	s = open(t, file, ckpt.Options{})
	if err := s.Save(t.Context(), ckpt.Meta{World: 1}, newModel(1)); err == nil || !strings.Contains(err.Error(), "not a directory") {
		t.Errorf("a file as the directory: %v", err)
	}
}

// A slice of a checkpoint is read without the rest of it: not more than the chunks
// it touches, the headers and the manifest.
func TestOnlyWhatIsNeededIsRead(t *testing.T) {
	mem := newMemory()
	s, err := ckpt.New(mem, ckpt.Options{})
	if err != nil {
		t.Fatal(err)
	}
	big := ckpt.Tensor{Name: "big", Type: "U8", Shape: []int{4096, 8192}, Data: make([]byte, 32<<20)}
	fill(big.Data, 1, 1)
	for rank := range 2 {
		if err := s.Save(t.Context(), ckpt.Meta{World: 2, Rank: rank}, []ckpt.Tensor{big.Share(rank, 2)}); err != nil {
			t.Fatal(err)
		}
	}
	m, err := s.At(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		offset, shape []int
		most          int64
	}{
		{[]int{0, 0}, []int{1, 8192}, 1 << 20},
		{[]int{2047, 8000}, []int{2, 3}, 2 << 20},
		{[]int{0, 100}, []int{4096, 100}, 32 << 20},
		{[]int{1 << 20}, []int{5 << 20}, 5 << 20},
	} {
		want := ckpt.Tensor{Name: "big", Type: "U8", Global: big.Shape, Offset: c.offset, Shape: c.shape}
		want.Data = make([]byte, want.Region().Len())
		mem.read = 0
		if err := s.LoadFrom(t.Context(), m, []ckpt.Tensor{want}); err != nil {
			t.Fatal(err)
		}
		if most := c.most + 2*(64<<10); mem.read > most {
			t.Errorf("%v of %v: %d bytes read, at most %d are needed", c.shape, c.offset, mem.read, most)
		}
		expect := extractAny(big, c.offset, c.shape)
		if string(expect) != string(want.Data) {
			t.Errorf("%v at %v is not what was saved", c.shape, c.offset)
		}
	}
}

func extractAny(t ckpt.Tensor, offset, shape []int) []byte {
	if len(shape) == 1 {
		return t.Data[offset[0]*t.Type.Size():][:shape[0]*t.Type.Size()]
	}
	return extract(t, offset, shape).Data
}
