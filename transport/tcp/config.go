// Package tcp carries messages and one-sided operations between ranks over TCP.
//
// Every pair of ranks has one or more streams: several of one interface, or
// some of each of several interfaces (rails). Whoever waits for a message reads
// the sockets itself, straight into where the message belongs; Go's poller is
// asked only by those that have waited long. With more than one stream, pieces
// of long messages take whichever has room, and what a broken stream had not
// delivered goes over the others.
//
// The layers, from the bottom up:
//
//	internal/socket  system calls                       internal/frame   what is on the wire
//	internal/rails   which interfaces                   internal/verbs   one-sided operations
//	internal/buffer  memory that is used again
//	stream.go        one connection                     secure.go        one under TLS
//	peer.go          another rank                       carry.go         numbered pieces, path loss
//	slot.go          messages on their receiver         credit.go        how far a sender may be ahead
//	wait.go          spinning, sleeping, the pump       port.go          the messages of a communicator
//	quick.go         short messages                     swap.go          a send and a receive at once
//	whole.go         messages that come as a whole      dial.go          how streams come to be
//	tcp.go           the endpoint
package tcp

import (
	"crypto/tls"
	"log/slog"

	"github.com/weft-fabric/weft/transport"
)

// Config says who takes part and over what.
type Config struct {
	Rank, Size int
	Gather     transport.Gather // how ranks find one another; called twice, not at all for a world of one

	Token   string      // of the cluster; may be empty only on loopback addresses
	NoToken bool        // an empty token is meant on any address
	TLS     *tls.Config // if set, streams are encrypted and both ends show certificates; callers then wait parked, as Go's poller has the sockets

	// Interfaces are names ("eth0") or prefixes ("10.1.0.0/16") of those to
	// use, in the order in which they are paired between ranks. By default it
	// is loopback if all ranks are on this host, else the first that reaches
	// the peers; with AllRails all that are up.
	Interfaces []string
	AllRails   bool

	// Streams is how many connections a pair of ranks has for each pair of
	// interfaces; 0 for one on loopback and two elsewhere. More than one lets a
	// pair survive the loss of one of them.
	Streams int

	// Reached are ranks that are reached in another way, by rank: no stream is made
	// to them. Nil for none.
	Reached []bool

	// Named finds own memory by a key that another transport gave, for the
	// one-sided operations of peers; nil if keys are those of this endpoint.
	Named func(k transport.Key, n int) ([]byte, error)

	Checksum bool         // crc32c over every piece, 18 GB/s
	Log      *slog.Logger // connections that were turned away and paths that were lost; nil for silence
}
