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

	"github.com/weft-fabric/weft/run/gpu"
	"github.com/weft-fabric/weft/run/gpu/ptx"
)

// queue is a stream. What it has done is a number that the GPU writes to memory of the host: looking at it calls nobody.
type queue struct {
	d      *Device
	stream uintptr
	page   []byte  // pinned: the number of the last mark that was reached
	onGPU  gpu.Ptr // where the GPU sees the page
	writes bool    // whether the GPU can write to it; else the driver is asked
	marks  uint32
	inside bool       // a batch: the context is the thread's
	mu     sync.Mutex // guards what follows
	asked  time.Time  // when the driver was last asked whether the GPU is well
	notes  events     // on streams of the user's
	stamps events     // on this one
	words  map[*uint32]gpu.Ptr
	launch struct {
		arguments []byte
		size      uintptr
		extra     [5]uintptr
	}
}

// events take turns.
type events struct {
	last uint64
	ring [gpu.Notes]uintptr
}

// checkEvery is how often the driver is asked whether the GPU is well while a number does not come.
const checkEvery = time.Millisecond

// Queue makes a stream that waits for no other.
func (d *Device) Queue() (gpu.Queue, error) {
	q := &queue{d: d, words: map[*uint32]gpu.Ptr{}}
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

// open creates the stream and whatever else the driver might otherwise allocate in the middle of a call, which can wait
// for everything that the GPU does.
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
	if err := d.lib.call("cuMemHostGetDevicePointer_v2", uintptr(unsafe.Pointer(&q.onGPU)), uintptr(unsafe.Pointer(&q.page[0])),
		0); err != nil {
		return err
	}
	// Whether the GPU can write numbers is found out by letting it: older drivers have the calls and refuse them.
	if d.lib.has("cuStreamWriteValue32_v2") && d.lib.has("cuStreamWaitValue32_v2") {
		q.writes = d.lib.call("cuStreamWriteValue32_v2", q.stream, uintptr(q.onGPU), 0, 0) == nil &&
			d.lib.call("cuStreamWaitValue32_v2", q.stream, uintptr(q.onGPU), 0, 0) == nil &&
			d.lib.call("cuStreamSynchronize", q.stream) == nil
	}
	// Events are made here: the driver may get memory for one, which waits for all that the GPU does.
	for _, e := range []*events{&q.notes, &q.stamps} {
		for i := range e.ring {
			if err := d.lib.call("cuEventCreate", uintptr(unsafe.Pointer(&e.ring[i])), noTiming); err != nil {
				return err
			}
		}
	}
	return nil
}

// noTiming is the flag of an event that measures nothing.
const noTiming = 2

// reached is the number of the last mark that was.
func (q *queue) reached() *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&q.page[0])) }

// Batch makes the context the thread's once for many calls.
func (q *queue) Batch(f func() error) error {
	if err := q.d.enter(); err != nil {
		return err
	}
	q.inside = true
	defer func() {
		q.inside = false
		q.d.leave()
	}()
	return f()
}

// do makes one call of whoever uses the queue.
//
//go:uintptrescapes
func (q *queue) do(name string, args ...uintptr) error {
	if q.inside {
		return q.d.lib.call(name, args...)
	}
	return q.d.do(name, args...)
}

// In copies from the host.
func (q *queue) In(dst gpu.Ptr, src []byte) error {
	return q.do("cuMemcpyHtoDAsync_v2", uintptr(dst), uintptr(unsafe.Pointer(unsafe.SliceData(src))), uintptr(len(src)), q.stream)
}

// Out copies to the host.
func (q *queue) Out(dst []byte, src gpu.Ptr) error {
	return q.do("cuMemcpyDtoHAsync_v2", uintptr(unsafe.Pointer(unsafe.SliceData(dst))), uintptr(src), uintptr(len(dst)), q.stream)
}

// Copy copies inside a GPU and between GPUs.
func (q *queue) Copy(dst, src gpu.Ptr, n int) error {
	return q.do("cuMemcpyDtoDAsync_v2", uintptr(dst), uintptr(src), uintptr(n), q.stream)
}

// Reduce launches a kernel.
func (q *queue) Reduce(r *gpu.Reduction) error {
	if err := r.Check(ptx.Most); err != nil {
		return err
	}
	k, err := q.d.kernel(r.Type, r.Op, ptx.FormOf(r.Type, r.Op, r.Order))
	if err != nil {
		return err
	}
	return q.start(k, ptx.Blocks(r, q.d.info.Units), ptx.Threads, ptx.Arguments(r))
}

// Pieces launches the kernel that copies them, a block for each.
func (q *queue) Pieces(list []gpu.Piece) error {
	k, err := q.d.kernel(0, 0, ptx.Pieces)
	if err != nil {
		return err
	}
	table, err := q.seen((*uint32)(unsafe.Pointer(unsafe.SliceData(list))))
	if err != nil {
		return err
	}
	return q.start(k, len(list), ptx.PieceThreads, ptx.PieceArguments(table, len(list)))
}

// start launches a kernel.
func (q *queue) start(k *kernel, blocks, threads int, arguments []byte) error {
	const buffer, size, end = 1, 2, 0
	l := &q.launch
	l.arguments, l.size = arguments, uintptr(len(arguments))
	l.extra = [5]uintptr{buffer, uintptr(unsafe.Pointer(&l.arguments[0])), size, uintptr(unsafe.Pointer(&l.size)), end}
	return q.do("cuLaunchKernel", k.function, uintptr(blocks), 1, 1, uintptr(threads), 1, 1, 0, q.stream, 0,
		uintptr(unsafe.Pointer(&l.extra)))
}

// record records the next of some events on a stream. The caller has locked the queue.
func (q *queue) record(e *events, stream uintptr) (uint64, error) {
	e.last++
	if err := q.d.do("cuEventRecord", e.ring[e.last%gpu.Notes], stream); err != nil {
		return 0, fmt.Errorf("stream %#x: %w", stream, err)
	}
	return e.last, nil
}

// Idle asks the driver.
func (q *queue) Idle(s gpu.Stream) (bool, error) {
	idle, err := q.ready("cuStreamQuery", uintptr(s))
	if err != nil {
		err = fmt.Errorf("stream %#x: %w", s, err)
	}
	return idle, err
}

// Note records an event on a user's stream.
func (q *queue) Note(s gpu.Stream) (uint64, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.record(&q.notes, uintptr(s))
}

// After waits for that.
func (q *queue) After(note uint64) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.d.do("cuStreamWaitEvent", q.stream, q.notes.ring[note%gpu.Notes], 0)
}

// Stamp records an event here.
func (q *queue) Stamp() (uint64, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.record(&q.stamps, q.stream)
}

// Follow lets a user's stream wait for it. If its event was used again since, that is for more than was asked.
func (q *queue) Follow(s gpu.Stream, stamp uint64) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.d.do("cuStreamWaitEvent", uintptr(s), q.stamps.ring[stamp%gpu.Notes], 0); err != nil {
		return fmt.Errorf("stream %#x: %w", s, err)
	}
	return nil
}

// Posts is found out when the queue is made.
func (q *queue) Posts() bool { return q.writes }

// seen is where the GPU sees a word of registered memory.
func (q *queue) seen(word *uint32) (gpu.Ptr, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if p, ok := q.words[word]; ok {
		return p, nil
	}
	var p gpu.Ptr
	if err := q.d.do("cuMemHostGetDevicePointer_v2", uintptr(unsafe.Pointer(&p)), uintptr(unsafe.Pointer(word)), 0); err != nil {
		return 0, err
	}
	q.words[word] = p
	return p, nil
}

// Post lets the GPU write a word.
func (q *queue) Post(word *uint32, n uint32) error {
	p, err := q.seen(word)
	if err != nil {
		return err
	}
	return q.d.do("cuStreamWriteValue32_v2", q.stream, uintptr(p), uintptr(n), 0)
}

// Await lets it wait for one.
func (q *queue) Await(word *uint32, n uint32) error {
	const atLeast = 0
	p, err := q.seen(word)
	if err != nil {
		return err
	}
	return q.d.do("cuStreamWaitValue32_v2", q.stream, uintptr(p), uintptr(n), atLeast)
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
	if err := q.d.enter(); err != nil {
		return false, err
	}
	defer q.d.leave()
	switch code := q.d.lib.code(call, what); code {
	case 0:
		return true, nil
	case notReady:
		return false, nil
	default:
		return false, q.d.lib.failure(call, code, "")
	}
}

// Mark lets the GPU write a number once what is queued is done.
func (q *queue) Mark() (uint64, error) {
	q.marks++
	if !q.writes {
		return uint64(q.marks), nil
	}
	return uint64(q.marks), q.do("cuStreamWriteValue32_v2", q.stream, uintptr(q.onGPU), uintptr(q.marks), 0)
}

// Reached looks at the number. Without one, the queue has to be empty.
func (q *queue) Reached(mark uint64) (bool, error) {
	if !q.writes {
		return q.ready("cuStreamQuery", q.stream)
	}
	if int32(q.reached().Load()-uint32(mark)) >= 0 {
		return true, nil
	}
	return false, q.well()
}

// Close waits for what is queued.
func (q *queue) Close() error {
	var errs []error
	if q.stream != 0 {
		errs = append(errs, q.d.do("cuStreamSynchronize", q.stream), q.d.do("cuStreamDestroy_v2", q.stream))
	}
	for _, e := range append(q.notes.ring[:], q.stamps.ring[:]...) {
		if e != 0 {
			errs = append(errs, q.d.do("cuEventDestroy_v2", e))
		}
	}
	return errors.Join(append(errs, q.d.Unregister(q.page), unix.Munmap(q.page))...)
}
