package observe

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash"

	"github.com/weft-fabric/weft/run/internal/member"
)

// A datagram, in bytes:
//
//	0     1     2            10                 n-16        n
//	| 'w' |  1  | sequence   | member.Message   | MAC       |
//
// The MAC is HMAC-SHA256, cut to 16 bytes, under a key that follows from the
// job's secret, over the receiver's id and everything before it. So a datagram is
// worth nothing to another receiver, and nothing to a later process of the same
// host, as each process has an id of its own. The sequence counts what a sender
// sent to one receiver; a receiver takes each number once.
const (
	magic      = 'w'
	version    = 1
	headSize   = 10
	macSize    = 16
	maxPacket  = 1400 // below the MTU of every network in use, so that nothing is fragmented
	maxMessage = maxPacket - headSize - macSize
)

// Why a datagram is not taken.
var (
	errForged  = errors.New("the datagram is not of this job, or not for this process")
	errGarbled = errors.New("the datagram holds no message")
)

// sealer writes and reads datagrams. It is not safe for concurrent use.
type sealer struct {
	mac hash.Hash
	sum []byte
}

func newSealer(secret string) *sealer {
	key := hmac.New(sha256.New, []byte(secret))
	key.Write([]byte("weft observers 1"))
	return &sealer{mac: hmac.New(sha256.New, key.Sum(nil))}
}

// sign computes the MAC of the bytes for a receiver.
func (s *sealer) sign(to member.ID, b []byte) []byte {
	var id [4]byte
	binary.BigEndian.PutUint32(id[:], uint32(to))
	s.mac.Reset()
	s.mac.Write(id[:])
	s.mac.Write(b)
	s.sum = s.mac.Sum(s.sum[:0])
	return s.sum[:macSize]
}

// seal appends a datagram with a message to b, which is empty.
func (s *sealer) seal(b []byte, to member.ID, sequence uint64, m *member.Message) []byte {
	b = append(b, magic, version)
	b = binary.BigEndian.AppendUint64(b, sequence)
	b = m.Append(b)
	return append(b, s.sign(to, b)...)
}

// open reads a datagram that came to a process. Nothing of it is believed before
// its MAC is.
func (s *sealer) open(self member.ID, b []byte) (sequence uint64, m member.Message, err error) {
	if len(b) < headSize+macSize || len(b) > maxPacket || b[0] != magic || b[1] != version {
		return 0, m, errForged
	}
	body, mac := b[:len(b)-macSize], b[len(b)-macSize:]
	if !hmac.Equal(mac, s.sign(self, body)) {
		return 0, m, errForged
	}
	if m, err = member.Decode(body[headSize:]); err != nil {
		return 0, m, errGarbled
	}
	return binary.BigEndian.Uint64(body[2:]), m, nil
}

// window says which numbers of a sender came: the highest, and which of the 64
// up to it. A number that is older than those counts as one that came.
type window struct {
	top  uint64
	seen uint64 // bit i stands for top-i
}

// take reports whether a number is new, and notes it.
func (w *window) take(n uint64) bool {
	switch {
	case n == 0:
		return false // numbers count from 1
	case n > w.top:
		if n-w.top < 64 {
			w.seen <<= n - w.top
		} else {
			w.seen = 0
		}
		w.top, w.seen = n, w.seen|1
		return true
	case w.top-n >= 64 || w.seen>>(w.top-n)&1 == 1:
		return false
	}
	w.seen |= 1 << (w.top - n)
	return true
}
