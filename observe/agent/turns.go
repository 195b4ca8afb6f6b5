package agent

import (
	"time"

	"github.com/weft-fabric/weft/observe/watch"
	"github.com/weft-fabric/weft/run/turns"
)

// attention is how long after a host was starved the threads of its ranks are looked at. It takes a file per thread, so on other
// hosts they are not.
const attention = 15 * time.Second

// look adds what the threads of a process had of the processors since the last look.
func (x *process) look(now time.Time, starved bool) *watch.Turns {
	was, at := x.threads, x.looked
	if x.threads = nil; starved {
		x.threads, x.looked = turns.Of(x.dir), now
	}
	if len(x.threads) > 0 && was != nil {
		ran := time.Duration(0)
		for id, t := range x.threads {
			ran += t.Ran
			x.turns.Ran += (t.Ran - was[id].Ran).Seconds()
			x.turns.Waited += (t.Waited - was[id].Waited).Seconds()
			x.turns.Times += t.Times - was[id].Times
		}
		if ran > 0 { // the kernel counts
			x.turns.Seen += now.Sub(at).Seconds()
		}
	}
	if x.turns.Seen == 0 {
		return nil
	}
	sum := x.turns
	return &sum
}
