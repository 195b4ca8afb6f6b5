package xfer

import (
	"context"
	"sync"
	"time"

	"github.com/weft-fabric/weft/unit"
)

// Limits bound what classes send or copy, all requests of a class of one agent together; 0 for no limit. They
// are how transfers leave a link to collectives: what a class may take is agreed beforehand, as a rate.
type Limits [classes]unit.Rate

// gate decides whose slice is next. While requests of several classes want to send, they get shares of the
// bytes by weight: latency 16, bulk 4, background 1. A class that has nothing to send leaves its share to the others. Each
// class has a token bucket, too, if it is limited.
type gate struct {
	io chan struct{} // writes of slices into storage that are under way

	mu      sync.Mutex
	limits  Limits
	weight  [classes]float64
	used    [classes]float64 // bytes, divided by the weight
	waiting [classes][]chan struct{}
	busy    [classes]int       // requests of the class under way
	ready   [classes]time.Time // from when on a limited class may send
	last    [classes]time.Time // when it was let go
}

func newGate(l Limits) *gate {
	return &gate{io: make(chan struct{}, 16), limits: l, weight: [classes]float64{Bulk: 4, Latency: 16, Background: 1}}
}

// join and leave say that a request of a class is under way.
func (g *gate) join(c Class) {
	g.mu.Lock()
	if g.busy[c] == 0 {
		// Who was away has saved nothing.
		least := -1.0
		for o := range classes {
			if g.busy[o] > 0 && (least < 0 || g.used[o] < least) {
				least = g.used[o]
			}
		}
		g.used[c] = max(g.used[c], least)
	}
	g.busy[c]++
	g.mu.Unlock()
}

func (g *gate) leave(c Class) {
	g.mu.Lock()
	g.busy[c]--
	g.wake()
	g.mu.Unlock()
}

// lead is how far a class may be ahead of another, in bytes by weight: a few slices of the smallest.
const lead = 2 * sliceSize

// mayGo reports whether a class may send now. The caller holds mu.
func (g *gate) mayGo(c Class) bool {
	for o := range classes {
		if o != c && g.busy[o] > 0 && g.used[c] > g.used[o]+lead {
			return false
		}
	}
	return true
}

// wake lets those go that may. The caller holds mu.
func (g *gate) wake() {
	for c := range classes {
		if len(g.waiting[c]) > 0 && g.mayGo(c) {
			for _, w := range g.waiting[c] {
				close(w)
			}
			g.waiting[c] = nil
		}
	}
}

// patience is how long a class waits for another that has requests but sends nothing, as its peer is slow.
const patience = 5 * time.Millisecond

// idle reports whether the classes that this one waits for have sent nothing for a while. The caller holds mu.
func (g *gate) idle(c Class) bool {
	for o := range classes {
		if o != c && g.busy[o] > 0 && g.used[c] > g.used[o]+lead && time.Since(g.last[o]) < patience {
			return false
		}
	}
	return true
}

// take waits until a class may send n bytes.
func (g *gate) take(ctx context.Context, c Class, n int64) error {
	g.mu.Lock()
	for !g.mayGo(c) && !g.idle(c) {
		w := make(chan struct{})
		g.waiting[c] = append(g.waiting[c], w)
		g.mu.Unlock()
		t := time.NewTimer(patience)
		select {
		case <-w:
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		}
		t.Stop()
		g.mu.Lock()
	}
	g.last[c] = time.Now()
	g.used[c] += float64(n) / g.weight[c]
	var pause time.Duration
	if rate := g.limits[c]; rate > 0 {
		now := time.Now()
		if g.ready[c].Before(now) {
			g.ready[c] = now
		}
		pause = g.ready[c].Sub(now)
		g.ready[c] = g.ready[c].Add(time.Duration(float64(n) / float64(rate) * 1e9))
	}
	g.wake()
	g.mu.Unlock()
	if pause < time.Millisecond {
		return nil
	}
	t := time.NewTimer(pause)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
