//go:build linux

package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/auth"
	"github.com/weft-fabric/weft/run/transport/internal/buffer"
	"github.com/weft-fabric/weft/run/transport/internal/frame"
	"github.com/weft-fabric/weft/run/transport/internal/rails"
	"github.com/weft-fabric/weft/run/transport/record"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// nobody is above links that carry nothing.
type nobody struct{}

func (nobody) Route(*Stream, *Call, bool) bool    { return true }
func (nobody) Told(*Stream, *Call, *frame.Header) {}
func (nobody) Serve(conn *record.Conn, _ int)     { conn.Close() }
func (nobody) Renew(int)                          {}
func (nobody) Closing()                           {}
func (nobody) Closed()                            {}

// nodes opens n of them in this process.
func nodes(t *testing.T, n int, change func(*Config)) []*Node {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second)
	defer cancel()
	g := &gatherer{n: n}
	es, errs := make([]*Node, n), make([]error, n)
	t.Cleanup(func() { closeAll(es) })
	var wg sync.WaitGroup
	for i := range n {
		cfg := Config{Rank: i, Size: n, Gather: g.gather(i), Token: "secret"}
		if change != nil {
			change(&cfg)
		}
		var err error
		if es[i], err = New(cfg, nobody{}); err != nil {
			t.Fatal(err)
		}
		wg.Go(func() { errs[i] = es[i].Open(ctx) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return es
}

func closeAll(es []*Node) {
	var wg sync.WaitGroup
	for _, e := range es {
		wg.Go(func() { e.Close() })
	}
	wg.Wait()
}

// gatherer is a Gather among goroutines.
type gatherer struct {
	mu    sync.Mutex
	n     int
	blobs [][]byte
	left  int
	done  chan struct{}
}

func (g *gatherer) gather(rank int) transport.Gather {
	return func(ctx context.Context, mine []byte) ([][]byte, error) {
		g.mu.Lock()
		if g.left == 0 {
			g.blobs, g.left, g.done = make([][]byte, g.n), g.n, make(chan struct{})
		}
		g.blobs[rank] = mine
		blobs, done := g.blobs, g.done
		if g.left--; g.left == 0 {
			close(done)
		}
		g.mu.Unlock()
		select {
		case <-done:
			return blobs, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// lines collects what is logged.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// TestAProbeSparesYoungerStreams: that a peer had lost all streams is no reason to give up one
// that was made since, and what was dialed before does not take the place of what was dialed after it.
func TestAProbeSparesYoungerStreams(t *testing.T) {
	es := nodes(t, 2, func(c *Config) { c.Streams = 2 })
	for _, e := range es {
		pr := e.peers[1-e.cfg.Rank]
		if len(pr.Streams()) != 2 || pr.youngest == 0 {
			t.Fatalf("rank %d has %d streams, the youngest of attempt %d", e.cfg.Rank, len(pr.Streams()), pr.youngest)
		}
		before := pr.Streams()
		if pr.probed(0); before[0].lost.Load() || before[1].lost.Load() {
			t.Errorf("rank %d gave up streams that are younger than a probe", e.cfg.Rank)
		}
	}
	e := es[0]
	if !e.dials(0, 1) {
		e = es[1]
	}
	pr := e.peers[1-e.cfg.Rank]
	old, s := lane{number: 0, kind: laneData}, pr.Streams()[0]
	conn, secret, err := e.dialOnce(t.Context(), pr.Rank, old)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.add(conn, pr, 0, old, &secret, true); err == nil {
		t.Error("an attempt took the place of a later one")
	}
	conn.Close()
	if s.lost.Load() {
		t.Error("the later one is lost")
	}
	for _, e := range es {
		pr := e.peers[1-e.cfg.Rank]
		list := pr.Streams()
		pr.probed(list[0].attempt)
		if !list[0].lost.Load() {
			t.Errorf("rank %d keeps a stream that its peer has lost", e.cfg.Rank)
		}
	}
}

// A rail is given up as a whole when its peer has no answers over it: what it had under way would else go over the next stream of the
// same rail, and wait there again. Streams of other rails and younger ones stay, and so does a rail that is the only one.
func TestRailIsGivenUpAsAWhole(t *testing.T) {
	es := nodes(t, 2, func(c *Config) { c.Streams = 4 })
	e := es[0]
	if e.dials(0, 1) {
		e = es[1]
	}
	pr := e.peers[1-e.cfg.Rank]
	list := pr.Streams()
	lost := func() (n int) {
		for _, s := range list {
			if s.lost.Load() {
				n++
			}
		}
		return n
	}
	oldest := list[0].attempt
	for _, s := range list {
		oldest = min(oldest, s.attempt)
	}
	pr.toldOfRail(0, oldest+9)
	if lost() > 0 {
		t.Fatal("the only rail was given up on a peer's word")
	}
	for _, s := range list[:3] {
		s.pair = 1
	}
	youngest := list[0]
	for _, s := range list[:3] {
		if s.attempt > youngest.attempt {
			youngest = s
		}
	}
	pr.toldOfRail(1, youngest.attempt-1)
	if lost() != 2 || youngest.lost.Load() || list[3].lost.Load() {
		t.Errorf("%d streams are lost, the youngest %v, that of the other rail %v; want the other two of the rail",
			lost(), youngest.lost.Load(), list[3].lost.Load())
	}
}

// A stream that is lost just when its endpoint closes is closed with it.
func TestLostWhileClosing(t *testing.T) {
	es := nodes(t, 2, func(c *Config) { c.Streams = 2 })
	e := es[0]
	pr := e.peers[1]
	s := pr.Streams()[0]
	e.lmu.Lock() // nothing that is to be done later begins
	begin := sync.OnceFunc(e.lmu.Unlock)
	defer begin()
	lost, closed := make(chan struct{}), make(chan bool, 1)
	go func() {
		defer close(lost)
		s.fail(io.EOF)
	}()
	// The peer may have made another one.
	bounded.Until(t, 20*time.Second, "the stream to leave the list", func() bool { return !slices.Contains(pr.Streams(), s) })
	go func() { closed <- e.Close() }()
	bounded.Until(t, 20*time.Second, "the endpoint to close", e.closed.Load)
	begin()
	<-lost
	<-closed
	s.amu.Lock()
	defer s.amu.Unlock()
	if !s.disposed {
		t.Error("the socket of the lost stream is left open")
	}
}

// Whoever is warned that a link is lost is told that it is back, by the same log.
func TestWhatIsBackIsToldAsWhatIsLost(t *testing.T) {
	var text strings.Builder
	e := &Node{peers: []*Link{{}, {}}}
	e.cfg.Log = slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelWarn}))
	for _, k := range []transport.EventKind{transport.PathLost, transport.PathBack, transport.Outage, transport.OutageOver} {
		e.report(transport.Event{Kind: k, Peer: 1})
		if !strings.Contains(text.String(), k.String()) {
			t.Errorf("%q is not told", k)
		}
	}
}

// The clock of an outage runs on what is acknowledged: streams that are made again do not set it back, an acknowledgement does.
func TestStall(t *testing.T) {
	c := &carrier{base: 7, window: []*piece{{bytes: 1000}}}
	at := time.Unix(1, 0)
	var x stall
	after := func(pause, age time.Duration) time.Duration {
		at = at.Add(pause)
		return x.another(c, 3*time.Second, at.Add(-age), at)
	}
	const step = 700 * time.Millisecond
	for i := range 5 {
		if took := after(step, step); took != 0 {
			t.Fatalf("given up after %d streams, %s", i+1, took)
		}
	}
	c.base++ // one was acknowledged
	for i := range 5 {
		if took := after(step, step); took != 0 {
			t.Fatalf("given up %d streams after an acknowledgement, %s", i+1, took)
		}
	}
	if took := after(step, step); took != 5*step || x.lost != 6 || !strings.Contains(x.between(0, 1), "MTU") {
		t.Errorf("%s, %d streams: %s", took, x.lost, x.between(0, 1))
	}
	if took := after(0, 4900*time.Millisecond); took != 0 {
		t.Errorf("given up with a stream that was there before: %s", took)
	}
	if took := after(time.Hour, time.Hour); took != 0 {
		t.Errorf("given up with a stream that lasted an hour: %s", took)
	}
	c.window[0].bytes = 8
	c.base++
	for range 5 {
		after(step, step)
	}
	if took := after(step, step); took == 0 || strings.Contains(x.between(0, 1), "MTU") {
		t.Errorf("%s: %s", took, x.between(0, 1))
	}
	c.window = nil
	if took := after(step, step); took != 0 || x.lost != 0 {
		t.Errorf("given up with nothing to send: %s", took)
	}
}

// The rate in virtual time: one in AlterTime for a month is bearable, a burst is not, and neither is twice the rate for long.
func TestAlterations(t *testing.T) {
	for _, x := range []struct {
		what  string
		every time.Duration
		n     int
		often int // which one is too many; 0 for none
	}{
		{"a month at the bearable rate", AlterTime, int(30 * 24 * time.Hour / AlterTime), 0},
		{"a burst", time.Millisecond, 100, AlterMost},
		{"twice the rate", AlterTime / 2, 100, 2*AlterMost - 2},
	} {
		var a alterations
		at, often := time.Unix(1, 0), 0
		for i := 1; i <= x.n && often == 0; i++ {
			if a.often(at) {
				often = i
			}
			at = at.Add(x.every)
		}
		if often != x.often {
			t.Errorf("%s: the one too many is number %d, want %d", x.what, often, x.often)
		}
	}
}

// TestChatter bounds what is told of links that come and go.
func TestChatter(t *testing.T) {
	var c chatter
	at, told := time.Unix(1, 0), 0
	for range 1000 {
		if ok, _, _ := c.may(at); ok {
			told++
		}
	}
	if told != ChatMost {
		t.Errorf("%d lines were told, want %d", told, ChatMost)
	}
	if ok, _, missed := c.may(at.Add(chatTime)); !ok || missed != 1000-ChatMost {
		t.Errorf("after a while: %v, %d left out", ok, missed)
	}
}

// Between hosts checksums are keyed unless somebody says otherwise, inside one only if somebody asks, and never under TLS.
func TestWhichChecksums(t *testing.T) {
	for _, x := range []struct {
		cfg             Config
		secure, between bool
		keyed, sums     bool
	}{
		{cfg: Config{Token: "t"}, between: true, keyed: true, sums: true},
		{cfg: Config{Token: "t", Checksum: SumsNone}, between: true},
		{cfg: Config{Token: "t"}, secure: true, between: true},
		{cfg: Config{Token: "t"}},
		{cfg: Config{Token: "t", Checksum: SumsAll}, keyed: true, sums: true},
		{cfg: Config{Checksum: SumsAll}, sums: true},
	} {
		if keyed, sums := x.cfg.sums(x.secure, x.between); keyed != x.keyed || sums != x.sums {
			t.Errorf("%+v: keyed %v, checksums %v", x, keyed, sums)
		}
	}
}

// Whoever sits between two ranks cannot make the checksum of what it changes: every connection has keys of its own.
func TestChecksumsAreKeyed(t *testing.T) {
	es := nodes(t, 2, func(c *Config) { c.Streams, c.Checksum = 2, SumsAll })
	plain, piece := auth.PlainKey(), []byte("what is sent")
	seen := map[uint32]bool{plain.Piece(piece): true}
	streams := es[0].peers[1].Streams()
	closeAll(es) // a key is its connection's alone while there is one
	for _, s := range streams {
		for _, k := range []*auth.Key{s.in, s.out} {
			if sum := k.Piece(piece); seen[sum] {
				t.Errorf("checksum %x is that of no key, or of another connection", sum)
			} else {
				seen[sum] = true
			}
		}
	}
}

// It does so 20 us after it began to yield, long before it sleeps: ranks with a core each look for up to 13 ms.
func TestWhenASenderLooksAtAll(t *testing.T) {
	since := time.Unix(1000, 0)
	for _, c := range []struct {
		idle   int
		waited time.Duration
		want   bool
	}{
		{Tries, time.Hour, false}, // the clock has not been read
		{Tries + 1, time.Hour, false},
		{Tries + 2, wideTime, false},
		{Tries + 2, wideTime + 1, true},
	} {
		s := spell{idle: c.idle, since: since}
		if got := s.widens(since.Add(c.waited)); got != c.want {
			t.Errorf("after %d looks and %s: %v, want %v", c.idle, c.waited, got, c.want)
		}
	}
	if wideTime >= YieldTime {
		t.Errorf("a sender sleeps after %s, before it looks at all, after %s", YieldTime, wideTime)
	}
}

// A stream that ends before the others of its rank is dialed again, and comes too late: to a rank that closes, or from one that has left.
// The dialer is told, and nobody else. One that was given up is told of.
func TestLateStreamsAreNotTold(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(*Node)
		told bool
	}{
		{"to a rank that closes", func(e *Node) { e.closed.Store(true) }, false},
		{"from a rank that has left", func(e *Node) {
			e.peers[1].bye.Store(true)
			e.peers[1].vanish("it left")
		}, false},
		{"from a rank that was given up", func(e *Node) { e.peers[1].vanish("it was silent") }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var told lines
			log := slog.New(slog.NewTextHandler(&told, &slog.HandlerOptions{Level: slog.LevelWarn}))
			es := nodes(t, 2, func(c *Config) { c.Log = log })
			listens, dials := es[0], es[1] // of two ranks the second dials
			c.end(listens)
			conn, _, err := dials.dialOnce(t.Context(), listens.cfg.Rank, dials.peers[listens.cfg.Rank].attempt([2]int{}, 0))
			if conn != nil {
				conn.Close()
			}
			if _, ok := errors.AsType[*auth.Refusal](err); !ok {
				t.Fatalf("the dialer was told %v", err)
			}
			if c.told { // who turns a rank away is not dead
				given := dials.peers[listens.cfg.Rank].unwanted(err)
				if p, ok := errors.AsType[*transport.Parted](dials.peers[listens.cfg.Rank].Alive()); !given || !ok || !p.Lives {
					t.Errorf("the dialer says %v", dials.peers[listens.cfg.Rank].Alive())
				}
			}
			listens.closed.Store(false)
			closeAll(es) // after the listener is done with it
			if s := told.text.String(); strings.Contains(s, "turned away") != c.told {
				t.Errorf("told: %q", s)
			}
		})
	}
}

// Where a process of another epoch of the job listens by now, the peer is gone. The tokens, which differ, are not blamed.
func TestAddressOfAnotherEpoch(t *testing.T) {
	es := nodes(t, 2, func(c *Config) { c.Epoch = 5 })
	listens, dials := es[0], es[1] // of two ranks the second dials
	dials.cfg.Epoch, dials.cfg.Token = 4, "secret of 4"
	pr := dials.peers[0]
	conn, _, err := dials.dialOnce(t.Context(), 0, pr.attempt([2]int{}, 0))
	if conn != nil {
		conn.Close()
	}
	const want = "belongs to epoch 5 of the job, this rank to epoch 4"
	if err == nil || !strings.Contains(err.Error(), want) || !isFinal(err) || !pr.unwanted(err) {
		t.Fatalf("the dialer was told %v", err)
	}
	if g, ok := errors.AsType[*transport.Gone](pr.Alive()); !ok || !strings.Contains(g.Error(), want) {
		t.Errorf("the dialer says %v", pr.Alive())
	}
	for _, c := range listens.gate.Counters() {
		if (c.Name == "hello.epoch") != (c.Value > 0) {
			t.Errorf("%s %d", c.Name, c.Value)
		}
	}
}

// A rank on a busy host may take long to answer one that dials it. That is a time limit that passed, after which it is dialed again,
// and not an error that ends the ranks.
func TestBusyPeerIsDialedAgain(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() // nobody accepts: the system answers, the process does not
	home := netip.MustParseAddr("127.0.0.1")
	e := &Node{ctx: t.Context(), rails: []rails.Rail{{Name: "lo", Addr: home, Bits: 8}}, want: []int{0, 1}}
	e.cfg.Size = 2
	e.where = [][]rails.Address{{}, {{Addr: netip.MustParseAddrPort(l.Addr().String()), Bits: 8}}}
	e.peers = []*Link{{e: e}, {e: e, Rank: 1}}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, _, err = e.dialOnce(ctx, 1, lane{})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a peer that does not answer: %v, want %v", err, context.DeadlineExceeded)
	}
	for _, err := range []error{err, fmt.Errorf("write: %w", unix.EPIPE), fmt.Errorf("read: %w", unix.ECONNRESET)} {
		if err := e.peers[1].unmet(err); err != nil {
			t.Errorf("it is not tried again: %v", err)
		}
	}
}

// A stream breaks while the sender of a message has written it and not copied it yet: the message waits for the copy and is sent again from
// that, whatever becomes of the sender's memory.
func TestBrokenBeforeTheCopy(t *testing.T) {
	es := nodes(t, 2, func(c *Config) { c.Streams = 2 })
	e := es[0]
	pr := e.peers[1]
	if !pr.Numbered {
		t.Fatal("pieces are not numbered")
	}
	b := make([]byte, keepNear+1)
	for i := range b {
		b[i] = byte(i)
	}
	want := slices.Clone(b)
	pr.mu.Lock()
	c := &pr.carrier
	x := c.pieceFor(len(b))
	x.h = frame.Header{Kind: frame.Data, Total: uint64(len(b)), Piece: c.base + uint64(len(c.window))}
	c.window = append(c.window, x)
	c.kept += len(b)
	s := pr.First(AnyStream)
	pr.assign(x, s)
	x.late = true
	pr.mu.Unlock()
	pr.strike(s, io.EOF)
	pr.feed()
	if n := e.count.resent.Load(); n != 0 {
		t.Fatalf("%d pieces were sent again before there was a copy", n)
	}
	pr.keep(x, b)
	clear(b) // it is the caller's again
	if n := e.count.resent.Load(); n != 1 || !slices.Equal(x.b, want) {
		t.Errorf("%d pieces were sent again; the copy is the message: %t", n, slices.Equal(x.b, want))
	}
}

// The descriptor of a stream that was lost is another connection's soon: what comes there is not read by who looked at the old stream.
func TestLostStreamsReadNothing(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	s := &Stream{fd: pair[0], stage: buffer.Aligned(stageSize)}
	s.lost.Store(true)
	sent := make([]byte, frame.HeaderSize)
	if _, err := unix.Write(pair[1], sent); err != nil {
		t.Fatal(err)
	}
	if s.TryRead() {
		s.Peek(0)
		s.EndRead()
	}
	if n, err := unix.Read(pair[0], make([]byte, 1<<10)); n != len(sent) {
		t.Errorf("%d of %d bytes of the other connection are left (%v)", n, len(sent), err)
	}
}
