package xfer

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// Which of two lives of a name is the later one? Generations come from a clock that may be set back, so their order alone must
// not lock anybody out:
//
//   - a life that another has taken the place of is stale for good, whatever its number is;
//   - of two others the one with the larger generation is the later one, while it is there to say so;
//   - if that one is not there (no connection of its process is left), whoever shows up under the name takes its place.

var lastGeneration atomic.Uint64

// nextGeneration draws the generation of an agent: larger than those that this process drew before, whatever the clock does, and
// with random bits, as processes of several hosts may start at the same time.
func nextGeneration(now time.Time) uint64 {
	g := uint64(now.UnixNano())&^(1<<10-1) | rand.Uint64N(1<<10)
	for {
		last := lastGeneration.Load()
		g = max(g, last+1)
		if lastGeneration.CompareAndSwap(last, g) {
			return g
		}
	}
}

// lives are those that others have taken the place of.
type lives struct {
	past  map[ID]struct{}
	order []ID
}

const maxLives = 1 << 14 // that are remembered, the last ones

// end notes that another life has taken the place of this one.
func (l *lives) end(id ID) {
	if l.past == nil {
		l.past = map[ID]struct{}{}
	}
	if _, known := l.past[id]; known {
		return
	}
	if len(l.order) == maxLives {
		delete(l.past, l.order[0])
		l.order = l.order[1:]
	}
	l.past[id] = struct{}{}
	l.order = append(l.order, id)
}

// follows says whether a life can take the place of another of the same name, which is there still or not.
func (l *lives) follows(id, other ID, there bool) error {
	err := fmt.Errorf("agent %s: %w: generation %x; %x was here already", id.Name, ErrStale, id.Generation, other.Generation)
	if _, over := l.past[id]; over {
		return err
	}
	if id.Generation < other.Generation && there {
		return errThere{err}
	}
	return nil
}

// errThere says that a life with a larger generation is there, or was a moment ago.
type errThere struct{ error }

func (e errThere) Unwrap() error { return e.error }

// unlessThere tries until no life with a larger generation is there, for as long as it may take to hear that its process has ended.
func (a *Agent) unlessThere(try func() error) error {
	end := time.Now().Add(outage)
	for {
		err := try()
		if there := (errThere{}); !errors.As(err, &there) || time.Now().After(end) {
			return err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-a.base.Done():
			return ErrClosed
		}
	}
}

// there reports whether the guest has a connection, or had one a moment ago and may come back.
func (g *guest) there() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.now) > 0 || len(g.waits) > 0
}

// there reports whether the peer's process is known to be there: in this one, or by a connection. The caller holds the agent's mu.
func (p *Peer) there() bool {
	if p.inProcess() != nil {
		return true
	}
	for k, l := range p.agent.links {
		if k.id == p.id && l.connected() {
			return true
		}
	}
	return false
}

func (l *link) connected() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now != nil && !l.now.isLost()
}
