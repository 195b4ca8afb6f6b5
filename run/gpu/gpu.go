// Package gpu is the interface between the runtime and a GPU. run/gpu/cuda implements it with NVIDIA's driver, run/gpu/soft in
// software, for tests and for machines without a GPU.
//
//	Device   memory: allocate, describe, share with other processes and map theirs
//	Queue    ordered work: copies and reductions, and ordering with a user's streams
package gpu

import (
	"errors"
	"fmt"

	"github.com/weft-fabric/weft/run/reduce"
)

// Ptr is an address on a GPU.
type Ptr uint64

// Stream is a user's stream: CUDA's handle as a number, 0 for the legacy default stream.
type Stream uint64

// Info is what is known of a GPU.
type Info struct {
	Name       string `json:"name"`
	ID         string `json:"id"`         // the same for every process that sees this GPU
	Capability int    `json:"capability"` // 90 for 9.0
	Units      int    `json:"units"`      // multiprocessors
	Bytes      int64  `json:"bytes"`      // of memory
	Driver     string `json:"driver"`     // its version
	Sharing    string `json:"sharing"`    // how processes share it: "time slices", "MPS"
	Apart      bool   `json:"apart"`      // every Device has addresses of its own, also inside a process
}

// HandleSize is the length of a Handle.
const HandleSize = 64

// Handle names a segment of memory to other processes.
type Handle [HandleSize]byte

// Segment is the allocation that an address lies in.
type Segment struct {
	Base  Ptr
	Bytes int
	ID    uint64 // another one, if the address was freed and given out again
	Kind  Kind
}

// Kind is how memory was got, which decides whether other processes can see it.
type Kind uint8

// The kinds of memory.
const (
	Plain   Kind = iota + 1 // cuMemAlloc, cudaMalloc, PyTorch's allocator: other processes can see it
	Mapped                  // cuMemMap: PyTorch's expandable segments
	Pooled                  // cuMemAllocAsync: stream-ordered pools
	Managed                 // cuMemAllocManaged
	Foreign                 // of another process: it cannot be shown on
)

var kinds = [...]string{"no memory of a GPU", "plain memory", "mapped memory (cuMemMap, PyTorch's expandable_segments)",
	"memory of a stream-ordered pool (cuMemAllocAsync)",
	"managed memory", "memory of another process"}

func (k Kind) String() string { return kinds[min(int(k), len(kinds)-1)] }

// What is wrong with a GPU, for errors.Is.
var (
	ErrNoLibrary = errors.New("the GPU's driver library cannot be opened")
	ErrVersion   = errors.New("the GPU's driver is too old")
	ErrNoDevice  = errors.New("no such GPU")
	ErrNoJIT     = errors.New("the driver cannot compile kernels")
	ErrMemory    = errors.New("no memory of this GPU")                  // an address that is none, was freed, or lies elsewhere
	ErrNotShown  = errors.New("memory that other processes cannot see") // Export
	ErrPinned    = errors.New("memory that is pinned already")          // Register
	ErrLost      = errors.New("the GPU gave up")                        // a fault, after which its context is of no use
)

// Device is a GPU as a process uses it. It is safe for use by several goroutines.
type Device interface {
	Info() Info
	// Alloc gets memory that other processes can see; Free gives it back.
	Alloc(bytes int) (Ptr, error)
	Free(Ptr) error
	// Segment is the allocation that bytes from an address on lie in.
	Segment(at Ptr, bytes int) (Segment, error)
	// Export names a segment to other processes, Import maps one that another process named. Import once for each handle;
	// Drop takes it back.
	Export(Segment) (Handle, error)
	Import(Handle) (Ptr, error)
	Drop(Ptr) error
	// Register makes memory of the host fit for copies that run beside others; Unregister must come before it is given back.
	Register([]byte) error
	Unregister([]byte) error
	// Pinned reports whether all of it is registered, by whomever: copies from and to it need no stop in between.
	Pinned([]byte) bool
	// Seen is where kernels see registered memory.
	Seen([]byte) (Ptr, error)
	// Prepare makes the kernel of reductions in an order ready, which may wait for all that is queued on the GPU.
	Prepare(t reduce.Type, op reduce.Op, order *reduce.Order) error
	// Queue makes a queue of work.
	Queue() (Queue, error)
	Close() error
}

// Notes is how many notes of a queue may be open at a time.
const Notes = 256

// Queue is work that a GPU does in order. Calls return before the work is done. One goroutine at a time uses it, but for Reached, Idle,
// Note and Follow, which any may call.
type Queue interface {
	// In and Out copy from and to registered memory of the host, Copy inside the GPU and between GPUs.
	In(dst Ptr, src []byte) error
	Out(dst []byte, src Ptr) error
	Copy(dst, src Ptr, bytes int) error
	// Pieces copies many pieces with one kernel. The list lies in registered memory and stays as it is until they are copied.
	Pieces(list []Piece) error
	// Batch calls f, whose copies and marks cost the driver less than alone.
	Batch(f func() error) error
	// Reduce reduces.
	Reduce(*Reduction) error
	// Mark gives a number to what is queued so far; Reached reports whether that is done. An error is the GPU's.
	Mark() (uint64, error)
	Reached(uint64) (bool, error)
	// Idle reports whether all that was queued on a user's stream is done.
	Idle(Stream) (bool, error)
	// Note gives a number to what is queued on a user's stream by now; After makes the queue wait for that. At most Notes numbers
	// may be given out and not waited for.
	Note(Stream) (uint64, error)
	After(note uint64) error
	// Stamp gives a number to what is queued here by now; Follow makes a user's stream wait for that, or for a little more.
	Stamp() (uint64, error)
	Follow(s Stream, stamp uint64) error
	// Posts reports whether the GPU can wait for the host and for other processes: Post writes a number to a word of registered
	// memory once what is queued is done, Await lets the queue wait until a word holds a number, or one up to 2^31 above it. What
	// is waited for must be queued already, wherever it is: the driver may keep all calls of the process waiting meanwhile.
	Posts() bool
	Post(word *uint32, n uint32) error
	Await(word *uint32, n uint32) error
	// Close waits for what is queued.
	Close() error
}

// Piece is a copy as a kernel reads it. Memory of the host goes by the address where kernels see it (Device.Seen).
type Piece struct {
	Dst, Src Ptr
	Bytes    uint64
}

// Reduction is one pass over memory: dsts = ((s0 op s1) op s2) op ..., or in another order, in the bits that package reduce defines. Avg
// divides by Factor; PreMulSum has one source and multiplies it with Factor.
type Reduction struct {
	Type       reduce.Type
	Op         reduce.Op
	Dsts, Srcs []Ptr
	Order      *reduce.Order
	Bytes      int
	Factor     float64
}

// MostPending is how many partial results a kernel keeps.
const MostPending = 8

// Aligned says how much of a reduction can be moved 16 bytes at a time: the elements before the first such vector, and the number
// of vectors, which is 0 if the addresses lie differently.
func (r *Reduction) Aligned() (head, body uint64) {
	size, first := uint64(r.Type.Size()), uint64(r.Srcs[0])
	for _, list := range [2][]Ptr{r.Srcs, r.Dsts} {
		for _, p := range list {
			if (uint64(p)^first)%16 != 0 {
				return 0, 0
			}
		}
	}
	lead := (16 - first%16) % 16
	if lead%size != 0 || uint64(r.Bytes) < lead+16 {
		return 0, 0
	}
	return lead / size, (uint64(r.Bytes) - lead) / 16
}

// Check says what is wrong with a reduction.
func (r *Reduction) Check(most int) error {
	if err := reduce.Check(r.Type, r.Op); err != nil {
		return err
	}
	switch {
	case len(r.Srcs) == 0 || len(r.Dsts) == 0 || len(r.Srcs) > most || len(r.Dsts) > most:
		return fmt.Errorf("%d sources into %d destinations; want 1 to %d of each", len(r.Srcs), len(r.Dsts), most)
	case r.Op == reduce.PreMulSum && len(r.Srcs) != 1:
		return fmt.Errorf("%d sources to multiply; want 1", len(r.Srcs))
	case r.Order != nil && len(r.Order.Merges(0)) != len(r.Srcs):
		return fmt.Errorf("%d sources in an order of %d", len(r.Srcs), len(r.Order.Merges(0)))
	case r.Order.Pending() > MostPending:
		return fmt.Errorf("an order that keeps %d partial results; want up to %d", r.Order.Pending(), MostPending)
	case r.Op != reduce.PreMulSum && len(r.Srcs) == 1:
		return fmt.Errorf("one source is copied, not reduced")
	case r.Bytes%r.Type.Size() != 0:
		return fmt.Errorf("%d bytes are not a multiple of %s", r.Bytes, r.Type)
	}
	return nil
}
