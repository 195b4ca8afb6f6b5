// Package wire carries frames between ranks: it dials, authenticates, frames, numbers, resends, and shares the interfaces between hosts.
// It knows links and no calls. What a frame means is for whoever is above (Above); transport/tcp is.
//
// Every pair of ranks has a Link: one or more streams, over one or several interfaces (rails).
// A rank that waits for something reads the sockets itself, straight into its destination, and falls back to Go's poller only after a
// long wait. Short messages take the first stream, pieces of long ones any stream with buffer space. What
// a broken stream did not deliver goes over the others, or over the next one that can
// be made, because a link between hosts may be down for a while. A link is judged by what is acknowledged.
//
//	above.go     who is asked where a piece goes
//	node.go      all links of a rank         dial.go, lazy.go   how streams come to be
//	link.go      those with another rank     path.go            whether large packets pass
//	stream.go    one connection              secure.go          one under TLS
//	carry.go     numbered pieces             outage.go          lost streams and their return
//	wait.go      spinning, sleeping, pump    quick.go           short messages
//	channels.go  callers side by side        room.go            senders that wait
package wire

import (
	"crypto/tls"
	"log/slog"
	"time"

	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/internal/rails"
)

// ErrInterface is one of Config.Interfaces that this host does not have.
var ErrInterface = rails.ErrNone

// OutageTime is how long an outage may take unless the configuration says otherwise.
const OutageTime = 30 * time.Second

// Config says who takes part and over what.
type Config struct {
	Rank, Size int
	Gather     transport.Gather // how ranks find one another; called twice, not at all for a world of one

	Token   string      // of the cluster; may be empty only on loopback addresses
	NoToken bool        // an empty token is meant on any address
	Epoch   uint64      // of an elastic job, whose epochs have different tokens; only errors name it. 0 for none
	TLS     *tls.Config // if set, streams are encrypted and both ends show certificates; callers then wait parked, as Go's poller has the sockets

	// Interfaces are names ("eth0") or prefixes ("10.1.0.0/16") of those to
	// use, in the order in which they are paired between ranks. By default it
	// is loopback if all ranks are on this host, else the first that reaches
	// the peers; with AllRails all that are up.
	Interfaces []string
	AllRails   bool
	// Discover leaves out the interfaces that are no rails: where the host has GPUs, those that are nearest to none of them;
	// else those that are no network cards, if there are any.
	Discover bool

	// GPU is that of this rank among those of its host, by their addresses on the PCI bus; less than 0 for none. With several interfaces
	// a rank begins with the nearest one.
	GPU int

	// Streams is how many connections a pair of ranks has for each pair of
	// interfaces; 0 for one on loopback, elsewhere two or as many as Channels. Short messages use the first,
	// long ones all, and channels that run side by side one each.
	Streams int

	// Channels is how many channels of a call may run side by side, for which there are cores; the same on every rank. Each has streams of its
	// own by default.
	Channels int

	// Machine is how many ranks share the cores of this machine, also those in other network namespaces; 0 if only those of this host do.
	Machine int

	// Lazy makes streams to a rank when something is first sent to it, or received of
	// it, rather than all at once. The end of a rank is noticed by those that talked to it.
	Lazy bool

	// Reached are ranks that are reached in another way, by rank: no stream is made
	// to them. Nil for none.
	Reached []bool

	// Outage is how long a rank is waited for that no connection reaches, while its process may
	// still be there; 0 for OutageTime, less than 0 for not at all. Messages are kept until they are acknowledged
	// and sent again over the next connection.
	Outage time.Duration

	// Checksum says which pieces have a checksum: SumsBetween, SumsNone or SumsAll. With a token it is
	// keyed, so that frames of another connection do not fit; it is no protection against those who alter frames on
	// purpose. Under TLS, which is, there is no need for one.
	Checksum Sums

	// Congestion names the congestion control of connections between hosts, such as cubic; the system's if it is empty.
	Congestion string

	Event func(transport.Event) // hears of outages and lost paths; nil for nobody
	Log   *slog.Logger          // connections that were turned away, outages and paths that were lost; nil for silence
}

// Sums says which pieces have a checksum.
type Sums uint8

// Which pieces have a checksum.
const (
	SumsBetween Sums = iota // those between hosts
	SumsNone
	SumsAll
)

// sums says whether pieces have checksums, and whether those are keyed; between says that frames leave the host.
func (c *Config) sums(secure, between bool) (keyed, sums bool) {
	keyed = !secure && c.Token != "" && (between && c.Checksum != SumsNone || c.Checksum == SumsAll)
	return keyed, !secure && (keyed || c.Checksum == SumsAll)
}
