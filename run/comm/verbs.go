package comm

import (
	"errors"
	"runtime"
	"sync"
	"time"

	"github.com/weft-fabric/weft/run/transport"
)

// verbs shares an endpoint's one-sided operations, whose completions come in
// one stream, among communicators and the user. Tickets are numbers from 1 on, so
// that operations whose end nobody asks for need no memory.
type verbs struct {
	raw     transport.Verbs
	mu      sync.Mutex
	low     transport.Ticket              // this one and all before it are complete
	done    map[transport.Ticket]struct{} // those behind low that are complete
	failed  map[transport.Ticket]error    // those that failed
	notices []transport.Completion
	buf     []transport.Completion
}

func newVerbs(ep transport.Endpoint) verbs {
	return verbs{raw: ep.Verbs(), done: map[transport.Ticket]struct{}{}, failed: map[transport.Ticket]error{}}
}

// poll takes in what is complete. The caller holds mu.
func (v *verbs) poll() {
	v.buf = v.raw.Poll(v.buf[:0])
	for _, c := range v.buf {
		if c.Ticket == 0 {
			v.notices = append(v.notices, c)
			continue
		}
		v.done[c.Ticket] = struct{}{}
		if c.Err != nil {
			v.failed[c.Ticket] = c.Err
		}
	}
	for {
		if _, ok := v.done[v.low+1]; !ok {
			return
		}
		v.low++
		delete(v.done, v.low)
	}
}

// errPending says that an operation is not complete yet.
var errPending = errors.New("not complete yet")

// look is how an operation ended, or errPending.
func (v *verbs) look(t transport.Ticket) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.poll()
	if _, ok := v.done[t]; !ok && t > v.low {
		return errPending
	}
	return v.failed[t]
}

// wait returns once a ticket is complete, or with errPending after d.
func (v *verbs) wait(t transport.Ticket, d time.Duration) error {
	end := time.Now().Add(d)
	for looks := 0; ; looks++ {
		if err := v.look(t); err != errPending || time.Now().After(end) {
			return err
		}
		if looks < 50 {
			runtime.Gosched()
		} else {
			time.Sleep(min(time.Duration(looks)*time.Microsecond, time.Millisecond)) // other ranks may need the core to answer
		}
	}
}

// write posts a write and does not wait for its end: b must not be changed
// afterwards.
func (v *verbs) write(to int, dst transport.Key, b []byte) { v.drop(v.raw.Write(to, dst, b)) }

// add posts an addition and does not wait for its end.
func (v *verbs) add(to int, word transport.Key, n uint64) {
	v.drop(v.raw.FetchAdd(to, word, n, new(uint64)))
}

// drop takes a posted operation whose end nobody will ask for. If it fails, the
// rank that was meant is gone or will find out by itself what it was to be told.
func (v *verbs) drop(transport.Ticket, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.poll()
}
