//go:build linux

package wire

import (
	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/internal/frame"
	"github.com/weft-fabric/weft/run/transport/record"
)

// Call is what a frame says about the call that it belongs to. A wire carries it and does not read it.
type Call = [transport.CallSize]byte

// Above is whoever gives frames their meaning. Its methods are called by whoever reads a stream, under the lock of its reading side.
type Above interface {
	// Route says where the piece goes whose header is s.Head: it calls s.Land, or does not, and the piece goes nowhere. It is false if the
	// piece shall stay in the socket; then it is asked again later. Eager readers take everything.
	Route(s *Stream, call *Call, eager bool) bool
	// Told takes a frame without a piece.
	Told(s *Stream, call *Call, h *frame.Header)
	// Serve takes a connection that a peer dialed with Dial.
	Serve(conn *record.Conn, rank int)
	// Renew hears that a connection with a peer broke, and that others are made: those of Dial may be broken, too.
	Renew(rank int)
	// Closing hears that calls are to end, Closed that no connection comes any more.
	Closing()
	Closed()
}

// Landing is a message on its receiver, into which a stream reads pieces.
type Landing interface {
	// Take gets bytes of the message in their order.
	Take(b []byte)
	// May is how many bytes from an offset on Take may get by now.
	May(offset int) int
	// Arrived is the end of a piece, and of the memory that it was read into if that is its own. It reports whether the message is
	// complete.
	Arrived(h *frame.Header, m Mode, own []byte) (whole bool)
	// Let is the end of a piece that does not count, because it came twice or its stream broke. gave is how many bytes of it Take got.
	Let(h *frame.Header, m Mode, own []byte, gave int)
}

// Mode is where a piece goes.
type Mode uint8

// The modes.
const (
	Drop   Mode = iota // nowhere
	Direct             // the receiver's memory
	Part               // memory of its own, until it is asked for
	Take               // scratch memory, from which it is handed out as it comes
	Whole              // the receiver's memory, at once
)

// Caller is whoever waits for something to come, or to go out.
type Caller interface {
	// Err is why its waits end; nil while they go on.
	Err() error
	// Stop is asked now and then; an error ends the wait.
	Stop() error
	// Expects adds the other links over which something is expected to a list, and reports whether something is over this one. A rank
	// that sends reads these meanwhile.
	Expects(l *Link, list []*Link) (links []*Link, here bool)
}
