//go:build linux

package wire

import (
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/run/transport/internal/rails"
	"github.com/weft-fabric/weft/run/transport/internal/socket"
)

// Waiting has four stages. First the caller reads and writes the sockets itself
// without a pause, twice. Then it yields its processor between two looks, unless that
// takes long (wait.Backoff): a rank that shares it goes on at once, and one that has it
// alone loses 0.3 us. Two bare processes that exchange 112 bytes take 5.9 to 12 us so on two cores, and 9
// to 21 if they sleep instead; on one core 5.4 to 7.9, and 6.3 to 9.7 (medians of
// three runs in turn, the machine being busy). Then it sleeps in socket.Poll(2), but as that
// keeps a processor of the Go scheduler, for a millisecond only: one way of 8
// bytes takes 4.0 us so, against 7.1 through Go's poller. From then on it is
// parked, and the pump, which sleeps in Go's poller, reads for it.
const (
	Tries      = 2
	alone      = 6 // where every rank has a core
	YieldTime  = 200 * time.Microsecond
	pollMillis = 1
	slice      = 10 * time.Millisecond // at which a parked caller asks Stop

	// A sender that has waited so long takes whatever others send to it. Ranks with a core of their own look for up to 13 ms before they
	// sleep: when a sender let others wait as long, an all-gather of 16 MiB by direct sends among 8 hosts took 51 to 62 ms, and 19 since (16
	// cores).
	wideTime = 20 * time.Microsecond

	readBudget = 512 << 10 // bytes that are read before writing has its turn
)

// settle finds out where this rank belongs among those of its host.
func (e *Node) settle(all []rails.Facts) {
	here, before := 0, 0
	for i, f := range all {
		if f.Host == all[e.cfg.Rank].Host {
			if here++; i < e.cfg.Rank {
				before++
			}
		}
	}
	if e.Looks = Tries; e.Home.Settle(here, before) {
		e.Looks = alone
	}
}

// waiter is a caller that may sleep.
type Waiter struct {
	state atomic.Int32 // awake, polling or parked
	efd   int          // wakes it from poll; -1 until needed
	ch    chan struct{}
	timer *time.Timer
	fds   []unix.PollFd
}

const (
	awake = iota
	polling
	parked
)

// Wake ends the waiter's sleep, if there is one and it is asleep.
func (w *Waiter) Wake() {
	if w == nil || w.state.Load() == awake {
		return
	}
	switch w.state.Swap(awake) {
	case polling:
		one := [8]byte{1}
		_, _ = unix.Write(w.efd, one[:])
	case parked:
		select {
		case w.ch <- struct{}{}:
		default:
		}
	}
}

// waiters are those of an endpoint.
type waiters struct {
	mu   sync.Mutex
	all  []*Waiter
	idle []*Waiter
}

func (e *Node) waiter() *Waiter {
	ws := &e.waiters
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if n := len(ws.idle); n > 0 {
		w := ws.idle[n-1]
		ws.idle = ws.idle[:n-1]
		return w
	}
	w := &Waiter{efd: -1, ch: make(chan struct{}, 1)}
	ws.all = append(ws.all, w)
	return w
}

func (e *Node) putWaiter(w *Waiter) {
	ws := &e.waiters
	ws.mu.Lock()
	ws.idle = append(ws.idle, w)
	ws.mu.Unlock()
}

// WakeAll lets every sleeping caller look again.
func (e *Node) WakeAll() {
	ws := &e.waiters
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for _, w := range ws.all {
		w.Wake()
	}
}

// Await reads and writes until a message is in, or out if it is sent, the streams with a number first. tell is
// called whenever the caller is going to sleep, with the waiter to wake when that is
// so, and with nil in the end if it was called before.
func (pr *Link) Await(p Caller, number int, done *atomic.Bool, sending bool, tell func(*Waiter)) error {
	e := pr.e
	s := spell{on: number, blind: e.secure || pr.Rank == e.cfg.Rank}
	s.parking = s.blind
	defer s.end(e, tell)
	var some [8]*Link // the peers that matter
	for {
		peers, moved := e.turn(p, some[:0], pr, done, sending, &s)
		if done.Load() {
			if !s.slept.IsZero() && e.Home.Cores {
				e.Home.Slept(time.Since(s.slept))
			}
			return nil
		}
		if err := p.Err(); err != nil {
			return err
		}
		if err := pr.Alive(); err != nil {
			// What it sent before may have come while this looked.
			if readFrom(some[:1], AllStreams, nil); done.Load() {
				return nil
			}
			return err
		}
		if moved {
			s.idle, s.parking = 0, s.blind
			continue
		}
		if s.idle++; !s.parking && s.idle < Tries {
			continue
		}
		if s.keep(e); s.yields(e) {
			// The peer may be waiting, over others, for what they send to this
			// rank, announced or not: let it in.
			s.wide = s.wide || sending && s.widens(time.Now())
			continue
		}
		if err := p.Stop(); err != nil {
			return err
		}
		if sending && !s.wide { // it did not look for so long
			s.wide, s.idle = true, 0
			continue
		}
		if s.w == nil {
			s.w = e.waiter()
		}
		tell(s.w)
		if s.slept.IsZero() {
			s.slept = time.Now()
		}
		if s.parking || !doze(p, s.w, peers, s.on, done) {
			s.letGo()
			// The peer may wait, over others, for what they send to this rank: one that receives lets it in, too, after a while.
			s.wide = e.park(p, s.w, pr, peers, done, sending) || s.wide
			continue
		}
		s.parking, s.idle = true, 0 // unless something came
	}
}

// spell is a wait under way.
type spell struct {
	w       *Waiter
	on      int  // the number of the streams that are the caller's own, or AnyStream
	idle    int  // looks in vain, one after another
	blind   bool // there is nothing to look at
	wide    bool // it looks at all peers
	hot     bool // it is among those that keep a processor
	parking bool // it sleeps through the pump, not in poll

	since, slept time.Time // the first yield, the first sleep
}

// widens says whether a sender has looked for long enough, from its second yield on, to look at all peers.
func (s *spell) widens(now time.Time) bool { return s.idle > Tries+1 && now.Sub(s.since) > wideTime }

// keep makes the wait one of those that keep a processor, or lets it park if there
// are enough of them.
func (s *spell) keep(e *Node) {
	if s.hot || s.parking {
		return
	}
	if s.hot = keeping.Add(1) <= e.keepers; !s.hot {
		keeping.Add(-1)
		s.parking = true
	}
}

// letGo gives the processor up.
func (s *spell) letGo() {
	if s.hot {
		s.hot = false
		keeping.Add(-1)
	}
}

// yields gives the processor away for a moment and is true, or is false if it is time
// to sleep.
func (s *spell) yields(e *Node) bool {
	if s.parking {
		return false
	}
	if s.idle == Tries { // most need no more than this, and the clock takes 0.1 us
		e.yield(s.on)
		return true
	}
	now := time.Now()
	if s.idle == Tries+1 {
		s.since = now
	}
	if now.Sub(s.since) >= e.Home.LookFor(YieldTime) {
		return false
	}
	e.yield(s.on)
	return true
}

// end gives back what the wait held.
func (s *spell) end(e *Node, tell func(*Waiter)) {
	if s.w != nil {
		tell(nil)
		e.putWaiter(s.w)
	}
	s.letGo()
}

// keeping is how many callers of this process wait without giving up their
// processor of the Go scheduler.
var keeping atomic.Int32

// turn gives each of the streams that matter to a wait its turn, and says
// whether anything moved. The peers that matter are appended to a list, the one
// that is waited for as the first.
func (e *Node) turn(p Caller, list []*Link, pr *Link, done *atomic.Bool, sending bool, s *spell) (peers []*Link, moved bool) {
	peers, on := append(list, pr), s.looksAt()
	if s.wide {
		for _, x := range e.peers {
			if x != pr {
				peers = append(peers, x)
			}
		}
	}
	if !sending {
		return peers, readFrom(peers, on, done)
	}
	reading := true
	if !s.wide {
		peers, reading = p.Expects(pr, peers)
		reading = reading || pr.Numbered
	}
	for _, x := range pr.Streams() {
		if x.carries(on) && x.queued.Load() > 0 && x.write() {
			moved = true
		}
	}
	from := peers
	if !reading {
		from = peers[1:]
	}
	return peers, readFrom(from, on, nil) || moved
}

func readFrom(peers []*Link, number int, want *atomic.Bool) bool {
	moved := false
	for _, pr := range peers {
		moved = pr.turn(number, want) || moved
	}
	return moved
}

// turn reads and writes the streams with a peer that have a number, and says whether anything moved. If these are lost it is all.
func (pr *Link) turn(number int, want *atomic.Bool) (moved bool) {
	number = pr.sound(number)
	for _, s := range pr.Streams() {
		if s.conn != nil || s.lost.Load() || !s.carries(number) {
			continue
		}
		if s.rmu.TryLock() {
			if s.Read(readBudget, true, want) {
				moved = true
			}
			s.rmu.Unlock()
		}
		if s.queued.Load() > 0 && s.write() {
			moved = true
		}
	}
	return moved
}

// Serve lets in what others send, for a caller that waits in another transport: the senders of long messages wait for it.
func (e *Node) Serve() bool {
	moved := false
	for _, pr := range e.peers {
		moved = pr.turn(AllStreams, nil) || moved
	}
	return moved
}

// doze sleeps in poll for a millisecond at most. It is false if that cannot be.
func doze(p Caller, w *Waiter, peers []*Link, number int, done *atomic.Bool) bool {
	if w.efd < 0 {
		fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
		if err != nil {
			return false
		}
		w.efd = fd
	}
	w.fds = append(w.fds[:0], unix.PollFd{Fd: int32(w.efd), Events: unix.POLLIN})
	for _, pr := range peers {
		for _, s := range pr.Streams() {
			if s.lost.Load() || !s.carries(pr.sound(number)) {
				continue
			}
			ev := int16(unix.POLLIN)
			if s.queued.Load() > 0 {
				ev |= unix.POLLOUT
			}
			w.fds = append(w.fds, unix.PollFd{Fd: int32(s.fd), Events: ev})
		}
	}
	w.state.Store(polling)
	if !done.Load() && p.Err() == nil {
		socket.Poll(w.fds, pollMillis)
	}
	w.state.Store(awake)
	if w.fds[0].Revents != 0 {
		var b [8]byte
		_, _ = unix.Read(w.efd, b[:])
	}
	return true
}

// park sleeps until the pump or another caller wakes it, or for a slice, and says
// whether the slice went by. While one that sends is parked the pump lets everything in.
func (e *Node) park(p Caller, w *Waiter, pr *Link, peers []*Link, done *atomic.Bool, sending bool) (late bool) {
	if sending {
		e.stuck.Add(1)
		defer e.stuck.Add(-1)
	}
	for _, x := range peers {
		x.waiting.Add(1)
		defer x.waiting.Add(-1)
	}
	w.state.Store(parked)
	for _, x := range peers {
		for _, s := range x.Streams() {
			s.arm()
		}
	}
	if done.Load() || p.Err() != nil || pr.gone.Load() != nil {
		w.state.Store(awake)
	}
	if w.state.Load() == parked {
		if w.timer == nil {
			w.timer = time.NewTimer(slice)
		} else {
			w.timer.Reset(slice)
		}
		select {
		case <-w.ch:
		case <-w.timer.C:
			late = true
		}
		w.timer.Stop()
	}
	w.state.Store(awake)
	select {
	case <-w.ch:
	default:
	}
	return late
}

// pump reads and writes what no caller does. Each stream wakes it once (that
// is how it is registered) and is armed again when a caller is parked, or when
// a tick passed in which nobody read it: so callers that are busy with a
// stream do not wake it with every message.
type pump struct {
	epfd    int
	file    *os.File
	raw     syscall.RawConn
	ticking atomic.Bool
	mu      sync.Mutex
	byID    map[int32]*Stream
	next    int32
}

// tickTime is how long a stream must not have been read before the pump looks
// after it. While callers go on reading, ticks become rarer: each wakes a thread.
const (
	tickTime = 2 * time.Millisecond
	tickMost = 16 * time.Millisecond
)

// startPump watches all streams with one epoll descriptor, which the Go runtime itself waits for. No thread is blocked.
func (e *Node) startPump() error {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return err
	}
	u := &e.pump
	u.epfd, u.file, u.byID = fd, os.NewFile(uintptr(fd), "epoll"), map[int32]*Stream{}
	if u.raw, err = u.file.SyscallConn(); err != nil {
		return err
	}
	e.wg.Go(e.runPump)
	return nil
}

// name gives a stream its number with the pump, before anybody else sees it.
func (e *Node) name(s *Stream) {
	u := &e.pump
	u.mu.Lock()
	u.next++
	s.id = u.next
	u.byID[s.id] = s
	u.mu.Unlock()
}

// watch registers a stream with the pump.
func (e *Node) watch(s *Stream) error {
	s.armed.Store(unix.EPOLLIN)
	return unix.EpollCtl(e.pump.epfd, unix.EPOLL_CTL_ADD, s.fd, &unix.EpollEvent{Events: armEvents, Fd: s.id})
}

func (e *Node) unwatch(s *Stream) {
	u := &e.pump
	u.mu.Lock()
	delete(u.byID, s.id)
	u.mu.Unlock()
	_ = unix.EpollCtl(u.epfd, unix.EPOLL_CTL_DEL, s.fd, nil)
}

const armEvents = unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLONESHOT

// arm lets the pump be woken for a stream.
func (s *Stream) arm() {
	if s.conn != nil || s.lost.Load() {
		return
	}
	want := uint32(unix.EPOLLIN)
	if s.queued.Load() > 0 {
		want |= unix.EPOLLOUT
	}
	if s.armed.Load()&want == want {
		return
	}
	s.rearm(want, armEvents|want)
}

func (s *Stream) rearm(armed, events uint32) {
	s.amu.Lock()
	defer s.amu.Unlock()
	if !s.disposed {
		s.armed.Store(armed)
		_ = unix.EpollCtl(s.e.pump.epfd, unix.EPOLL_CTL_MOD, s.fd, &unix.EpollEvent{Events: events, Fd: s.id})
	}
}

// armHangup lets the pump be woken for a paused stream by its end, and by room for
// what is still to be written, but not by what is to be read.
func (s *Stream) armHangup() {
	want := uint32(unix.EPOLLRDHUP)
	if s.queued.Load() > 0 {
		want |= unix.EPOLLOUT
	}
	s.rearm(want, want|unix.EPOLLONESHOT)
}

// runPump passes on events until the descriptor is closed.
func (e *Node) runPump() {
	u := &e.pump
	var events [64]unix.EpollEvent
	for {
		n := 0
		err := u.raw.Read(func(fd uintptr) bool {
			n, _ = unix.EpollWait(int(fd), events[:], 0)
			return n > 0
		})
		if err != nil {
			return
		}
		for _, ev := range events[:n] {
			u.mu.Lock()
			s := u.byID[ev.Fd]
			u.mu.Unlock()
			if s != nil {
				s.pumped(ev.Events)
			}
		}
	}
}

// pumped is the pump's work on a stream.
func (s *Stream) pumped(ev uint32) {
	e := s.e
	s.armed.Store(0)
	// What is left of a peer that hung up is at most what the socket holds.
	eager := ev&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0
	s.rmu.Lock()
	for s.Read(readBudget, eager, nil) && !s.lost.Load() {
	}
	paused := s.paused
	s.rmu.Unlock()
	s.write()
	switch {
	case s.lost.Load():
	case paused:
		s.armHangup() // those that wait look again themselves
	case s.peer.waiting.Load() > 0:
		s.arm()
	default:
		e.tickSoon()
	}
}

func (e *Node) tickSoon() { e.tickIn(tickTime) }

func (e *Node) tickIn(pause time.Duration) {
	if !e.closed.Load() && e.pump.ticking.CompareAndSwap(false, true) {
		time.AfterFunc(pause, func() { e.tick(pause) })
	}
}

// tick arms the streams that nobody read since the last one, which was so long ago.
func (e *Node) tick(pause time.Duration) {
	e.pump.ticking.Store(false)
	if e.closed.Load() {
		return
	}
	again := false
	for _, pr := range e.peers {
		for _, s := range pr.Streams() {
			if s.lost.Load() || s.conn != nil || s.armed.Load() != 0 {
				continue
			}
			if s.unread() {
				s.arm()
			} else {
				again = true
			}
		}
	}
	if again {
		e.tickIn(min(2*pause, tickMost))
	}
}

// unread reports whether nobody read the stream since it was asked last.
func (s *Stream) unread() bool {
	if !s.rmu.TryLock() {
		return false
	}
	defer s.rmu.Unlock()
	was := s.seen
	s.seen = s.reads
	return was == s.reads
}

// policy sets how many callers may wait without giving up their processor of the
// Go scheduler: one stays for others, where there is more than one.
func (e *Node) policy() { e.keepers = int32(max(1, runtime.GOMAXPROCS(0)-1)) }
