//go:build linux

package wire

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
)

// Node is a rank's links with all others.
type Node struct {
	cfg     Config
	above   Above
	world   [16]byte
	peers   []*Link
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

	Home    affinity.Home
	Looks   int          // of a rank that waits for a short message, before it yields
	keepers int32        // callers that may wait without giving up their processor
	stuck   atomic.Int32 // callers that are parked while they send
	waiters waiters
	pump    pump
	trash   []byte

	arrive  chan struct{} // a token when a stream was added
	closed  atomic.Bool
	closing atomic.Bool
	ctx     context.Context
	cancel  context.CancelFunc
	lmu     sync.Mutex // goroutines are added to wg under it, once it is open
	wg      sync.WaitGroup
	count   counts
}

// traffic is what a rail carried.
type traffic struct{ sent, received atomic.Uint64 }

// counts are numbers that only grow.
type counts struct {
	again, paths, dialed, resent, outages, outageTime, altered atomic.Uint64
}

// CheckCongestion says whether this host has a congestion control of that name.
func CheckCongestion(name string) error { return socket.CheckControl(name) }

// New makes the links of a rank, which have no streams yet. What comes over them is for above.
func New(cfg Config, above Above) (*Node, error) {
	if cfg.Size < 1 || cfg.Rank < 0 || cfg.Rank >= cfg.Size {
		return nil, fmt.Errorf("rank %d of %d: a rank is a number from 0 to size-1", cfg.Rank, cfg.Size)
	}
	e := &Node{cfg: cfg, above: above, secure: cfg.TLS != nil,
		arrive: make(chan struct{}, 1), trash: make([]byte, 64<<10), peers: make([]*Link, cfg.Size)}
	for i := range e.peers {
		e.peers[i] = &Link{e: e, Rank: i, came: make(chan struct{}, 1), here: make(chan struct{})}
		e.peers[i].carrier.base = 1
	}
	e.peers[cfg.Rank].met.Store(true)
	e.ctx, e.cancel = context.WithCancel(context.Background())
	if err := e.startPump(); err != nil {
		return nil, err
	}
	e.policy()
	return e, nil
}

// Open connects the rank with all others.
func (e *Node) Open(ctx context.Context) error {
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
	if e.rails, err = rails.Choose(&rails.Config{Rank: e.cfg.Rank, Interfaces: e.cfg.Interfaces, AllRails: e.cfg.AllRails, Token: e.cfg.Token,
		NoToken: e.cfg.NoToken}, all); err != nil {
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
	at := rails.Listening{World: e.world, Streams: e.StreamsPerRail()}
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
func (e *Node) Describe(w io.Writer) error {
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

// Rails is the largest number of interfaces that a rank uses, if that is more than one; else 0.
func (e *Node) Rails() (most int) {
	for _, at := range e.where {
		if len(at) > 1 {
			most = max(most, len(at))
		}
	}
	return most
}

// Rank is this node's.
func (e *Node) Rank() int { return e.cfg.Rank }

// Size is the number of ranks.
func (e *Node) Size() int { return e.cfg.Size }

// Link is that with a rank.
func (e *Node) Link(rank int) *Link { return e.peers[rank] }

// Links are those with all ranks, by rank.
func (e *Node) Links() []*Link { return e.peers }

// Secure says that streams are under TLS.
func (e *Node) Secure() bool { return e.secure }

// Sums says that pieces have checksums.
func (e *Node) Sums() bool { return e.sums }

// Stuck says that callers are parked while they send.
func (e *Node) Stuck() bool { return e.stuck.Load() > 0 }

// Closed says that the node is closed, or about to be.
func (e *Node) Closed() bool { return e.closed.Load() }

// Resumes says that connections that break are made again.
func (e *Node) Resumes() bool { return e.resumes }

// Go runs f, for whose end Close waits.
func (e *Node) Go(f func()) { e.wg.Go(f) }

// Alive is nil, or why a rank can no longer be reached.
func (e *Node) Alive(rank int) error {
	if rank < 0 || rank >= e.cfg.Size {
		return fmt.Errorf("rank %d of %d", rank, e.cfg.Size)
	}
	return e.peers[rank].Alive()
}

// Counters are what happened so far.
func (e *Node) Counters() []transport.Counter {
	var messages uint64
	over := make([]struct{ sent, received uint64 }, len(e.rails))
	for _, pr := range e.peers {
		messages += pr.Messages.Load()
		for _, s := range pr.Streams() {
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
		out = append(out, transport.Counter{Name: name + ".sent.bytes", Value: r.sent},
			transport.Counter{Name: name + ".received.bytes", Value: r.received})
	}
	if e.gate != nil {
		out = append(out, e.gate.Counters()...)
	}
	return out
}

// closeTime is how long Close waits for peers to take what was sent.
const closeTime = time.Second

// Close ends the links. What was sent is still delivered to peers that take
// it within a second, or when the link with them is back, if it is within the time of an outage; they then find this rank gone.
// It reports whether it is the first to be called.
func (e *Node) Close() (first bool) {
	if e.closing.Swap(true) {
		return false
	}
	e.deliver(closeTime)
	e.closed.Store(true)
	e.above.Closing()
	e.lmu.Lock() // from here on nothing is added to wg
	e.cancel()
	e.lmu.Unlock()
	for _, l := range e.listeners {
		l.Close()
	}
	if e.gate != nil {
		e.gate.Close()
	}
	e.above.Closed()
	e.leave(time.Now().Add(closeTime))
	if e.pump.file != nil {
		e.pump.file.Close()
	}
	e.wg.Wait()
	for _, pr := range e.peers {
		pr.mu.Lock()
		left := slices.Concat(pr.Streams(), pr.left)
		pr.mu.Unlock()
		for _, s := range left {
			s.dispose()
		}
	}
	ws := &e.waiters
	ws.mu.Lock()
	for _, w := range ws.idle {
		if w.efd >= 0 {
			_ = unix.Close(w.efd)
			w.efd = -1
		}
	}
	ws.mu.Unlock()
	return true
}

// leave says good-bye on every stream and waits until the peers have closed
// theirs: a socket that is closed with something unread in it would take back
// what was sent.
func (e *Node) leave(deadline time.Time) {
	var open []*Stream
	for _, pr := range e.peers {
		for _, s := range pr.Streams() {
			if !s.lost.Load() {
				o := &Outbound{H: frame.Header{Kind: frame.Bye}}
				s.Send(o)
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
				s.Read(readBudget, true, nil)
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
		for _, s := range pr.Streams() {
			s.fail(errors.New("endpoint closed"))
		}
	}
}
