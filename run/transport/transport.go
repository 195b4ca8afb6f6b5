// Package transport is the vocabulary of moving bytes between ranks. Its
// siblings implement it: mem between goroutines, shm between processes of one
// host, tcp between hosts, ucx wherever that library reaches. One conformance suite holds all of them to it.
//
//	Endpoint      a rank's connections with all others, made once; survives the loss of some of them
//	Port          the messages of one communicator; many ports share an endpoint and cost no connection
//	Verbs         one-sided operations on memory that peers may name, after the verbs of RDMA
//	Memory        what an endpoint has besides if its ranks see one another's memory
//	Capabilities  what an endpoint can do, for callers that choose how to work
//
// A message belongs to a Call: what its rank is doing and in which epoch. Every
// message carries it, so ranks that do different things find out at once, and
// what is left over from an epoch that ended is dropped. Transports compare
// calls and do not understand them: whoever makes a Port gives it Words.
package transport

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"
)

// SignatureSize is the length of a signature.
const SignatureSize = 32

// Signature says what is done in a call. Transports compare it, and leave its
// meaning to the caller.
type Signature [SignatureSize]byte

// Call is what a rank is doing on a communicator. Two ranks take part in the
// same operation if all fields are equal.
type Call struct {
	Epoch     uint32 // of the endpoint's world; messages of an older one are dropped
	Comm      uint32 // the communicator, equal on its members
	Seq       uint64 // the operation's number on the communicator, from 1
	Signature Signature
}

// CallSize is the length of an encoded call.
const CallSize = 16 + SignatureSize

// Put encodes the call into b, little-endian.
func (c *Call) Put(b []byte) {
	_ = b[CallSize-1]
	le := binary.LittleEndian
	le.PutUint32(b, c.Epoch)
	le.PutUint32(b[4:], c.Comm)
	le.PutUint64(b[8:], c.Seq)
	copy(b[16:], c.Signature[:])
}

// Get decodes what Put wrote.
func (c *Call) Get(b []byte) {
	_ = b[CallSize-1]
	le := binary.LittleEndian
	c.Epoch, c.Comm, c.Seq = le.Uint32(b), le.Uint32(b[4:]), le.Uint64(b[8:])
	copy(c.Signature[:], b[16:])
}

// Stop tells a wait whether to end, and why; nil means go on. A wait asks it
// before its first sleep and at least every 10 ms from then on. It must be
// cheap and safe to call from any goroutine.
type Stop func() error

// Group is the ranks that exchange messages through a port.
type Group struct {
	ID, Epoch uint32 // the communicator's; used once
	Members   []int  // ranks of the endpoint, in the order of the communicator's ranks
	Words     Words  // for errors; nil prints signatures as numbers
}

// Words puts into words what transports carry and do not understand.
type Words interface {
	// Mismatch says what the two ranks do, and how that differs.
	Mismatch(m *Mismatch) string
}

// Port carries the messages of a communicator over an endpoint. Ranks are those
// of the communicator. A port carries out one call after another. Within a call,
// several goroutines may use different channels at once, and one goroutine may
// use one channel.
//
// The messages from one rank to another on a channel are a way. The k-th message
// that is sent on a way in a call is the k-th that is received on it. Sender and
// receiver know its Form; a message of another form, or of another call, is an
// error on the receiver (*Mismatch), never data.
type Port interface {
	// Begin starts a call: messages are those of c until the next Begin. stop
	// ends its waits. A message of the port's current Seq that belongs to
	// another call ends them, too, whichever peer sent it.
	Begin(c Call, stop Stop)

	// Send gives b to a peer and returns once b may be changed again. While it
	// waits it goes on receiving what Expect announced.
	Send(to, channel int, b []byte) error

	// Expect announces where the next message of a way, after those announced
	// before, will be wanted, so that it can be put there without a copy. The
	// memory belongs to the port until the Recv for it returns.
	Expect(from, channel int, dst []byte)

	// Recv takes the next message of a way into dst: the memory announced for
	// it, if it was. One that waits long lets in what other ranks send, as those
	// may be what its peer waits for; so does Take.
	Recv(from, channel int, dst []byte) error

	// Take takes the next message of a way, of n bytes, piece after piece, and
	// hands f each piece where it lies, for reductions that need it only once.
	// The length of each piece is a multiple of 64, except that of the last. f
	// must not keep the slice.
	Take(from, channel, n int, f func(piece []byte)) error

	// Exchange is Send and then Recv or Take, except that neither waits for the
	// other. The caller counts as waiting for the message that comes, unless
	// waits says that it waits for the one that goes; waits may be nil.
	Exchange(out Outgoing, in Incoming, waits func(sending bool)) error

	// Holder is nil where no message can wait until all of it has come.
	Holder() Holder

	// Last is what a peer was last seen doing on the communicator, by the
	// messages it sent; false if nothing was seen of it.
	Last(rank int) (Call, bool)

	// Close gives back what the port holds. Peers may still be using theirs.
	Close() error
}

// Chooser is a port that receives while it sends with some ranks, and sends first with others.
type Chooser interface {
	// Overlaps reports whether Exchange with these two receives while it sends.
	Overlaps(to, from int) bool
}

// Disagreer is a port that can be asked whether a message of another call has come,
// by a caller that waits for something else.
type Disagreer interface {
	// Disagrees is nil, or the *Mismatch. It is cheap and safe to call from any goroutine.
	Disagrees() error
}

// Bounded is a port that bounds, in bytes, what a call sends to a peer that does not
// receive it, where no Depth does.
type Bounded interface {
	// Bound is how many bytes a call may send before it waits, at least.
	Bound() int
	// Unbound lifts the bound until the next Begin. What the peer leaves waiting then
	// lies in its memory.
	Unbound()
}

// Parallel is a port on which channels of a call that run side by side are not in each other's way.
type Parallel interface {
	// Channels says how many channels the call has, each with a caller of its own, until the next Begin.
	Channels(n int)
}

// Server is a port that takes what comes while somebody waits on it, and that one who waits
// elsewhere can give a turn.
type Server interface {
	// Serve takes what has come and says whether anything did. It does not wait, and is
	// safe to call from any goroutine.
	Serve() bool
}

// Idler is a port whose waits can do something else.
type Idler interface {
	// Meanwhile sets what waits do before they sleep: f does not wait, and says whether
	// there was anything to do. It is called before the first Begin.
	Meanwhile(f func() bool)
}

// Outgoing is a message that is sent while another is received.
type Outgoing struct {
	To, Channel int
	Bytes       []byte
}

// Incoming is a message that is received while another is sent.
type Incoming struct {
	From, Channel int
	N             int
	Dst           []byte             // of N bytes, for Recv; nil for Take
	Take          func(piece []byte) // for Take

	// After says that Take may overwrite the memory that is sent, from its start
	// on: no byte is handed out before the byte at its offset was sent.
	After bool
}

// Holder sends and receives messages each of which waits until all of it has come.
type Holder interface {
	// Holds reports whether messages of n bytes can wait so, from a peer and to it.
	Holds(peer, n int) bool

	// SendWhole is Send of a message that is received by RecvWhole.
	SendWhole(to, channel int, b []byte) error

	// RecvWhole is Recv that stores nothing in dst before all of the message has
	// come: if it fails, dst is as it was.
	RecvWhole(from, channel int, dst []byte) error
}

// Capabilities are what an endpoint is and can do. They never change.
type Capabilities struct {
	// Name is for people, and for files that keep measurements. Nothing is
	// decided by it.
	Name string

	// OneProcess: the ranks are goroutines of one process.
	OneProcess bool

	// SharedMemory: ranks see one another's memory, so Memory is not nil.
	SharedMemory bool

	// Overlaps: Exchange hands out what it receives while it sends, so sums cost
	// no time of their own. Elsewhere it sends first.
	Overlaps bool

	// Depth is how many messages, of any length, a channel holds from one rank to
	// another that nobody receives yet: Send does not wait before there are as
	// many. 0 means any number, of which ports may bound the bytes: see Bounded.
	Depth int

	// Rails is how many networks there are between two ranks of different hosts at most, over all of which a long
	// message is spread; the same on every rank. 0 is one.
	Rails int

	// Channels is how many channels of a call have connections to another host of their own: see Parallel. The same on every rank. 0 is one.
	Channels int

	// Copies is how long a message to another host may be so that its sender does not wait until it is taken: it is sent from a
	// copy. 0 means any length.
	Copies int

	// Holds: a message may wait until all of it has come, so Port.Holder is not
	// nil.
	Holds bool
}

// Endpoint is a rank's connections with the others of its world.
type Endpoint interface {
	Rank() int
	Size() int
	Can() Capabilities

	// Port makes the port of a communicator. All members must call it with the
	// same group; nothing is sent.
	Port(g Group) (Port, error)

	// Alive is nil, or why a rank of the endpoint can no longer be reached: a
	// *Gone. It is cheap. Waits for a rank that is gone end with it.
	Alive(rank int) error

	Verbs() Verbs

	// Memory is nil where ranks do not see one another's memory.
	Memory() Memory

	// Counters are what happened so far, by name, in order: bytes and messages,
	// refused hellos, dropped frames, paths lost.
	Counters() []Counter

	Close() error
}

// Describer is an endpoint that can say by which ways it reaches each rank.
type Describer interface {
	// Describe prints them, for people.
	Describe(w io.Writer) error
}

// Counter is a number that only grows.
type Counter struct {
	Name  string `json:"name"`
	Value uint64 `json:"value"`
}

// Event is something that happened to the links with a rank.
type Event struct {
	Time   time.Time
	Kind   EventKind
	Peer   int           // rank of the endpoint
	Path   string        // the interface, if it is about one
	Conn   string        // the connection, if it is about one: its two ends, ours first, as in "10.0.0.1:4000 10.0.0.2:5000"
	Text   string        // why
	Lasted time.Duration // what is over
}

// EventKind is what happened.
type EventKind uint8

// What happens to links.
const (
	PathLost   EventKind = iota // one of several; the others carry its messages
	PathBack                    // it is there again
	Outage                      // the last one; the rank is waited for
	OutageOver                  // there is one again, and nothing was lost
)

func (k EventKind) String() string {
	return [...]string{"path lost", "path back", "link lost", "link back"}[k]
}

// Key names registered memory of a rank; it means the same on every rank. Bytes
// that follow one another have keys that do: k+8 names what lies 8 bytes behind
// what k names, within the same memory.
type Key uint64

// Snapshot is up to how many bytes a Read between ranks that share memory loads words at once, for owners that store to them with
// sync/atomic.
const Snapshot = 32 << 10

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

// Memory is the memory of ranks that see one another's: what one stores another
// can load.
type Memory interface {
	// Handle says where memory lies for the peers. It is false for memory that
	// was not got from Alloc, except over mem, where any memory has a handle for
	// as long as its owner holds it. Bytes that follow one another have handles
	// that do. It is cheap.
	Handle(b []byte) (Handle, bool)
	// At is n bytes of a rank's memory at a handle.
	At(rank int, h Handle, n int) ([]byte, error)
	// Pulls reports whether Pull works with all ranks.
	Pulls() bool
	// Pull copies from memory of a peer that has no handle, by its address,
	// where the system allows it; ErrNoPull otherwise.
	Pull(rank int, addr uintptr, dst []byte) error
}

// Fencer is Memory that can be protected from ranks that were allowed to store to it and may still do so, late: ranks that were
// stopped while they did and that nobody waits for any more.
type Fencer interface {
	// Fences reports whether memory can be protected without touching what lies beside it. It is cheap.
	Fences(b []byte) bool
	// Fence keeps b and what it holds where it is for its owner, and gives it another handle: what is stored under the old one from
	// now on, or read, is not b's. The caller must not write to b meanwhile, and calls end when no rank can use the old
	// handle any more. Keys of the memory are no longer good.
	Fence(b []byte) (end func() error, err error)
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

	Cause error // a *Refused if it lives, and one of the two does not take what the other sends; a *Parted if there is no link; else nil
}

func (g *Gone) Error() string { return fmt.Sprintf("rank %d is gone: %s", g.Rank, g.Why) }

// Unwrap gives the cause.
func (g *Gone) Unwrap() error { return g.Cause }

// Parted says that the link between two ranks is lost. The process at the other end may live.
type Parted struct {
	Lives bool // it does: connections were made all the time, and brought nothing or something else than was sent
}

func (p *Parted) Error() string { return "the link is lost" }

// Refused is a frame that its receiver does not take, however often it is sent again.
type Refused struct {
	Sender, Receiver int    // of the endpoint
	What             string // is wrong with the frame
}

func (r *Refused) Error() string {
	return fmt.Sprintf("rank %d does not take what rank %d sends: %s", r.Receiver, r.Sender, r.What)
}

// Mismatch is two ranks that do different things at the same time.
type Mismatch struct {
	Rank, Peer   int // of the communicator
	Mine, Theirs Call

	// Where the calls agree: a message that was sent in another form than it is
	// received, or a note of what is wrong.
	Channel    int
	Sent, Want Form
	Note       string

	Words Words // of the group; may be nil
}

func (m *Mismatch) Error() string {
	if m.Words != nil {
		return m.Words.Mismatch(m)
	}
	s := fmt.Sprintf("rank %d and rank %d disagree in operation %d of communicator %d: ", m.Rank, m.Peer, m.Mine.Seq, m.Mine.Comm)
	switch {
	case m.Note != "":
		return s + m.Note
	case m.Sent != m.Want:
		return s + fmt.Sprintf("a message on channel %d has %s, %s were expected", Way(m.Channel), m.Sent, m.Want)
	}
	return s + fmt.Sprintf("signature %x, and %x in operation %d", m.Mine.Signature, m.Theirs.Signature, m.Theirs.Seq)
}

// A Gather hands every rank what each rank gives: how endpoints find one
// another before they are connected.
type Gather func(ctx context.Context, mine []byte) ([][]byte, error)
