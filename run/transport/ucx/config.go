// Package ucx carries messages and one-sided operations between ranks over UCX, the library that
// Open MPI and others use for InfiniBand, RoCE, shared memory and tcp. The library is loaded on
// request (libucp.so.0; Debian's package libucx0), so weft needs neither cgo nor its headers.
//
// UCX has one worker per rank, which progresses only when called. So:
//
//	a waiting rank     makes progress itself, spins for a while, arms the worker and sleeps on its descriptor
//	the keeper         is a goroutine that does so when nobody waits, so that peers are answered
//	all UCX calls      are made under one lock, and none from a callback
//
// A message is one active message. Its header carries the call, so mismatches are found before a byte
// of a long message moves: long messages stay with their sender (rendezvous) until the receiver has a
// buffer. Headers are numbered per pair, because UCX does not order messages.
//
// Alloc memory is UCX's own (shared memory within a host). A peer fetches a region's key once, then
// reads, writes and adds there without involving the owner.
//
//	ucx.go       the endpoint: ranks meet and part         worker.go    the lock, progress
//	ports.go     communicators of a rank                   slot.go      requests, in memory that no collector moves
//	port.go      the messages of one                       links.go     peers, and what is sent to them
//	verbs.go     one-sided operations                      inbox.go     messages on their receiver
//	memory.go    memory that peers may name                keep.go      waiting, the keeper
//	library.go   the library and its calls                 wire.go      headers
//	lanes.go     which transports UCX took                 stub_*.s     what UCX calls when a request ends
//
// It was tested over posix, sysv, cma and tcp. InfiniBand, RoCE and GPU memory use the same calls, but
// were not tested for lack of hardware.
package ucx

import (
	"errors"
	"log/slog"
	"time"

	"github.com/weft-fabric/weft/run/transport"
)

// Config says who takes part.
type Config struct {
	Rank, Size int
	Gather     transport.Gather // how ranks find one another; called twice, not at all for a world of one
	Machine    int              // ranks that share the cores of this machine; 0 for Size

	// Transports are those that UCX may use, by its names: posix, sysv, cma, tcp, rc and so on; empty for what
	// UCX_TLS says, or all. UCX refuses to start, or a rank to connect, if they do not reach the others.
	Transports []string
	// Messages is a transport that messages must go over between all ranks, as UCX names it; empty for any.
	Messages string

	// Alive is how often UCX asks whether a silent peer is still there; 0 for a second. The end of a process on
	// the same machine is noticed at once.
	Alive time.Duration

	// Patience is how long a peer may take to let go of a message that was given up; past it the connection with the peer is
	// cut. 0 for a second.
	Patience time.Duration

	Log *slog.Logger // hears of messages that are not of this world; nil for silence
}

// ErrNoLibrary means that there is no UCX on this machine.
var ErrNoLibrary = errors.New("UCX is not installed: install libucx0 (Debian) or ucx (Fedora, Red Hat), or choose another transport")

// Memory is what kind of memory a program registers.
type Memory uint32

// The kinds, by UCX's numbers.
const (
	HostMemory Memory = 0
	CUDAMemory Memory = 1 // of NVIDIA's GPUs; UCX needs its CUDA modules for it. Not run on such hardware.
)
