//go:build linux

package tcp

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/weft-fabric/weft/transport"
)

// A frame is a header of fixed size and a piece of a message. All numbers are
// little-endian.
//
//	 0  u16 magic   u8 kind   u8 flags   u32 length of the piece
//	 8  u64 length of the message          16  u64 offset of the piece in it
//	24  u32 channel, type of the elements  28  u32 number of the message on its way
//	32  u64 number of the piece among all for this peer, from 1; 0 if not numbered
//	40  u64 all pieces up to this number have come from the peer
//	48  u32 crc32c of the piece, if asked for
//	52  u32 crc32c of the header with this field zero
//	56  the call
const (
	headerSize = 56 + transport.CallSize
	frameMagic = 0x4657

	pieceSize  = 512 << 10 // of a message in a frame
	longSize   = 2 << 20   // and where the sockets have room for it
	cutSize    = 256 << 10 // and where it has to be numbered, for streams to take turns
	maxMessage = 1 << 46
	maxAhead   = 1 << 24 // messages of one way that may come before they are asked for: more than programs have slots
	maxGap     = 4096    // messages of one way that may be overtaken by another: as many as pieces can
)

// Kinds of frames.
const (
	kindData   = 1 + iota
	kindAck    // nothing but the acknowledgement in the header, with which of the 128 pieces after it have come in the fields of length and offset
	kindBye    // the sender closes its endpoint
	kindCall   // nothing but the sender's call, which differs from the receiver's
	kindCredit // the receiver took as many bytes of the communicator's messages as the field of length says
	kindEnd
)

// Flags of frames.
const (
	flagCRC = 1 << iota // the piece has a checksum
	flagAck             // acknowledge at once
	flags
)

type header struct {
	kind, flags    uint8
	length         int
	total, offset  uint64
	channel, msgno uint32
	piece, ack     uint64
	crc            uint32
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// putHeader encodes everything but the call, which is in b already.
func putHeader(b *[headerSize]byte, h *header) {
	le := binary.LittleEndian
	le.PutUint16(b[0:], frameMagic)
	b[2], b[3] = h.kind, h.flags
	le.PutUint32(b[4:], uint32(h.length))
	le.PutUint64(b[8:], h.total)
	le.PutUint64(b[16:], h.offset)
	le.PutUint32(b[24:], h.channel)
	le.PutUint32(b[28:], h.msgno)
	le.PutUint64(b[32:], h.piece)
	le.PutUint64(b[40:], h.ack)
	le.PutUint32(b[48:], h.crc)
	le.PutUint32(b[52:], 0)
	le.PutUint32(b[52:], crc32.Update(0, castagnoli, b[:]))
}

// parseHeader decodes a header and checks what can be checked without knowing
// what is expected. It changes nothing but the field of the checksum.
func parseHeader(b *[headerSize]byte, h *header) error {
	le := binary.LittleEndian
	if m := le.Uint16(b[0:]); m != frameMagic {
		return fmt.Errorf("frame begins with %#x instead of %#x", m, frameMagic)
	}
	sum := le.Uint32(b[52:])
	le.PutUint32(b[52:], 0)
	if got := crc32.Update(0, castagnoli, b[:]); got != sum {
		return fmt.Errorf("header has checksum %#x, says %#x", got, sum)
	}
	*h = header{
		kind: b[2], flags: b[3], length: int(le.Uint32(b[4:])),
		total: le.Uint64(b[8:]), offset: le.Uint64(b[16:]), channel: le.Uint32(b[24:]), msgno: le.Uint32(b[28:]),
		piece: le.Uint64(b[32:]), ack: le.Uint64(b[40:]), crc: le.Uint32(b[48:]),
	}
	switch {
	case h.kind < kindData || h.kind >= kindEnd:
		return fmt.Errorf("frame of unknown kind %d", h.kind)
	case h.flags >= flags:
		return fmt.Errorf("frame with unknown flags %#x", h.flags)
	case h.length > longSize:
		return fmt.Errorf("piece of %d bytes, at most %d are allowed", h.length, longSize)
	case h.kind != kindData && h.length != 0:
		return fmt.Errorf("frame of kind %d with a piece of %d bytes", h.kind, h.length)
	case h.kind != kindData:
	case h.total > maxMessage:
		return fmt.Errorf("message of %d bytes, at most %d are allowed", h.total, uint64(maxMessage))
	case h.offset > h.total || uint64(h.length) > h.total-h.offset:
		return fmt.Errorf("piece of %d bytes at %d in a message of %d", h.length, h.offset, h.total)
	case h.length == 0 && h.total != 0:
		return fmt.Errorf("empty piece of a message of %d bytes", h.total)
	case h.offset%cutSize != 0 || (h.offset+uint64(h.length) != h.total && h.length != pieceSize && h.length != longSize && h.length != cutSize):
		return fmt.Errorf("piece of %d bytes at %d of %d is not one of those that a message is cut into", h.length, h.offset, h.total)
	case !transport.ValidChannel(int(h.channel)):
		return transport.ErrChannel(int(h.channel))
	}
	return nil
}
