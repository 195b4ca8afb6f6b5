package xfer

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/weft-fabric/weft/run/transport/shm"
)

// session is the connections to a peer, until one of them is lost; then all are.
type session struct {
	link    *link
	agent   *Agent
	peer    *Peer
	name    [16]byte
	control *conn
	streams []*conn // the first is for those in a hurry

	share    *mapping // the peer's shared memory, if it can be mapped
	imports  imports  // the peer's memory of GPUs
	slots    *[leaseSlots]leaseSlot
	pid      int    // of the peer, if its memory can be read
	noPull   string // why it cannot
	mayPull  bool   // the peer can read ours
	noShare  string // why share is nil
	mapShare bool   // the peer could map ours

	mu    sync.Mutex
	why   error
	lost  chan struct{}
	calls map[uint64]chan frame  // who waits for answers
	reads map[uint64]*landing    // where slices of reads land
	sends map[uint64]func(i int) // whom to ask for a slice again
}

// What a welcome says besides.
const (
	welcomeShares  = 1 << iota // a byte with the descriptor of the share follows
	welcomeMapped              // the listener has mapped the dialer's share
	welcomePulls               // the listener can read the dialer's memory
	welcomePrivate             // the listener's memory is not to be read
)

// welcome takes what the listener says of itself.
func (s *session) welcome(raw net.Conn, f *frame) error {
	r := reader{b: f.payload}
	flags, pid, slots := r.num(), int(r.num()), r.num()
	if err := r.end(); err != nil {
		return err
	}
	s.mapShare, s.mayPull = flags&welcomeMapped != 0, flags&welcomePulls != 0
	s.noShare = "it shares no memory"
	if flags&welcomeShares != 0 {
		file, err := receiveFile(raw)
		if err != nil {
			return err
		}
		defer file.Close()
		mem, err := shm.MapShare(file)
		switch {
		case err != nil:
			s.noShare = err.Error()
		default:
			if s.slots, err = tableAt(mem, slots); err != nil {
				_ = shm.UnmapShare(mem)
				return err
			}
			s.share = &mapping{mem: mem}
		}
	}
	if flags&welcomePrivate != 0 {
		s.noPull = "it keeps its memory to itself"
	} else if err := readable(pid, f.Call, f.Number); err != nil {
		s.noPull = err.Error()
	} else {
		s.pid = pid
	}
	return nil
}

// mapping is the mapped memory of another process. It is unmapped after it was dropped, once nobody copies out
// of it.
type mapping struct {
	mem   []byte
	mu    sync.Mutex
	users int
	gone  bool
}

// use reports whether the memory may be read; unuse is called afterwards.
func (m *mapping) use() bool {
	if m == nil {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.gone {
		return false
	}
	m.users++
	return true
}

func (m *mapping) unuse() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.users--; m.gone && m.users == 0 {
		_ = shm.UnmapShare(m.mem)
	}
}

func (m *mapping) drop() {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.gone {
		m.gone = true
		if m.users == 0 {
			_ = shm.UnmapShare(m.mem)
		}
	}
}

// lose ends the session; whoever waits for answers finds lost closed.
func (s *session) lose(why error) {
	s.mu.Lock()
	if s.why != nil {
		s.mu.Unlock()
		return
	}
	s.why = why
	s.mu.Unlock()
	close(s.lost)
	if s.control != nil {
		s.control.close()
	}
	for _, c := range s.streams {
		c.close()
	}
	s.share.drop()
	s.imports.drop()
}

func (s *session) isLost() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.why != nil
}

// errLost is why the session is no more.
func (s *session) errLost() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Errorf("agent %s: %w: %w", s.peer.id.Name, ErrLost, s.why)
}

// expect makes a mailbox for answers to a call.
func (s *session) expect(call uint64) chan frame {
	ch := make(chan frame, 8)
	s.mu.Lock()
	s.calls[call] = ch
	s.mu.Unlock()
	return ch
}

func (s *session) forget(call uint64) {
	s.mu.Lock()
	delete(s.calls, call)
	delete(s.reads, call)
	delete(s.sends, call)
	s.mu.Unlock()
}

// call sends a frame and waits for the answer to it.
func (s *session) call(ctx context.Context, kind uint8, number uint64, payload []byte) (frame, error) {
	id := s.agent.calls.Add(1)
	ch := s.expect(id)
	defer s.forget(id)
	if err := s.control.sendWhile(ctx, kind, id, number, payload); err != nil {
		s.lose(err)
		return frame{}, s.errLost()
	}
	select {
	case f := <-ch:
		if f.Kind == fFail {
			_, err := parseFail(f.payload)
			return f, err
		}
		return f, nil
	case <-s.lost:
		return frame{}, s.errLost()
	case <-ctx.Done():
		return frame{}, ctx.Err()
	}
}

// readControl reads answers until the session is lost.
func (s *session) readControl() {
	for {
		var f frame
		if err := s.control.next(&f); err != nil {
			s.lose(err)
			return
		}
		switch f.Kind {
		case fRevoke:
			s.agent.wg.Go(func() {
				if !s.agent.revoked(s.peer.id, f.Number) {
					_ = s.control.send(fReturn, 0, f.Number, nil)
				}
			})
			continue
		case fAgain:
			s.mu.Lock()
			again := s.sends[f.Call]
			s.mu.Unlock()
			if again != nil {
				s.agent.wg.Go(func() { again(int(f.Number)) })
			}
			continue
		}
		s.mu.Lock()
		ch := s.calls[f.Call]
		s.mu.Unlock()
		if ch != nil {
			select {
			case ch <- f:
			default: // more answers than the protocol has: nobody waits for them
			}
		}
	}
}

// readStream reads slices until the session is lost.
func (s *session) readStream(c *conn) {
	c.src = whole(c.nc)
	for {
		var f frame
		err := c.next(&f)
		if err == nil && f.Kind != fData {
			err = fmt.Errorf("frame of kind %d on a stream", f.Kind)
		}
		if err == nil {
			s.mu.Lock()
			l := s.reads[f.Call]
			s.mu.Unlock()
			err = c.slice(&f, l, func(call, i uint64) error { return s.again(l, call, i) })
		}
		if err != nil {
			s.lose(err)
			return
		}
	}
}

// tooBad is how many slices of a request may come with wrong checksums.
const tooBad = 16

// again asks for a slice that came with a wrong checksum.
func (s *session) again(l *landing, call, i uint64) error {
	l.mu.Lock()
	l.bad++
	bad := l.bad
	l.mu.Unlock()
	if bad > tooBad {
		l.close(fmt.Errorf("slice %d: %w: %d slices came so", i, ErrSum, bad))
		return nil
	}
	return s.control.send(fAgain, call, i, nil)
}

// stream picks the connection for a class.
func pickStreams(all []*conn, c Class) []*conn {
	if c == Latency || len(all) == 1 {
		return all[:1]
	}
	return all[1:]
}

// sender sends slices of a view.
type sender struct {
	view    *view
	total   int64
	call    uint64
	class   Class
	gate    *gate
	streams []*conn
	use     func(by interrupter) error // before bytes are sent
	unuse   func(by interrupter)
	stop    func() error // why it must not go on
}

// all sends every slice that skip does not name, over all streams at once.
func (s *sender) all(ctx context.Context, skip []uint64) error {
	s.view.index()
	count := int((s.total + sliceSize - 1) / sliceSize)
	var mu sync.Mutex
	at := 0
	next := func() int {
		mu.Lock()
		defer mu.Unlock()
		for at < count && hasBit(skip, at) {
			at++
		}
		at++
		return at - 1
	}
	streams := s.streams[:max(1, min(len(s.streams), count-countBits(skip)))]
	errs := make([]error, len(streams))
	work := func(k int) { errs[k] = s.pump(ctx, streams[k], next, count) }
	if count <= len(streams) || s.view.together() {
		work = func(k int) {
			for i := next(); i < count && errs[k] == nil; i = next() {
				errs[k] = s.one(ctx, streams[k], i)
			}
		}
	}
	var wg sync.WaitGroup
	for k := 1; k < len(streams); k++ {
		wg.Go(func() { work(k) })
	}
	work(0)
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// outgoing is a slice that may be sent.
type outgoing struct {
	i   int
	b   []byte
	buf []byte // where they were gathered; nil if they lie together
}

// pump sends slices over a stream. While one is sent the next is gathered.
func (s *sender) pump(ctx context.Context, c *conn, next func() int, count int) error {
	first := next()
	if first >= count {
		return nil
	}
	head, err := s.prepare(ctx, c, first)
	if err != nil {
		return err
	}
	queue := make(chan outgoing, 1)
	queue <- head
	stop := make(chan struct{})
	var early error
	go func() {
		defer close(queue)
		for i := next(); i < count; i = next() {
			o, err := s.prepare(ctx, c, i)
			if err != nil {
				early = err
				return
			}
			select {
			case queue <- o:
			case <-stop:
				s.drop(c, o)
				return
			}
		}
	}()
	var late error
	for o := range queue {
		if late == nil {
			if late = s.put(ctx, c, o); late != nil {
				close(stop)
			}
		}
		s.drop(c, o)
	}
	if late != nil {
		return late
	}
	return early
}

// one sends a slice.
func (s *sender) one(ctx context.Context, c *conn, i int) error {
	o, err := s.prepare(ctx, c, i)
	if err != nil {
		return err
	}
	defer s.drop(c, o)
	return s.put(ctx, c, o)
}

// prepare waits for the turn of a slice and takes its bytes into use; drop ends that.
func (s *sender) prepare(ctx context.Context, c *conn, i int) (o outgoing, err error) {
	off := int64(i) * sliceSize
	n := min(sliceSize, s.total-off)
	if err := s.gate.take(ctx, s.class, n, c.crosses()); err != nil {
		return o, err
	}
	if err := s.stop(); err != nil {
		return o, err
	}
	if err := s.use(writeEnd{c}); err != nil {
		return o, err
	}
	o = outgoing{i: i, b: s.view.flat(off, n)}
	if o.b == nil {
		o.buf = getBuffer()
		o.b = o.buf[:0]
		err := s.view.each(off, n, func(p *place, at, k int64) error {
			to := o.buf[len(o.b):][:k]
			o.b = o.buf[:int64(len(o.b))+k]
			return p.read(ctx, to, at)
		})
		if err != nil {
			s.drop(c, o)
			return o, err
		}
	}
	return o, nil
}

func (s *sender) put(ctx context.Context, c *conn, o outgoing) error {
	err := c.while(ctx, func() error {
		c.wmu.Lock()
		defer c.wmu.Unlock()
		return c.putSlice(s.call, uint64(o.i), o.b)
	})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrLost, err)
	}
	return nil
}

func (s *sender) drop(c *conn, o outgoing) {
	if o.buf != nil {
		putBuffer(o.buf)
	}
	s.unuse(writeEnd{c})
}

// lease gets the lease of a list for reading.
func (s *session) lease(ctx context.Context, l *List) (*hold, error) {
	ttl := s.agent.cfg.Lease
	var w writer
	w.num(l.grant)
	w.num(uint64(ttl))
	w.caps(l.capabilities())
	descs := joined(l.descs)
	w.descs(len(descs), func(i int) Desc { return descs[i] })
	began := time.Now()
	f, err := s.call(ctx, fLease, 0, w)
	if err != nil {
		return nil, err
	}
	r := reader{b: f.payload}
	slot := int(r.num()) - 1
	given := time.Duration(r.num())
	if err := r.end(); err != nil || f.Kind != fLeased || slot >= leaseSlots || given <= 0 {
		return nil, fmt.Errorf("agent %s: it answered a lease with a frame of kind %d", s.peer.id.Name, f.Kind)
	}
	link := s.link
	h := &hold{id: f.Number, slot: slot, ttl: given, until: began.Add(given)}
	h.renew = func(ctx context.Context) error {
		s, err := link.get(ctx)
		if err != nil {
			return err
		}
		var w writer
		w.num(h.id)
		w.num(uint64(given))
		w.caps(nil)
		w.descs(0, nil)
		_, err = s.call(ctx, fLease, h.id, w)
		return err
	}
	h.giveIt = func() {
		s.agent.dropHold(s.peer.id, h.id)
		link.mu.Lock()
		now := link.now
		link.mu.Unlock()
		if now != nil && !now.isLost() {
			_ = now.control.send(fReturn, 0, h.id, nil)
		}
	}
	s.agent.keepHold(s.peer.id, h)
	return h, nil
}

// capabilities prove that the owner described the regions of the list.
func (l *List) capabilities() []capability {
	var out []capability
	seen := map[uint32]bool{}
	for i, d := range l.descs {
		if (i == 0 || d.Region != l.descs[i-1].Region) && !seen[d.Region] {
			seen[d.Region] = true
			r := l.far[d.Region]
			out = append(out, capability{r.ID, r.Key, r.Epoch})
		}
	}
	return out
}

// pulled is memory of another process of this host that is read by system calls.
type pulled struct {
	pid  int
	addr uintptr
	size int64
}

func (p pulled) Kind() Kind                 { return Host }
func (p pulled) Size() int64                { return p.size }
func (p pulled) Depth() int                 { return 1 }
func (p pulled) Sync(context.Context) error { return nil }
func (p pulled) Close() error               { return nil }

func (p pulled) ReadAt(_ context.Context, b []byte, off int64) error {
	return shm.ReadProcess(p.pid, p.addr+uintptr(off), b)
}

func (p pulled) WriteAt(context.Context, []byte, int64) error {
	return fmt.Errorf("%w: memory of another process is not written", ErrAccess)
}
