package xfer

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Three classes want all of a link: their bytes are shared by weight. When one has nothing to send, the others
// take its share.
func TestClassesShareALink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(Limits{})
		link := make(chan struct{}, 1) // one slice at a time, a millisecond each
		var sent [classes]int
		run := func(c Class, until time.Time) {
			g.join(c)
			defer g.leave(c)
			for time.Now().Before(until) {
				if err := g.take(t.Context(), c, sliceSize); err != nil {
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
		g := newGate(Limits{Background: 50e6})
		g.join(Background)
		defer g.leave(Background)
		began := time.Now()
		bytes := int64(0)
		for time.Since(began) < 2*time.Second {
			if err := g.take(t.Context(), Background, sliceSize); err != nil {
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
			if err := g.take(t.Context(), Latency, sliceSize); err != nil {
				t.Fatal(err)
			}
		}
		if d := time.Since(began); d > time.Second {
			t.Errorf("a class without a limit waited %s", d)
		}
	})
}
