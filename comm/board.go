package comm

import (
	"encoding/binary"
	"math/bits"
	"sync/atomic"
	"unsafe"

	"github.com/weft-fabric/weft/comm/calls"
	"github.com/weft-fabric/weft/transport"
	"github.com/weft-fabric/weft/transport/wait"
)

// board is a rank's part of a communicator in memory that the others see. Only
// its owner writes to it, but for word of failures and for what an heir does
// for a rank that died.
//
//	entry     of the last 64 operations: flag (16 bytes), signature, mode, 96 bytes of data or handles
//	call      of the last 64 operations and when they began; on which processor the rank was seen last
//	mid       sums are there; where
//	leave     done with everybody else's memory
//	staged    pieces of inputs that were copied to stages since the communicator was made (grow.go)
//	waiting   whose message is waited for: by the operation, by sends and receives
//	shrink    what the rank proposes (shrink.go)
//	word      of a failure, left by another rank (failure.go)
//	let go    who no longer uses this board, a bit a rank
//	sleepers  how many sleep for one of its flags
//	steps     of a trade that are done (trade.go), or where the input is staged instead
//	small     inputs of the last 16 operations
//
// Lines that others read are 128 bytes apart: processors fetch them in pairs, and
// a line that is written next would be taken along.
//
// What is written for one operation is written again for a later one, 64 after it
// or 16 (ahead.go says why that is safe).
type board []byte

const (
	maxAhead   = 64 // entries and calls
	smallAhead = 16 // small inputs
	smallSize  = 4096
	inlineSize = 96
	entryData  = 128 - inlineSize // where data begin

	atEntry    = 0
	atCall     = atEntry + 128*maxAhead
	atPlace    = atCall + 56
	atMid      = atCall + 64*maxAhead
	atLeave    = atMid + 128
	atStaged   = atLeave + 128
	atWaiting  = atStaged + 128
	atShrink   = atWaiting + 64
	atWord     = atShrink + 192
	atLetGo    = atWord + wordLen
	atSleepers = atLetGo + 192
	atSteps    = atSleepers + 128
	atSmall    = atSteps + 64
	boardSize  = atSmall + smallAhead*smallSize
)

// entry is that of an operation. Entries do not follow one another in memory: a
// processor that sees a regular step fetches what comes next, here what another
// rank is about to write, and an all-reduce of 8 bytes takes 50 ns longer.
func (b board) entry(seq uint64) board { return b.entryAt(entryAt(seq)) }

// entryAt is where the entry of an operation lies on every board.
func entryAt(seq uint64) int { return atEntry + 128*(int(bits.Reverse8(uint8(seq)))*maxAhead/256) }

func (b board) entryAt(at int) board { return b[at:][:128] }

func (b board) flag() *wait.Flag      { return wait.At(b) }
func (b board) call(seq uint64) board { return b[atCall+64*(seq%maxAhead):][:64] }
func (b board) mid() board            { return b[atMid:][:64] }
func (b board) leave() *wait.Flag     { return wait.At(b[atLeave:]) }
func (b board) stepLine() board       { return b[atSteps:][:64] }
func (b board) steps() *wait.Flag     { return b.stepLine().flag() }
func (b board) staged() *wait.Flag    { return wait.At(b[atStaged:]) }
func (b board) sleepers() *wait.Sleepers {
	return wait.SleepersAt(b[atSleepers:])
}
func (b board) small(seq uint64) board { return b[atSmall+smallSize*(seq%smallAhead):][:smallSize] }

// word is a number of a line, behind the flag.
func (b board) word(i int) *uint64 { return (*uint64)(unsafe.Pointer(&b[16+8*i])) }

// waitsFor tells the others whose message, or whose room for one, this rank
// waits for, at which action of which channel; nobody's if rank is negative.
func (b board) waitsFor(rank, channel, at int) {
	wait.Release(atomicAt(b, atWaiting), uint64(uint32(rank+1))|uint64(uint16(channel))<<32|uint64(uint16(at))<<48)
}

func (b board) waiting() (rank, channel, at int) {
	v := atomicAt(b, atWaiting).Load()
	return int(uint32(v)) - 1, int(uint16(v >> 32)), int(uint16(v >> 48))
}

// pairsFor tells the others whose message, or whose room for one, a send or
// receive of this rank waits for; nobody's if rank is negative.
func (b board) pairsFor(rank int) { atomicAt(b, atWaiting+8).Store(uint64(rank + 1)) }

func (b board) pairing() int { return int(atomicAt(b, atWaiting+8).Load()) - 1 }

// called gives the call that a rank entered last, and when, in nanoseconds of
// the host's clock.
func (b board) called() (c calls.Call, began int64, ok bool) {
	seq := b.entered()
	if seq == 0 {
		return c, 0, false
	}
	return b.callOf(seq)
}

// entered is the last operation that the owner entered, 0 if there was none.
func (b board) entered() (seq uint64) {
	for k := range uint64(maxAhead) {
		seq = max(seq, b.entry(k).flag().Load())
	}
	return seq
}

// sig is the signature of an entry, which others may look at while it is
// written for a later operation.
func (b board) sig() *atomic.Uint64 { return atomicAt(b, 16+8*wordSig) }

func (b board) callOf(seq uint64) (c calls.Call, began int64, ok bool) {
	line := b.call(seq)
	c.Get(line)
	return c, int64(atomicAt(line, transport.CallSize).Load()), c.Seq == seq
}

// setCall writes down what the owner is about to do, before its flag is raised.
func (b board) setCall(c *calls.Call, began int64) {
	c.Put(b.call(c.Seq))
	b.setBegan(c.Seq, began)
}

// setBegan writes down when an operation began, which others may learn later
// than that it did.
func (b board) setBegan(seq uint64, began int64) {
	wait.Release(atomicAt(b.call(seq), transport.CallSize), uint64(began))
}

// place is the processor on which the owner was last seen; the zero value is none.
func (b board) place() uint32 { return uint32(atomicAt(b, atPlace).Load()) - 1 }

func (b board) setPlace(cpu uint32) { wait.Release(atomicAt(b, atPlace), uint64(cpu)+1) }

// The modes of an entry, in its first word behind the signature.
const (
	inNowhere = iota // nobody reads this rank's input
	inEntry          // it is in the entry line
	inSmall          // in the board
	inStage          // copied to where the handle says
	inPlain          // it is the user's buffer, seen by all
	inPulled         // it is the user's buffer, at an address of its process
	inSlots          // by pieces, to where the handle says

	inMask     = 0xff
	outSeen    = 1 << 8  // out can be stored to by the others, at the second handle
	overlaid   = 1 << 9  // in and out overlap
	once       = 1 << 10 // the stage is used by every operation, not by every other
	growing    = 1 << 11 // the stage is being filled, piece after piece
	pooled     = 1 << 12 // of the root: if out cannot be stored to, every rank leaves its share of the sums where the root sees them
	wordSig    = 0
	wordMode   = 1
	wordIn     = 2
	wordOut    = 3
	wordBase   = 3 // of a growing stage: pieces that were staged before it
	wordResult = 0 // of the mid line: where the sums are
	wordLog    = 1 // and where the journal is
	wordStage  = 0 // of the line of steps: where the input is
)

// signature is a number that two calls share only if they are the same call, up
// to one chance in 2^64.
func signature(c *calls.Call) uint64 { return numbered(unnumbered(c), c.Seq) }

// unnumbered is the part of a signature that does not depend on the call's number.
func unnumbered(c *calls.Call) uint64 {
	h := numbered(uint64(c.Epoch)<<32|uint64(c.Comm), c.Program)
	h = numbered(h, uint64(c.Op)|uint64(c.Variant)<<8|uint64(c.Type)<<16|uint64(c.Reduce)<<24|uint64(uint32(c.Root))<<32)
	return numbered(h, c.Count)
}

// numbered mixes a number in.
func numbered(h, v uint64) uint64 {
	h = (h ^ v) * 0x9E3779B97F4A7C15
	return h ^ h>>32
}

// atomicAt is a word of shared memory.
func atomicAt(b []byte, at int) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&b[at])) }

// letGo says that a rank will not look at the board any more.
func (b board) letGo(rank int) {
	if at, bit := letGoBit(rank); bit != 0 {
		atomicAt(b, at).Or(bit)
	}
}

func (b board) isLetGo(rank int) bool {
	at, bit := letGoBit(rank)
	return bit != 0 && atomicAt(b, at).Load()&bit != 0
}

// letGoBit is where a rank says so. Ranks from 1,536 on have no bit: the boards
// of groups that large are kept until their ranks are gone.
func letGoBit(rank int) (at int, bit uint64) {
	if at = atLetGo + rank/64*8; at >= atSleepers {
		return atLetGo, 0
	}
	return at, 1 << (rank % 64)
}

// A blob is what a rank tells the others about its board.
const blobSize = 16

func putBlob(b []byte, h transport.Handle, k transport.Key) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(h))
	return binary.LittleEndian.AppendUint64(b, uint64(k))
}

func getBlob(b []byte) (transport.Handle, transport.Key) {
	return transport.Handle(binary.LittleEndian.Uint64(b)), transport.Key(binary.LittleEndian.Uint64(b[8:]))
}
