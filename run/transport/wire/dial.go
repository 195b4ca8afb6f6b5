//go:build linux

package wire

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/run/retry"
	"github.com/weft-fabric/weft/run/transport/auth"
	"github.com/weft-fabric/weft/run/transport/internal/buffer"
	"github.com/weft-fabric/weft/run/transport/internal/rails"
	"github.com/weft-fabric/weft/run/transport/internal/socket"
	"github.com/weft-fabric/weft/run/transport/record"
	"github.com/weft-fabric/weft/run/transport/wait"
)

// dialTime is how long a connection may take that is made when all ranks are
// up.
const dialTime = 5 * time.Second

// StreamsPerRail is how many streams a pair of interfaces has.
func (e *Node) StreamsPerRail() int {
	if e.cfg.Streams > 0 {
		return e.cfg.Streams
	}
	if len(e.rails) == 1 && e.rails[0].Addr.IsLoopback() {
		return 1
	}
	return max(2, e.cfg.Channels)
}

// listen opens a port on every rail.
func (e *Node) listen() error {
	for _, r := range e.rails {
		l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(r.Addr, 0)))
		if err != nil {
			return fmt.Errorf("rank %d cannot listen on interface %s: %w", e.cfg.Rank, r.Name, err)
		}
		e.listeners = append(e.listeners, l)
	}
	return nil
}

// What a dialer says about a stream in its hello: which rails it joins (its
// own, the listener's), its number among theirs, what it carries, and the how manieth attempt to
// make a stream it is. Of two streams the one of the later attempt is the younger, on both ends and
// whichever was admitted first.
type lane struct{ mine, yours, number, kind, attempt uint32 }

const (
	laneData = iota
	laneOther
	laneKnock // nothing: the dialer wants to be dialed
	laneProbe // nothing: the dialer has lost all streams up to this attempt, and wants to know whether the listener is there
	laneRail  // nothing: the dialer has lost all streams of one pair of rails, which number says, up to this attempt
	laneCheck // nothing: the dialer wants to know whether these rails still join the two
	lanePath  // one large packet: the dialer wants to know whether it gets here
)

func (l lane) put() (b [16]byte) {
	for i, x := range [4]uint32{l.mine, l.yours, l.number, l.kind | l.attempt<<8} {
		binary.LittleEndian.PutUint32(b[4*i:], x)
	}
	return b
}

func getLane(b [16]byte) lane {
	le := binary.LittleEndian
	kind := le.Uint32(b[12:])
	return lane{le.Uint32(b[0:]), le.Uint32(b[4:]), le.Uint32(b[8:]), kind & 0xff, kind >> 8}
}

// attempt is the lane of the next attempt to make a stream with a peer.
func (pr *Link) attempt(pair [2]int, number int) lane {
	pr.mu.Lock()
	defer pr.mu.Unlock()
	pr.attempts++
	return lane{uint32(pair[0]), uint32(pair[1]), uint32(number), laneData, pr.attempts}
}

// serve answers dialers.
func (e *Node) serve() {
	e.gate = &auth.Listener{
		Token: e.cfg.Token, Epoch: e.cfg.Epoch, TLS: e.cfg.TLS, Log: e.cfg.Log,
		Admit: func(h auth.Hello) error {
			l := getLane(h.Extra)
			switch {
			case h.Purpose != auth.Stream:
				return fmt.Errorf("this is rank %d's data port, not a rendezvous", e.cfg.Rank)
			case h.World != e.world:
				return errors.New("another world")
			case h.Size != e.cfg.Size || h.Rank < 0 || h.Rank >= e.cfg.Size || h.Rank == e.cfg.Rank:
				return fmt.Errorf("rank %d of %d comes to rank %d of %d", h.Rank, h.Size, e.cfg.Rank, e.cfg.Size)
			case l.kind == laneData && (!e.dials(h.Rank, e.cfg.Rank) || int(l.yours) >= len(e.rails)):
				return fmt.Errorf("rank %d does not dial rank %d", h.Rank, e.cfg.Rank)
			case e.closed.Load():
				return auth.Over(closing)
			}
			return e.peers[h.Rank].welcome()
		},
		Enter: func(conn net.Conn, h auth.Hello) {
			l := getLane(h.Extra)
			switch l.kind {
			case laneOther:
				e.above.Serve(e.records(conn, &h.Secret, false), h.Rank)
				return
			case laneKnock:
				conn.Close()
				e.Later(func() { _ = e.reach(e.peers[h.Rank]) })
				return
			case laneProbe:
				conn.Close()
				e.peers[h.Rank].probed(l.attempt)
				return
			case laneRail:
				conn.Close()
				e.peers[h.Rank].toldOfRail(int(l.number), l.attempt)
				return
			case laneCheck:
				conn.Close()
				return
			case lanePath:
				takeLarge(e, conn)
				return
			}
			if err := e.add(conn, e.peers[h.Rank], int(l.yours), l, &h.Secret, false); err != nil {
				conn.Close()
			}
		},
	}
	for _, l := range e.listeners {
		e.wg.Go(func() { e.gate.Serve(l) })
	}
}

// dials says which of two ranks dials the other, so that every rank dials about
// half of its peers.
func (e *Node) dials(from, to int) bool {
	if (from+to)%2 == 0 {
		return from < to
	}
	return from > to
}

// pairsWith are the rails that are connected with a peer, this rank's first.
func (e *Node) pairsWith(rank int) [][2]int {
	low, high := min(rank, e.cfg.Rank), max(rank, e.cfg.Rank)
	ps := rails.Pairs(e.where[low], e.where[high])
	if low == rank {
		for i := range ps {
			ps[i][0], ps[i][1] = ps[i][1], ps[i][0]
		}
	}
	return ps
}

// firstWith is the pair of rails with which messages to a peer begin, and how many pairs there are.
func (e *Node) firstWith(rank int) (first, n int) {
	low, high := min(rank, e.cfg.Rank), max(rank, e.cfg.Rank)
	pairs := rails.Pairs(e.where[low], e.where[high])
	if len(pairs) < 2 {
		return 0, 1
	}
	return rails.First(e.facts, low, high, pairs, func(rank, rail int) string {
		for _, r := range e.facts[rank].Rails {
			if r.Addr == e.where[rank][rail].Addr.Addr() {
				return r.Name
			}
		}
		return ""
	}), len(pairs)
}

// reached reports whether a rank is reached in another way.
func (e *Node) reached(rank int) bool { return e.cfg.Reached != nil && e.cfg.Reached[rank] }

// plan finds out how many streams each peer has.
func (e *Node) plan(between bool) error {
	e.want = make([]int, e.cfg.Size)
	for rank, pr := range e.peers {
		if rank == e.cfg.Rank || e.reached(rank) {
			continue
		}
		n := len(e.pairsWith(rank))
		if n == 0 {
			return fmt.Errorf("ranks %d and %d have no addresses of the same kind", e.cfg.Rank, rank)
		}
		e.want[rank] = n * e.StreamsPerRail()
		pr.Numbered = e.want[rank] > 1 || between && e.outage() > 0
		e.resumes = e.resumes || pr.Numbered
	}
	return nil
}

// connect dials the peers and waits until there are all streams.
func (e *Node) connect(ctx context.Context) error {
	if e.cfg.Lazy {
		return nil
	}
	per := e.StreamsPerRail()
	errs := make(chan error, e.cfg.Size)
	dialing := 0
	// Few at a time: hundreds of handshakes at once only make each slower.
	turn := make(chan struct{}, 16)
	for rank, pr := range e.peers {
		if rank == e.cfg.Rank || e.reached(rank) {
			continue
		}
		if !e.dials(e.cfg.Rank, rank) {
			continue
		}
		ps := e.pairsWith(rank)
		dialing++
		go func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			for _, p := range ps {
				for k := range per {
					if err := e.dial(ctx, pr, p, k); err != nil {
						errs <- fmt.Errorf("rank %d cannot reach rank %d at %s: %w", e.cfg.Rank, rank, e.where[rank][p[1]].Addr, err)
						return
					}
				}
			}
			errs <- nil
		}()
	}
	var first error
	for dialing > 0 {
		if err := <-errs; err != nil && first == nil {
			first = err
		}
		dialing--
	}
	if first != nil {
		return first
	}
	for {
		missing := slices.IndexFunc(e.peers, func(pr *Link) bool { return len(pr.Streams()) < e.want[pr.Rank] && pr.Alive() == nil })
		if missing < 0 {
			for _, pr := range e.peers {
				pr.met.Store(true) // or it is gone already
			}
			return nil
		}
		select {
		case <-e.arrive:
		case <-ctx.Done():
			return fmt.Errorf("rank %d did not connect to rank %d%s: %w", missing, e.cfg.Rank, e.gate.Trouble(), ctx.Err())
		}
	}
}

// dial makes one stream, trying again while the peer's host may still be
// coming up.
func (e *Node) dial(ctx context.Context, pr *Link, pair [2]int, number int) error {
	for pauses := retry.Pause(5*time.Millisecond, 200*time.Millisecond); ; {
		l := pr.attempt(pair, number)
		conn, secret, err := e.dialOnce(ctx, pr.Rank, l)
		if err == nil {
			return e.add(conn, pr, pair[0], l, &secret, true)
		}
		if isFinal(err) || ctx.Err() != nil {
			return err
		}
		if pauses.Wait(ctx) != nil {
			return err
		}
	}
}

// dialOnce makes one connection over one pair of rails. The first connections may take as long as the peer needs to
// start; later ones are between running processes and get little time.
func (e *Node) dialOnce(ctx context.Context, rank int, l lane) (net.Conn, auth.Secret, error) {
	to := e.where[rank][l.yours].Addr
	line := auth.Line{Addr: to.String(), TLS: e.cfg.TLS, Token: e.cfg.Token}
	line.LocalAddr = &net.TCPAddr{IP: e.rails[l.mine].Addr.AsSlice()}
	switch {
	case l.kind == laneData && l.attempt > uint32(e.want[rank]): // a stream that is made again
		line.Timeout = attemptTime
	case l.kind == laneCheck:
		line.Timeout = checkTime
	}
	conn, secret, err := line.Connect(ctx, auth.Hello{Purpose: auth.Stream, Rank: e.cfg.Rank, Size: e.cfg.Size, World: e.world,
		Epoch: e.cfg.Epoch, Extra: l.put()})
	if errors.Is(err, unix.ENETUNREACH) && !e.peers[rank].met.Load() { // later on a link may be down
		rail := e.rails[l.mine]
		err = fmt.Errorf("interface %s (%s/%d) of rank %d has no route to %s of rank %d: use interfaces of one network, or add a route (WEFT_INTERFACES, WEFT_RAILS): %w",
			rail.Name, rail.Addr, rail.Bits, e.cfg.Rank, to.Addr(), rank, err)
	}
	return conn, secret, err
}

// Dial makes a connection with a rank that is no stream, over the first rail that works. The other end's Above serves it.
func (e *Node) Dial(rank int) (*record.Conn, error) {
	ctx, cancel := context.WithTimeout(e.ctx, dialTime)
	defer cancel()
	pairs := e.pairsWith(rank)
	if ss := e.peers[rank].Streams(); len(ss) > 0 { // a rail that is known to work goes first
		p := pairs[ss[0].pair]
		pairs = append([][2]int{p}, slices.Delete(slices.Clone(pairs), ss[0].pair, ss[0].pair+1)...)
	}
	var refused, last error
	for _, p := range pairs {
		conn, secret, err := e.dialOnce(ctx, rank, lane{mine: uint32(p[0]), yours: uint32(p[1]), kind: laneOther})
		if err == nil {
			return e.records(conn, &secret, true), nil
		}
		if last = err; isRefused(err) {
			refused = err
		}
	}
	if pr := e.peers[rank]; refused != nil && !pr.met.Load() { // it has no streams whose end would tell that it has ended
		_ = pr.unmet(refused)
	}
	return nil, last
}

// records are those of a connection that is no stream.
func (e *Node) records(conn net.Conn, secret *auth.Secret, dialer bool) *record.Conn {
	if !e.keyed {
		secret = nil
	}
	return record.New(conn, secret, dialer, 64<<10)
}

// add makes a connection a stream of a peer.
func (e *Node) add(conn net.Conn, pr *Link, rail int, l lane, secret *auth.Secret, dialer bool) error {
	pair := slices.IndexFunc(e.pairsWith(pr.Rank), func(p [2]int) bool { return p[0] == rail })
	if pair < 0 {
		return fmt.Errorf("interface %s has no counterpart on rank %d", e.rails[rail].Name, pr.Rank)
	}
	s := &Stream{e: e, peer: pr, rail: rail, pair: pair, number: int(l.number), attempt: l.attempt, in: auth.PlainKey(), out: auth.PlainKey(),
		fd: -1, born: time.Now(), window: firstWindow, stage: buffer.Aligned(stageSize), kick: make(chan struct{}, 1)}
	s.ends = conn.LocalAddr().String() + " " + conn.RemoteAddr().String()
	if e.secure {
		s.conn = conn
	} else {
		fd, err := socket.Detach(conn.(*net.TCPConn))
		if err != nil {
			return err
		}
		s.fd = fd
		if s.roomy, err = socket.Tune(s.fd, e.rails[rail].Addr.IsLoopback(), e.cfg.Congestion); err != nil {
			_ = unix.Close(fd)
			return err
		}
	}
	if e.keyed {
		s.out, s.in = secret.Keys(dialer)
	}
	old, err := e.join(s)
	if err != nil {
		return err
	}
	for _, x := range old {
		x.fail(errReplaced)
	}
	if pr.Numbered {
		pr.hasStream()
		// What found no stream, and what was told over one that broke.
		pr.feed()
		pr.acknowledge(s)
	}
	select {
	case e.arrive <- struct{}{}:
	default:
	}
	return nil
}

// join makes a stream one of its peer's, and gives those in whose place it is.
func (e *Node) join(s *Stream) (old []*Stream, err error) {
	pr := s.peer
	pr.mu.Lock()
	defer pr.mu.Unlock()
	late := slices.ContainsFunc(pr.Streams(),
		func(x *Stream) bool { return x.pair == s.pair && x.number == s.number && x.attempt > s.attempt })
	if late || e.closed.Load() || pr.Alive() != nil {
		if s.conn == nil {
			_ = unix.Close(s.fd)
		}
		return nil, errors.New("endpoint closed, peer gone, or a younger stream is there")
	}
	pr.youngest = max(pr.youngest, s.attempt)
	if s.conn == nil {
		e.name(s)
	}
	for _, x := range pr.Streams() {
		if x.pair == s.pair && x.number == s.number {
			old = append(old, x)
		}
	}
	all := append(slices.Clone(pr.Streams()), s)
	// Pairs of ranks differ in which of their rails is the first, where short messages go. The second stream of a rail
	// comes after the first ones of all: a message of few pieces uses every rail.
	first, n := e.firstWith(pr.Rank)
	slices.SortStableFunc(all, func(a, b *Stream) int {
		return (a.number-b.number)*1024 + (a.pair-first+n)%n - (b.pair-first+n)%n
	})
	pr.streams.Store(&all)
	if len(all) >= e.want[pr.Rank] && !pr.met.Swap(true) {
		close(pr.here)
	}
	select {
	case pr.came <- struct{}{}:
	default:
	}
	if s.conn != nil {
		e.wg.Go(s.readSecure)
		e.wg.Go(s.writeSecure)
		return old, nil
	}
	return old, e.watch(s)
}

// dispose closes the descriptor of a stream that is lost, once nobody uses it.
func (s *Stream) dispose() {
	s.lost.Store(true)
	s.rmu.Lock()
	defer s.rmu.Unlock()
	s.wmu.Lock()
	for s.writing {
		s.wmu.Unlock()
		wait.Yield()
		s.wmu.Lock()
	}
	defer s.wmu.Unlock()
	s.amu.Lock()
	defer s.amu.Unlock()
	if s.disposed {
		return
	}
	s.disposed = true
	if s.conn != nil {
		s.conn.Close()
	} else {
		s.e.unwatch(s)
		_ = unix.Close(s.fd)
	}
}
