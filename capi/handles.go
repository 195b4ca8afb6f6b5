//go:build libweft

package main

// #include "weft.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"unicode/utf8"
	"unsafe"

	"github.com/weft-fabric/weft/move/xfer"
	"github.com/weft-fabric/weft/run/comm"
)

// handles gives values numbers that C holds. A number is never used twice.
type handles[T any] struct {
	what string
	m    sync.Map // int64 to *T
}

var lastHandle atomic.Int64

func (h *handles[T]) add(v *T) C.int64_t {
	n := lastHandle.Add(1)
	h.m.Store(n, v)
	return C.int64_t(n)
}

func (h *handles[T]) get(n C.int64_t) (*T, error) {
	v, ok := h.m.Load(int64(n))
	if !ok {
		return nil, fmt.Errorf("handle %d is no %s: it was never one, or is over", n, h.what)
	}
	return v.(*T), nil
}

// take is get for the last time.
func (h *handles[T]) take(n C.int64_t) (*T, error) {
	v, ok := h.m.LoadAndDelete(int64(n))
	if !ok {
		return nil, fmt.Errorf("handle %d is no %s: it was never one, or is over", n, h.what)
	}
	return v.(*T), nil
}

var (
	comms    = handles[comm.Comm]{what: "communicator"}
	requests = handles[request]{what: "request"}
	queues   = handles[queue]{what: "queue"}
	prepares = handles[prepared]{what: "prepared call"}
)

// errDevice is memory of a device that cannot be reached.
var errDevice = errors.New("device")

// fill tells C how a call ended.
func fill(e *C.weft_error, err error) C.int {
	if err == nil {
		if e != nil {
			e.code, e.culprit_count, e.text[0] = C.WEFT_OK, 0, 0
		}
		return C.WEFT_OK
	}
	code, rank, seq := C.int(C.WEFT_INVALID), -1, uint64(0)
	var culprits []int
	var f *comm.Failure
	switch {
	case errors.Is(err, errInterrupted):
		code = C.WEFT_INTERRUPTED
	case errors.Is(err, errDevice):
		code = C.WEFT_NO_DEVICE
	case errors.Is(err, errInternal):
		code = C.WEFT_INTERNAL
	case xfer.Code(err) != 0:
		code = C.int(200 + xfer.Code(err))
	case errors.Is(err, errQueueFreed):
		code = C.WEFT_CLOSED
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, comm.ErrTimeout):
		code = C.WEFT_TIMEOUT
	case errors.Is(err, context.Canceled):
		code = C.WEFT_ABORTED
	}
	if errors.As(err, &f) {
		if code == C.WEFT_INVALID {
			code = C.int(f.Kind)
		}
		rank, seq, culprits = f.Rank, f.Seq, f.Culprits
	}
	if e == nil {
		return code
	}
	*e = C.weft_error{code: code, rank: C.int32_t(rank), operation: C.uint64_t(seq), culprit_count: C.int32_t(len(culprits))}
	for i, k := range culprits[:min(len(culprits), C.WEFT_CULPRITS)] {
		e.culprits[i] = C.int32_t(k)
	}
	text := err.Error()
	if f != nil && len(f.Report) > 0 {
		for _, line := range f.Report {
			text += "\n  " + line
		}
	}
	putText(unsafe.Slice((*byte)(unsafe.Pointer(&e.text[0])), len(e.text)), text)
	return code
}

// putText writes what fits of a text, and 0 behind it.
func putText(to []byte, text string) {
	if len(to) == 0 {
		return
	}
	n := min(len(text), len(to)-1)
	for n > 0 && n < len(text) && !utf8.RuneStart(text[n]) {
		n--
	}
	copy(to, text[:n])
	to[n] = 0
}

var errInternal = errors.New("this is a bug of weft; please report it")

// guard keeps panics on this side of the border.
func guard(rc *C.int, e *C.weft_error) {
	if p := recover(); p != nil {
		*rc = fill(e, panicked(p))
	}
}

func panicked(p any) error { return fmt.Errorf("panic: %v: %w\n%s", p, errInternal, debug.Stack()) }
