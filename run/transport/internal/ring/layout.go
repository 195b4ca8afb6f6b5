package ring

import (
	"sync/atomic"
	"unsafe"

	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/wait"
)

// The layout of what lies in an arena, all numbers little-endian.
//
// A flag is a 64-byte line: a growing number (8; the lower half is the futex), sleepers (4), zero (4), two words (16),
// zero.
//
// A key is the number of an entry in bits 40 to 63 and an offset in bits 0 to 39. Entry n is at n modulo 2,048.
//
// A port is a rank's part of a communicator: number (4), epoch (4), members (4), owner's rank (4), the bucket's next
// port (8), the number of the last call with a sent message (8), 32 zero bytes; the last 8 calls, each a version that is
// odd while written (8), a tag (8) and the call (48); then per member the newest way to it (8), whether it uses the port
// (4: 0 has not looked, 1 uses it, 2 finished; written by the member), zero (4).
//
// A way lies in its sender's arena:
//
//	0       next way to the same member (8), channel (4)
//	64      how many sleep for a message (4)
//	128     taken: a flag, raised by the receiver with every message it took
//	192     staged: a flag, bytes that the sender has put into memory of the way
//	256     8 slots of 8,320 bytes
//
// A slot is a message. Message k, from 1, is in slot (k-1) modulo 8:
//
//	0       8 bytes: number of the message, once it is there: the slot's flag
//	12      4 bytes: kind: 0 in the slot, 1 at a handle, 2 at an address of the sender's process, 3 through staging memory
//	16      8 bytes: tag: a hash of the call; its lower 16 bits are those of the operation's number
//	24      8 bytes: form
//	32      4 bytes: epoch
//	40      8248 bytes: the message, if it is in the slot
//	8288    8 bytes: claim: 0 open, 1 the sender moves it, 2 the receiver reads it, 3 given up, 4 read; above bit 8, pieces that were moved
//	8296    8 bytes: where it lies
//	8304    8 bytes: where it is moved to
//	8312    8 bytes: bytes staged on the way before it

// What lies in shared memory holds no pointers: places are handles, 0 is none.

const (
	// Eager is how many bytes of a message fit into its slot: 8 KiB and a little,
	// as a longer one costs its sender the wait for the word that it was read,
	// and one in memory that only its owner sees a system call of its receiver.
	// The first 24 of them lie in the line of the slot's flag.
	Eager = slotSize - slotHead - slotTail

	// Depth is how many messages of a way may be under way.
	Depth = 8

	slotSize = 130 * 64
	slotHead = 40
	slotTail = 32
	inLine   = 64 - slotHead // bytes of an eager message in the line of its flag
	depth    = Depth
	buckets  = 512
	recent   = 8  // calls of a port that are remembered
	notes    = 64 // notices under way between two ranks
)

// head is the start of a rank's memory.
type head struct {
	left atomic.Uint64 // 1: the rank said goodbye
	_    [56]byte
	bell wait.Flag // raised with every new way to this rank

	directory [buckets]bucket
	// Then, for every rank, the notices it left here, and bits for those that left some.
}

// bucket is a chain of ports. Only its owner changes it; others may be looking
// at a port that is just taken out, which then is not given back before they
// have gone.
type bucket struct {
	first    atomic.Uint64
	visitors atomic.Int64
}

// noteRing holds notices from one rank to another.
type noteRing struct {
	posted  atomic.Uint64 // by the sender
	_       [56]byte
	taken   atomic.Uint64 // by the receiver
	_       [56]byte
	numbers [notes]uint32
}

// HeadSize is how much memory the head of a rank among size takes.
func HeadSize(size int) int {
	return int(unsafe.Sizeof(head{})) + size*int(unsafe.Sizeof(noteRing{})) + bitBytes(size)
}

// bitBytes is the length of a bit for every rank, in whole lines.
func bitBytes(size int) int { return (size + 511) / 512 * 64 }

// notesFrom is where a rank leaves notices in a head.
func notesFrom(b []byte, rank int) *noteRing {
	return as[noteRing](b[unsafe.Sizeof(head{})+uintptr(rank)*unsafe.Sizeof(noteRing{}):])
}

// bitsOf are the bits of a head: which ranks left notices.
func bitsOf(b []byte, size int) []atomic.Uint64 {
	at := int(unsafe.Sizeof(head{})) + size*int(unsafe.Sizeof(noteRing{}))
	return unsafe.Slice(as[atomic.Uint64](b[at:]), bitBytes(size)/8)
}

// portHead is a rank's part of a port. The words for its members follow it.
type portHead struct {
	id, epoch uint32
	members   uint32
	rank      uint32 // of the owner, in the communicator
	next      atomic.Uint64
	latest    atomic.Uint64 // number of the last call of which a message was sent, 0 if none
	_         [32]byte
	calls     [recent]callSlot // by number
}

// callSlot is a call that can be read while it is replaced: version is odd then.
type callSlot struct {
	version atomic.Uint64
	tag     atomic.Uint64
	words   [transport.CallSize / 8]atomic.Uint64
}

// memberWord is what a port keeps for each member.
type memberWord struct {
	first atomic.Uint64 // the newest way to the member
	state atomic.Uint32 // set by the member
	_     uint32
}

// States of a member towards a port of another.
const (
	stranger uint32 = iota // has not looked
	visiting               // holds pointers into it
	finished               // will not look again
)

func portSize(members int) int {
	return int(unsafe.Sizeof(portHead{})) + members*int(unsafe.Sizeof(memberWord{}))
}

// words are the members' of a port.
func (p *portHead) words() []memberWord {
	return unsafe.Slice((*memberWord)(unsafe.Add(unsafe.Pointer(p), unsafe.Sizeof(portHead{}))), p.members)
}

// way is the messages from one rank to another on a channel.
type way struct {
	next    uint64 // way to the same member
	channel uint32
	_       [52]byte
	asleep  wait.Sleepers // for a message
	taken   wait.Flag     // messages, by the receiver
	staged  wait.Flag     // bytes, by the sender
	slots   [depth]slot
}

// slot is a message. But for the atomics it is written before the message is
// posted and read after it was, and written again after it was taken.
type slot struct {
	number atomic.Uint64 // of the message, from 1, once it is posted: the slot's flag, whose sleepers are counted apart
	_      uint32
	kind   uint32
	tag    atomic.Uint64 // of the call; others than the receiver may look at it at any time
	form   transport.Form
	epoch  atomic.Uint64 // of the call, for whoever looks at the tag
	data   [Eager]byte
	claim  atomic.Uint64 // this and what follows is of a message that is not eager
	where  uint64        // handle or address
	stage  uint64        // handle of where the message is moved to; written before the claim says moving
	base   uint64        // bytes staged on the way before it, if it is copied
}

// posted is the flag that says which message is in the slot.
func (s *slot) posted() *wait.Flag { return (*wait.Flag)(unsafe.Pointer(s)) }

// holds reports whether the message after k others of the way is posted.
func (w *way) holds(k uint64) bool { return w.slots[k%depth].number.Load() > k }

// Kinds of messages.
const (
	eager   uint32 = iota // in the slot
	lent                  // where is a handle
	foreign               // where is an address in the sender's process
	copied                // nowhere but in the stage, which the receiver reads behind the sender
)

// A claim is a state and, from the eighth bit on, how many pieces have been
// moved when the receiver took over.
const (
	open    uint64 = iota // nobody is at it
	moving                // the sender puts it into the stage, piece by piece
	reading               // the receiver is at it: moved pieces in the stage, the others where they lie
	dead                  // the sender gave up; what the receiver read may be wrong
	read                  // the receiver has it

	stateBits = 8
	stateMask = 1<<stateBits - 1
)
