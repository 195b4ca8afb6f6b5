// Package board is a rank's state as the communicator's other ranks see it: what it calls, how far it is, whom it waits for. In
// shared memory all ranks map it; over tcp they read it one-sidedly to find out why a call takes long.
//
// The layout, in bytes. Only the owner writes to its board, except where the table says otherwise.
//
//	offset  bytes  what       contents                                           read by                  written again
//	     0   8192  entries    64 lines of 128: flag (16), signature, entry       ranks that read its      64 operations later
//	                          word, two handles or 96 bytes of input             input; all in Wait
//	  8192   4096  calls      64 lines of 64: call (48), when it began;          whoever finds a          64 operations later
//	                          line 0 also: the processor the rank was seen on    mismatch or a delay
//	 12288    128  mid        flag: the sums are there; where; where its         all, in commit and pool  next operation
//	                          journal is                                         and heirs
//	 12416    128  leave      flag: done with everybody's memory. An heir        ranks whose memory it    next operation
//	                          raises it for a rank that died                     used
//	 12544    128  staged     flag: pieces of inputs copied to stages            its readers              never: it counts up
//	 12672     64  waiting    whose message is waited for: by the operation, by  whoever asks why a call  any time
//	                          a send or receive; and which rank made a call      takes long; the owner
//	                          that is wrong in itself, which that rank writes
//	 12736   3328  shrink     what the rank wants and proposes, and whom it      survivors                next epoch: new board
//	                          reaches; its vote and what it is asked to vote
//	                          for, which all write
//	 16064    256  notice     of a failure. The first rank to find 0 there       the owner                never
//	                          writes it. Also which operation was given up
//	 16320    192  let go     a bit a rank: it no longer uses this board. Every  the owner                never
//	                          rank sets its own
//	 16512    128  sleepers   how many ranks sleep for one of its flags          the owner                any time
//	 16640    128  steps      flag: steps of an exchange by pieces; or where     the other rank           next operation
//	                          the input is staged instead
//	 16768  65536  small      16 inputs of up to 4 KiB                           its readers              16 operations later
//	 82304   2048  forms      64 lines of 32: the digest of a program, which     ranks that run the       never
//	                          rank finds its form for all, where and how long.   program
//	                          On the first rank's board; the finder writes it
//
// Lines that others read are 128 bytes apart, because CPUs prefetch pairs of cache lines. The window (package shared) guards
// reuse: a rank overwrites an earlier operation's line only once all ranks have entered a later one.
package board

import (
	"encoding/binary"
	"hash/fnv"
	"math/bits"
	"sync/atomic"
	"unsafe"

	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/wait"
)

// Board is a rank's board.
type Board []byte

// How much a board holds.
const (
	Window      = 64   // entries and calls
	SmallWindow = 16   // small inputs
	SmallSize   = 4096 // bytes of a small input
	InlineSize  = 96   // bytes of an input in an entry line
)

const (
	atEntries  = 0
	atCalls    = atEntries + lineSize*Window
	atCPU      = atCalls + callSize + 8
	atMid      = atCalls + callLine*Window
	atLeave    = atMid + lineSize
	atStaged   = atLeave + lineSize
	atWaiting  = atStaged + lineSize
	atShrink   = atWaiting + 64
	atNotice   = atShrink + shrinkSize
	atLetGo    = atNotice + noticeSize
	atSleepers = atLetGo + 192
	atSteps    = atSleepers + lineSize
	atSmall    = atSteps + lineSize

	lineSize   = 128
	shrinkSize = 3328
	callLine   = 64
	callSize   = transport.CallSize

	atForms   = atSmall + SmallWindow*SmallSize
	formSlots = 64
	formSize  = 32

	// Size is the length of a board.
	Size = atForms + formSlots*formSize
	// ShortSize is its length without the small inputs: what is read to find out what a rank does.
	ShortSize = atSmall
)

// layout lists the offsets and sizes, for Hash and for a test that holds the table above to them.
var layout = []uint64{atEntries, atCalls, atMid, atLeave, atStaged, atWaiting, atShrink, atNotice, atLetGo, atSleepers, atSteps, atSmall,
	atForms, formSlots, formSize, Size,
	Window, SmallWindow, SmallSize, InlineSize, atCPU, callSize, wordSig, wordEntry, wordIn, wordOut, wordData,
	noticeGiven, noticeOwn, noticeKind, shrinkVote, shrinkOwn, shrinkText, shrinkSees, shrinkMost, recordSlots, recordSize, recordChosen,
	recordID, recordSum, recordSet}

// Hash is a number that changes with the layout. Ranks compare it before they share memory: two builds that lay their boards
// out differently would compute wrong results.
func Hash() uint64 {
	h := fnv.New64a()
	for _, v := range layout {
		_, _ = h.Write(binary.LittleEndian.AppendUint64(nil, v))
	}
	return h.Sum64()
}

// Line is a line of a board that begins with a flag.
type Line []byte

// Flag is the flag at the beginning of a line.
func (l Line) Flag() *wait.Flag { return wait.At(l) }

// The words of a line behind its flag.
const (
	wordSig   = 0 // of an entry: the signature
	wordEntry = 1 // the entry word (plan.Entry)
	wordIn    = 2 // where the input is
	wordOut   = 3 // where the output is; of a growing stage, the pieces that were staged before it
	wordData  = 2 // where an input in the line begins
	wordWhere = 0 // of mid and steps: where sums or the staged input are
	wordLog   = 1 // of mid: where the journal is
)

func (l Line) word(i int) *uint64 { return (*uint64)(unsafe.Pointer(&l[16+8*i])) }

// Sig is the signature of an entry whose flag was seen.
func (l Line) Sig() uint64 { return *l.word(wordSig) }

// LoadSig is the signature of an entry that may be written for a later operation meanwhile.
func (l Line) LoadSig() uint64 { return atomicAt(l, 16+8*wordSig).Load() }

// SetSig writes the signature.
func (l Line) SetSig(sig uint64) { wait.Release(atomicAt(l, 16+8*wordSig), sig) }

// Entry is the entry word; SetEntry writes it.
func (l Line) Entry() uint64     { return *l.word(wordEntry) }
func (l Line) SetEntry(v uint64) { *l.word(wordEntry) = v }

// In is where the input is; SetIn writes it.
func (l Line) In() uint64     { return *l.word(wordIn) }
func (l Line) SetIn(v uint64) { *l.word(wordIn) = v }

// Out is where the output is, or of a growing stage the pieces before it; SetOut writes it.
func (l Line) Out() uint64     { return *l.word(wordOut) }
func (l Line) SetOut(v uint64) { *l.word(wordOut) = v }

// Data is the place for an input in an entry line.
func (l Line) Data() []byte { return l[16+8*wordData:] }

// DataAt is the offset of that place in the line.
const DataAt = 16 + 8*wordData

// Where is where sums or a staged input are, in the lines mid and steps; SetWhere writes it.
func (l Line) Where() transport.Handle     { return transport.Handle(atomic.LoadUint64(l.word(wordWhere))) }
func (l Line) SetWhere(h transport.Handle) { atomic.StoreUint64(l.word(wordWhere), uint64(h)) }

// Journal is where the rank's journal is, in the line mid; SetJournal writes it.
func (l Line) Journal() transport.Handle     { return transport.Handle(*l.word(wordLog)) }
func (l Line) SetJournal(h transport.Handle) { *l.word(wordLog) = uint64(h) }

// Entry is the entry line of an operation.
func (b Board) Entry(seq uint64) Line { return b.EntryAt(EntryOffset(seq)) }

// EntryOffset is where the entry of an operation lies on every board. Entries do not follow one another in memory: a processor
// that sees a regular step fetches what comes next, here what another rank is about to write, and an all-reduce of 8 bytes
// takes 50 ns longer.
func EntryOffset(seq uint64) int {
	return atEntries + lineSize*(int(bits.Reverse8(uint8(seq)))*Window/256)
}

// EntryAt is the entry line at an offset.
func (b Board) EntryAt(at int) Line { return Line(b[at:][:lineSize]) }

// Entered is the last operation that the owner entered, 0 if there was none.
func (b Board) Entered() (seq uint64) {
	for k := range uint64(Window) {
		seq = max(seq, b.Entry(k).Flag().Load())
	}
	return seq
}

// Call is where the call of an operation is written.
func (b Board) Call(seq uint64) []byte { return b[atCalls+callLine*(seq%Window):][:callLine] }

// Enter writes the call of an operation, which others may look at now, and that its owner has entered it.
func (b Board) Enter(seq uint64, call *[callSize]byte) {
	wait.ReleaseAll(b.Call(seq), call[:])
	b.Entry(seq).Flag().Set(seq)
}

// Began is when an operation began, in ticks of its host.
func (b Board) Began(seq uint64) int64 { return int64(atomicAt(b.Call(seq), callSize).Load()) }

// SetBegan writes down when an operation began, which others may learn later than that it did.
func (b Board) SetBegan(seq uint64, began int64) {
	wait.Release(atomicAt(b.Call(seq), callSize), uint64(began))
}

// CPU is the processor on which the owner was last seen; the zero value of a board is none.
func (b Board) CPU() uint32 { return uint32(atomicAt(b, atCPU).Load()) - 1 }

// SetCPU writes down on which processor the owner is.
func (b Board) SetCPU(cpu uint32) { wait.Release(atomicAt(b, atCPU), uint64(cpu)+1) }

// Mid is the line of sums.
func (b Board) Mid() Line { return Line(b[atMid:][:64]) }

// Leave is the flag of a rank that is done with everybody's memory.
func (b Board) Leave() *wait.Flag { return wait.At(b[atLeave:]) }

// Staged is the flag that counts pieces of inputs that were copied to stages.
func (b Board) Staged() *wait.Flag { return wait.At(b[atStaged:]) }

// Steps is the line of an exchange by pieces.
func (b Board) Steps() Line { return Line(b[atSteps:][:64]) }

// Sleepers counts the ranks that sleep for one of the board's flags.
func (b Board) Sleepers() *wait.Sleepers { return wait.SleepersAt(b[atSleepers:]) }

// Small is the place of an operation's small input.
func (b Board) Small(seq uint64) []byte { return b[atSmall+SmallSize*(seq%SmallWindow):][:SmallSize] }

// WaitsFor tells the others whose message, or whose room for one, the operation waits for, at which action of which channel;
// nobody's if rank is negative.
func (b Board) WaitsFor(rank, channel, at int) {
	wait.Release(atomicAt(b, atWaiting), uint64(uint32(rank+1))|uint64(uint16(channel))<<32|uint64(uint16(at))<<48)
}

// Waiting is what WaitsFor told.
func (b Board) Waiting() (rank, channel, at int) {
	v := atomicAt(b, atWaiting).Load()
	return int(uint32(v)) - 1, int(uint16(v >> 32)), int(uint16(v >> 48))
}

// PairsWith tells the others whose message, or whose room for one, a send or receive waits for; nobody's if rank is negative.
func (b Board) PairsWith(rank int) { atomicAt(b, atWaiting+8).Store(uint64(rank + 1)) }

// Pairing is what PairsWith told.
func (b Board) Pairing() int { return int(atomicAt(b, atWaiting+8).Load()) - 1 }

// Refusal is word of a rank whose call was wrong in itself: which operation it would have been.
func Refusal(rank int, seq uint64) uint64 { return uint64(uint16(rank+1)) | seq<<16 }

// RefusalAt is where that word lies.
const RefusalAt = atWaiting + 16

// Refuse leaves the word of another rank.
func (b Board) Refuse(word uint64) { atomicAt(b, RefusalAt).Store(word) }

// Refused is the word that was left last; seq is 0 if there is none.
func (b Board) Refused() (rank int, seq uint64) {
	v := atomicAt(b, RefusalAt).Load()
	return int(uint16(v)) - 1, v >> 16
}

// LetGo says that a rank will not look at the board any more.
func (b Board) LetGo(rank int) {
	if at, bit := LetGoBit(rank); bit != 0 {
		atomicAt(b, at).Or(bit)
	}
}

// IsLetGo reports whether a rank said so.
func (b Board) IsLetGo(rank int) bool {
	at, bit := LetGoBit(rank)
	return bit != 0 && atomicAt(b, at).Load()&bit != 0
}

// AnyLetGo reports whether any of that many ranks said so.
func (b Board) AnyLetGo(ranks int) bool {
	for at := atLetGo; at < atSleepers && ranks > 0; at, ranks = at+8, ranks-64 {
		if atomicAt(b, at).Load() != 0 {
			return true
		}
	}
	return false
}

// LetGoBit is where a rank says so. Ranks from 1,536 on have no bit: the boards of groups that large are kept until their
// ranks are gone.
func LetGoBit(rank int) (at int, bit uint64) {
	if at = atLetGo + rank/64*8; at >= atSleepers {
		return atLetGo, 0
	}
	return at, 1 << (rank % 64)
}

// atomicAt is a word of shared memory.
func atomicAt(b []byte, at int) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&b[at])) }

// Address is where a board lies for the other ranks.
type Address struct {
	Handle transport.Handle // where memory is shared
	Key    transport.Key    // for one-sided reads and writes
}

// AddressSize is the length of an encoded address.
const AddressSize = 16

// Append encodes the address.
func (a Address) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(a.Handle))
	return binary.LittleEndian.AppendUint64(b, uint64(a.Key))
}

// AddressIn decodes what Append wrote.
func AddressIn(b []byte) Address {
	return Address{transport.Handle(binary.LittleEndian.Uint64(b)), transport.Key(binary.LittleEndian.Uint64(b[8:]))}
}
