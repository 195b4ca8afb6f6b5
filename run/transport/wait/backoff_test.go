package wait

import (
	"runtime"
	"testing"
	"time"
)

// After sleeps that turn out to be short, waits look longer before they sleep, and
// after a long one as long as at first.
func TestPatience(t *testing.T) {
	w := Waiter{Yield: 1, Local: true, backoff: new(Backoff)} // a yield to other processes may tell that they want the core
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
		before := w.backoff.patience.Load()
		short()
		switch got := w.backoff.patience.Load(); got {
		case before + 1:
			want = got + 1
		case 0:
			want = 1
		default:
			t.Fatalf("patience %d after %d and a short sleep", got, before)
		}
	}
	short()
	if got := w.backoff.patience.Load(); got != mostPatience && got != 0 {
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
	if got := w.backoff.patience.Load(); got != 0 {
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
		{1, 2 * firstSpan}, {1, 4 * firstSpan}, {1, lastSpan}, {lastSpan / 2, lastSpan},
	} {
		now += c.after
		p.yielded(now, false)
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

// Long yields say something if they follow closely upon one another and took enough time together, or follow upon a pause.
func TestOneLongYield(t *testing.T) {
	var b Backoff
	at := time.Hour
	for i, c := range []struct {
		after, took time.Duration // the end of the last one, and what it takes
		want        bool
	}{
		{0, enough - 1, false},
		{closeBy, enough - 1, false},
		{closeBy - 1, longYield, true},
		{time.Second, longYield, false},
		{1, enough / 2, false},
		{1, enough / 2, true},
		{time.Second, enough, true},
	} {
		at += c.after
		if got := b.again(at, at+c.took); got != c.want {
			t.Errorf("yield %d, %s after another one, took %s and counts: %t", i, c.after, c.took, got)
		}
		at += c.took
	}
	b.until.Store(int64(at + time.Hour))
	if !b.again(at+time.Hour, at+time.Hour+longYield) {
		t.Error("a long yield right after a pause does not count")
	}
}

// Where other processes want the core, a wait looks for a moment and sleeps; where none do it looks for as long as it learnt to.
// Ranks that share cores go on yielding then; others stop.
func TestWantedCores(t *testing.T) {
	cores := runtime.NumCPU()
	for _, ranks := range []int{cores, cores + 1} {
		crowded := ranks > cores
		b := Backoff{Ranks: ranks}
		b.patience.Store(2)
		usual := func(when string) {
			if b.Wanted() || b.LookFor(time.Millisecond) != 4*time.Millisecond {
				t.Errorf("%d ranks, %s: wanted %t, looks for %s", ranks, when, b.Wanted(), b.LookFor(time.Millisecond))
			}
		}
		usual("at first")
		b.yielded(time.Since(start), false)
		usual("after a long yield, nobody else being there")
		if stopped := b.until.Load() > 0; stopped == crowded {
			t.Errorf("%d ranks: yields stopped after a long one, nobody else being there: %t", ranks, stopped)
		}
		b.yielded(time.Since(start)+time.Hour, true) // so that the span does not end while this looks
		want := moment
		if crowded {
			want = 0
		}
		if !b.Wanted() || b.LookFor(time.Millisecond) != want {
			t.Errorf("%d ranks: a core that is wanted: %t, looks for %s", ranks, b.Wanted(), b.LookFor(time.Millisecond))
		}
		b.Slept(time.Microsecond)
		if got := b.patience.Load(); got != 2 {
			t.Errorf("%d ranks: learnt patience %d from a sleep beside others", ranks, got)
		}
		b.until.Store(int64(time.Since(start)))
		usual("after a while")
		soon := time.Duration(b.seen.Load()) + believed - 1
		if !b.stillWanted(soon, true) || !b.Wanted() {
			t.Errorf("%d ranks: not wanted, though others are still there", ranks)
		}
		if b.stillWanted(soon+1, true) || b.wanted.Load() {
			t.Errorf("%d ranks: wanted for ever after the last long yield, as something runs somewhere", ranks)
		}
		b.until.Store(int64(time.Since(start)))
		if b.stillWanted(time.Since(start), false) || b.wanted.Load() {
			t.Errorf("%d ranks: wanted by nobody", ranks)
		}
	}
}

func TestRunning(t *testing.T) {
	for text, want := range map[string]int{"0.20 0.18 0.12 3/201 11206\n": 3, "71.37 53.91 34.90 64/990 1\n": 64, "": 0, "1 2 3": 0,
		"1 2 3 x/y 5": 0} {
		if got := running([]byte(text)); got != want {
			t.Errorf("%q: %d run, want %d", text, got, want)
		}
	}
	if othersRun(1 << 20) {
		t.Error("more run than a million ranks")
	}
}

// A wait that finds the core wanted does not yield before it sleeps.
func TestWaitSleepsSoon(t *testing.T) {
	w := Waiter{Spin: 1, Yield: 1 << 30, backoff: new(Backoff)}
	w.backoff.until.Store(int64(time.Since(start) + time.Hour))
	w.backoff.wanted.Store(true)
	var f Flag
	done := make(chan error, 1)
	go func() { done <- f.Wait(1, &w, nil) }()
	for f.sleepers.Load() == 0 {
		runtime.Gosched()
	}
	f.Post(1)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
