package tcp

import (
	"sync"
	"sync/atomic"

	"github.com/weft-fabric/weft/transport"
)

// peer is another rank.
type peer struct {
	e    *Endpoint
	rank int

	streams  atomic.Pointer[[]*stream]
	gone     atomic.Pointer[transport.Gone]
	bye      atomic.Bool  // it closed its endpoint
	waiting  atomic.Int32 // callers that are parked for something of it
	buffered atomic.Int64 // bytes of its messages that came before they were asked for

	messages atomic.Uint64 // sent to it

	numbered bool // more than one stream, so pieces are numbered and kept until they are acknowledged

	mu sync.Mutex
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

// lose notes the end of a stream.
func (pr *peer) lose(s *stream, why error) {
	pr.e.count.paths.Add(1)
	text := why.Error()
	if pr.bye.Load() {
		text = "it closed its endpoint"
	}
	pr.vanish(text)
}

// vanish makes the peer gone.
func (pr *peer) vanish(why string) {
	if pr.gone.CompareAndSwap(nil, &transport.Gone{Rank: pr.rank, Why: why}) {
		pr.e.wakeAll()
	}
}
func (pr *peer) inOrder() bool                                   { return true }
func (pr *peer) acked(n uint64)                                  {}
func (pr *peer) have(n uint64) bool                              { return false }
func (pr *peer) got(n uint64, length int, now bool)              {}
func (pr *peer) ackNow() uint64                                  { return 0 }
func (p *port) sendNumbered(pr *peer, w *way, o *outbound) error { return nil }
