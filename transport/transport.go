// Package transport is the vocabulary of moving bytes between ranks. Its
// siblings carry it out: mem between goroutines, shm between processes of one
// host, tcp between hosts; one conformance suite (transport/conform) holds them
// to the same words.
//
//	Endpoint   a rank's ways to all others, made once; survives the loss of some of them
//	Port       the ways of one communicator; many share an endpoint and cost no connection
//	Verbs      one-sided operations on memory that peers may name: the RDMA verbs
//	Memory     what an endpoint has besides if its ranks see one another's memory
//
// A message belongs to a Call: what its rank is doing and in which epoch. Every
// message carries it, so ranks that do different things find out at once, and
// what is left over from an epoch that ended is dropped.
package transport

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/weft-fabric/weft/reduce"
	"github.com/weft-fabric/weft/sched"
)

// Call is what a rank is doing on a communicator. Two ranks take part in the
// same operation if all fields are equal.
type Call struct {
	Epoch   uint32           // of the endpoint's world; messages of an older one are dropped
	Comm    uint32           // the communicator, equal on its members
	Seq     uint64           // the operation's number on the communicator, from 1
	Op      sched.Collective // what is done
	Variant uint8            // 0, or which of the operations that share Op (v-variants, point to point)
	Type    reduce.Type
	Reduce  reduce.Op // zero where nothing is reduced
	Root    int32     // -1 where there is none
	Count   uint64    // elements, as the operation counts them
	Program uint64    // the first bytes of the program's digest
}

// CallSize is the length of an encoded call.
const CallSize = 48

// Put encodes the call into b, little-endian.
func (c *Call) Put(b []byte) {
	_ = b[CallSize-1]
	le := binary.LittleEndian
	le.PutUint32(b, c.Epoch)
	le.PutUint32(b[4:], c.Comm)
	le.PutUint64(b[8:], c.Seq)
	b[16], b[17], b[18], b[19] = uint8(c.Op), c.Variant, uint8(c.Type), uint8(c.Reduce)
	le.PutUint32(b[20:], uint32(c.Root))
	le.PutUint64(b[24:], c.Count)
	le.PutUint64(b[32:], c.Program)
	le.PutUint64(b[40:], 0)
}

// Get decodes what Put wrote.
func (c *Call) Get(b []byte) {
	_ = b[CallSize-1]
	le := binary.LittleEndian
	*c = Call{
		Epoch: le.Uint32(b), Comm: le.Uint32(b[4:]), Seq: le.Uint64(b[8:]),
		Op: sched.Collective(b[16]), Variant: b[17], Type: reduce.Type(b[18]), Reduce: reduce.Op(b[19]),
		Root: int32(le.Uint32(b[20:])), Count: le.Uint64(b[24:]), Program: le.Uint64(b[32:]),
	}
}

// Stop tells a wait whether to end, and why; nil means go on. A wait asks it
// before its first sleep and at least every 10 ms from then on. It must be
// cheap and safe to call from any goroutine.
type Stop func() error

// Port is a communicator's ways over an endpoint. Ranks are those of the
// communicator. A port carries out one call after another; within a call,
// different channels may be used from different goroutines at once, and one
// channel from one goroutine.
//
// The k-th message that rank a sends to rank b on a channel in a call is the
// k-th that b receives from a on it. Sender and receiver know its Form; a
// message of another one, or of another call, is an error on the receiver
// (*Mismatch), never data.
type Port interface {
	// Begin starts a call: messages are those of c until the next Begin. stop
	// ends its waits. A message of the port's current Seq that belongs to
	// another call ends them, too, whichever peer sent it.
	Begin(c *Call, stop Stop)

	// Send gives b to a peer and returns once b may be changed again. While it
	// waits for room it goes on receiving what Expect announced.
	Send(to, channel int, b []byte) error

	// Expect announces where the next message of a way, after those announced
	// before, will be wanted, so that it can be put there without a copy. The
	// memory belongs to the port until the Recv for it returns.
	Expect(from, channel int, dst []byte)

	// Recv takes the next message of a way into dst: the memory announced for
	// it, if it was.
	Recv(from, channel int, dst []byte) error

	// SendRecv is a Send and a Recv on two different channels of which neither waits
	// for the end of the other. It waits for the message that comes, unless waits
	// says that it does for the one that goes.
	SendRecv(to, channel int, src []byte, from, fromChannel int, dst []byte, waits func(sending bool)) error

	// Take takes the next message of a way, of n bytes, piece after piece, and
	// hands f each piece where it lies, for reductions that need it only once.
	// Pieces are multiples of 64 bytes long but for the last. f must not keep
	// the slice.
	Take(from, channel, n int, f func(piece []byte)) error

	// Last is what a peer was last seen doing on the communicator, by the
	// messages it sent; false if nothing was seen of it.
	Last(rank int) (Call, bool)

	// Close gives back what the port holds. Peers may still be using theirs.
	Close() error
}

// Swapper is a port that sums what it receives while it sends.
type Swapper interface {
	Port

	// Swap is Send of b and then Recv or Take of the next message of a way, but for
	// neither waiting for the other.
	Swap(to, channel int, b []byte, from int, in Incoming) error
}

// Incoming is a message that is received while another is sent.
type Incoming struct {
	N    int
	Dst  []byte             // of N bytes, for Recv; nil for Take
	Take func(piece []byte) // for Take

	// After says that Take may overwrite the memory that is sent, from the same
	// place on: no byte is handed out before the one of its place was sent.
	After bool
}

// Holder is a port in which a message may wait until all of it has come.
type Holder interface {
	Port

	// Holds reports whether messages of n bytes are sent to a peer, and come from it,
	// though nobody receives them yet.
	Holds(peer, n int) bool

	// SendWhole is Send of a message that is received by RecvWhole.
	SendWhole(to, channel int, b []byte) error

	// RecvWhole is Recv that stores nothing in dst before all of the message has
	// come: if it fails, dst is as it was.
	RecvWhole(from, channel int, dst []byte) error
}

// Endpoint is a rank's connections with the others of its world.
type Endpoint interface {
	Kind() string // mem, shm or tcp
	Rank() int
	Size() int

	// Port makes the ways of a communicator: members are ranks of the endpoint
	// in the order of the communicator's. All members must call it with the
	// same id and members; nothing is sent.
	Port(id, epoch uint32, members []int) (Port, error)

	// Alive is nil, or why a rank of the endpoint can no longer be reached: a
	// *Gone. It is cheap. Waits for a rank that is gone end with it.
	Alive(rank int) error

	Verbs

	// Counters are what happened so far, by name, in order: bytes and messages
	// by peer kind, refused hellos, dropped frames, paths lost.
	Counters() []Counter

	Close() error
}

// Counter is a number that only grows.
type Counter struct {
	Name  string `json:"name"`
	Value uint64 `json:"value"`
}

// Key names registered memory of a rank; it means the same on every rank. Bytes
// that follow one another have keys that do: k+8 names what lies 8 bytes behind
// what k names, within the same memory.
type Key uint64

// Verbs are one-sided operations on registered memory, after the verbs of RDMA.
// The owner of the memory takes no part in them.
//
// Posting returns a ticket; Poll tells which are complete. Local memory belongs
// to the endpoint until then. The rules of order, per pair of ranks:
//   - Writes become visible in the order in which they were posted, and a
//     notification after everything posted before it.
//   - Reads and atomics are complete when their result is there; a write posted
//     after one is not held back by it.
//   - Atomics work on 8-byte words at multiples of 8 and are atomic among all
//     ranks and with the owner's sync/atomic.
type Verbs interface {
	// Alloc gets memory that peers may name, zeroed, at a multiple of 64; ErrNoMemory if there is not enough.
	Alloc(n int) ([]byte, error)
	// Free gives it back.
	Free(b []byte) error
	// Key names memory got from Alloc, or a part of it.
	Key(b []byte) (Key, error)

	Write(to int, dst Key, src []byte) (Ticket, error)
	Read(from int, dst []byte, src Key) (Ticket, error)
	CompareSwap(to int, word Key, old, new uint64, was *uint64) (Ticket, error)
	FetchAdd(to int, word Key, add uint64, was *uint64) (Ticket, error)
	// Notify leaves a number with a peer once everything posted to it before is there.
	Notify(to int, value uint32) (Ticket, error)

	// Poll appends completions of own operations and notices from others, and
	// returns at once.
	Poll(done []Completion) []Completion
}

// Ticket is a posted operation.
type Ticket uint64

// Completion is the end of a posted operation, or a notice from a peer.
type Completion struct {
	Ticket Ticket // zero for a notice
	Peer   int
	Notice uint32
	Err    error
}

// Handle says where memory of a rank lies for its peers.
type Handle uint64

// Memory is an endpoint whose ranks see one another's memory: what one stores
// another can load.
type Memory interface {
	Endpoint

	// Handle says where memory lies for the peers, which is nowhere for what
	// was not got from Alloc (mem: any memory lies somewhere, for as long as its
	// owner holds it). Bytes that follow one another have handles that do. It is
	// cheap.
	Handle(b []byte) (Handle, bool)
	// At is n bytes of a rank's memory at a handle.
	At(rank int, h Handle, n int) ([]byte, error)
	// Pull copies from memory of a peer that Handle did not find, by its
	// address, where the system allows it; ErrNoPull otherwise.
	Pull(rank int, addr uintptr, dst []byte) error
}

// The errors that callers tell apart.
var (
	ErrNoMemory = errors.New("not enough shared memory")
	ErrNoPull   = errors.New("this system does not let one process read another's memory")
	ErrClosed   = errors.New("endpoint closed")
)

// Gone is a rank that can no longer be reached.
type Gone struct {
	Rank int // of the endpoint
	Why  string
	Left bool // it closed its endpoint, rather than died: what it sent before is still there
}

func (g *Gone) Error() string { return fmt.Sprintf("rank %d is gone: %s", g.Rank, g.Why) }

// Mismatch is two ranks that do different things at the same time.
type Mismatch struct {
	Rank, Peer   int // of the communicator
	Mine, Theirs Call
	Message      string // set if the calls agree but a message is not as expected
}

func (m *Mismatch) Error() string {
	switch {
	case m.Message != "" && m.Mine.Variant == PointToPoint:
		return fmt.Sprintf("rank %d receives from rank %d: %s", m.Rank, m.Peer, m.Message)
	case m.Message != "":
		return fmt.Sprintf("rank %d and rank %d disagree in operation %d (%s): %s", m.Rank, m.Peer, m.Mine.Seq, &m.Mine, m.Message)
	}
	return fmt.Sprintf("rank %d does %s as operation %d of communicator %d, rank %d does %s as operation %d of communicator %d: %s",
		m.Rank, &m.Mine, m.Mine.Seq, m.Mine.Comm, m.Peer, &m.Theirs, m.Theirs.Seq, m.Theirs.Comm, m.Mine.differ(&m.Theirs))
}

// String says what is done, without its number.
func (c *Call) String() string {
	s := c.Op.String()
	if v := variants[c.Variant]; v != "" {
		s = v
	}
	s += fmt.Sprintf(" of %d %s", c.Count, c.Type)
	if c.Reduce != 0 {
		s += " " + c.Reduce.String()
	}
	if c.Root >= 0 {
		s += fmt.Sprintf(" at root %d", c.Root)
	}
	return s
}

// Variants of operations that share a Collective.
const (
	Plain uint8 = iota
	AllGatherV
	AllToAllV
	GatherV
	ScatterV
	ReduceScatterV
	PointToPoint
	SplitCall
	ShrinkCall
)

var variants = map[uint8]string{
	AllGatherV: "all-gather-v", AllToAllV: "all-to-all-v", GatherV: "gather-v", ScatterV: "scatter-v",
	ReduceScatterV: "reduce-scatter-v", PointToPoint: "send/recv", SplitCall: "split", ShrinkCall: "shrink",
}

// differ names the first field that differs, in the order in which people look.
func (c *Call) differ(o *Call) string {
	switch {
	case c.Epoch != o.Epoch:
		return fmt.Sprintf("epochs %d and %d", c.Epoch, o.Epoch)
	case c.Comm != o.Comm:
		return "different communicators"
	case c.Seq != o.Seq:
		return "different numbers: one of them left out or added a call"
	case c.Op != o.Op || c.Variant != o.Variant:
		return "different operations"
	case c.Root != o.Root:
		return fmt.Sprintf("roots %d and %d", c.Root, o.Root)
	case c.Type != o.Type:
		return fmt.Sprintf("types %s and %s", c.Type, o.Type)
	case c.Count != o.Count:
		return fmt.Sprintf("counts %d and %d", c.Count, o.Count)
	case c.Reduce != o.Reduce:
		return fmt.Sprintf("reductions %s and %s", c.Reduce, o.Reduce)
	case c.Program != o.Program:
		return "different programs, or different operations before this one"
	}
	return "no difference"
}

// A Gather hands every rank what each of them gives: how endpoints find one
// another before there are any.
type Gather func(ctx context.Context, mine []byte) ([][]byte, error)
