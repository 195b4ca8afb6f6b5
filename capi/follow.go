//go:build libweft

package main

// #include "weft.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unsafe"

	"github.com/weft-fabric/weft/run/comm"
	"github.com/weft-fabric/weft/run/elastic"
)

// follower is a process that follows epochs: elastic.Run in a goroutine, whose Job hands what is to be done to the thread of C and
// waits for its answer.
//
//	elastic.Run ──► Form, Step, Halt ──► tasks ──► weft_follow_next
//	            ◄── error, last      ◄── answers ◄── weft_follow_done
type follower struct {
	link    *elastic.Link
	tasks   chan task
	answers chan answer
	over    chan struct{} // closed when Run returned
	err     error         // of Run
	leave   context.CancelFunc
	c       *comm.Comm // of the epoch
	handle  C.int64_t
}

// task is what is to be done.
type task struct {
	kind  C.int32_t
	comm  C.int64_t
	epoch elastic.Epoch
}

// answer is what came of it.
type answer struct {
	last bool
	err  error
}

var followers = handles[follower]{what: "follower"}

// ask gives C something to do and waits until it is done. If the context ends, what C does on the communicator is ended.
func (f *follower) ask(ctx context.Context, t task) (answer, error) {
	stop := context.AfterFunc(ctx, func() { f.c.Abort(context.Cause(ctx)) })
	defer stop()
	f.tasks <- t
	a := <-f.answers
	if errors.Is(a.err, elastic.ErrElsewhere) {
		var failure *comm.Failure
		if err := f.c.Err(); errors.As(err, &failure) {
			a.err = failure // it names the ranks at fault
		}
	}
	return a, a.err
}

// Form hands the communicator of an epoch over.
func (f *follower) Form(ctx context.Context, c *comm.Comm, e elastic.Epoch) error {
	f.enter(c)
	_, err := f.ask(ctx, task{C.WEFT_FORM, f.handle, e})
	return err
}

// enter gives the communicator of an epoch a number; that of the epoch before is no longer good. The runner closes it.
func (f *follower) enter(c *comm.Comm) {
	if f.handle != 0 {
		_, _ = comms.take(f.handle)
	}
	f.c, f.handle = c, comms.add(c)
}

// Step has a step done.
func (f *follower) Step(ctx context.Context) (last bool, err error) {
	a, err := f.ask(ctx, task{kind: C.WEFT_STEP, comm: f.handle})
	return a.last, err
}

// Halt says that too few are left.
func (f *follower) Halt(ctx context.Context, c *comm.Comm, e elastic.Epoch) error {
	f.enter(c)
	_, err := f.ask(ctx, task{C.WEFT_HALT, f.handle, e})
	return err
}

//export goFollow
func goFollow(out *C.weft_follower, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	*out = 0
	link, err := elastic.Connect()
	if err != nil {
		return fill(e, err)
	}
	ctx, leave := context.WithCancel(context.Background())
	f := &follower{link: link, tasks: make(chan task), answers: make(chan answer), over: make(chan struct{}), leave: leave}
	*out = followers.add(f)
	go func() {
		defer close(f.over)
		defer func() {
			if p := recover(); p != nil {
				f.err = panicked(p)
			}
		}()
		f.err = elastic.Run(ctx, link, f)
	}()
	return fill(e, nil)
}

//export goFollowNext
func goFollowNext(n C.weft_follower, ms C.int64_t, out *C.weft_task, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	f, err := followers.get(n)
	if err != nil {
		return fill(e, err)
	}
	var t task
	got := false
	err = untilOver(ms, func(d time.Duration) bool {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case t = <-f.tasks:
			got = true
		case <-f.over:
			got = true
		case <-timer.C:
		}
		return got
	})
	if err != nil {
		return fill(e, err)
	}
	if !got {
		return C.WEFT_PENDING
	}
	*out = C.weft_task{size: out.size, kind: t.kind, comm: t.comm, epoch: C.uint64_t(t.epoch.Number), rank: C.int32_t(t.epoch.Rank),
		ranks: C.int32_t(len(t.epoch.Members))}
	putText(unsafe.Slice((*byte)(unsafe.Pointer(&out.reason[0])), len(out.reason)), t.epoch.Reason)
	if t.kind == 0 { // the job is over here
		out.final = 0
		if f.link.Final() {
			out.final = 1
		}
		return fill(e, f.err)
	}
	return fill(e, nil)
}

//export goFollowDone
func goFollowDone(n C.weft_follower, last C.int, failed C.int, why *C.char, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	f, err := followers.get(n)
	if err != nil {
		return fill(e, err)
	}
	a := answer{last: last != 0}
	switch failed {
	case 0:
	case C.WEFT_FAILED_ELSEWHERE:
		a.err = fmt.Errorf("%s: %w", text(why), elastic.ErrElsewhere)
	default:
		a.err = errors.New(text(why))
	}
	f.answers <- a
	return fill(e, nil)
}

//export goFollowLeave
func goFollowLeave(n C.weft_follower, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	f, err := followers.get(n)
	if err != nil {
		return fill(e, err)
	}
	f.leave()
	return fill(e, nil)
}

//export goFollowClose
func goFollowClose(n C.weft_follower, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	f, err := followers.take(n)
	if err != nil {
		return fill(e, err)
	}
	select {
	case <-f.over:
	default:
		return fill(e, errors.New("the job is not over: weft_follow_next says when it is"))
	}
	f.leave()
	f.link.Close(f.err)
	if f.handle != 0 {
		_, _ = comms.take(f.handle)
	}
	return fill(e, nil)
}
