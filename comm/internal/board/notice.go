package board

import (
	"encoding/binary"
	"sync/atomic"

	"github.com/weft-fabric/weft/transport/wait"
)

// Notice is word of a failure that a rank leaves with the others, on their boards.
type Notice struct {
	From     int // the rank that wrote it
	Kind     uint64
	Seq      uint64
	Culprits []int // the first eight
	Text     string
}

// A notice on a board: the writer's rank plus one (0: none, Writing: it is being written), kind, operation, culprits plus
// one, length of the text, text.
const (
	noticeSize   = 256
	noticeKind   = 8
	noticeSeq    = 16
	noticeRanks  = 24
	maxCulprits  = 8
	noticeLength = noticeRanks + 4*maxCulprits
	noticeText   = noticeLength + 2
)

const (
	// NoticeAt is where the first word of a notice lies: the rank that wrote it.
	NoticeAt = atNotice
	// NoticeBody is where the rest of it lies.
	NoticeBody = atNotice + 8
	// Writing stands in the first word while a notice is written.
	Writing = 1 << 32
)

// Body encodes a notice but for its first word.
func (n *Notice) Body() []byte {
	b := make([]byte, noticeSize)
	le := binary.LittleEndian
	le.PutUint64(b[noticeKind:], n.Kind)
	le.PutUint64(b[noticeSeq:], n.Seq)
	for i, r := range n.Culprits[:min(len(n.Culprits), maxCulprits)] {
		le.PutUint32(b[noticeRanks+4*i:], uint32(r+1))
	}
	le.PutUint16(b[noticeLength:], uint16(copy(b[noticeText:], n.Text)))
	return b[8:]
}

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
	x := Notice{From: int(from - 1), Kind: le.Uint64(line[noticeKind:]), Seq: le.Uint64(line[noticeSeq:])}
	for i := range maxCulprits {
		if r := int(le.Uint32(line[noticeRanks+4*i:])); r > 0 && r <= n {
			x.Culprits = append(x.Culprits, r-1)
		}
	}
	x.Text = string(line[noticeText:][:min(int(le.Uint16(line[noticeLength:])), noticeSize-noticeText)])
	return x, true
}
