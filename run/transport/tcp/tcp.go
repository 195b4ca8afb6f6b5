//go:build linux

package tcp

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/affinity"
	"github.com/weft-fabric/weft/run/transport/auth"
	"github.com/weft-fabric/weft/run/transport/internal/frame"
	"github.com/weft-fabric/weft/run/transport/internal/rails"
	"github.com/weft-fabric/weft/run/transport/internal/socket"
	"github.com/weft-fabric/weft/run/transport/match"
	"github.com/weft-fabric/weft/run/transport/tcp/internal/verbs"
)

// Endpoint is a rank's streams with all others.
type Endpoint struct {
	cfg     Config
	world   [16]byte
	peers   []*peer
	rails   []rails.Rail
	traffic []traffic         // by rail
	where   [][]rails.Address // listening addresses by rank and rail
	facts   []rails.Facts     // what ranks told about their hosts
	want    []int             // streams by rank

	listeners []net.Listener
	gate      *auth.Listener
	secure    bool // streams are under TLS
	resumes   bool // connections that break are made again
	sums      bool // pieces have checksums
	keyed     bool // and checksums are keyed

	home    affinity.Home
	looks   int          // of a rank that waits for a short message, before it yields
	keepers int32        // callers that may wait without giving up their processor
	stuck   atomic.Int32 // callers that are parked while they send
	waiters waiters
	pump    pump
	trash   []byte

	pmu     sync.Mutex
	ports   match.Table[*port]
	portGen atomic.Uint64

	arrive  chan struct{} // a token when a stream was added
	closed  atomic.Bool
	closing atomic.Bool
	ctx     context.Context
	cancel  context.CancelFunc
	lmu     sync.Mutex // goroutines are added to wg under it, once it is open
	wg      sync.WaitGroup
	count   counts

	verbs *verbs.Verbs
}

// traffic is what a rail carried.
type traffic struct{ sent, received atomic.Uint64 }

// counts are numbers that only grow.
type counts struct {
	old, stale, mismatch, again, paths, dialed, resent, outages, outageTime, altered atomic.Uint64
}

// CheckCongestion says whether this host has a congestion control of that name.
func CheckCongestion(name string) error { return socket.CheckControl(name) }

// Open connects a rank with all others.
func Open(ctx context.Context, cfg Config) (*Endpoint, error) {
	if cfg.Size < 1 || cfg.Rank < 0 || cfg.Rank >= cfg.Size {
		return nil, fmt.Errorf("rank %d of %d: a rank is a number from 0 to size-1", cfg.Rank, cfg.Size)
	}
	e := &Endpoint{cfg: cfg, secure: cfg.TLS != nil,
		arrive: make(chan struct{}, 1), trash: make([]byte, 64<<10), peers: make([]*peer, cfg.Size)}
	for i := range e.peers {
		e.peers[i] = &peer{e: e, rank: i, came: make(chan struct{}, 1), here: make(chan struct{})}
		e.peers[i].carrier.base = 1
	}
	e.peers[cfg.Rank].met.Store(true)
	e.ctx, e.cancel = context.WithCancel(context.Background())
	if err := e.startPump(); err != nil {
		return nil, err
	}
	e.verbs = verbs.New(cfg.Rank, cfg.Size, forVerbs{e}, cfg.Named)
	if err := e.open(ctx); err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

func (e *Endpoint) open(ctx context.Context) error {
	e.policy()
	if e.cfg.Size == 1 {
		return nil
	}
	mine, err := rails.LookAround(e.cfg.GPU, e.cfg.Discover)
	if err != nil {
		return err
	}
	blobs, err := e.cfg.Gather(ctx, mine.Put())
	if err != nil {
		return err
	}
	all := make([]rails.Facts, e.cfg.Size)
	for i, b := range blobs {
		if err := all[i].Get(b); err != nil {
			return fmt.Errorf("rank %d: %w", i, err)
		}
	}
	e.settle(all)
	e.facts = all
	if e.rails, err = rails.Choose(&rails.Config{Rank: e.cfg.Rank, Interfaces: e.cfg.Interfaces, AllRails: e.cfg.AllRails, Token: e.cfg.Token, NoToken: e.cfg.NoToken}, all); err != nil {
		return err
	}
	if err := e.listen(); err != nil {
		return err
	}
	if e.cfg.Rank == 0 {
		if _, err := rand.Read(e.world[:]); err != nil {
			return err
		}
	}
	e.traffic = make([]traffic, len(e.rails))
	at := rails.Listening{World: e.world, Streams: e.streamsPerRail()}
	for i, r := range e.rails {
		at.At = append(at.At, rails.Address{Addr: e.listeners[i].Addr().(*net.TCPAddr).AddrPort(), Bits: r.Bits})
	}
	if blobs, err = e.cfg.Gather(ctx, at.Put()); err != nil {
		return err
	}
	e.where = make([][]rails.Address, e.cfg.Size)
	for i, b := range blobs {
		var w rails.Listening
		if err := w.Get(b); err != nil {
			return fmt.Errorf("rank %d: %w", i, err)
		}
		if i == 0 {
			e.world = w.World
		}
		if w.Streams != at.Streams {
			return fmt.Errorf("rank %d has %d streams per interface, rank %d has %d", i, w.Streams, e.cfg.Rank, at.Streams)
		}
		e.where[i] = w.At
	}
	between := slices.ContainsFunc(e.rails, func(r rails.Rail) bool { return !r.Addr.IsLoopback() })
	e.keyed, e.sums = e.cfg.sums(e.secure, between)
	if err := e.plan(between); err != nil {
		return err
	}
	e.serve()
	if !between {
		return e.connect(ctx)
	}
	e.wg.Go(e.watchHealth)
	narrow := make(chan error, 1)
	probing, stop := context.WithCancel(ctx)
	defer stop()
	go func() { narrow <- probePaths(probing, e) }()
	if err := e.connect(ctx); err != nil {
		stop()
		<-narrow
		return err
	}
	return <-narrow
}

// Describe prints which interfaces of each host carry streams, and with which the ranks begin that have a GPU.
func (e *Endpoint) Describe(w io.Writer) error {
	told := map[string]bool{}
	for r, f := range e.facts {
		if told[f.Space] {
			continue
		}
		told[f.Space] = true
		var names, near []string
		for _, at := range e.where[r] {
			if i := slices.IndexFunc(f.Rails, func(x rails.Rail) bool { return x.Addr == at.Addr.Addr() }); i >= 0 {
				names = append(names, fmt.Sprintf("%s (%s)", f.Rails[i].Name, at.Addr.Addr()))
			}
		}
		for k, g := range e.facts {
			if g.Space == f.Space && g.Near != "" {
				near = append(near, fmt.Sprintf("rank %d %s", k, g.Near))
			}
		}
		line := fmt.Sprintf("rails of the host of rank %d: %s", r, strings.Join(names, ", "))
		if len(near) > 0 {
			line += "; nearest to GPUs: " + strings.Join(near, ", ")
		}
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	return nil
}

// Can says that messages are received while others are sent, and may wait in
// the sockets.
func (e *Endpoint) Can() transport.Capabilities {
	can := transport.Capabilities{Name: "tcp", Overlaps: true, Holds: true, Copies: keepSize, Channels: e.streamsPerRail()}
	for _, at := range e.where {
		if len(at) > 1 {
			can.Rails = max(can.Rails, len(at))
		}
	}
	return can
}

// Verbs are the one-sided operations.
func (e *Endpoint) Verbs() transport.Verbs { return e.verbs }

// Memory is nil: ranks do not see one another's memory.
func (e *Endpoint) Memory() transport.Memory { return nil }

// Rank is this endpoint's.
func (e *Endpoint) Rank() int { return e.cfg.Rank }

// Size is the number of ranks.
func (e *Endpoint) Size() int { return e.cfg.Size }

// Alive is nil, or why a rank can no longer be reached.
func (e *Endpoint) Alive(rank int) error {
	if rank < 0 || rank >= e.cfg.Size {
		return fmt.Errorf("rank %d of %d", rank, e.cfg.Size)
	}
	return e.peers[rank].alive()
}

// Counters are what happened so far.
func (e *Endpoint) Counters() []transport.Counter {
	var messages uint64
	over := make([]struct{ sent, received uint64 }, len(e.rails))
	for _, pr := range e.peers {
		messages += pr.messages.Load()
		for _, s := range pr.all() {
			s.wmu.Lock()
			messages += s.quicks
			over[s.rail].sent += s.quickOut
			s.wmu.Unlock()
			s.rmu.Lock()
			over[s.rail].received += s.quickIn
			s.rmu.Unlock()
		}
	}
	var sent, received uint64
	for i := range over {
		r := &over[i]
		r.sent += e.traffic[i].sent.Load()
		r.received += e.traffic[i].received.Load()
		sent, received = sent+r.sent, received+r.received
	}
	n := &e.count
	out := []transport.Counter{
		{Name: "tcp.sent.bytes", Value: sent},
		{Name: "tcp.sent.messages", Value: messages},
		{Name: "tcp.received.bytes", Value: received},
		{Name: "dropped.epoch", Value: n.old.Load()},
		{Name: "dropped.stale", Value: n.stale.Load()},
		{Name: "dropped.mismatch", Value: n.mismatch.Load()},
		{Name: "dropped.again", Value: n.again.Load()},
		{Name: "paths.lost", Value: n.paths.Load()},
		{Name: "paths.dialed", Value: n.dialed.Load()},
		{Name: "pieces.resent", Value: n.resent.Load()},
		{Name: "outages", Value: n.outages.Load()},
		{Name: "outages.ms", Value: n.outageTime.Load()},
		{Name: "frames.altered", Value: n.altered.Load()},
	}
	for i, r := range over {
		name := "rail." + e.rails[i].Name
		out = append(out, transport.Counter{Name: name + ".sent.bytes", Value: r.sent}, transport.Counter{Name: name + ".received.bytes", Value: r.received})
	}
	if e.gate != nil {
		out = append(out, e.gate.Counters()...)
	}
	return out
}

// closeTime is how long Close waits for peers to take what was sent.
const closeTime = time.Second

// Close ends the endpoint. What was sent is still delivered to peers that take
// it within a second, or when the link with them is back, if it is within the time of an outage; they then find this rank gone.
func (e *Endpoint) Close() error {
	if e.closing.Swap(true) {
		return nil
	}
	e.deliver(closeTime)
	e.closed.Store(true)
	e.pmu.Lock()
	var ports []*port
	ports = slices.AppendSeq(ports, e.ports.All())
	e.pmu.Unlock()
	for _, p := range ports {
		p.mu.Lock()
		p.failed(transport.ErrClosed)
		p.mu.Unlock()
	}
	e.lmu.Lock() // from here on nothing is added to wg
	e.cancel()
	e.lmu.Unlock()
	for _, l := range e.listeners {
		l.Close()
	}
	if e.gate != nil {
		e.gate.Close()
	}
	e.verbs.Stop()
	e.leave(time.Now().Add(closeTime))
	if e.pump.file != nil {
		e.pump.file.Close()
	}
	e.wg.Wait()
	for _, pr := range e.peers {
		pr.mu.Lock()
		left := slices.Concat(pr.all(), pr.left)
		pr.mu.Unlock()
		for _, s := range left {
			s.dispose()
		}
	}
	e.verbs.Release()
	ws := &e.waiters
	ws.mu.Lock()
	for _, w := range ws.idle {
		if w.efd >= 0 {
			_ = unix.Close(w.efd)
			w.efd = -1
		}
	}
	ws.mu.Unlock()
	return nil
}

// leave says good-bye on every stream and waits until the peers have closed
// theirs: a socket that is closed with something unread in it would take back
// what was sent.
func (e *Endpoint) leave(deadline time.Time) {
	var open []*stream
	for _, pr := range e.peers {
		for _, s := range pr.all() {
			if !s.lost.Load() {
				o := &outbound{h: frame.Header{Kind: frame.Bye}}
				s.send(o)
				open = append(open, s)
			}
		}
	}
	for len(open) > 0 && time.Now().Before(deadline) {
		var fds []unix.PollFd
		rest := open[:0]
		for _, s := range open {
			if s.conn == nil {
				s.rmu.Lock()
				s.read(readBudget, true, nil)
				s.rmu.Unlock()
				s.write()
				if s.queued.Load() == 0 && !s.shut {
					s.shut = true
					_ = unix.Shutdown(s.fd, unix.SHUT_WR)
				}
			}
			if s.lost.Load() || (s.conn != nil && s.queued.Load() == 0) {
				continue
			}
			rest = append(rest, s)
			if s.conn == nil {
				fd := unix.PollFd{Fd: int32(s.fd), Events: unix.POLLIN}
				if s.queued.Load() > 0 {
					fd.Events |= unix.POLLOUT
				}
				fds = append(fds, fd)
			}
		}
		if open = rest; len(open) > 0 {
			socket.Poll(fds, 5)
		}
	}
	for _, pr := range e.peers {
		for _, s := range pr.all() {
			s.fail(errors.New("endpoint closed"))
		}
	}
}

var _ transport.Endpoint = (*Endpoint)(nil)
