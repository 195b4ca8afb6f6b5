package ring

import (
	"errors"

	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/wait"
)

var (
	errLate  = errors.New("late")
	errAgain = errors.New("again")
)

// goOn is the Stop of the lane's waits.
func (l *lane) goOn() error {
	p := l.p
	if p.h.closed.Load() || p.closed.Load() {
		return transport.ErrClosed
	}
	if p.stop != nil {
		if err := p.stop(); err != nil {
			return err
		}
	}
	gone := p.h.s.Alive(p.members[l.peer])
	l.asks++
	// The first ask comes before the first sleep, when most waits are nearly
	// over. A rank may be gone because of a mismatch, which then says more.
	if l.asks > 1 || gone != nil {
		if err := p.scan(); err != nil {
			return err
		}
	}
	if gone != nil {
		return gone
	}
	if l.limit > 0 && l.asks >= l.limit {
		return errLate
	}
	return nil
}

// wait waits for a flag that a member raises. With a limit, it ends with errLate
// at that ask; the first one comes before the first sleep.
func (l *lane) wait(f *wait.Flag, v uint64, member int, w *wait.Waiter, limit int) error {
	if f.Load() >= v {
		return nil
	}
	l.peer, l.asks, l.limit = member, 0, limit
	return f.Wait(v, w, l.ask)
}

// waitPosted waits for a message in the next slot of a way.
func (l *lane) waitPosted(w *inWay, v uint64, limit int) error {
	f := w.slots[w.next%depth].posted()
	if f.Load() >= v {
		return nil
	}
	l.peer, l.asks, l.limit = w.from, 0, limit
	return f.WaitAs(v, &w.asleep, &l.waiter, l.ask)
}

// naps is how many short sleeps a wait that also receives does where another
// one would do one long one.
const naps = 200

// waitServing waits for a flag and meanwhile receives what was announced on a lane.
// A futex can wait for one word only, so it naps between looks once spinning
// and yielding have not helped.
func (l *lane) waitServing(serves *lane, f *wait.Flag, v uint64, member int, w *wait.Waiter, limit int) error {
	const bit = 16 // pauses between looks at what was announced
	brief := wait.Waiter{Spin: min(w.Spin, 256+bit)}
	again := func() error { return errAgain }
	turns := 0
	for len(serves.announced) > 0 {
		if f.Load() >= v {
			return nil
		}
		if serves.serve() {
			turns = 0
			continue
		}
		switch turns++; {
		case turns <= w.Spin/bit:
			_ = f.Wait(v, &brief, again)
		case turns <= w.Spin/bit+w.Yield:
			if !w.Works() {
				w.GiveWay()
			}
		default:
			l.peer, l.asks, l.limit = member, (turns-w.Spin/bit-w.Yield)/naps, limit
			if err := l.goOn(); err != nil {
				if f.Load() >= v {
					return nil
				}
				return err
			}
			nap()
		}
	}
	return l.wait(f, v, member, w, limit)
}
