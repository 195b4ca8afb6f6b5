package wait

import (
	"runtime"
	"testing"
	"time"
)

// After sleeps that turn out to be short, waits look longer before they sleep, and
// after a long one as long as at first.
func TestPatience(t *testing.T) {
	w := Waiter{Yield: 1, backoff: new(Backoff)}
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
		before := w.backoff.Patience()
		short()
		switch got := w.backoff.Patience(); got {
		case before + 1:
			want = got + 1
		case 0:
			want = 1
		default:
			t.Fatalf("patience %d after %d and a short sleep", got, before)
		}
	}
	short()
	if got := w.backoff.Patience(); got != mostPatience && got != 0 {
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
	if got := w.backoff.Patience(); got != 0 {
		t.Errorf("patience %d after a sleep of two slices", got)
	}
}

// Yields that take long are left for a while, and for longer if they take long again
// soon after.
func TestLongYields(t *testing.T) {
	var p Backoff
	now := time.Hour
	for _, c := range []struct {
		after time.Duration // the end of the last pause
		want  time.Duration
	}{
		{0, firstSpan},
		{1, 2 * firstSpan},
		{soonAfter / 2, 4 * firstSpan},
		{soonAfter, firstSpan}, // long after
		{1, 2 * firstSpan}, {1, 4 * firstSpan}, {1, 8 * firstSpan}, {1, 16 * firstSpan}, {1, lastSpan}, {lastSpan / 2, lastSpan},
	} {
		now += c.after
		p.yielded(now)
		if got := time.Duration(p.until.Load()) - now; got != c.want {
			t.Fatalf("no yields for %s after one that took long %s after the last pause, want %s", got, c.after, c.want)
		}
		now = time.Duration(p.until.Load())
	}
	p.until.Store(int64(time.Since(start) + time.Hour))
	if took := p.Yield(); took != 0 {
		t.Errorf("yielded for %s in a pause", took)
	}
	p.until.Store(0)
	if p.Yield() == 0 {
		t.Error("did not yield after the pause")
	}
}
