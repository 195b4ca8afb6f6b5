//go:build libweft

package main

// #include "weft.h"
import "C"

import (
	"fmt"
	"os"
	"sync"
	"time"
	"unsafe"

	"github.com/weft-fabric/weft/move/xfer"
	"github.com/weft-fabric/weft/move/xfer/outside"
)

// told is an agent that lines of JSON tell what to do, and its last answer until the caller has it.
type told struct {
	mu     sync.Mutex
	agent  *outside.Agent
	answer []byte
}

var tolds = handles[told]{what: "agent that is told by lines"}

//export goToldOpen
func goToldOpen(out *C.int64_t, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	t := &told{agent: outside.New(os.Getpid())}
	t.agent.GPU = xferGPU
	*out = tolds.add(t)
	return fill(e, nil)
}

//export goTold
func goTold(n C.int64_t, line unsafe.Pointer, size C.int64_t, to unsafe.Pointer, room C.int64_t, need *C.int64_t,
	e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	t, err := tolds.get(n)
	if err != nil {
		return fill(e, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if size > 0 {
		t.answer = t.agent.Do(unsafe.Slice((*byte)(line), size))
	}
	*need = C.int64_t(len(t.answer))
	if int64(len(t.answer)) > int64(room) {
		return fill(e, fmt.Errorf("an answer of %d bytes: %w: the buffer holds %d; the answer stays, so ask again with a larger one",
			len(t.answer), xfer.ErrLimit, room))
	}
	copy(unsafe.Slice((*byte)(to), room), t.answer)
	t.answer = nil
	return fill(e, nil)
}

//export goToldPost
func goToldPost(n C.int64_t, m *C.weft_told_move, to *C.weft_told_state, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	move := outside.Move{Write: m.write != 0, Local: int(m.local), Far: int(m.far), Index: int(m.index), Over: int(m.over),
		Limit: time.Duration(m.limit_us) * time.Microsecond}
	if m.notice != nil {
		move.Notice = C.GoBytes(m.notice, C.int(m.notice_bytes))
	}
	return toldState(n, to, e, func(a *outside.Agent) (outside.State, error) { return a.Post(move) })
}

//export goToldLook
func goToldLook(n, request C.int64_t, to *C.weft_told_state, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	return toldState(n, to, e, func(a *outside.Agent) (outside.State, error) { return a.Look(int(request)) })
}

// toldState puts how a request stands where C sees it.
func toldState(n C.int64_t, to *C.weft_told_state, e *C.weft_error, ask func(a *outside.Agent) (outside.State, error)) C.int {
	t, err := tolds.get(n)
	if err != nil {
		return fill(e, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s, err := ask(t.agent)
	if err != nil {
		return fill(e, err)
	}
	*to = C.weft_told_state{request: C.int64_t(s.Number), bytes: C.int64_t(s.Landed), took_us: C.int64_t(s.Took.Microseconds())}
	switch {
	case s.State == xfer.Done:
		to.state = 1
	case s.State.Over():
		to.state = 2
	}
	putText(unsafe.Slice((*byte)(unsafe.Pointer(&to.path[0])), len(to.path)), s.Path)
	return C.WEFT_OK
}

//export goToldClose
func goToldClose(n C.int64_t, e *C.weft_error) (rc C.int) {
	defer guard(&rc, e)
	t, err := tolds.take(n)
	if err != nil {
		return fill(e, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.agent.Close()
	return fill(e, nil)
}
