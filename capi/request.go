//go:build libweft

package main

// #include "weft.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/weft-fabric/weft/run/comm"
)

// request is a call under way: one of package comm with a handle, or a one-sided one.
type request struct {
	handle pending
	ticket *comm.Ticket
	status comm.Status
	ctx    *patience
}

// expired is a context that has ended: who waits with it does not wait.
var expired = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// start starts a call. If it may be over, the number of one that ended well already is 0.
func start(c *comm.Comm, k *call, q *queue, mayBeOver bool) (C.int64_t, error) {
	r := &request{ctx: patient(int64(k.a.timeout_ms))}
	if k.a.op >= C.WEFT_PUT {
		t := k.post(c)
		r.ticket = &t
	} else {
		var err error
		if r.handle, err = k.begin(r.ctx, c, &r.status); err != nil {
			return 0, err
		}
	}
	if mayBeOver && q == nil && r.ended() {
		return 0, nil
	}
	n := requests.add(r)
	if q != nil {
		go r.tell(n, q)
	}
	return n, nil
}

// ended reports whether a call is over, without an error and a status to tell.
func (r *request) ended() bool {
	h, ok := r.handle.(*comm.Handle)
	if !ok {
		return false
	}
	select {
	case <-h.Done():
		return r.status == comm.Status{} && h.Wait(context.Background()) == nil
	default:
		return false
	}
}

// look says whether a call is over, and how it ended.
func (r *request) look() (over bool, err error) {
	if r.ticket != nil {
		return r.ticket.Poll()
	}
	select {
	case <-r.handle.Done():
		return true, r.handle.Wait(context.Background())
	default:
		return false, nil
	}
}

// wait waits for a time for a call to be over.
func (r *request) wait(d time.Duration) {
	if r.ticket != nil {
		ctx, cancel := context.WithTimeout(context.Background(), d)
		defer cancel()
		_ = r.ticket.Wait(ctx)
		return
	}
	select {
	case <-r.handle.Done():
		return
	default:
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-r.handle.Done():
	case <-t.C:
	}
}

// ended frees the number of a request that is over and tells C how it ended.
func ended(n C.int64_t, r *request, err error, status *C.weft_status, e *C.weft_error) C.int {
	if err != nil && r.ctx.gaveUp.CompareAndSwap(true, false) {
		return fill(e, fmt.Errorf("%w: %w", errInterrupted, err)) // the next to ask is told how it ended
	}
	_, _ = requests.take(n)
	put(status, r.status)
	return fill(e, err)
}

func put(to *C.weft_status, s comm.Status) {
	if to != nil {
		to.from, to.tag, to.count = C.int32_t(s.From), C.int32_t(s.Tag), C.int64_t(s.Count)
	}
}

//export goStart
func goStart(n C.weft_comm, from *C.weft_call, out *C.weft_request, e *C.weft_error) (rc C.int) {
	return startFor(n, from, out, e, false)
}

//export goTry
func goTry(n C.weft_comm, from *C.weft_call, out *C.weft_request, e *C.weft_error) (rc C.int) {
	return startFor(n, from, out, e, true)
}

func startFor(n C.weft_comm, from *C.weft_call, out *C.weft_request, e *C.weft_error, mayBeOver bool) (rc C.int) {
	defer guard(&rc, e)
	c, k, err := asked(n, from)
	if err != nil {
		return fill(e, err)
	}
	var q *queue
	if k.a.queue != 0 {
		if q, err = queues.get(k.a.queue); err != nil {
			return fill(e, err)
		}
	}
	r, err := start(c, k, q, mayBeOver)
	*out = r
	return fill(e, err)
}

//export goTest
func goTest(n C.weft_request, status *C.weft_status, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	r, err := requests.get(n)
	if err != nil {
		return fill(e, err)
	}
	over, err := r.look()
	if !over {
		return C.WEFT_PENDING
	}
	return ended(n, r, err, status, e)
}

//export goWait
func goWait(n C.weft_request, ms C.int64_t, status *C.weft_status, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	r, err := requests.get(n)
	if err != nil {
		return fill(e, err)
	}
	if ms < 0 && r.handle != nil {
		_ = r.handle.Wait(expired) // carries it out here if nobody has begun it
	}
	var over bool
	var how error
	err = untilOver(ms, func(d time.Duration) bool {
		r.wait(d)
		over, how = r.look()
		return over
	})
	switch {
	case over:
		return ended(n, r, how, status, e)
	case err != nil:
		return fill(e, err)
	}
	return C.WEFT_PENDING
}

// untilOver calls wait, which waits for a time at most, until it says that all is over, the time limit passes or the caller is told
// to give up, which is the only error.
func untilOver(ms C.int64_t, wait func(d time.Duration) bool) error {
	end := time.Time{}
	if ms >= 0 {
		end = time.Now().Add(time.Duration(ms) * time.Millisecond)
	}
	for {
		d := slice
		if ms >= 0 {
			d = min(d, time.Until(end))
		}
		if wait(max(d, 0)) || ms >= 0 && time.Until(end) <= 0 {
			return nil
		}
		if givesUp() {
			return fmt.Errorf("the wait was %w; the call is still in progress", errInterrupted)
		}
	}
}

// firstOver looks after all requests, and gives the first that is over and how it ended; -1 if none is.
func firstOver(all []*request) (int, error) {
	for i, r := range all {
		if r == nil {
			continue
		}
		if over, err := r.look(); over {
			return i, err
		}
	}
	return -1, nil
}

//export goWaitAny
func goWaitAny(list *C.weft_request, n C.int, ms C.int64_t, which *C.int, status *C.weft_status, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	*which = -1
	var all []*request
	numbers := unsafe.Slice(list, n)
	cases := []reflect.SelectCase{{Dir: reflect.SelectRecv}} // the first is the clock
	handles := true
	for i, x := range numbers {
		all = append(all, nil)
		if x == 0 {
			continue
		}
		r, err := requests.get(x)
		if err != nil {
			*which = C.int(i)
			return fill(e, err)
		}
		all[i] = r
		if r.handle == nil {
			handles = false
			continue
		}
		cases = append(cases, reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(r.handle.Done())})
	}
	if !slices.ContainsFunc(all, func(r *request) bool { return r != nil }) {
		return fill(e, errors.New("weft_wait_any: no request was given"))
	}
	var how error
	look := func() bool {
		var i int
		i, how = firstOver(all)
		*which = C.int(i)
		return i >= 0
	}
	err := untilOver(ms, func(d time.Duration) bool {
		if look() {
			return true
		}
		if !handles {
			d = min(d, time.Millisecond) // one-sided calls have to be looked after
		}
		t := time.NewTimer(d)
		defer t.Stop()
		cases[0].Chan = reflect.ValueOf(t.C)
		reflect.Select(cases)
		return look()
	})
	switch i := *which; {
	case i >= 0:
		return ended(numbers[i], all[i], how, status, e)
	case err != nil:
		return fill(e, err)
	}
	return C.WEFT_PENDING
}

//export goCancel
func goCancel(n C.weft_request, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	r, err := requests.get(n)
	if err != nil {
		return fill(e, err)
	}
	r.ctx.end(context.Canceled)
	return fill(e, nil)
}

// queue holds the numbers of requests that are over.
type queue struct {
	mu    sync.Mutex
	over  []C.int64_t
	freed bool
	some  chan struct{} // holds one if something may be there
}

var errQueueFreed = errors.New("the queue was freed")

func (q *queue) add(n C.int64_t) {
	q.mu.Lock()
	q.over = append(q.over, n)
	q.mu.Unlock()
	q.ring()
}

func (q *queue) ring() {
	select {
	case q.some <- struct{}{}:
	default:
	}
}

// next gives a request that is over; 0 if there is none.
func (q *queue) next() (C.int64_t, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.over) == 0 {
		if q.freed {
			q.ring() // for others that wait
			return 0, errQueueFreed
		}
		return 0, nil
	}
	n := q.over[0]
	if q.over = q.over[1:]; len(q.over) > 0 {
		q.ring()
	}
	return n, nil
}

//export goQueueNew
func goQueueNew(out *C.weft_queue, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	*out = queues.add(&queue{some: make(chan struct{}, 1)})
	return fill(e, nil)
}

//export goNext
func goNext(n C.weft_queue, ms C.int64_t, out *C.weft_request, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	*out = 0
	q, err := queues.get(n)
	if err != nil {
		return fill(e, err)
	}
	var qerr error
	err = untilOver(ms, func(d time.Duration) bool {
		if *out, qerr = q.next(); *out != 0 || qerr != nil {
			return true
		}
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-q.some:
		case <-t.C:
		}
		*out, qerr = q.next()
		return *out != 0 || qerr != nil
	})
	switch {
	case qerr != nil:
		return fill(e, qerr)
	case err != nil:
		return fill(e, err)
	case *out == 0:
		return C.WEFT_PENDING
	}
	return fill(e, nil)
}

//export goQueueFree
func goQueueFree(n C.weft_queue, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	q, err := queues.take(n)
	if err != nil {
		return fill(e, err)
	}
	q.mu.Lock()
	q.freed = true
	q.mu.Unlock()
	q.ring()
	return fill(e, nil)
}

// prepared is a call that is made often.
type prepared struct {
	c *comm.Comm
	k *call
	q *queue
}

//export goPrepare
func goPrepare(n C.weft_comm, from *C.weft_call, out *C.weft_prepared, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	c, k, err := asked(n, from)
	if err != nil {
		return fill(e, err)
	}
	p := &prepared{c: c, k: k}
	if k.a.queue != 0 {
		if p.q, err = queues.get(k.a.queue); err != nil {
			return fill(e, err)
		}
	}
	*out = prepares.add(p)
	return fill(e, nil)
}

//export goBegin
func goBegin(n C.weft_prepared, out *C.weft_request, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	p, err := prepares.get(n)
	if err != nil {
		return fill(e, err)
	}
	*out, err = start(p.c, p.k, p.q, false)
	return fill(e, err)
}

//export goForget
func goForget(n C.weft_prepared, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	_, err := prepares.take(n)
	return fill(e, err)
}
