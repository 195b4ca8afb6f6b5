//go:build linux && (amd64 || arm64) && !static

package ucx

import (
	"sync/atomic"
	"unsafe"

	"github.com/ebitengine/purego"
)

// request is what UCX sees of one: its parameters, and where the stub leaves the status. It lies in memory of
// the system. The first two fields are known to the stubs.
type request struct {
	status atomic.Int32
	_      uint32
	free   uintptr // ucp_request_free

	operand, reply uint64 // of atomics
	param          param
	_              [24]byte
	header         [headerSize]byte
	_              [32]byte
}

// param is ucp_request_param_t. Its fields are read as its mask says, so that newer versions of UCX, which append
// some, take it as it is.
type param struct {
	mask, flags uint32
	request     uintptr
	callback    uintptr
	datatype    uint64
	user        uintptr
	reply       uintptr
	memoryType  uint64
	info        uintptr
	memh        uintptr
}

// Bits of its mask.
const (
	attrCallback = 1 << 1
	attrUser     = 1 << 2
	attrDatatype = 1 << 3
	attrFlags    = 1 << 4
	attrReply    = 1 << 5

	amEager      = 2
	amRendezvous = 4

	contiguous8 = 8 << 3 // ucp_dt_make_contig(8)
)

const requestSize = int(unsafe.Sizeof(request{}))

// slot is a request under way, and the memory of Go that UCX uses meanwhile.
type slot struct {
	*request
	hold []byte
	to   *peer // of a message
}

// slots are requests that are used again.
type slots struct {
	chunks []memory
	free   []*slot
}

// slot is a fresh one; the caller holds the lock.
func (w *worker) slot(hold []byte) *slot {
	if len(w.slots.free) == 0 {
		const n = 64
		m := mapped(n * requestSize)
		w.slots.chunks = append(w.slots.chunks, m)
		for i := range n {
			w.slots.free = append(w.slots.free, &slot{request: (*request)(unsafe.Pointer(&m.b[i*requestSize]))})
		}
	}
	s := w.slots.free[len(w.slots.free)-1]
	w.slots.free = w.slots.free[:len(w.slots.free)-1]
	s.request.free, s.hold, s.to = w.lib.free, hold, nil
	s.param = param{mask: attrCallback | attrUser, callback: w.lib.sent, user: s.at()}
	s.status.Store(inProgress)
	return s
}

func (s *slot) at() uintptr { return uintptr(unsafe.Pointer(s.request)) }

func (s *slot) params() uintptr { return uintptr(unsafe.Pointer(&s.param)) }

// ended reports whether UCX is done with it.
func (s *slot) ended() bool { return s.status.Load() != inProgress }

// put gives a slot back whose request has ended.
func (w *worker) put(s *slot) {
	s.hold, s.to = nil, nil
	w.slots.free = append(w.slots.free, s)
}

// begin starts what takes a slot.
func (s *slot) begin(f uintptr, args ...uintptr) {
	r, _, _ := purego.SyscallN(f, args...)
	if st := result(r); st != inProgress {
		s.status.Store(st)
	}
}
