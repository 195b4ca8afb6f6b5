package comm

import (
	"errors"
	"runtime"
	"sync"
	"time"

	"github.com/weft-fabric/weft/transport"
)

// verbs shares an endpoint's one-sided operations, whose completions come in
// one stream, among communicators and the user.
type verbs struct {
	ep      transport.Endpoint
	mu      sync.Mutex
	done    map[transport.Ticket]transport.Completion
	dropped map[transport.Ticket]bool // nobody wants to know of their end
	notices []transport.Completion
	buf     []transport.Completion
}

// poll takes in what is complete. The caller holds mu.
func (v *verbs) poll() {
	v.buf = v.ep.Poll(v.buf[:0])
	for _, c := range v.buf {
		switch {
		case c.Ticket == 0:
			v.notices = append(v.notices, c)
		case v.dropped[c.Ticket]:
			delete(v.dropped, c.Ticket)
		default:
			v.done[c.Ticket] = c
		}
	}
}

// errPending says that an operation is not complete yet.
var errPending = errors.New("not complete yet")

// wait returns once a ticket is complete, or with errPending after d.
func (v *verbs) wait(t transport.Ticket, d time.Duration) error {
	end := time.Now().Add(d)
	for looks := 0; ; looks++ {
		v.mu.Lock()
		v.poll()
		c, ok := v.done[t]
		delete(v.done, t)
		v.mu.Unlock()
		if ok {
			return c.Err
		}
		if time.Now().After(end) {
			v.drop(t, nil)
			return errPending
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
func (v *verbs) write(to int, dst transport.Key, b []byte) { v.drop(v.ep.Write(to, dst, b)) }

// add posts an addition and does not wait for its end.
func (v *verbs) add(to int, word transport.Key, n uint64) {
	v.drop(v.ep.FetchAdd(to, word, n, new(uint64)))
}

// drop forgets a posted operation. If it fails, the rank that was meant is gone
// or will find out by itself what it was to be told.
func (v *verbs) drop(t transport.Ticket, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if err == nil {
		v.dropped[t] = true
	}
	v.poll()
}
