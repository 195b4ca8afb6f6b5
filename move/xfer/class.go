package xfer

import (
	"context"
	"sync"
	"time"

	"github.com/weft-fabric/weft/model/unit"
)

// Limits bound what classes send or copy, all requests of a class of one agent together; 0 for no limit.
type Limits [classes]unit.Rate

// The rule by which those share a link who use it at the same time, as bytes of each:
//
//	collectives 16 : latency 16 : bulk 4 : background 1
//
// Whoever sends nothing leaves its share to the others. Collectives ask nobody: ranks of this host count what they send
// (package run/transport/meter), and transfers keep to their share of that. So bulk transfers of an agent send at most a quarter of the
// bytes that collectives send meanwhile, and as much as they like while there are none; and a slice a second in any case.
var weights = [users]float64{Bulk: 4, Latency: 16, Background: 1, collectives: 16}

// Share is what transfers of a class may send by the rule, for each byte that collectives send meanwhile.
func (c Class) Share() float64 { return weights[c] / weights[collectives] }

// collectives are the user of a link beside the classes.
const (
	collectives = classes
	users       = classes + 1
)

// gate decides whose slice is next, by that rule. Each class has a token bucket, too, if it is limited.
type gate struct {
	io     chan struct{}              // writes of slices into storage that are under way
	beside func() (sent, came uint64) // bytes of collectives of this host; nil if they use other links, or nobody knows

	mu      sync.Mutex
	limits  Limits
	used    [users]float64 // bytes, divided by the weight
	waiting [classes][]chan struct{}
	busy    [users]int         // requests of the class under way
	ready   [classes]time.Time // from when on a limited class may send
	last    [users]time.Time   // when it sent
	seen    [2]uint64          // what beside said last
}

func newGate(l Limits, beside func() (sent, came uint64)) *gate {
	return &gate{io: make(chan struct{}, 16), limits: l, beside: beside}
}

// join and leave say that a request of a class is under way.
func (g *gate) join(c Class) {
	g.mu.Lock()
	g.enter(c)
	g.mu.Unlock()
}

// enter is join; the caller holds mu.
func (g *gate) enter(c Class) {
	if g.busy[c] == 0 {
		// Who was away has saved nothing.
		least := -1.0
		for o := range users {
			if g.busy[o] > 0 && (least < 0 || g.used[o] < least) {
				least = g.used[o]
			}
		}
		g.used[c] = max(g.used[c], least)
	}
	g.busy[c]++
}

func (g *gate) leave(c Class) {
	g.mu.Lock()
	g.busy[c]--
	g.wake()
	g.mu.Unlock()
}

// look notes what collectives sent since the last look. The caller holds mu.
func (g *gate) look() {
	if g.beside == nil {
		return
	}
	now := time.Now()
	sent, came := g.beside()
	switch {
	case g.seen == [2]uint64{sent, came}:
		if g.busy[collectives] > 0 && now.Sub(g.last[collectives]) >= pause {
			g.busy[collectives] = 0
		}
		return
	case g.busy[collectives] == 0: // since when they send is not known
		g.enter(collectives)
	default:
		g.used[collectives] += float64(sent-g.seen[0]) / weights[collectives]
	}
	g.seen, g.last[collectives] = [2]uint64{sent, came}, now
}

// lead is how far a class may be ahead of another, in bytes by weight: a few slices of the smallest. Of collectives it is less: what is
// sent ahead of them holds them up.
func lead(of Class) float64 {
	if of == collectives {
		return sliceSize / 16
	}
	return 2 * sliceSize
}

// behind reports whether a class waits for another to send. The caller holds mu.
func (g *gate) behind(o, c Class, link bool) bool {
	return o != c && g.busy[o] > 0 && (link || o != collectives) && g.used[c] > g.used[o]+lead(o)
}

// mayGo reports whether a class may send now, over a link or inside the host. The caller holds mu.
func (g *gate) mayGo(c Class, link bool) bool {
	for o := range users {
		if g.behind(o, c, link) {
			return false
		}
	}
	return true
}

// wake lets those look again who wait. The caller holds mu.
func (g *gate) wake() {
	for c := range classes {
		if len(g.waiting[c]) > 0 && g.mayGo(c, false) {
			for _, w := range g.waiting[c] {
				close(w)
			}
			g.waiting[c] = nil
		}
	}
}

const (
	// patience is how long a class waits for another that has requests but sends nothing, as its peer is slow.
	patience = 5 * time.Millisecond
	// pause is how long nothing of collectives is sent or comes until they have left the link.
	pause = 20 * time.Millisecond
	// longest is how long no slice of a class may be sent for collectives: those of few bytes may go on for ever.
	longest = time.Second
)

// idle reports whether those that a class waits for have sent nothing for a while, or collectives were waited for long enough. The caller
// holds mu.
func (g *gate) idle(c Class, link bool) bool {
	now := time.Now()
	for o := range users {
		wait := patience
		if o == collectives {
			wait = pause
			if now.Sub(g.last[c]) >= longest {
				continue
			}
		}
		if g.behind(o, c, link) && now.Sub(g.last[o]) < wait {
			return false
		}
	}
	return true
}

// take waits until a class may send n bytes, over a link that collectives use, too, or inside the host.
func (g *gate) take(ctx context.Context, c Class, n int64, link bool) error {
	g.mu.Lock()
	g.look()
	for !g.mayGo(c, link) && !g.idle(c, link) {
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
		g.look()
	}
	// Whoever did not send its share while it could has lost it.
	for o := range users {
		if g.behind(o, c, link) {
			g.used[o] = g.used[c] - lead(o)
		}
	}
	if link && g.busy[collectives] > 0 {
		g.used[c] = max(g.used[c], g.used[collectives]-2*sliceSize)
	}
	g.last[c] = time.Now()
	g.used[c] += float64(n) / weights[c]
	var rest time.Duration
	if rate := g.limits[c]; rate > 0 {
		now := time.Now()
		if g.ready[c].Before(now) {
			g.ready[c] = now
		}
		rest = g.ready[c].Sub(now)
		g.ready[c] = g.ready[c].Add(time.Duration(float64(n) / float64(rate) * 1e9))
	}
	g.wake()
	g.mu.Unlock()
	if rest < time.Millisecond {
		return nil
	}
	t := time.NewTimer(rest)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
