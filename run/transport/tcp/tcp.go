//go:build linux

package tcp

import (
	"context"
	"io"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/internal/frame"
	"github.com/weft-fabric/weft/run/transport/match"
	"github.com/weft-fabric/weft/run/transport/record"
	"github.com/weft-fabric/weft/run/transport/tcp/internal/verbs"
	"github.com/weft-fabric/weft/run/transport/wire"
)

// Endpoint is a rank's messages with all others.
type Endpoint struct {
	wire  *wire.Node
	verbs *verbs.Verbs

	mu    sync.Mutex
	ports match.Table[*port]
	gen   atomic.Uint64 // of the ports

	// Pieces that were dropped: of an old epoch, of a call that is over, of another call.
	old, stale, mismatch atomic.Uint64
}

// Open connects a rank with all others.
func Open(ctx context.Context, cfg Config) (*Endpoint, error) { return OpenNamed(ctx, cfg, nil) }

// OpenNamed is Open of a transport that is part of another one.
func OpenNamed(ctx context.Context, cfg Config, named Named) (*Endpoint, error) {
	e, err := unconnected(cfg, named)
	if err != nil {
		return nil, err
	}
	if err := e.wire.Open(ctx); err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

func unconnected(cfg Config, named Named) (e *Endpoint, err error) {
	e = &Endpoint{}
	if e.wire, err = wire.New(cfg, above{e}); err != nil {
		return nil, err
	}
	e.verbs = verbs.New(cfg.Rank, cfg.Size, e.wire, named)
	return e, nil
}

// Can says that messages are received while others are sent, and may wait in
// the sockets.
func (e *Endpoint) Can() transport.Capabilities {
	return transport.Capabilities{Name: "tcp", Overlaps: true, Holds: true, Copies: wire.KeepSize, Channels: e.wire.StreamsPerRail(),
		Rails: e.wire.Rails()}
}

// Describe prints which interfaces of each host carry streams, and with which the ranks begin that have a GPU.
func (e *Endpoint) Describe(w io.Writer) error { return e.wire.Describe(w) }

// Verbs are the one-sided operations.
func (e *Endpoint) Verbs() transport.Verbs { return e.verbs }

// Memory is nil: ranks do not see one another's memory.
func (e *Endpoint) Memory() transport.Memory { return nil }

// Rank is this endpoint's.
func (e *Endpoint) Rank() int { return e.wire.Rank() }

// Size is the number of ranks.
func (e *Endpoint) Size() int { return e.wire.Size() }

// Alive is nil, or why a rank can no longer be reached.
func (e *Endpoint) Alive(rank int) error { return e.wire.Alive(rank) }

// Counters are what happened so far.
func (e *Endpoint) Counters() []transport.Counter {
	return slices.Insert(e.wire.Counters(), 3,
		transport.Counter{Name: "dropped.epoch", Value: e.old.Load()},
		transport.Counter{Name: "dropped.stale", Value: e.stale.Load()},
		transport.Counter{Name: "dropped.mismatch", Value: e.mismatch.Load()})
}

// Close ends the endpoint. What was sent is still delivered to peers that take
// it within a second, or when the link with them is back, if it is within the time of an outage; they then find this rank gone.
func (e *Endpoint) Close() error {
	if e.wire.Close() {
		e.verbs.Release()
	}
	return nil
}

var _ transport.Endpoint = (*Endpoint)(nil)

// above is the endpoint as its wire sees it.
type above struct{ e *Endpoint }

func (a above) Serve(conn *record.Conn, rank int) { a.e.verbs.Serve(conn, rank) }
func (a above) Renew(rank int)                    { a.e.verbs.Renew(rank) }
func (a above) Closed()                           { a.e.verbs.Stop() }

// Closing ends the calls.
func (a above) Closing() {
	a.e.mu.Lock()
	ports := slices.Collect(a.e.ports.All())
	a.e.mu.Unlock()
	for _, p := range ports {
		p.mu.Lock()
		p.failed(transport.ErrClosed)
		p.mu.Unlock()
	}
}

// Told takes what a peer says about a call, or about what it took.
func (a above) Told(s *wire.Stream, call *match.Call, h *frame.Header) {
	p := a.e.portOf(s, call)
	switch {
	case p == nil:
	case h.Kind == frame.Credit:
		p.repaid(s.Link().Rank, int64(h.Total))
	case h.Kind == frame.Call:
		p.mu.Lock()
		_, why := p.find(s.Link().Rank, call, h)
		p.mu.Unlock()
		if why != nil {
			why.Add(1)
		}
	}
}

var _ wire.Above = above{}
