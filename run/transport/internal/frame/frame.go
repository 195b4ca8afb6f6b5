// Package frame is what is on the wire of a stream.
package frame

import (
	"encoding/binary"
	"fmt"

	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/auth"
)

// A frame is a header of fixed size and a piece of a message. All numbers are
// little-endian.
//
//	 0  u16 magic   u8 kind   u8 flags   u32 length of the piece
//	 8  u64 length of the message          16  u64 offset of the piece in it
//	24  u32 channel, type of the elements  28  u32 number of the message on its way
//	32  u64 number of the piece among all for this peer, from 1; 0 if not numbered
//	40  u64 all pieces up to this number have come from the peer
//	48  u32 checksum of the piece, if asked for
//	52  u32 checksum of the header with this field zero
//	56  the call
const (
	HeaderSize = 56 + transport.CallSize
	Magic      = 0x4657

	PieceSize  = 512 << 10 // of a message in a frame
	LongSize   = 2 << 20   // and where the sockets have room for it
	CutSize    = 256 << 10 // and where it has to be numbered, for streams to take turns
	MaxMessage = 1 << 46
)

// Kinds of frames.
const (
	Data   = 1 + iota
	Ack    // nothing but the acknowledgement in the header, with which of the 128 pieces after it have come in the fields of length and offset
	Bye    // the sender closes its endpoint
	Call   // nothing but the sender's call, which differs from the receiver's
	Credit // the receiver took as many bytes of the communicator's messages as the field of length says
	kindEnd
)

// Flags of frames.
const (
	FlagSum = 1 << iota // the piece has a checksum
	FlagAck             // acknowledge at once
	flags
)

// Header is a frame's, without its call.
type Header struct {
	Kind, Flags    uint8
	Length         int    // of the piece
	Total, Offset  uint64 // length of the message, and where the piece is in it
	Channel, Msgno uint32
	Piece, Ack     uint64
	Sum            uint32 // of the piece
}

// Put encodes everything but the call, which is in b already. k makes the checksum.
func (h *Header) Put(b *[HeaderSize]byte, k *auth.Key) {
	le := binary.LittleEndian
	le.PutUint16(b[0:], Magic)
	b[2], b[3] = h.Kind, h.Flags
	le.PutUint32(b[4:], uint32(h.Length))
	le.PutUint64(b[8:], h.Total)
	le.PutUint64(b[16:], h.Offset)
	le.PutUint32(b[24:], h.Channel)
	le.PutUint32(b[28:], h.Msgno)
	le.PutUint64(b[32:], h.Piece)
	le.PutUint64(b[40:], h.Ack)
	le.PutUint32(b[48:], h.Sum)
	le.PutUint32(b[52:], 0)
	le.PutUint32(b[52:], k.Head(b[:]))
}

// Refused is a frame that is none, though it came as its sender sent it.
type Refused struct{ What string }

func (r *Refused) Error() string { return r.What }

func refuse(format string, args ...any) error { return &Refused{What: fmt.Sprintf(format, args...)} }

// Parse decodes a header and checks what can be checked without knowing
// what is expected: the error is a *Refused, or auth.ErrAltered. It changes nothing but the field of the checksum.
func (h *Header) Parse(b *[HeaderSize]byte, k *auth.Key) error {
	le := binary.LittleEndian
	if m := le.Uint16(b[0:]); m != Magic {
		return refuse("frame begins with %#x instead of %#x", m, Magic)
	}
	sum := le.Uint32(b[52:])
	le.PutUint32(b[52:], 0)
	if k.Head(b[:]) != sum {
		return fmt.Errorf("header: %w", auth.ErrAltered)
	}
	*h = Header{
		Kind: b[2], Flags: b[3], Length: int(le.Uint32(b[4:])),
		Total: le.Uint64(b[8:]), Offset: le.Uint64(b[16:]), Channel: le.Uint32(b[24:]), Msgno: le.Uint32(b[28:]),
		Piece: le.Uint64(b[32:]), Ack: le.Uint64(b[40:]), Sum: le.Uint32(b[48:]),
	}
	switch {
	case h.Kind < Data || h.Kind >= kindEnd:
		return refuse("frame of unknown kind %d", h.Kind)
	case h.Flags >= flags:
		return refuse("frame with unknown flags %#x", h.Flags)
	case h.Length > LongSize:
		return refuse("piece of %d bytes, at most %d are allowed", h.Length, LongSize)
	case h.Kind != Data && h.Length != 0:
		return refuse("frame of kind %d with a piece of %d bytes", h.Kind, h.Length)
	case h.Kind != Data:
	case h.Total > MaxMessage:
		return refuse("message of %d bytes, at most %d are allowed", h.Total, uint64(MaxMessage))
	case h.Offset > h.Total || uint64(h.Length) > h.Total-h.Offset:
		return refuse("piece of %d bytes at %d in a message of %d", h.Length, h.Offset, h.Total)
	case h.Length == 0 && h.Total != 0:
		return refuse("empty piece of a message of %d bytes", h.Total)
	case h.Offset%CutSize != 0 || (h.Offset+uint64(h.Length) != h.Total && h.Length != PieceSize && h.Length != LongSize &&
		h.Length != CutSize):
		return refuse("piece of %d bytes at %d of %d is not one of those that a message is cut into", h.Length, h.Offset, h.Total)
	case !transport.ValidChannel(int(h.Channel)):
		return refuse("%v", transport.ErrChannel(int(h.Channel)))
	}
	return nil
}

// IsMessage reports whether a header is that of a message of n bytes in one piece, of a number (0 if
// pieces are not numbered). What is known of it is compared and its checksum looked at; sum and ack are what
// it says besides. The header is as it was afterwards.
func IsMessage(b *[HeaderSize]byte, call *[transport.CallSize]byte, channel int, msgno uint32, n int, piece uint64, summed bool,
	k *auth.Key) (ok bool, sum uint32, ack uint64) {
	le := binary.LittleEndian
	first := Magic | Data<<16 | uint64(n)<<32
	if summed {
		first |= FlagSum << 24
	}
	if le.Uint64(b[0:]) != first || le.Uint64(b[8:]) != uint64(n) || le.Uint64(b[16:]) != 0 ||
		le.Uint64(b[24:]) != uint64(channel)|uint64(msgno)<<32 || le.Uint64(b[32:]) != piece || [transport.CallSize]byte(b[56:]) != *call {
		return false, 0, 0
	}
	sum, ack = le.Uint32(b[48:]), le.Uint64(b[40:])
	if piece == 0 && !summed && k.Plain() {
		return ack == 0 && sum == 0, 0, 0 // every byte of it is known
	}
	said := le.Uint32(b[52:])
	le.PutUint32(b[52:], 0)
	ok = k.Head(b[:]) == said
	le.PutUint32(b[52:], said)
	return ok, sum, ack
}
