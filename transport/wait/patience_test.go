package wait

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"
)

// After sleeps that turn out to be short, waits look longer before they sleep, and
// after a long one as long as at first.
func TestPatience(t *testing.T) {
	w := Waiter{Yield: 1, patience: new(atomic.Int32)}
	var f Flag
	v := uint64(0)
	short := func() {
		v++
		done := make(chan error, 1)
		go func(v uint64) { done <- f.Wait(v, &w, nil) }(v)
		for f.sleepers.Load() == 0 {
			runtime.Gosched()
		}
		f.Post(v)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	// A short sleep may last for Slice on a machine that stands still, so it is tried
	// until it is short.
	for want := int32(1); want <= mostPatience; {
		before := w.patience.Load()
		short()
		switch got := w.patience.Load(); got {
		case before + 1:
			want = got + 1
		case 0:
			want = 1
		default:
			t.Fatalf("patience %d after %d and a short sleep", got, before)
		}
	}
	short()
	if got := w.patience.Load(); got != mostPatience && got != 0 {
		t.Errorf("patience %d, at most %d expected", got, mostPatience)
	}
	v++
	began := time.Now()
	stop := func() error { // asked before the first sleep and after each
		if time.Since(began) >= 2*Slice {
			f.Post(v)
		}
		return nil
	}
	if err := f.Wait(v, &w, stop); err != nil {
		t.Fatal(err)
	}
	if got := w.patience.Load(); got != 0 {
		t.Errorf("patience %d after a sleep of two slices", got)
	}
}
