package rendezvous

import (
	"encoding/binary"
	"fmt"
	"sync"
	"time"

	"github.com/weft-fabric/weft/run/transport/auth"
	"github.com/weft-fabric/weft/run/transport/record"
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

// writeTime is how long a peer may take to accept a frame.
const writeTime = 10 * time.Second

// frame is what goes over a link: a record whose call is the round of gathering and whose number is a rank.
type frame struct {
	kind        uint8
	rank, round uint32
	body        []byte
}

// limits are the longest bodies by kind.
var limits = [kindEnd]uint32{kindStart: 16, kindWaiting: maxWord, kindFail: maxWord, kindBlob: maxBlob, kindBlobs: maxBlobs,
	kindGone: maxWord, kindTell: maxWord, kindBye: maxWord}

// limit is the longest body of a record.
func limit(h *record.Header) (uint32, error) {
	switch {
	case h.Kind == 0 || h.Kind >= kindEnd:
		return 0, fmt.Errorf("frame of unknown kind %d", h.Kind)
	case h.Kind == kindStart && h.Length != 16:
		return 0, fmt.Errorf("start of %d bytes, it has 16", h.Length)
	}
	return limits[h.Kind], nil
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
	conn *record.Conn
	by   visit // rank 0: who dialed
	in   bool  // the handshake is complete
	bye  bool  // it has taken its leave
	why  string
	mu   sync.Mutex // a deadline is for one frame
}

func (l *link) send(f frame, deadline time.Time) error {
	if most := limits[f.kind]; uint64(len(f.body)) > uint64(most) {
		return fmt.Errorf("%d bytes are too many for one frame of the rendezvous, at most %d are allowed", len(f.body), most)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.conn.SetWriteDeadline(deadline); err != nil {
		return err
	}
	return l.conn.Send(record.Header{Kind: f.kind, Call: uint64(f.round), Number: uint64(f.rank)}, f.body)
}

func (l *link) receive() (frame, error) {
	var h record.Header
	body, err := l.conn.Receive(&h, limit)
	return frame{h.Kind, uint32(h.Number), uint32(h.Call), body}, err
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

// getBlobs splits what rank 0 sent into one blob per rank. They share the memory of b; each has its own capacity, so
// that appending to one leaves the next alone.
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
