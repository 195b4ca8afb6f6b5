package flight

import (
	"sync"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/step"
)

// MaxSteps is how many steps of an operation are kept.
const MaxSteps = 64

// Steps are the actions of a script that are done. The zero value is empty.
type Steps struct {
	mu   sync.Mutex
	many bool // several channels take steps at once
	list []passed
	more int // that were not kept
}

// passed is what is kept of a step.
type passed struct {
	channel  int32
	from, to sched.Rank
	op       sched.Op
	ended    int64 // in ticks
}

// Reset empties the list; many says that several channels take steps at once.
func (s *Steps) Reset(many bool) { s.many, s.list, s.more = many, s.list[:0], 0 }

// Add notes that an action is done.
func (s *Steps) Add(a *step.Action, now int64) {
	if s.many {
		s.mu.Lock()
		defer s.mu.Unlock()
	}
	n := len(s.list)
	if n == MaxSteps {
		s.more++
		return
	}
	if n == cap(s.list) {
		s.list = append(s.list, passed{})
	}
	s.list = s.list[:n+1]
	p := &s.list[n] // field by field: a whole one would be put together first
	p.channel, p.op, p.from, p.to, p.ended = a.Channel, a.Op, a.From, a.To, now
}
