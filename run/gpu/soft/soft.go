// Package soft is a GPU in software. Its memory is memory of the host that other processes can map, its kernels are the
// texts of run/gpu/ptx, interpreted thread by thread, and every address is looked up, so that a kernel that reads or writes
// where it should not is found. It is slow, and otherwise as good as a GPU: what runs on it runs the same programs, in the
// same order, with the same bits.
package soft

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/weft-fabric/weft/run/gpu"
	"github.com/weft-fabric/weft/run/gpu/ptx"
	"github.com/weft-fabric/weft/run/reduce"
)

// Device is a software GPU as one rank sees it.
type Device struct {
	mu       sync.Mutex
	segments []*segment // by address
	pinned   [][]byte
	freed    []gpu.Segment // addresses to be given out again
	next     gpu.Ptr
	kernels  map[program]*kernel
	streams  map[gpu.Stream]*Queue
	lastID   gpu.Stream
	kind     gpu.Kind // of what Alloc gives
	sm       int
	id       string
	mute     bool
}

// program is what a kernel is for.
type program struct {
	t    reduce.Type
	op   reduce.Op
	form ptx.Form
}

// segment is memory that was got or mapped.
type segment struct {
	gpu.Segment
	memory []byte
	fd     int // -1 if it is another process's, ofHost if it is the host's
}

var ids atomic.Uint64 // of segments

// New is a GPU whose Alloc gives memory of a kind, gpu.Plain or one that other processes cannot see.
func New(kind gpu.Kind) *Device {
	return &Device{next: 1 << 40, kernels: map[program]*kernel{}, streams: map[gpu.Stream]*Queue{}, kind: kind, sm: 80, id: "soft"}
}

// As makes it another GPU of the machine than those of other names: New gives the one that all processes share.
func (d *Device) As(id string) *Device {
	d.id = id
	return d
}

// Mute makes it a GPU whose queues have no Post and Await, as with old drivers.
func (d *Device) Mute() *Device {
	d.mute = true
	return d
}

// Info says what it is.
func (d *Device) Info() gpu.Info {
	return gpu.Info{Name: "software GPU", ID: d.id, Capability: d.sm, Units: 2, Bytes: 1 << 30, Driver: "none", Sharing: "processes",
		Apart: true}
}

// Alloc gets memory.
func (d *Device) Alloc(n int) (gpu.Ptr, error) { return d.alloc(n, gpu.Plain) }

// AllocUser gets memory of the kind that New was told, as a user's allocator does.
func (d *Device) AllocUser(n int) (gpu.Ptr, error) { return d.alloc(n, d.kind) }

func (d *Device) alloc(n int, kind gpu.Kind) (gpu.Ptr, error) {
	if n <= 0 {
		return 0, fmt.Errorf("%d bytes of a software GPU: want more than 0", n)
	}
	fd, memory, err := create(n)
	if err != nil {
		return 0, fmt.Errorf("%d bytes of a software GPU: %w", n, err)
	}
	return d.add(&segment{gpu.Segment{Bytes: n, ID: ids.Add(1), Kind: kind}, memory, fd}), nil
}

// add gives a segment an address: that of one as long which was freed, as allocators do. Behind it are addresses that belong to
// nobody.
func (d *Device) add(s *segment) gpu.Ptr {
	d.mu.Lock()
	defer d.mu.Unlock()
	if i := slices.IndexFunc(d.freed, func(f gpu.Segment) bool { return f.Bytes == s.Bytes }); i >= 0 {
		s.Base = d.freed[i].Base
		d.freed = slices.Delete(d.freed, i, i+1)
		d.segments = append(d.segments, s)
		return s.Base
	}
	s.Base = d.next
	d.next += gpu.Ptr(s.Bytes+8191) &^ 4095
	d.segments = append(d.segments, s)
	return s.Base
}

// Free gives memory back.
func (d *Device) Free(p gpu.Ptr) error { return d.remove(p, false) }

// Drop takes back what Import mapped.
func (d *Device) Drop(p gpu.Ptr) error { return d.remove(p, true) }

func (d *Device) remove(p gpu.Ptr, foreign bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	i := slices.IndexFunc(d.segments, func(s *segment) bool { return s.Base == p && s.fd != ofHost && (s.fd < 0) == foreign })
	if i < 0 {
		return fmt.Errorf("%w: %#x was not got here or was given back", gpu.ErrMemory, p)
	}
	s := d.segments[i]
	d.segments = slices.Delete(d.segments, i, i+1)
	d.freed = append(d.freed, s.Segment)
	return unmap(s.fd, s.memory)
}

// at finds memory by its address.
func (d *Device) at(p gpu.Ptr, n int) (*segment, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range d.segments {
		if p >= s.Base && p+gpu.Ptr(n) <= s.Base+gpu.Ptr(s.Bytes) {
			return s, nil
		}
	}
	return nil, fmt.Errorf("%w: %d bytes at %#x", gpu.ErrMemory, n, p)
}

// Bytes is memory of the GPU as its host sees it.
func (d *Device) Bytes(p gpu.Ptr, n int) ([]byte, error) {
	s, err := d.at(p, n)
	if err != nil {
		return nil, err
	}
	return s.memory[p-s.Base:][:n], nil
}

// Segment says what an address lies in.
func (d *Device) Segment(p gpu.Ptr, n int) (gpu.Segment, error) {
	s, err := d.at(p, n)
	if err != nil {
		return gpu.Segment{}, err
	}
	return s.Segment, nil
}

// Export names memory to other processes.
func (d *Device) Export(s gpu.Segment) (h gpu.Handle, err error) {
	have, err := d.at(s.Base, s.Bytes)
	if err != nil {
		return h, err
	}
	if have.Kind != gpu.Plain {
		return h, fmt.Errorf("%w: %s", gpu.ErrNotShown, have.Kind)
	}
	copy(h[:], fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), have.fd))
	return h, nil
}

// Import maps memory that another process named.
func (d *Device) Import(h gpu.Handle) (gpu.Ptr, error) {
	path := string(bytes.TrimRight(h[:], "\x00"))
	memory, err := open(path)
	if err != nil {
		return 0, fmt.Errorf("memory of another process: %w", err)
	}
	return d.add(&segment{gpu.Segment{Bytes: len(memory), ID: ids.Add(1), Kind: gpu.Foreign}, memory, -1}), nil
}

// Prepare has nothing to do: kernels are read when they run.
func (d *Device) Prepare(reduce.Type, reduce.Op, *reduce.Order) error { return nil }

// Register notes memory for Pinned. All memory of the host is fit for copies here.
func (d *Device) Register(b []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pinned = append(d.pinned, b)
	return nil
}

// Pinned reports whether memory was registered.
func (d *Device) Pinned(b []byte) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	at := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	return slices.ContainsFunc(d.pinned, func(p []byte) bool {
		base := uintptr(unsafe.Pointer(unsafe.SliceData(p)))
		return at >= base && at+uintptr(len(b)) <= base+uintptr(len(p))
	})
}

// Unregister forgets memory, and takes back the address that Seen gave.
func (d *Device) Unregister(b []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pinned = slices.DeleteFunc(d.pinned, func(p []byte) bool { return unsafe.SliceData(p) == unsafe.SliceData(b) })
	d.segments = slices.DeleteFunc(d.segments,
		func(s *segment) bool { return s.fd == ofHost && unsafe.SliceData(s.memory) == unsafe.SliceData(b) })
	return nil
}

// Seen gives memory of the host an address.
func (d *Device) Seen(b []byte) (gpu.Ptr, error) {
	return d.add(&segment{gpu.Segment{Bytes: len(b), ID: ids.Add(1), Kind: gpu.Managed}, b, ofHost}), nil
}

// ofHost is the file of memory that is the host's.
const ofHost = -2

// Close gives everything back.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range d.segments {
		if s.fd == ofHost {
			continue
		}
		if err := unmap(s.fd, s.memory); err != nil {
			return err
		}
	}
	d.segments = nil
	return nil
}

// kernel is the kernel for a reduction.
func (d *Device) kernel(t reduce.Type, op reduce.Op, form ptx.Form) (*kernel, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if k := d.kernels[program{t, op, form}]; k != nil {
		return k, nil
	}
	text, err := ptx.Kernel(t, op, form, d.sm)
	if err != nil {
		return nil, err
	}
	k, err := compile(text)
	if err != nil {
		return nil, err
	}
	d.kernels[program{t, op, form}] = k
	return k, nil
}

// reduce runs the kernel of a reduction.
func (d *Device) reduce(r *gpu.Reduction) error {
	k, err := d.kernel(r.Type, r.Op, ptx.FormOf(r.Type, r.Op, r.Order))
	if err != nil {
		return err
	}
	const threads = 8 // of a block, so that small sizes have several
	return k.run(min(3, ptx.Blocks(r, 2)), threads, ptx.Arguments(r), d.memory())
}

// pieces runs the kernel that copies pieces.
func (d *Device) pieces(list []gpu.Piece) error {
	k, err := d.kernel(0, 0, ptx.Pieces)
	if err != nil {
		return err
	}
	const blocks, threads, table = 3, 8, 1 << 20 // an address that no memory has
	text, other := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(list))), len(list)*int(unsafe.Sizeof(gpu.Piece{}))), d.memory()
	return k.run(blocks, threads, ptx.PieceArguments(table, len(list)), func(at uint64, n int) ([]byte, error) {
		if at >= table && at+uint64(n) <= table+uint64(len(text)) {
			return text[at-table:][:n], nil
		}
		return other(at, n)
	})
}

// memory finds the memory at an address.
func (d *Device) memory() func(at uint64, bytes int) ([]byte, error) {
	var last *segment
	return func(at uint64, n int) ([]byte, error) {
		p := gpu.Ptr(at)
		if last == nil || p < last.Base || p+gpu.Ptr(n) > last.Base+gpu.Ptr(last.Bytes) {
			var err error
			if last, err = d.at(p, n); err != nil {
				return nil, err
			}
		}
		return last.memory[p-last.Base:][:n], nil
	}
}
