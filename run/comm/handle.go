package comm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/weft-fabric/weft/run/transport/wait"
)

// Handle is a call under way, as the functions whose names end in Async return
// it. Such a call returns at once, and its buffers belong to it until it is over.
// Calls of one communicator are carried out in the order in which they were made.
// Whatever goes wrong is told by Wait, also if the call was wrong in itself.
type Handle struct {
	ctx  context.Context       // of the call
	by   atomic.Pointer[queue] // that it is in; nil if it never was in one
	done chan struct{}
	err  error
}

func newHandle(ctx context.Context) *Handle { return &Handle{ctx: ctx, done: make(chan struct{})} }

// end tells the end of a call.
func (h *Handle) end(err error) {
	h.err = err
	close(h.done)
}

func (h *Handle) wait() error {
	<-h.done
	return h.err
}

// waitAsking is wait that asks the context again and again, as the waits of a call that its caller carries out do: whoever carries
// this one out sees that it has ended.
func (h *Handle) waitAsking(ctx context.Context) error {
	if h.carryOut() {
		return h.err
	}
	tick := time.NewTicker(wait.Slice)
	defer tick.Stop()
	for {
		select {
		case <-h.done:
			return h.err
		case <-tick.C:
			_ = ctx.Err()
		}
	}
}

// Wait returns the call's error once it is over. If ctx ends first, the call goes
// on and Wait may be called again: the context that ends a call is the one it was
// made with.
func (h *Handle) Wait(ctx context.Context) error {
	select {
	case <-h.done:
		return h.err
	default:
	}
	if h.carryOut() {
		return h.err
	}
	select {
	case <-h.done:
		return h.err
	case <-ctx.Done():
		if h.ctx.Err() != nil {
			return h.wait() // the call ends with its context, and knows who held it up
		}
		return fmt.Errorf("the call is still in progress: %w", context.Cause(ctx))
	}
}

// carryOut carries out what is queued up to this call, if that waits for somebody to do it.
func (h *Handle) carryOut() bool {
	q := h.by.Load()
	if q == nil || !q.claim() {
		return false
	}
	q.work(h)
	<-h.done // it may have been over before
	return true
}

// Done is closed when the call is over.
func (h *Handle) Done() <-chan struct{} { return h.done }

// WaitAll waits for several calls and joins their errors.
func WaitAll(ctx context.Context, handles ...*Handle) error {
	errs := make([]error, len(handles))
	for i, h := range handles {
		errs[i] = h.Wait(ctx)
	}
	return errors.Join(errs...)
}

// async makes a call that tells its end to a handle.
func async(ctx context.Context, opts []Option, call func([]Option) error) *Handle {
	h := newHandle(ctx)
	if err := call(append(slices.Clip(opts), Option{handle: h})); err != nil {
		h.end(err) // it was not made
	}
	return h
}
