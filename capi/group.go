//go:build libweft

package main

// #include <stdlib.h>
//
// #include "weft.h"
// static int call_gather(weft_exchange f, void *arg, const void *mine, int64_t bytes, void *all) { return f(arg, mine, bytes, all); }
import "C"

import (
	"context"
	"errors"
	"fmt"
	"net"
	"unsafe"
)

var listeners = handles[net.Listener]{what: "listener"}

//export goListen
func goListen(address, to *C.char, room C.int, out *C.weft_listener, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	*out = 0
	ln, err := net.Listen("tcp", text(address))
	if err != nil {
		return fill(e, fmt.Errorf("rank 0 cannot listen at %s: %w", text(address), err))
	}
	// The name that was asked for is the one that others know; the port may have been any.
	host, _, _ := net.SplitHostPort(text(address))
	_, port, _ := net.SplitHostPort(ln.Addr().String())
	putText(unsafe.Slice((*byte)(unsafe.Pointer(to)), room), net.JoinHostPort(host, port))
	*out = listeners.add(&ln)
	return fill(e, nil)
}

//export goUnlisten
func goUnlisten(n C.weft_listener, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	ln, err := listeners.take(n)
	if err != nil {
		return fill(e, err)
	}
	if err := (*ln).Close(); !errors.Is(err, net.ErrClosed) {
		return fill(e, err)
	}
	return fill(e, nil)
}

//export goGroup
func goGroup(n C.weft_comm, ranks *C.int32_t, count C.int, gather C.weft_exchange, arg unsafe.Pointer, out *C.weft_comm,
	e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	*out = 0
	c, err := comms.get(n)
	if err != nil {
		return fill(e, err)
	}
	if count <= 0 || ranks == nil || gather == nil {
		return fill(e, errors.New("weft_group: the ranks or the function that gathers are missing"))
	}
	list := make([]int, count)
	for i, r := range unsafe.Slice(ranks, count) {
		list[i] = int(r)
	}
	sub, err := c.Group(context.Background(), list, func(_ context.Context, mine []byte) ([][]byte, error) {
		size := len(mine)
		from, all := C.malloc(C.size_t(size+1)), C.malloc(C.size_t(size*len(list)+1))
		defer C.free(from)
		defer C.free(all)
		copy(unsafe.Slice((*byte)(from), size), mine)
		if C.call_gather(gather, arg, from, C.int64_t(size), all) != 0 {
			return nil, fmt.Errorf("the function that gathers failed for the group of ranks %v", list)
		}
		blobs := make([][]byte, len(list))
		for i := range blobs {
			blobs[i] = C.GoBytes(unsafe.Add(all, i*size), C.int(size))
		}
		return blobs, nil
	})
	return made(sub, err, out, e)
}

//export goTell
func goTell(n C.weft_request, to C.weft_queue, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	r, err := requests.get(n)
	if err != nil {
		return fill(e, err)
	}
	q, err := queues.get(to)
	if err != nil {
		return fill(e, err)
	}
	go r.tell(n, q)
	return fill(e, nil)
}

// tell tells a queue of the end of a call.
func (r *request) tell(n C.int64_t, q *queue) {
	if r.handle != nil {
		<-r.handle.Done()
	} else {
		_ = r.ticket.Wait(r.ctx)
	}
	q.add(n)
}
