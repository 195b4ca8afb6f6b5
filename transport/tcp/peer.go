//go:build linux

package tcp

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/transport"
)

// peer is another rank.
type peer struct {
	e    *Endpoint
	rank int

	streams  atomic.Pointer[[]*stream]
	gone     atomic.Pointer[transport.Gone]
	bye      atomic.Bool   // it closed its endpoint
	waiting  atomic.Int32  // callers that are parked for something of it
	buffered atomic.Int64  // bytes of its messages that came before they were asked for
	messages atomic.Uint64 // sent to it

	numbered bool // its pieces are, and kept until they are acknowledged

	met     atomic.Bool   // all its streams were there once
	here    chan struct{} // closed then
	meeting sync.Mutex    // held while it is dialed for the first time
	hoping  sync.Mutex    // held while it has no stream and is waited for
	telling sync.Mutex    // held while an outage, or its end, is told

	mu       sync.Mutex
	carrier  carrier
	attempts uint32        // to make streams, by this rank
	youngest uint32        // the latest of those that made one
	down     time.Time     // since when it has no stream; zero while it has one
	came     chan struct{} // a token when a stream was made
	altered  int           // streams that brought altered frames
	left     []*stream     // lost, and not yet closed: Close does it if nobody else gets to it
	rooms    []roomWait    // senders that wait for room among the copies
}

// all are the streams with the peer.
func (pr *peer) all() []*stream {
	if p := pr.streams.Load(); p != nil {
		return *p
	}
	return nil
}

// alive is nil, or why the peer cannot be reached.
func (pr *peer) alive() error {
	if g := pr.gone.Load(); g != nil {
		return g
	}
	return nil
}

// vanish makes the peer gone.
func (pr *peer) vanish(why string) {
	if pr.gone.CompareAndSwap(nil, &transport.Gone{Rank: pr.rank, Why: why, Left: pr.bye.Load()}) {
		pr.e.wakeAll()
	}
}

func isRefused(err error) bool { return errors.Is(err, unix.ECONNREFUSED) }
