package xfer

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Three classes want all of a link: their bytes are shared by weight. When one has nothing to send, the others
// take its share.
func TestClassesShareALink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(Limits{}, nil)
		link := make(chan struct{}, 1) // one slice at a time, a millisecond each
		var sent [classes]int
		run := func(c Class, until time.Time) {
			g.join(c)
			defer g.leave(c)
			for time.Now().Before(until) {
				if err := g.take(t.Context(), c, sliceSize, true); err != nil {
					t.Error(err)
					return
				}
				link <- struct{}{}
				time.Sleep(time.Millisecond)
				sent[c]++
				<-link
			}
		}
		began := time.Now()
		var wg sync.WaitGroup
		for c := range classes {
			wg.Go(func() { run(c, began.Add(2*time.Second)) })
		}
		wg.Wait()
		total := sent[Latency] + sent[Bulk] + sent[Background]
		if total < 1900 {
			t.Errorf("the link was idle: %d slices in 2000 ms", total)
		}
		for c, want := range [classes]float64{Latency: 16. / 21, Bulk: 4. / 21, Background: 1. / 21} {
			if got := float64(sent[c]) / float64(total); got < want*0.7 || got > want*1.4 {
				t.Errorf("%s had %.3f of the link, want %.3f (%v)", Class(c), got, want, sent)
			}
		}
		sent = [classes]int{}
		run(Background, time.Now().Add(time.Second))
		if sent[Background] < 990 {
			t.Errorf("background alone had %d of 1000", sent[Background])
		}
	})
}

// A limit is what a class leaves to the collectives on the link.
func TestLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(Limits{Background: 50e6}, nil)
		g.join(Background)
		defer g.leave(Background)
		began := time.Now()
		bytes := int64(0)
		for time.Since(began) < 2*time.Second {
			if err := g.take(t.Context(), Background, sliceSize, true); err != nil {
				t.Fatal(err)
			}
			bytes += sliceSize
		}
		if rate := float64(bytes) / time.Since(began).Seconds(); rate < 45e6 || rate > 52e6 {
			t.Errorf("%.1f MB/s, the limit is 50", rate/1e6)
		}
		g.join(Latency)
		defer g.leave(Latency)
		began = time.Now()
		for range 100 {
			if err := g.take(t.Context(), Latency, sliceSize, true); err != nil {
				t.Fatal(err)
			}
		}
		if d := time.Since(began); d > time.Second {
			t.Errorf("a class without a limit waited %s", d)
		}
	})
}

// The rule with collectives: of the bytes that they send, latency has as many, bulk a quarter, background a sixteenth; a class inside the
// host as much as it likes; and all of the link when they pause.
func TestCollectivesShareALink(t *testing.T) {
	for _, x := range []struct {
		class Class
		link  bool
		most  float64 // by what collectives send
	}{{Latency, true, 1}, {Bulk, true, 1. / 4}, {Background, true, 1. / 16}, {Bulk, false, 1000}} {
		synctest.Test(t, func(t *testing.T) {
			var sent atomic.Uint64
			sent.Store(12345) // by collectives, before this began
			g := newGate(Limits{}, func() (uint64, uint64) { return sent.Load(), 0 })
			stop, over := make(chan struct{}), make(chan struct{})
			go func() { // an all-reduce of 64 KiB every 100 us: 655 MB/s
				defer close(over)
				for {
					select {
					case <-stop:
						return
					case <-time.After(100 * time.Microsecond):
						sent.Add(64 << 10)
					}
				}
			}()
			g.join(x.class)
			defer g.leave(x.class)
			transfer := func(d time.Duration) (bytes float64) {
				for began := time.Now(); time.Since(began) < d; bytes += sliceSize {
					if err := g.take(t.Context(), x.class, sliceSize, x.link); err != nil {
						t.Fatal(err)
					}
					time.Sleep(100 * time.Microsecond) // what the slice itself takes: 10 GB/s
				}
				return bytes
			}
			before := sent.Load()
			got := transfer(2 * time.Second)
			ratio := got / float64(sent.Load()-before)
			if x.link && (ratio > 1.1*x.most || ratio < 0.8*x.most) {
				t.Errorf("%s: %.4f of the collectives' bytes, want %.4f", x.class, ratio, x.most)
			}
			close(stop)
			<-over
			alone := transfer(time.Second)
			if alone < 9e9 || !x.link && got < 1.8e10 {
				t.Errorf("%s, link %v: %.1f GB/s without collectives, %.1f beside them; want 10", x.class, x.link, alone/1e9, got/2e9)
			}
		})
	}
}

// An all-reduce hands all its bytes to a buffer at once and then waits for as much to come, for 200 ms: it is under way all the time.
func TestCollectiveThatIsBuffered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent, came atomic.Uint64
		g := newGate(Limits{}, func() (uint64, uint64) { return sent.Load(), came.Load() })
		stop, over := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(over)
			for k := 0; ; k++ {
				if k%100 == 0 {
					sent.Add(10 << 20)
				}
				select {
				case <-stop:
					return
				case <-time.After(2 * time.Millisecond):
					came.Add(100 << 10)
				}
			}
		}()
		g.join(Bulk)
		defer g.leave(Bulk)
		bytes := 0.0
		for began := time.Now(); time.Since(began) < 4*time.Second; bytes += sliceSize {
			if err := g.take(t.Context(), Bulk, sliceSize, true); err != nil {
				t.Fatal(err)
			}
			time.Sleep(100 * time.Microsecond)
		}
		if ratio := bytes / float64(sent.Load()); ratio > 1.15/4 || ratio < 0.8/4 {
			t.Errorf("%.3f of the collectives' bytes, want a quarter", ratio)
		}
		close(stop)
		<-over
	})
}

// Collectives of few bytes go on all the time: transfers have little, but are not held up for ever.
func TestSmallCollectivesStarveNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sent := uint64(0)
		g := newGate(Limits{}, func() (uint64, uint64) { sent++; return 0, sent })
		g.join(Background)
		defer g.leave(Background)
		began := time.Now()
		for range 20 {
			if err := g.take(t.Context(), Background, sliceSize, true); err != nil {
				t.Fatal(err)
			}
		}
		if d := time.Since(began); d > 20*longest+time.Second || d < 18*longest {
			t.Errorf("20 slices took %s", d)
		}
	})
}

// A class that could not send its share, as its peer was slow, has no claim on it later.
func TestShareThatWasNotUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(Limits{}, nil)
		g.join(Latency) // and sends nothing
		defer g.leave(Latency)
		g.join(Bulk)
		defer g.leave(Bulk)
		for range 200 {
			if err := g.take(t.Context(), Bulk, sliceSize, true); err != nil {
				t.Fatal(err)
			}
		}
		// Now it sends a slice every millisecond. Bulk has its quarter of that, from now on.
		over := make(chan struct{})
		go func() {
			defer close(over)
			for range 400 {
				_ = g.take(t.Context(), Latency, sliceSize, true)
				time.Sleep(time.Millisecond)
			}
		}()
		time.Sleep(time.Millisecond)
		n := 0
		for began := time.Now(); time.Since(began) < 300*time.Millisecond; n++ {
			if err := g.take(t.Context(), Bulk, sliceSize, true); err != nil {
				t.Fatal(err)
			}
			time.Sleep(100 * time.Microsecond)
		}
		<-over
		if n < 50 || n > 110 {
			t.Errorf("bulk sent %d slices beside 300, want about 75", n)
		}
	})
}
