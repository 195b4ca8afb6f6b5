//go:build libweft

package main

// #include "weft.h"
import "C"

import (
	"fmt"
	"os"
	"sync"
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
func goTold(n C.int64_t, line unsafe.Pointer, size C.int64_t, to unsafe.Pointer, room C.int64_t, need *C.int64_t, e *C.weft_error) (rc C.int) {
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
		return fill(e, fmt.Errorf("an answer of %d bytes: %w: the buffer holds %d; the answer stays, so ask again with a larger one", len(t.answer), xfer.ErrLimit, room))
	}
	copy(unsafe.Slice((*byte)(to), room), t.answer)
	t.answer = nil
	return fill(e, nil)
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
