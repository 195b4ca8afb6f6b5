package rendezvous

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/weft-fabric/weft/run/transport/auth"
)

// Kinds of frames in a rendezvous.
const (
	kindStart   = 1 + iota // from 0: all are there; the world
	kindWaiting            // from 0: ranks that have not come
	kindFail               // the rendezvous is broken, and why
	kindBlob               // to 0: what a rank has to say in a round
	kindBlobs              // from 0: what all have said
	kindGone               // from 0: a rank has died, and why
	kindTell               // a word for all
	kindBye                // the sender leaves, and why if it had to
	kindEnd
)

// Limits of what a frame may carry. A blob holds addresses and costs of links,
// tens of bytes for each peer; a word is a short text.
const (
	maxBlob  = 16 << 20
	maxBlobs = 1 << 30
	maxWord  = 64 << 10
)

const headerSize = 16

// writeTime is how long a peer may take to accept a frame.
const writeTime = 10 * time.Second

// frame is what goes over a link: a header of kind, rank, round and length, each
// of four bytes, and the body.
type frame struct {
	kind, rank, round uint32
	body              []byte
}

// limit is the longest body of a kind.
func limit(kind uint32) uint32 {
	switch kind {
	case kindStart:
		return 16
	case kindBlob:
		return maxBlob
	case kindBlobs:
		return maxBlobs
	}
	return maxWord
}

// parseHeader checks a header before anything is allocated for the body.
func parseHeader(b *[headerSize]byte) (f frame, n uint32, err error) {
	le := binary.LittleEndian
	f = frame{kind: le.Uint32(b[0:]), rank: le.Uint32(b[4:]), round: le.Uint32(b[8:])}
	n = le.Uint32(b[12:])
	switch {
	case f.kind == 0 || f.kind >= kindEnd:
		return f, n, fmt.Errorf("frame of unknown kind %d", f.kind)
	case n > limit(f.kind):
		return f, n, fmt.Errorf("frame of kind %d with %d bytes, at most %d are allowed", f.kind, n, limit(f.kind))
	case f.kind == kindStart && n != 16:
		return f, n, fmt.Errorf("start of %d bytes, it has 16", n)
	}
	return f, n, nil
}

// visit says which process dials, and for the how manieth time: a rank that lost its connection may dial again before rank 0
// sees the end of the first one, and is not two processes.
type visit [16]byte

func newVisit(process [8]byte, attempt uint64) (v visit) {
	copy(v[:], process[:])
	binary.LittleEndian.PutUint64(v[8:], attempt)
	return v
}

func visitOf(h auth.Hello) visit { return h.Extra }

func (v visit) process() [8]byte { return [8]byte(v[:8]) }
func (v visit) attempt() uint64  { return binary.LittleEndian.Uint64(v[8:]) }

// link is the connection with one rank.
type link struct {
	conn net.Conn
	by   visit // rank 0: who dialed
	in   bool  // the handshake is complete
	bye  bool  // it has taken its leave
	why  string
	mu   sync.Mutex
}

func (l *link) send(f frame, deadline time.Time) error {
	if uint64(len(f.body)) > uint64(limit(f.kind)) {
		return fmt.Errorf("%d bytes are too many for one frame of the rendezvous, at most %d are allowed", len(f.body), limit(f.kind))
	}
	var h [headerSize]byte
	le := binary.LittleEndian
	le.PutUint32(h[0:], f.kind)
	le.PutUint32(h[4:], f.rank)
	le.PutUint32(h[8:], f.round)
	le.PutUint32(h[12:], uint32(len(f.body)))
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.conn.SetWriteDeadline(deadline); err != nil {
		return err
	}
	_, err := l.conn.Write(append(h[:], f.body...)) // at once: frames are few, and what is sealed goes in one record
	return err
}

// receive reads a frame. The body grows as it comes, so that a length alone
// does not take memory.
func (l *link) receive() (frame, error) {
	var h [headerSize]byte
	if _, err := io.ReadFull(l.conn, h[:]); err != nil {
		return frame{}, err
	}
	f, n, err := parseHeader(&h)
	if err != nil {
		return frame{}, err
	}
	const piece = 1 << 20
	for len(f.body) < int(n) {
		at := len(f.body)
		f.body = append(f.body, make([]byte, min(piece, int(n)-at))...)
		if _, err := io.ReadFull(l.conn, f.body[at:]); err != nil {
			return frame{}, err
		}
	}
	return f, nil
}

// putBlobs writes one blob after another, each after its length.
func putBlobs(blobs [][]byte) []byte {
	n := 0
	for _, b := range blobs {
		n += 4 + len(b)
	}
	out := make([]byte, 0, n)
	for _, b := range blobs {
		out = binary.LittleEndian.AppendUint32(out, uint32(len(b)))
		out = append(out, b...)
	}
	return out
}

func getBlobs(b []byte, n int) ([][]byte, error) {
	out := make([][]byte, n)
	for i := range out {
		if len(b) < 4 {
			return nil, fmt.Errorf("blobs of %d ranks end at rank %d", n, i)
		}
		k := binary.LittleEndian.Uint32(b)
		if b = b[4:]; uint64(k) > uint64(len(b)) {
			return nil, fmt.Errorf("blob of rank %d has %d bytes, %d are there", i, k, len(b))
		}
		out[i], b = b[:k:k], b[k:]
	}
	if len(b) > 0 {
		return nil, fmt.Errorf("%d bytes after the blobs of %d ranks", len(b), n)
	}
	return out, nil
}

func putRanks(ranks []int) []byte {
	ranks = ranks[:min(len(ranks), maxWord/4)]
	out := make([]byte, 0, 4*len(ranks))
	for _, r := range ranks {
		out = binary.LittleEndian.AppendUint32(out, uint32(r))
	}
	return out
}

func getRanks(b []byte, size int) []int {
	var out []int
	for ; len(b) >= 4; b = b[4:] {
		if r := binary.LittleEndian.Uint32(b); r < uint32(size) {
			out = append(out, int(r))
		}
	}
	return out
}
