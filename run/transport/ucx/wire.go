package ucx

import (
	"encoding/binary"
	"fmt"

	"github.com/weft-fabric/weft/run/transport"
)

// A header goes with every active message. All numbers are little-endian.
//
//	 0  u64 of the world, so that no other program's message is taken for one
//	 8  u64 number of the message among all from this rank to the receiver, from 1
//	16  u8 kind, u8 flags, u16 zero, u32 rank of the sender
//	24  u32 channel with its tag, u32 zero
//	32  u64 length of the message, or what the kind says
//	40  u64 what the kind says
//	48  the call
const headerSize = 48 + transport.CallSize

// Kinds of messages.
const (
	kindData   = 1 + iota // of a port
	kindCall              // nothing but the sender's call, which differs from the receiver's
	kindCredit            // length: bytes of the communicator's messages that were taken
	kindHello             // the first
	kindBye               // the last: the sender closes its endpoint
	kindByeAck            // it was heard
	kindRevoke            // length: number of a message that its sender gives up
	kindNotice            // length: the number that Notify leaves
	kindAsk               // length: number of a region whose key is asked for
	kindKey               // length: number of the region, second: its first address; the key is the message, none if there is no such region
	kindForget            // length: number of a region that is no more
	kindForgot            // length: its number
	kindEnd
)

const flagDeep = 1 // the sender is not bound by what the receiver leaves waiting

// header is one, decoded.
type header struct {
	world, number uint64
	kind, flags   uint8
	rank, channel uint32
	length, word  uint64
	call          [transport.CallSize]byte
}

func (h *header) put(b *[headerSize]byte) {
	le := binary.LittleEndian
	le.PutUint64(b[0:], h.world)
	le.PutUint64(b[8:], h.number)
	b[16], b[17], b[18], b[19] = h.kind, h.flags, 0, 0
	le.PutUint32(b[20:], h.rank)
	le.PutUint32(b[24:], h.channel)
	le.PutUint32(b[28:], 0)
	le.PutUint64(b[32:], h.length)
	le.PutUint64(b[40:], h.word)
	copy(b[48:], h.call[:])
}

// parse decodes a header and checks what can be checked without knowing what is expected: size is the number
// of ranks, n how long the message is.
func (h *header) parse(b []byte, world uint64, size, n int) error {
	if len(b) != headerSize {
		return fmt.Errorf("header of %d bytes instead of %d", len(b), headerSize)
	}
	le := binary.LittleEndian
	if w := le.Uint64(b[0:]); w != world {
		return fmt.Errorf("message of another world")
	}
	*h = header{world: world, number: le.Uint64(b[8:]), kind: b[16], flags: b[17], rank: le.Uint32(b[20:]), channel: le.Uint32(b[24:]),
		length: le.Uint64(b[32:]), word: le.Uint64(b[40:])}
	copy(h.call[:], b[48:])
	return h.check(size, n)
}

// check is the part of parse that looks at what the header says.
func (h *header) check(size, n int) error {
	switch {
	case h.kind == 0 || h.kind >= kindEnd:
		return fmt.Errorf("message of unknown kind %d", h.kind)
	case h.rank >= uint32(size):
		return fmt.Errorf("message from rank %d of %d", h.rank, size)
	case h.number == 0:
		return fmt.Errorf("message without a number")
	case h.kind == kindData && h.length != uint64(n):
		return fmt.Errorf("message of %d bytes that says it has %d", n, h.length)
	case h.kind != kindData && h.kind != kindKey && n != 0:
		return fmt.Errorf("message of kind %d with %d bytes", h.kind, n)
	case !transport.ValidChannel(int(h.channel)):
		return transport.ErrChannel(int(h.channel))
	}
	return nil
}
