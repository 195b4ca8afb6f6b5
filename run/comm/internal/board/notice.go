package board

import (
	"encoding/binary"
	"sync/atomic"

	"github.com/weft-fabric/weft/run/transport/wait"
)

// Notice is word of a failure that a rank leaves with the others, on their boards.
type Notice struct {
	From     int // the rank that found out
	Kind     uint64
	Seq      uint64
	Culprits []int // the first eight
	Text     string
	Parted   bool // the culprit was lost with a link, and may live
}

// A notice on a board: the writer's rank plus one (0: none, Writing: it is being written), the first operation that another
// rank gave up, the operation that the owner gave up, kind, operation, culprits plus one, length of the text, text.
const (
	noticeSize   = 256
	noticeGiven  = 8
	noticeOwn    = 16
	noticeKind   = 24
	noticeSeq    = 32
	noticeRanks  = 40
	maxCulprits  = 8
	noticeLength = noticeRanks + 4*maxCulprits
	noticeText   = noticeLength + 2
)

const (
	// NoticeAt is where the first word of a notice lies: the rank that wrote it.
	NoticeAt = atNotice
	// NoticeBody is where the rest of it lies.
	NoticeBody = atNotice + noticeKind
	// Writing stands in the first word while a notice is written.
	Writing = 1 << 32

	noticeParted = 1 << 32 // in the kind
)

// Body encodes a notice but for its first word.
func (n *Notice) Body() []byte {
	b := make([]byte, noticeSize)
	le := binary.LittleEndian
	kind := n.Kind
	if n.Parted {
		kind |= noticeParted
	}
	le.PutUint64(b[noticeKind:], kind)
	le.PutUint64(b[noticeSeq:], n.Seq)
	for i, r := range n.Culprits[:min(len(n.Culprits), maxCulprits)] {
		le.PutUint32(b[noticeRanks+4*i:], uint32(r+1))
	}
	le.PutUint16(b[noticeLength:], uint16(copy(b[noticeText:], n.Text)))
	return b[noticeKind:]
}

// Giving an operation up. A rank that returns an error from an operation says so on every board of the group before it returns:
// from then on its user may change the memory that other ranks read in that operation. A rank that reads memory of other ranks'
// users looks at its own board after the last read. If nobody had given the operation up by then, all that it read was as its
// owner entered it.

// given is the word of a rank that gives an operation up.
func given(rank int, seq uint64) uint64 { return seq<<16 | uint64(uint16(rank+1)) }

// GiveUp says on another rank's board that a rank gave an operation up. The first operation that anybody gave up stays.
func (b Board) GiveUp(rank int, seq uint64) {
	w, next := atomicAt(b, atNotice+noticeGiven), given(rank, seq)
	for {
		was := w.Load()
		if was != 0 && was <= next || w.CompareAndSwap(was, next) {
			return
		}
	}
}

// GivenUp tells which rank gave up an operation up to seq, or one of those before it; -1 if none did. What was read before the
// call was read before the answer: that takes an instruction that writes, as a load would not hold back earlier loads everywhere.
func (b Board) GivenUp(seq uint64) (rank int) {
	return givenTo(atomicAt(b, atNotice+noticeGiven).Add(0), seq)
}

// WasGivenUp is GivenUp for a rank that has read nothing yet.
func (b Board) WasGivenUp(seq uint64) (rank int) {
	return givenTo(atomicAt(b, atNotice+noticeGiven).Load(), seq)
}

// givenTo is the rank of a word that is about an operation up to seq, else -1.
func givenTo(w, seq uint64) (rank int) {
	if w == 0 || w>>16 > seq {
		return -1
	}
	return int(uint16(w)) - 1
}

// Quit says on the own board that its owner returned an error from an operation, and does nothing in it any more.
func (b Board) Quit(seq uint64) { atomicAt(b, atNotice+noticeOwn).Store(seq) }

// HasQuit reports whether the owner said so.
func (b Board) HasQuit() bool { return atomicAt(b, atNotice+noticeOwn).Load() != 0 }

// NoticeWord is the first word of the board's notice: 0 if there is none.
func (b Board) NoticeWord() *atomic.Uint64 { return atomicAt(b, atNotice) }

// Leave writes a notice, if there is none yet.
func (n *Notice) Leave(b Board, body []byte) {
	if from := b.NoticeWord(); from.CompareAndSwap(0, Writing) {
		wait.ReleaseAll(b[NoticeBody:], body)
		from.Store(uint64(n.From + 1))
	}
}

// Notice reads the notice that another rank of n left; false if there is none.
func (b Board) Notice(n int) (Notice, bool) {
	line := b[atNotice:][:noticeSize]
	from := b.NoticeWord().Load()
	if from == 0 || from > uint64(n) {
		return Notice{}, false
	}
	le := binary.LittleEndian
	kind := le.Uint64(line[noticeKind:])
	x := Notice{From: int(from - 1), Kind: kind &^ noticeParted, Seq: le.Uint64(line[noticeSeq:]), Parted: kind&noticeParted != 0}
	for i := range maxCulprits {
		if r := int(le.Uint32(line[noticeRanks+4*i:])); r > 0 && r <= n {
			x.Culprits = append(x.Culprits, r-1)
		}
	}
	x.Text = string(line[noticeText:][:min(int(le.Uint16(line[noticeLength:])), noticeSize-noticeText)])
	return x, true
}
