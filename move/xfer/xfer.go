// Package xfer moves bytes between the memory, files and object stores of agents that come and go.
//
//	agent (name, generation)     region (kind, id, size, key)     lease (ranges, until)
//
//	Register -> Describe / Open -> Prepare -> Post -> Poll / Wait -> notice -> Release
//
// A request is a list of descriptor pairs, local and remote, and one operation: Read copies the remote
// bytes here, Write the local bytes there. Its states are
//
//	posted -> moving -> landed -> told -> done
//	                 \-> failed (why, who, bytes landed) | cancelled
//
// Guarantees:
//
//   - Only its owner writes memory. Within a host the destination's owner copies out of the peer's memory,
//     mapped read-only; over a socket it reads the socket. Cancelled, withdrawn or expired requests are thus
//     fenced where the bytes land: a peer that was stopped for a minute cannot write into memory that is in
//     use again.
//   - Lease before read. The owner knows, by its own clock, who reads what until when. To reuse the memory it
//     calls Reclaim, which waits for readers or outlives them and admits no new ones (epoch.go). A reader checks
//     its lease again after the bytes have landed, and fails if they may have changed.
//   - Done means landed. A Write completes when its target has verified and stored it: a file's bytes are on
//     disk, an object is complete.
//   - A notice is delivered exactly once, after its bytes have landed, even across a reconnect. If the request
//     fails, the waiter gets the error instead.
//   - Every request has a deadline. Every failure names the agent at fault and reaches both ends.
//   - Every slice on a socket has a checksum. After a lost connection only the missing part is resent.
//   - A request's path is chosen once, from measurements, and reported (Status.Path). It never changes
//     (path.go).
package xfer

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Kind is what a region is made of.
type Kind uint8

// The kinds of regions.
const (
	Host   Kind = iota // memory of the process
	GPU                // memory of a GPU
	File               // a file or block device
	Object             // an object of a store
	kinds
)

var kindNames = [kinds]string{"host", "gpu", "file", "object"}

func (k Kind) String() string {
	if k < kinds {
		return kindNames[k]
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// ParseKind reads the name of a kind, in our words or in nixlbench's.
func ParseKind(s string) (Kind, error) {
	switch s {
	case "host", "dram", "DRAM":
		return Host, nil
	case "gpu", "vram", "VRAM":
		return GPU, nil
	case "file", "FILE":
		return File, nil
	case "object", "obj", "OBJ":
		return Object, nil
	}
	return 0, fmt.Errorf("kind %q: want host (DRAM), gpu (VRAM), file (FILE) or object (OBJ)", s)
}

// Op is what a request does.
type Op uint8

// The operations.
const (
	Read  Op = iota // remote bytes come here
	Write           // local bytes go there
)

func (o Op) String() string {
	if o == Read {
		return "read"
	}
	return "write"
}

// Class is how urgent a request is (class.go says how classes share a link).
type Class uint8

// The classes.
const (
	Bulk       Class = iota // offload and weights
	Latency                 // somebody waits: a cache on its way to decode
	Background              // checkpoints
	classes
)

var classNames = [classes]string{"bulk", "latency", "background"}

func (c Class) String() string {
	if c < classes {
		return classNames[c]
	}
	return fmt.Sprintf("class %d", uint8(c))
}

// ParseClass reads the name of a class.
func ParseClass(s string) (Class, error) {
	for c, n := range classNames {
		if n == s {
			return Class(c), nil
		}
	}
	return 0, fmt.Errorf("class %q: want latency, bulk or background", s)
}

// State is how far a request is.
type State uint8

// The states of a request.
const (
	Posted    State = iota // waits for its lease, its connection or its turn
	Moving                 // bytes move
	Landed                 // all bytes are where they belong and checked
	Told                   // the notice was delivered
	Done                   // as asked
	Failed                 // Status.Err says why
	Cancelled              // by this side; nothing lands any more
)

var stateNames = [...]string{"posted", "moving", "landed", "told", "done", "failed", "cancelled"}

func (s State) String() string { return stateNames[s] }

// Over reports whether nothing happens any more.
func (s State) Over() bool { return s >= Done }

// ID names one life of an agent. Whoever takes the same name later has another generation (life.go).
type ID struct {
	Name       string
	Generation uint64
}

func (i ID) String() string { return fmt.Sprintf("%s@%x", i.Name, i.Generation) }

// Desc is a run of bytes of a region: of an own one (Region.At) or of a peer's (Remote.At).
type Desc struct {
	Region   uint32 // its number with its owner
	Off, Len int64
}

// Errors that callers branch on. A *Failure wraps one of them.
var (
	ErrBounds    = errors.New("outside of its region")
	ErrOverlap   = errors.New("two destinations overlap")
	ErrLength    = errors.New("local and remote descriptors do not fit together")
	ErrRegion    = errors.New("no such region")
	ErrAccess    = errors.New("not allowed")
	ErrKey       = errors.New("wrong key of a region")
	ErrStale     = errors.New("of an earlier life")
	ErrAgent     = errors.New("unknown agent")
	ErrToken     = errors.New("the cluster tokens differ: set WEFT_TOKEN to the same value everywhere")
	ErrLease     = errors.New("the lease is over")
	ErrWithdrawn = errors.New("withdrawn by its owner")
	ErrDeadline  = errors.New("past its deadline")
	ErrCancelled = errors.New("cancelled")
	ErrGone      = errors.New("the agent is gone")
	ErrLost      = errors.New("connection lost")
	ErrSum       = errors.New("wrong checksum")
	ErrStorage   = errors.New("storage failed")
	ErrShort     = errors.New("storage is shorter than its region")
	ErrFull      = errors.New("no space left")
	ErrExists    = errors.New("the object is there already")
	ErrPath      = errors.New("no such path")
	ErrKind      = errors.New("not possible with this kind of region")
	ErrLimit     = errors.New("too much")
	ErrClosed    = errors.New("closed")
)

// codes are the errors' numbers on the wire and, 200 larger, in weft.h. New ones go to the end.
var codes = []error{nil, ErrBounds, ErrOverlap, ErrLength, ErrRegion, ErrAccess, ErrKey, ErrStale, ErrAgent, ErrToken, ErrLease,
	ErrWithdrawn,
	ErrDeadline, ErrCancelled, ErrGone, ErrLost, ErrSum, ErrStorage, ErrShort, ErrFull, ErrExists, ErrPath, ErrKind, ErrLimit, ErrClosed}

// Code is the number of an error of this package, 0 if it is none.
func Code(err error) uint8 {
	for i, e := range codes {
		if e != nil && errors.Is(err, e) {
			return uint8(i)
		}
	}
	return 0
}

// told is an error that the other end reported: its text, and its kind for errors.Is.
type told struct {
	text string
	kind error
}

func (t *told) Error() string { return t.text }
func (t *told) Unwrap() error { return t.kind }

func toldError(code uint8, text string) error {
	t := &told{text: text}
	if int(code) < len(codes) {
		t.kind = codes[code]
	}
	if text == "" && t.kind != nil {
		t.text = t.kind.Error()
	}
	return t
}

// Failure is how a request failed. Both ends get one.
type Failure struct {
	Request uint64 // number of the request with its initiator
	Op      Op
	From    ID     // the initiator
	To      ID     // the target
	Who     string // the name of the agent at fault
	Landed  int64  // bytes that are where they belong
	Total   int64
	Why     error
}

func (f *Failure) Error() string {
	return fmt.Sprintf("%s %d of %s with %s: %d of %d bytes landed; at fault: %s: %v",
		f.Op, f.Request, f.From.Name, f.To.Name, f.Landed, f.Total, f.Who, f.Why)
}

func (f *Failure) Unwrap() error { return f.Why }

// Notice is what an agent hears of a request of another: that it landed, or (Err) that it failed.
type Notice struct {
	From    ID
	Request uint64 // number of the request with its initiator; 0 if it belongs to no data
	Data    []byte
	Err     error // a *Failure: bytes may be missing
}

// Status is how a request stands.
type Status struct {
	State  State
	Landed int64 // bytes; of a request that moves, a lower bound
	Total  int64
	Path   string // how it moves; empty until that is known
	Err    error  // a *Failure once it failed
}

// Defaults of Config, and limits.
const (
	DefaultTimeout = 30 * time.Second
	DefaultLease   = 30 * time.Second
	MaxDescs       = 1 << 20                // descriptors of a list
	leaseGrace     = 250 * time.Millisecond // after a lease, until its memory is used again: what was sent in time may be under way
	outage         = time.Second            // a lost connection may take so long to come back
	cancelTime     = time.Second            // that Cancel waits for the other end

	sliceSize   = 1 << 20   // on a socket: what has one checksum
	stepSize    = 256 << 10 // copied between two looks at the fence
	maxNotice   = 1 << 20
	maxName     = 200
	maxRegions  = 1 << 16
	maxTransfer = 1 << 46
	maxRegion   = 1 << 56
	maxTimeout  = 24 * time.Hour
)

// Storage is what is behind a region. Methods may be called from several goroutines at once. Memory and Object
// of this package are such, OpenFile makes one; GPU memory comes from whoever can reach it.
type Storage interface {
	Kind() Kind
	Size() int64
	// ReadAt fills p from off on, and WriteAt writes all of p, or they fail.
	ReadAt(ctx context.Context, p []byte, off int64) error
	WriteAt(ctx context.Context, p []byte, off int64) error
	// Sync returns when everything written stays: on the disk of a file.
	Sync(ctx context.Context) error
	// Depth is how many calls at once bring it to its full rate.
	Depth() int
	Close() error
}

// Whole is storage that is written as a whole or not at all. Its ReadAt and WriteAt are not called.
type Whole interface {
	// Create begins to write all of it anew. Parts come at any offset and at once.
	Create(ctx context.Context) (Sink, error)
	// Open begins to read it.
	Open(ctx context.Context) (Source, error)
}

// Source gives the bytes of one request, from any offset and at once. All are of one time: if another write takes the place of what
// is read, they are still the old ones, or ReadAt fails.
type Source interface {
	ReadAt(ctx context.Context, p []byte, off int64) error
	Close() error
}

// Sink takes the bytes of one request.
type Sink interface {
	WriteAt(ctx context.Context, p []byte, off int64) error
	Commit(ctx context.Context) error // all is there: it appears, and stays
	Abort()                           // nothing of it appears
}
