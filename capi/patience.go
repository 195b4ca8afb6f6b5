//go:build libweft

package main

// int weft_gives_up(void);
import "C"

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// slice is how long a wait goes on before it asks whether to give up.
const slice = 100 * time.Millisecond

// errInterrupted is what the interrupted call is told; errGaveUp is the cause that the communicator keeps, and that others hear of.
var (
	errInterrupted = errors.New("interrupted")
	errGaveUp      = errors.New("its caller was interrupted")
)

// givesUp asks whether the thread that waits here shall give up.
func givesUp() bool { return C.weft_gives_up() != 0 }

// patience is the context of a blocking call. The wait of a call looks at its context every few milliseconds, on the thread that
// makes the call: there it asks the function of weft_on_wait, so that Python can raise KeyboardInterrupt in the middle of a
// collective that runs in the caller.
type patience struct {
	deadline time.Time // zero for none
	asked    atomic.Int64
	gaveUp   atomic.Bool
	err      atomic.Pointer[error] // why it ended
	mu       sync.Mutex
	done     chan struct{} // made when it is first asked for
	closed   bool
}

// patient makes the context of a call; ms is its time limit, 0 for that of the communicator.
func patient(ms int64) *patience {
	p := &patience{}
	now := time.Now()
	p.asked.Store(now.UnixNano())
	if ms > 0 {
		p.deadline = now.Add(time.Duration(ms) * time.Millisecond)
	}
	return p
}

func (p *patience) Deadline() (time.Time, bool) { return p.deadline, !p.deadline.IsZero() }
func (p *patience) Value(any) any               { return nil }

func (p *patience) Done() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done == nil {
		p.done = make(chan struct{})
		if p.closed {
			close(p.done)
		}
	}
	return p.done
}

// end ends the call.
func (p *patience) end(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	p.closed = true
	p.err.Store(&err)
	if p.done != nil {
		close(p.done)
	}
}

func (p *patience) Err() error {
	if err := p.err.Load(); err != nil {
		return *err
	}
	now := time.Now()
	if last := p.asked.Load(); now.UnixNano()-last >= int64(slice) && p.asked.CompareAndSwap(last, now.UnixNano()) && givesUp() {
		p.gaveUp.Store(true)
		p.end(errGaveUp)
		return errGaveUp
	}
	if !p.deadline.IsZero() && now.After(p.deadline) {
		return context.DeadlineExceeded
	}
	return nil
}

// during carries out what cannot be asked to give up otherwise: in a goroutine of its own, while this thread asks.
func during[T any](ms int64, do func(ctx context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	if ms > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, time.Duration(ms)*time.Millisecond)
		defer stop()
	}
	type result struct {
		v   T
		err error
	}
	end := make(chan result, 1)
	go func() {
		var r result
		defer func() {
			if p := recover(); p != nil {
				r.err = panicked(p)
			}
			end <- r
		}()
		r.v, r.err = do(ctx)
	}()
	tick := time.NewTicker(slice)
	defer tick.Stop()
	for {
		select {
		case r := <-end:
			if r.err != nil && context.Cause(ctx) == errGaveUp {
				r.err = fmt.Errorf("%w: %w", errInterrupted, r.err)
			}
			return r.v, r.err
		case <-tick.C:
			if givesUp() {
				cancel(errGaveUp)
			}
		}
	}
}
