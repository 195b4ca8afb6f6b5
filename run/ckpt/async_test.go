package ckpt_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/weft-fabric/weft/run/ckpt"
)

// The snapshot is taken when Async returns: what the caller changes after it, in
// tensors or in metadata, is not in the checkpoint.
func TestAsyncTakesASnapshot(t *testing.T) {
	mem := newMemory()
	mem.gate = make(chan error)
	s, err := ckpt.New(mem, ckpt.Options{})
	if err != nil {
		t.Fatal(err)
	}
	m, want := newModel(1), newModel(1)
	meta := ckpt.Meta{Step: 1, World: 1, Layout: map[string]int{"dp": 1}, Random: map[string][]byte{"r": {1}},
		Extra: map[string]string{"k": "v"}}
	if err := s.Async(t.Context(), meta, m); err != nil {
		t.Fatal(err)
	}
	for i := range m {
		clear(m[i].Data)
	}
	meta.Layout["dp"], meta.Random["r"][0], meta.Extra["k"] = 9, 9, "changed"
	mem.gate <- nil // the shard
	mem.gate <- nil // the manifest
	if err := s.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := m.blank()
	man, err := s.Load(t.Context(), 1, got)
	if err != nil {
		t.Fatal(err)
	}
	want.equal(t, got)
	if man.Layout["dp"] != 1 || man.Random(0)["r"][0] != 1 || man.Extra["k"] != "v" {
		t.Errorf("metadata %+v", man)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// With one buffer the second Async waits for the first write, with two the third
// does; a context ends the wait.
func TestAsyncHoldsBack(t *testing.T) {
	for _, buffers := range []int{1, 2, 3} {
		synctest.Test(t, func(t *testing.T) {
			mem := newMemory()
			mem.gate = make(chan error)
			s, err := ckpt.New(mem, ckpt.Options{Buffers: buffers})
			if err != nil {
				t.Fatal(err)
			}
			m := newModel(1)
			started := 0
			done := make(chan error)
			go func() {
				for i := range buffers + 1 {
					if err := s.Async(t.Context(), ckpt.Meta{Step: int64(i), World: 1}, m); err != nil {
						t.Error(err)
					}
					started++
				}
				close(done)
			}()
			synctest.Wait()
			if started != buffers {
				t.Errorf("%d buffers: %d snapshots taken while none is written", buffers, started)
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if err := s.Wait(ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("wait: %v", err)
			}
			if err := s.Async(ctx, ckpt.Meta{Step: 99, World: 1}, m); !errors.Is(err, context.Canceled) {
				t.Errorf("async: %v", err)
			}
			for range 2 * (buffers + 1) {
				mem.gate <- nil
			}
			<-done
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			if list, err := s.List(t.Context()); err != nil || len(list) != buffers+1 {
				t.Errorf("%d checkpoints, %v", len(list), err)
			}
		})
	}
}

// An error of the background comes with the next call, once, and does not keep that
// call from doing its work.
func TestAsyncErrorsSurface(t *testing.T) {
	mem := newMemory()
	mem.gate = make(chan error, 10)
	s, err := ckpt.New(mem, ckpt.Options{Buffers: 2})
	if err != nil {
		t.Fatal(err)
	}
	broken := errors.New("the cable was pulled")
	m := newModel(1)
	if err := s.Async(t.Context(), ckpt.Meta{Step: 1, World: 1}, m); err != nil {
		t.Fatal(err)
	}
	mem.gate <- broken // not before: a call also reports what has failed by its end
	err = s.Wait(t.Context())
	if !errors.Is(err, broken) || !errors.Is(err, ckpt.ErrEarlier) || !strings.Contains(err.Error(), "save step 1, rank 0") {
		t.Errorf("wait: %v", err)
	}
	if err := s.Wait(t.Context()); err != nil {
		t.Errorf("the error came twice: %v", err)
	}
	if err := s.Async(t.Context(), ckpt.Meta{Step: 2, World: 1}, m); err != nil {
		t.Fatal(err)
	}
	mem.gate <- broken
	mem.gate <- nil
	mem.gate <- nil
	seen := s.Async(t.Context(), ckpt.Meta{Step: 3, World: 1}, m)
	seen = errors.Join(seen, s.Close())
	if !errors.Is(seen, broken) || strings.Count(seen.Error(), "cable") != 1 {
		t.Errorf("the second error: %v", seen)
	}
	if got := steps(t, s); got != "3 complete " {
		t.Errorf("list: %s", got)
	}
}

// The latest and every Kth stay; emergency checkpoints go with the next regular one
// and take no place.
func TestRetention(t *testing.T) {
	s := open(t, t.TempDir(), ckpt.Options{Keep: 2, Every: 40})
	m := newModel(1)
	at := func(step int64, want string) {
		t.Helper()
		if got := steps(t, s); got != want {
			t.Errorf("after step %d: %s, want %s", step, got, want)
		}
	}
	for step := int64(10); step <= 90; step += 10 {
		save(t, s, m, ckpt.Meta{Step: step, World: 2})
	}
	at(90, "40 complete 80 complete 90 complete ")
	for rank := range 2 {
		if err := s.Emergency(t.Context(), ckpt.Meta{Step: 95, World: 2, Rank: rank}, m.shares(rank, 2)); err != nil {
			t.Fatal(err)
		}
	}
	at(95, "40 complete 80 complete 90 complete 95 complete ")
	got := m.blank()
	if man, _, err := s.Resume(t.Context(), got); err != nil || man.Step != 95 || !man.Emergency {
		t.Errorf("resumed from %+v, %v", man, err)
	}
	m.equal(t, got)
	if err := s.Save(t.Context(), ckpt.Meta{Step: 97, World: 2, Rank: 1}, m.shares(1, 2)); err != nil {
		t.Fatal(err)
	}
	at(97, "40 complete 80 complete 90 complete 95 complete 97 incomplete ")
	save(t, s, m, ckpt.Meta{Step: 100, World: 1})
	at(100, "40 complete 80 complete 90 complete 100 complete ")
	save(t, s, m, ckpt.Meta{Step: 120, World: 3})
	at(120, "40 complete 80 complete 100 complete 120 complete ")
	if _, err := ckpt.Open(t.Context(), t.TempDir(), ckpt.Options{Keep: -1}); err == nil {
		t.Error("keep -1 is accepted")
	}
}

// An emergency checkpoint of the ranks that are left: whole if they hold everything
// between them, none if not.
func TestEmergencyOfSurvivors(t *testing.T) {
	s := open(t, t.TempDir(), ckpt.Options{})
	m := newModel(1)
	replicated := []string{"replicated", "replicated", "replicated", "replicated", "replicated", "replicated", "replicated", "replicated"}
	if err := s.Emergency(t.Context(), ckpt.Meta{Step: 5, Epoch: 2, World: 1}, shardsOf(m, replicated, 3, 4)); err != nil {
		t.Fatal(err)
	}
	got := m.blank()
	if man, _, err := s.Resume(t.Context(), got); err != nil || man.Step != 5 {
		t.Fatalf("%+v %v", man, err)
	}
	m.equal(t, got)
	if err := s.Emergency(t.Context(), ckpt.Meta{Step: 6, Epoch: 3, World: 1}, m.shares(0, 2)); err == nil ||
		!strings.Contains(err.Error(), "no rank holds elements") {
		t.Errorf("half a model: %v", err)
	}
	if got := steps(t, s); got != "5 complete 6 incomplete " {
		t.Errorf("list: %s", got)
	}
}

// However many checkpoints are kept, a save reads no more of them.
func TestSavingDoesNotReadOldCheckpoints(t *testing.T) {
	mem := newMemory()
	s, err := ckpt.New(mem, ckpt.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var reads []int64
	for step := range int64(20) {
		mem.read = 0
		save(t, s, newModel(step), ckpt.Meta{Step: step, World: 2})
		reads = append(reads, mem.read)
	}
	if reads[19] > reads[1]+reads[1]/10 {
		t.Errorf("bytes read by successive saves: %v", reads)
	}
}

// Save after Async is written after it.
func TestSaveComesAfterAsync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := newMemory()
		mem.gate = make(chan error)
		s, err := ckpt.New(mem, ckpt.Options{Keep: 1})
		if err != nil {
			t.Fatal(err)
		}
		m := newModel(1)
		if err := s.Async(t.Context(), ckpt.Meta{Step: 1, World: 1}, m); err != nil {
			t.Fatal(err)
		}
		done := make(chan error)
		go func() { done <- s.Save(t.Context(), ckpt.Meta{Step: 2, World: 1}, m) }()
		mem.gate <- nil
		synctest.Wait()
		if got := steps(t, s); got != "1 incomplete " {
			t.Errorf("while the first is being written: %s", got)
		}
		for range 3 {
			mem.gate <- nil
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		if got := steps(t, s); got != "2 complete " {
			t.Errorf("in the end: %s", got)
		}
	})
}
