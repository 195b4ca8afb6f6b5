//go:build linux && (amd64 || arm64) && !static

package cuda

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/gpu"
	"github.com/weft-fabric/weft/gpu/ptx"
)

// queue is a stream. What it has done is a number that the GPU writes to memory of the host: looking at it calls nobody.
type queue struct {
	d      *Device
	stream uintptr
	page   []byte  // pinned: numbers of the last mark that was reached, the last hold that was released, and notes
	onGPU  gpu.Ptr // where the GPU sees the page
	writes bool    // whether the GPU can write to it and wait for it; else the driver is asked
	marks  uint32
	mu     sync.Mutex // guards notes, events, asked
	notes  uint32
	events map[uint32]uintptr // of notes, where the GPU cannot write
	asked  time.Time          // when the driver was last asked whether the GPU is well
	others atomic.Bool        // streams of the user's read or write the page
	launch struct {
		arguments []byte
		size      uintptr
		extra     [5]uintptr
	}
}

const (
	reachedAt  = 0
	releasedAt = 64
)

// noteAt is where a note is written: numbers take turns in gpu.Notes words.
func noteAt(n uint32) uintptr { return 1024 + uintptr(n%gpu.Notes)*4 }

// checkEvery is how often the driver is asked whether the GPU is well while a number does not come.
const checkEvery = time.Millisecond

// Queue makes a stream that waits for no other.
func (d *Device) Queue() (gpu.Queue, error) {
	q := &queue{d: d, events: map[uint32]uintptr{}}
	var err error
	if q.page, err = unix.Mmap(-1, 0, unix.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE); err != nil {
		return nil, err
	}
	if err := d.Register(q.page); err != nil {
		return nil, errors.Join(err, unix.Munmap(q.page))
	}
	if err := q.open(); err != nil {
		return nil, errors.Join(err, q.Close())
	}
	return q, nil
}

func (q *queue) open() error {
	const nonBlocking = 1
	d := q.d
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	if err := d.lib.call("cuStreamCreate", uintptr(unsafe.Pointer(&q.stream)), nonBlocking); err != nil {
		return err
	}
	if err := d.lib.call("cuMemHostGetDevicePointer_v2", uintptr(unsafe.Pointer(&q.onGPU)), uintptr(unsafe.Pointer(&q.page[0])), 0); err != nil {
		return err
	}
	// Whether the GPU can write numbers is found out by letting it: older drivers have the calls and refuse them.
	if d.lib.has("cuStreamWriteValue32_v2") && d.lib.has("cuStreamWaitValue32_v2") {
		q.writes = d.lib.call("cuStreamWriteValue32_v2", q.stream, uintptr(q.onGPU)+reachedAt, 0, 0) == nil &&
			d.lib.call("cuStreamSynchronize", q.stream) == nil
	}
	return nil
}

func (q *queue) word(at uintptr) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&q.page[at])) }

// In copies from the host.
func (q *queue) In(dst gpu.Ptr, src []byte) error {
	return q.d.do("cuMemcpyHtoDAsync_v2", uintptr(dst), uintptr(unsafe.Pointer(unsafe.SliceData(src))), uintptr(len(src)), q.stream)
}

// Out copies to the host.
func (q *queue) Out(dst []byte, src gpu.Ptr) error {
	return q.d.do("cuMemcpyDtoHAsync_v2", uintptr(unsafe.Pointer(unsafe.SliceData(dst))), uintptr(src), uintptr(len(dst)), q.stream)
}

// Copy copies inside a GPU and between GPUs.
func (q *queue) Copy(dst, src gpu.Ptr, n int) error {
	return q.d.do("cuMemcpyDtoDAsync_v2", uintptr(dst), uintptr(src), uintptr(n), q.stream)
}

// Reduce launches a kernel.
func (q *queue) Reduce(r *gpu.Reduction) error {
	if err := r.Check(ptx.Most); err != nil {
		return err
	}
	k, err := q.d.kernel(r.Type, r.Op)
	if err != nil {
		return err
	}
	const buffer, size, end = 1, 2, 0
	l := &q.launch
	l.arguments = ptx.Arguments(r)
	l.size = uintptr(len(l.arguments))
	l.extra = [5]uintptr{buffer, uintptr(unsafe.Pointer(&l.arguments[0])), size, uintptr(unsafe.Pointer(&l.size)), end}
	return q.d.do("cuLaunchKernel", k.function, uintptr(ptx.Blocks(r, q.d.info.Units)), 1, 1, ptx.Threads, 1, 1, 0, q.stream, 0, uintptr(unsafe.Pointer(&l.extra)))
}

// Note lets a user's stream write a number once it comes to this point.
func (q *queue) Note(s gpu.Stream) (uint64, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.notes++
	n := q.notes
	q.others.Store(true)
	if q.writes {
		if err := q.d.do("cuStreamWriteValue32_v2", uintptr(s), uintptr(q.onGPU)+noteAt(n), uintptr(n), 0); err != nil {
			return 0, fmt.Errorf("stream %#x: %w", s, err)
		}
		return uint64(n), nil
	}
	const noTiming = 2
	var event uintptr
	if err := q.d.enter(); err != nil {
		return 0, err
	}
	defer q.d.leave()
	if err := q.d.lib.call("cuEventCreate", uintptr(unsafe.Pointer(&event)), noTiming); err != nil {
		return 0, err
	}
	q.events[n] = event
	if err := q.d.lib.call("cuEventRecord", event, uintptr(s)); err != nil {
		return 0, fmt.Errorf("stream %#x: %w", s, err)
	}
	return uint64(n), nil
}

// Noted looks at the number, or asks for the event that stands for it.
func (q *queue) Noted(n uint64) (bool, error) {
	if q.writes {
		if q.word(noteAt(uint32(n))).Load() == uint32(n) {
			return true, nil
		}
		return false, q.well()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	event, open := q.events[uint32(n)]
	if !open {
		return true, nil
	}
	switch ready, err := q.ready("cuEventQuery", event); {
	case err != nil:
		return false, err
	case !ready:
		return false, nil
	}
	delete(q.events, uint32(n))
	return true, q.d.do("cuEventDestroy_v2", event)
}

// well asks now and then whether the GPU is.
func (q *queue) well() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if time.Since(q.asked) < checkEvery {
		return nil
	}
	q.asked = time.Now()
	_, err := q.ready("cuStreamQuery", q.stream)
	return err
}

// ready asks the driver whether a stream or event is done.
func (q *queue) ready(call string, what uintptr) (bool, error) {
	const notReady = 600
	err := q.d.do(call, what)
	var e *Error
	switch {
	case err == nil:
		return true, nil
	case errors.As(err, &e) && e.Code == notReady:
		return false, nil
	}
	return false, err
}

// Mark lets the GPU write a number once what is queued is done.
func (q *queue) Mark() (uint64, error) {
	q.marks++
	if !q.writes {
		return uint64(q.marks), nil
	}
	return uint64(q.marks), q.d.do("cuStreamWriteValue32_v2", q.stream, uintptr(q.onGPU)+reachedAt, uintptr(q.marks), 0)
}

// Reached looks at the number. Without one, the queue has to be empty.
func (q *queue) Reached(mark uint64) (bool, error) {
	if !q.writes {
		return q.ready("cuStreamQuery", q.stream)
	}
	if int32(q.word(reachedAt).Load()-uint32(mark)) >= 0 {
		return true, nil
	}
	return false, q.well()
}

// Hold makes a user's stream wait for a number.
func (q *queue) Hold(s gpu.Stream, n uint64) error {
	const atLeast = 0
	if !q.writes {
		return fmt.Errorf("%w: streams cannot wait for the host: cuStreamWaitValue32 is refused; wait on the host instead", gpu.ErrVersion)
	}
	q.others.Store(true)
	return q.d.do("cuStreamWaitValue32_v2", uintptr(s), uintptr(q.onGPU)+releasedAt, uintptr(uint32(n)), atLeast)
}

// Release writes the number.
func (q *queue) Release(n uint64) { q.word(releasedAt).Store(uint32(n)) }

// Close waits for what is queued, also on the user's streams, which may be on their way to the page.
func (q *queue) Close() error {
	var errs []error
	if q.others.Load() {
		errs = append(errs, q.d.do("cuCtxSynchronize"))
	}
	if q.stream != 0 {
		errs = append(errs, q.d.do("cuStreamSynchronize", q.stream), q.d.do("cuStreamDestroy_v2", q.stream))
	}
	for _, e := range q.events {
		errs = append(errs, q.d.do("cuEventDestroy_v2", e))
	}
	return errors.Join(append(errs, q.d.Unregister(q.page), unix.Munmap(q.page))...)
}
