package tcp

import (
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/transport"
)

// Waiting has three stages. First the caller reads and writes the sockets
// itself without a pause, a few times only where ranks outnumber cores. Then it sleeps in poll(2), which wakes it fastest: one way
// of 8 bytes takes 4.0 us so, against 7.1 through Go's poller; but it keeps a
// processor of the Go scheduler, so it does that for a millisecond only. From
// then on it is parked, and the pump, which sleeps in Go's poller, reads for it.
const (
	pollMillis = 1
	slice      = 10 * time.Millisecond // at which a parked caller asks Stop

	readBudget = 512 << 10 // bytes that are read before writing has its turn
)

// waiter is a caller that may sleep.
type waiter struct {
	state atomic.Int32 // awake, polling or parked
	efd   int          // wakes it from poll; -1 until needed
	ch    chan struct{}
	timer *time.Timer
	fds   []unix.PollFd
	peers []*peer
}

const (
	awake = iota
	polling
	parked
)

// wake ends the waiter's sleep, if it is asleep.
func (w *waiter) wake() {
	if w.state.Load() == awake {
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
	all  []*waiter
	idle []*waiter
}

func (e *Endpoint) waiter() *waiter {
	ws := &e.waiters
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if n := len(ws.idle); n > 0 {
		w := ws.idle[n-1]
		ws.idle = ws.idle[:n-1]
		return w
	}
	w := &waiter{efd: -1, ch: make(chan struct{}, 1)}
	ws.all = append(ws.all, w)
	return w
}

func (e *Endpoint) putWaiter(w *waiter) {
	ws := &e.waiters
	ws.mu.Lock()
	ws.idle = append(ws.idle, w)
	ws.mu.Unlock()
}

// wakeAll lets every sleeping caller look again.
func (e *Endpoint) wakeAll() {
	ws := &e.waiters
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for _, w := range ws.all {
		w.wake()
	}
}

// await reads and writes until a message is in (got) or out (sent).
func (p *port) await(w *waiter, pr *peer, got, sent *atomic.Bool) error {
	e := p.e
	done := got
	if done == nil {
		done = sent
	}
	self := pr.rank == e.cfg.Rank
	idle, dozed, limit := 0, false, e.spins.limit()
	wide := false // look at all peers
	for {
		moved := p.turn(w, pr, sent != nil, wide)
		if idle > 0 && moved {
			e.spins.helped()
		}
		if done.Load() {
			return nil
		}
		if f := p.err.Load(); f != nil {
			return f.err
		}
		if err := pr.alive(); err != nil {
			// What it sent before may have come while this looked.
			if p.turn(w, pr, false, false); done.Load() {
				return nil
			}
			return err
		}
		if moved {
			idle = 0
			continue
		}
		idle++
		if !e.secure && !self && !dozed && idle < limit {
			continue
		}
		if err := p.stop(); err != nil {
			return err
		}
		if !dozed {
			e.spins.inVain()
			limit = e.spins.limit()
		}
		if sent != nil && !wide {
			// The peer may be waiting, over others, for what they send to this
			// rank, announced or not: let it in.
			wide, idle = true, 0
			continue
		}
		if e.secure || self || dozed || !p.doze(w, done) {
			dozed = true
			p.park(w, pr, done, sent != nil)
		} else {
			dozed = !p.turn(w, pr, sent != nil, wide)
			if done.Load() {
				return nil
			}
			idle = 0
		}
	}
}

// turn gives each of the streams that matter to a wait its turn, and says
// whether anything moved. The peers that matter are left in the waiter.
func (p *port) turn(w *waiter, pr *peer, sending, wide bool) bool {
	moved := false
	w.peers = w.peers[:0]
	w.peers = append(w.peers, pr)
	if wide {
		for _, x := range p.e.peers {
			if x != pr {
				w.peers = append(w.peers, x)
			}
		}
		for _, s := range pr.all() {
			if s.queued.Load() > 0 && s.write() {
				moved = true
			}
		}
	} else if sending {
		p.mu.Lock()
		for _, r := range p.froms {
			if r != pr.rank {
				w.peers = append(w.peers, p.e.peers[r])
			}
		}
		reading := p.expects[pr.rank] > 0
		p.mu.Unlock()
		for _, s := range pr.all() {
			if s.queued.Load() > 0 && s.write() {
				moved = true
			}
		}
		if !reading && !pr.numbered {
			if len(w.peers) == 1 {
				return moved
			}
			return p.readFrom(w.peers[1:]) || moved
		}
	}
	return p.readFrom(w.peers) || moved
}

func (p *port) readFrom(peers []*peer) bool {
	moved := false
	for _, pr := range peers {
		for _, s := range pr.all() {
			if s.conn != nil || s.lost.Load() {
				continue
			}
			if s.rmu.TryLock() {
				if s.read(readBudget, true) {
					moved = true
				}
				s.rmu.Unlock()
			}
			if s.queued.Load() > 0 && s.write() {
				moved = true
			}
		}
	}
	return moved
}

// doze sleeps in poll for a millisecond at most. It is false if too many are
// doing that already.
func (p *port) doze(w *waiter, done *atomic.Bool) bool {
	e := p.e
	if e.dozing.Add(1) > e.dozers {
		e.dozing.Add(-1)
		return false
	}
	defer e.dozing.Add(-1)
	if w.efd < 0 {
		fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
		if err != nil {
			return false
		}
		w.efd = fd
	}
	w.fds = append(w.fds[:0], unix.PollFd{Fd: int32(w.efd), Events: unix.POLLIN})
	for _, pr := range w.peers {
		for _, s := range pr.all() {
			if s.lost.Load() {
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
	if !done.Load() && p.err.Load() == nil {
		poll(w.fds, pollMillis)
	}
	w.state.Store(awake)
	if w.fds[0].Revents != 0 {
		var b [8]byte
		_, _ = unix.Read(w.efd, b[:])
	}
	return true
}

// park sleeps until the pump or another caller wakes it, or for a slice. While
// one that sends is parked the pump lets everything in.
func (p *port) park(w *waiter, pr *peer, done *atomic.Bool, sending bool) {
	if sending {
		p.e.stuck.Add(1)
		defer p.e.stuck.Add(-1)
	}
	for _, x := range w.peers {
		x.waiting.Add(1)
		defer x.waiting.Add(-1)
	}
	w.state.Store(parked)
	for _, x := range w.peers {
		for _, s := range x.all() {
			s.arm()
		}
	}
	if done.Load() || p.err.Load() != nil || pr.gone.Load() != nil {
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
		}
		w.timer.Stop()
	}
	w.state.Store(awake)
	select {
	case <-w.ch:
	default:
	}
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
	byID    map[int32]*stream
	next    int32
}

// tickTime is how long a stream must not have been read before the pump looks
// after it.
const tickTime = 2 * time.Millisecond

func (e *Endpoint) startPump() error {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return err
	}
	u := &e.pump
	u.epfd, u.file, u.byID = fd, os.NewFile(uintptr(fd), "epoll"), map[int32]*stream{}
	if u.raw, err = u.file.SyscallConn(); err != nil {
		return err
	}
	e.wg.Go(e.runPump)
	return nil
}

// watch registers a stream with the pump.
func (e *Endpoint) watch(s *stream) error {
	u := &e.pump
	u.mu.Lock()
	u.next++
	s.id = u.next
	u.byID[s.id] = s
	u.mu.Unlock()
	s.armed.Store(unix.EPOLLIN)
	return unix.EpollCtl(u.epfd, unix.EPOLL_CTL_ADD, s.fd, &unix.EpollEvent{Events: armEvents, Fd: s.id})
}

func (e *Endpoint) unwatch(s *stream) {
	u := &e.pump
	u.mu.Lock()
	delete(u.byID, s.id)
	u.mu.Unlock()
	_ = unix.EpollCtl(u.epfd, unix.EPOLL_CTL_DEL, s.fd, nil)
}

const armEvents = unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLONESHOT

// arm lets the pump be woken for a stream.
func (s *stream) arm() {
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

func (s *stream) rearm(armed, events uint32) {
	s.amu.Lock()
	defer s.amu.Unlock()
	if !s.disposed {
		s.armed.Store(armed)
		_ = unix.EpollCtl(s.e.pump.epfd, unix.EPOLL_CTL_MOD, s.fd, &unix.EpollEvent{Events: events, Fd: s.id})
	}
}

// armHangup lets the pump be woken by nothing but the end of a paused stream.
func (s *stream) armHangup() {
	s.rearm(unix.EPOLLRDHUP, unix.EPOLLRDHUP|unix.EPOLLONESHOT)
}

func (e *Endpoint) runPump() {
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
func (s *stream) pumped(ev uint32) {
	e := s.e
	s.armed.Store(0)
	// What is left of a peer that hung up is at most what the socket holds.
	eager := ev&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0
	s.rmu.Lock()
	for s.read(readBudget, eager) && !s.lost.Load() {
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

func (e *Endpoint) tickSoon() {
	if !e.closed.Load() && e.pump.ticking.CompareAndSwap(false, true) {
		time.AfterFunc(tickTime, e.tick)
	}
}

// tick arms the streams that nobody read since the last one.
func (e *Endpoint) tick() {
	e.pump.ticking.Store(false)
	if e.closed.Load() {
		return
	}
	again := false
	for _, pr := range e.peers {
		for _, s := range pr.all() {
			if s.lost.Load() || s.conn != nil || s.armed.Load() != 0 {
				continue
			}
			if n := s.reads.Load(); n != s.seen.Swap(n) {
				again = true
			} else {
				s.arm()
			}
		}
	}
	if again {
		e.tickSoon()
	}
}

// spins is how often callers try before they sleep. A socket is asked in a
// quarter of a microsecond, and a message between two ranks that send at once
// takes three to five. If ranks have a core each it pays to try for longer than
// that; if sender and receiver share one, trying keeps the sender from running,
// and yielding is no way out, as it hands the core to everything else first. So
// trying is measured: in vain halves the times, and now and then all are tried
// to see whether it helps again.
//
// 8 bytes both ways at once, between processes: with a core each 5.1 us with up
// to 64 tries and 6.8 with one; on a shared core 16 us with one, 23 with 64 and
// 40 with 200.
type spins struct {
	most  int32
	now   atomic.Int32
	waits atomic.Uint32
}

// limit is how often to try this time.
func (s *spins) limit() int {
	if s.waits.Add(1)%64 == 0 {
		return int(s.most)
	}
	return int(s.now.Load())
}

func (s *spins) helped() {
	if s.now.Load() != s.most {
		s.now.Store(s.most)
	}
}

func (s *spins) inVain() { s.now.Store(max(1, s.now.Load()/2)) }

// policy sets how long callers try before they sleep.
func (e *Endpoint) policy(local, cores int) {
	e.crowded = local > cores
	e.spins.most = 200
	if e.crowded {
		e.spins.most = 2
	}
	e.spins.now.Store(e.spins.most)
	e.dozers = int32(max(1, runtime.GOMAXPROCS(0)-1))
}

var _ transport.Stop = func() error { return nil }
