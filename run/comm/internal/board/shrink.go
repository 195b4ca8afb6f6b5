package board

import (
	"encoding/binary"
	"hash/fnv"

	"github.com/weft-fabric/weft/run/transport"
)

// The words of the shrink lines. The owner writes what it wants and the record that it proposes. Everybody changes the vote by
// compare and swap, and writes the record that is voted for: see package comm, shrink.go.
const (
	wantEpoch  = atShrink                            // the epoch that the rank wants to begin
	wantHandle = atShrink + 8                        // its board there
	wantKey    = atShrink + 16                       // and the board's key
	shrinkVote = atShrink + 24                       // a Vote
	shrinkOwn  = atShrink + 32                       // a Record: what the owner proposes, or knows to be chosen
	shrinkText = shrinkOwn + recordSize              // Records: what others ask it to vote for, a slot for each candidate
	shrinkSees = shrinkText + recordSlots*recordSize // the ranks that the owner reaches, a bit a rank; the own one once it has looked
	shrinkMost = shrinkSees + MaxShrink/8            // how many ranks the largest group has that the owner knows of

	recordBallot = 0  // of the proposal
	recordChosen = 8  // the ballot by which it was found to be chosen; 0 if that is not known
	recordID     = 16 // the communicator's number
	recordSum    = 24 // of ballot, number and ranks
	recordSet    = 32 // the ranks that are in, a bit a rank
	recordSize   = 176

	// Candidates have slots of their own, so that one whose word comes late does not write over what the board has accepted of
	// another. They are the lowest of the ranks that live: only candidates that are this far apart share a slot.
	recordSlots = 16

	// MaxShrink is how many ranks a decision has bits for.
	MaxShrink = (recordSize - recordSet) * 8

	// VoteAt is where the vote lies.
	VoteAt = shrinkVote
)

// RecordAt is where a candidate writes the record that it asks for.
func RecordAt(candidate int) int { return shrinkText + recordSize*(candidate%recordSlots) }

// Propose says that the rank wants to begin an epoch, and where its next board is.
func (b Board) Propose(epoch uint64, next Address) {
	atomicAt(b, wantHandle).Store(uint64(next.Handle))
	atomicAt(b, wantKey).Store(uint64(next.Key))
	atomicAt(b, wantEpoch).Store(epoch)
}

// Proposes reports whether the rank wants to begin an epoch.
func (b Board) Proposes(epoch uint64) bool { return atomicAt(b, wantEpoch).Load() == epoch }

// Next is where the rank's next board is.
func (b Board) Next() Address {
	return Address{transport.Handle(atomicAt(b, wantHandle).Load()), transport.Key(atomicAt(b, wantKey).Load())}
}

// SetSees says which ranks the owner reaches, and how many the largest group has that it knows of in which every two reach each other.
func (b Board) SetSees(ranks [MaxShrink / 64]uint64, most int) {
	atomicAt(b, shrinkMost).Store(uint64(most))
	for i, w := range ranks {
		atomicAt(b, shrinkSees+8*i).Store(w)
	}
}

// Sees reports whether the owner reaches a rank. It is not known before the owner sees itself.
func (b Board) Sees(rank int) bool {
	return atomicAt(b, shrinkSees+8*(rank/64)).Load()>>(rank%64)&1 != 0
}

// Most is how many ranks the largest group has that the owner knows of.
func (b Board) Most() int { return int(atomicAt(b, shrinkMost).Load()) }

// Ballot numbers the attempts of ranks to have a proposal chosen; 0 is none.
type Ballot uint32

const ballotBits = 32

// Vote is what a board has promised and accepted: it takes part in no ballot below Promised, and Accepted is the last in which it
// accepted the record that was written on it.
type Vote struct{ Promised, Accepted Ballot }

// Word is the vote as it stands on the board.
func (v Vote) Word() uint64 { return uint64(v.Promised)<<ballotBits | uint64(v.Accepted) }

// VoteOf is the vote that a word holds.
func VoteOf(word uint64) Vote {
	return Vote{Ballot(word >> ballotBits), Ballot(word & (1<<ballotBits - 1))}
}

// Vote is the board's vote.
func (b Board) Vote() Vote { return VoteOf(atomicAt(b, shrinkVote).Load()) }

// SwapVote changes the vote from what it was, and gives what it was indeed.
func (b Board) SwapVote(was, next Vote) (found Vote) {
	if atomicAt(b, shrinkVote).CompareAndSwap(was.Word(), next.Word()) {
		return was
	}
	return b.Vote()
}

// Record is a proposal: which ranks are in.
type Record struct {
	Ballot Ballot
	Chosen Ballot // 0 if it is not known to be chosen
	ID     uint32 // the communicator's number
	In     [MaxShrink / 64]uint64
}

// Has reports whether a rank is in.
func (r *Record) Has(rank int) bool { return r.In[rank/64]>>(rank%64)&1 != 0 }

// Add puts a rank in.
func (r *Record) Add(rank int) { r.In[rank/64] |= 1 << (rank % 64) }

// Encode gives the record as it stands on a board.
func (r *Record) Encode() []byte {
	b := make([]byte, recordSize)
	le := binary.LittleEndian
	le.PutUint64(b[recordBallot:], uint64(r.Ballot))
	le.PutUint64(b[recordChosen:], uint64(r.Chosen))
	le.PutUint64(b[recordID:], uint64(r.ID))
	for i, w := range r.In {
		le.PutUint64(b[recordSet+8*i:], w)
	}
	le.PutUint64(b[recordSum:], recordHash(b))
	return b
}

func recordHash(b []byte) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(b[:recordSum])
	_, _ = h.Write(b[recordSet:])
	return h.Sum64() | 1 // a board of zeros has no record
}

// Own is the record that the owner proposes or knows to be chosen; false if there is none, or it is being written.
func (b Board) Own() (Record, bool) { return b.record(shrinkOwn) }

// Record is the record that a candidate asked the owner to vote for last; false if there is none, or it is being written. It may
// be that of a candidate with the same slot.
func (b Board) Record(candidate int) (Record, bool) { return b.record(RecordAt(candidate)) }

// Chosen is a record on the board that is known to be chosen: all of them are about the same ranks, as one of a later ballot is.
func (b Board) Chosen() (Record, bool) {
	for at := shrinkOwn; at < shrinkText+recordSlots*recordSize; at += recordSize {
		if atomicAt(b, at+recordChosen).Load() == 0 {
			continue
		}
		if r, ok := b.record(at); ok && r.Chosen > 0 && r.Ballot >= r.Chosen {
			return r, true
		}
	}
	return Record{}, false
}

func (b Board) record(at int) (r Record, ok bool) {
	var text [recordSize]byte
	for i := 0; i < recordSize; i += 8 {
		binary.LittleEndian.PutUint64(text[i:], atomicAt(b, at+i).Load())
	}
	return DecodeRecord(text[:])
}

// DecodeRecord is a record that Encode made; false if it is none.
func DecodeRecord(text []byte) (r Record, ok bool) {
	le := binary.LittleEndian
	if len(text) != recordSize {
		return r, false
	}
	if le.Uint64(text[recordSum:]) != recordHash(text) {
		return r, false
	}
	r = Record{Ballot: Ballot(le.Uint64(text[recordBallot:])), Chosen: Ballot(le.Uint64(text[recordChosen:])),
		ID: uint32(le.Uint64(text[recordID:]))}
	for i := range r.In {
		r.In[i] = le.Uint64(text[recordSet+8*i:])
	}
	return r, true
}

// WriteOwn writes an encoded record of the owner, WriteRecord one of a candidate.
func (b Board) WriteOwn(text []byte)                   { b.writeRecord(shrinkOwn, text) }
func (b Board) WriteRecord(candidate int, text []byte) { b.writeRecord(RecordAt(candidate), text) }

func (b Board) writeRecord(at int, text []byte) {
	for i := 0; i < recordSize; i += 8 {
		atomicAt(b, at+i).Store(binary.LittleEndian.Uint64(text[i:]))
	}
}
