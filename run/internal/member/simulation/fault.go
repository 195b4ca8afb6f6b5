package simulation

import (
	"fmt"
	"time"
)

// What says what a fault does.
type What uint8

// The faults. Those with a duration end by themselves after Fault.For.
const (
	Kill      What = iota // processes end and nobody sees it: a host loses power
	Exit                  // processes end and the rank By, or the next one, sees it a millisecond later
	Pause                 // processes stop for a while: SIGSTOP, a debugger, a garbage collection
	Cut                   // ranks reach only one another, not the others and not the store
	CutPeers              // ranks reach only one another and the store
	Slow                  // messages to and from take By more, each way
	Lossy                 // a further share of messages to and from is lost
	Join                  // new processes ask to be let in
	Leave                 // processes ask to go
	StoreDown             // the store does not answer
)

var whats = []string{"kill", "exit", "pause", "cut", "cut-peers", "slow", "lossy", "join", "leave", "store-down"}

func (w What) String() string { return whats[w] }

// Fault is something that happens to ranks.
type Fault struct {
	At    time.Duration
	What  What
	Ranks []int
	For   time.Duration
	Delay time.Duration // of Slow
	Loss  float64       // of Lossy
	By    int           // of Exit; 0 with rank 0 among Ranks is the next rank
}

func (f *Fault) check(ranks int) error {
	for _, r := range f.Ranks {
		if r < 0 || r >= ranks {
			return fmt.Errorf("simulation: %v of r%d; ranks are 0 to %d", f.What, r, ranks-1)
		}
	}
	if (f.What == Pause || f.What == Cut || f.What == CutPeers || f.What == Slow || f.What == Lossy || f.What == StoreDown) && f.For <= 0 {
		return fmt.Errorf("simulation: %v lasts %v; say for how long", f.What, f.For)
	}
	return nil
}

// begin makes a fault happen.
func (w *World) begin(i int32) {
	f := &w.set.Faults[i]
	for _, r := range f.Ranks {
		x := &w.nodes[r]
		switch f.What {
		case Kill, Exit:
			if !x.up {
				continue
			}
			x.up, x.stopped = false, false
			w.drop(x)
			w.deaths = append(w.deaths, death{rank: r, at: w.now, knows: make([]uint64, (len(w.nodes)+63)/64), seen: f.What == Exit})
			if f.What == Exit {
				by := f.By
				for k := 0; k < len(w.nodes) && (by == r || !w.nodes[by].up || w.nodes[by].stopped); k++ {
					by = (by + 1) % len(w.nodes)
				}
				w.push(w.now+time.Millisecond.Nanoseconds(), exited, int32(by), int32(r))
			}
		case Pause:
			x.stopped = x.up
		case Cut, CutPeers:
			x.cut, x.alone = i+1, f.What == Cut
		case Slow:
			x.slow += f.Delay.Nanoseconds()
		case Lossy:
			x.loss += f.Loss
		case Join:
			w.join(int32(r))
		case Leave:
			if x.up && !x.stopped {
				x.machine.Leave(x.local(w.now))
				w.drain(int32(r))
			}
		}
		if f.For > 0 {
			x.troubled = max(x.troubled, w.now+(f.For+3*w.set.Member.Timeout).Nanoseconds())
		}
	}
	if f.What == StoreDown {
		w.storeDown++
	}
	if f.For > 0 {
		w.push(w.now+f.For.Nanoseconds(), ended, 0, i)
	}
}

// end undoes a fault.
func (w *World) end(i int32) {
	f := &w.set.Faults[i]
	for _, r := range f.Ranks {
		x := &w.nodes[r]
		switch f.What {
		case Pause:
			if x.up && x.stopped {
				w.resume(int32(r))
			}
		case Cut, CutPeers:
			if x.cut == i+1 {
				x.cut, x.alone = 0, false
			}
		case Slow:
			x.slow -= f.Delay.Nanoseconds()
		case Lossy:
			x.loss -= f.Loss
		}
	}
	if f.What == StoreDown {
		w.storeDown--
	}
}

// resume lets a stopped process go on: it reads what its socket kept, then finds
// its timers late.
func (w *World) resume(r int32) {
	x := &w.nodes[r]
	x.stopped = false
	inbox := x.inbox
	x.inbox = nil
	for _, m := range inbox {
		w.arrive(event{node: r, arg: m, kind: deliver})
	}
	if x.machine.Deciding() && w.holder != r { // its lease has run out meanwhile, which the store tells it
		x.machine.Follow(x.local(w.now))
	}
	x.machine.Tick(x.local(w.now))
	w.drain(r)
}

// drop forgets the messages that wait for a process.
func (w *World) drop(x *node) {
	for _, m := range x.inbox {
		w.release(m)
	}
	x.inbox = nil
}
