//go:build linux

package tcp

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/weft-fabric/weft/transport/tcp/internal/buffer"
	"github.com/weft-fabric/weft/transport/tcp/internal/frame"
	"github.com/weft-fabric/weft/transport/tcp/internal/socket"
	"github.com/weft-fabric/weft/transport/wait"
)

// With more than one stream to a peer, messages are cut into pieces that are
// numbered for the peer and kept until it has acknowledged them. A piece goes
// over whichever stream has room in its window, so that faster ones carry more;
// when a stream breaks, what it had not delivered goes over the others, and what
// comes twice is dropped by its number. Short messages are copied so that their
// sender need not wait; of longer ones the sender's memory is the copy.
const (
	keepSize  = 64 << 10 // messages up to this length are copied
	keepLimit = 4 << 20  // bytes of copies before senders wait
	keepMost  = 2048     // pieces before senders wait: half of what the receiver tells apart

	ackBytes  = frame.CutSize // received before an acknowledgement goes out: the sender measures streams by them
	ackPieces = 64

	// A stream may have as much under way as it delivers in this time.
	windowTime  = 4 * time.Millisecond
	firstWindow = 1 << 20
	leastWindow = frame.CutSize
	mostWindow  = 8 << 20

	// How often streams are looked after; and after how many retransmissions
	// without an answer one is given up if there is another, 0.6 s with Linux's
	// first timeout of 0.2 s, and if there is none, 25 s. A peer that does not
	// read answers probes of its window, so a slow one is not lost.
	healthTime  = 50 * time.Millisecond
	giveUp      = 2
	giveUpLast  = 7
	redialFirst = 50 * time.Millisecond
	redialMost  = 2 * time.Second
	goneTime    = 1500 * time.Millisecond // in which a peer without any stream must come back
)

// piece is one that was numbered.
type piece struct {
	o     *outbound // the frame; its fields change as it is written
	h     frame.Header
	b     []byte
	s     *stream // that carries it; nil if none does
	bytes int
	kept  bool // b is a copy
	of    *sending
}

// sending is a long message.
type sending struct {
	proto *outbound
	rest  []byte // not yet cut
	at    uint64
	left  int // pieces that are not acknowledged, and one while there is a rest
	done  atomic.Bool
	wake  *waiter
}

// carrier is the numbered traffic with a peer; the peer's lock guards it.
type carrier struct {
	window []*piece // from number base on, nil where acknowledged
	base   uint64
	kept   int
	again  []*piece // lost with their stream
	long   []*sending

	cum   uint64        // all pieces up to this number have come
	ahead [64]uint64    // which of the 4096 after it have, by number mod 4096
	debt  int           // bytes not acknowledged
	owed  int           // and pieces
	mark  atomic.Uint64 // cum, for headers
}

// have says whether a piece has come before.
func (pr *peer) have(n uint64) bool {
	pr.mu.Lock()
	defer pr.mu.Unlock()
	c := &pr.carrier
	return n <= c.cum || (n <= c.cum+4096 && c.ahead[n/64%64]&(1<<(n%64)) != 0)
}

// claim notes a piece that came, and says whether it is the first of its number.
func (pr *peer) claim(n uint64) bool {
	pr.mu.Lock()
	defer pr.mu.Unlock()
	c := &pr.carrier
	bit := func(n uint64) (*uint64, uint64) { return &c.ahead[n/64%64], 1 << (n % 64) }
	w, b := bit(n)
	if n <= c.cum || n > c.cum+4096 || *w&b != 0 {
		return false
	}
	*w |= b
	for {
		w, b := bit(c.cum + 1)
		if *w&b == 0 {
			break
		}
		*w &^= b
		c.cum++
	}
	c.mark.Store(c.cum)
	return true
}

// inOrder says whether nothing is missing among what came, nor before a piece
// that is coming.
func (pr *peer) inOrder(piece uint64) bool {
	if !pr.numbered {
		return true
	}
	pr.mu.Lock()
	defer pr.mu.Unlock()
	if piece > pr.carrier.cum+1 {
		return false
	}
	for _, w := range pr.carrier.ahead {
		if w != 0 {
			return false
		}
	}
	return true
}

// owe notes that a piece is to be acknowledged, and does so if it is time.
func (pr *peer) owe(s *stream, bytes int, now bool) {
	pr.mu.Lock()
	c := &pr.carrier
	c.debt += bytes
	c.owed++
	if !now && c.debt < ackBytes && c.owed < ackPieces {
		pr.mu.Unlock()
		return
	}
	pr.mu.Unlock()
	pr.acknowledge(s)
}

// acknowledge tells what has come, over a stream if it is not lost.
func (pr *peer) acknowledge(s *stream) {
	pr.mu.Lock()
	c := &pr.carrier
	c.debt, c.owed = 0, 0
	o := &outbound{h: frame.Header{Kind: frame.Ack}}
	// The pieces after the first that is missing, as a map of bits.
	for i := range uint64(64) {
		for k, field := range []*uint64{&o.h.Total, &o.h.Offset} {
			n := c.cum + 1 + i + 64*uint64(k)
			if c.ahead[n/64%64]&(1<<(n%64)) != 0 {
				*field |= 1 << i
			}
		}
	}
	o.h.Ack = c.cum
	pr.mu.Unlock()
	if s.lost.Load() {
		ss := pr.all()
		if len(ss) == 0 {
			return
		}
		s = ss[0]
	}
	s.send(o)
}

// control sends a frame without a piece, over the first stream; to a peer with
// several it is numbered, so that it arrives though the stream may break.
func (pr *peer) control(o *outbound) {
	if !pr.numbered {
		if ss := pr.all(); len(ss) > 0 {
			ss[0].send(o)
		}
		return
	}
	pr.mu.Lock()
	s := pr.lightest()
	pr.number(o, s, true, nil)
	pr.mu.Unlock()
	if s != nil {
		s.write()
	}
}

// acked takes an acknowledgement.
func (pr *peer) acked(h *frame.Header) {
	pr.mu.Lock()
	c := &pr.carrier
	now := time.Now()
	moved := false
	for n := c.base; n <= h.Ack && n-c.base < uint64(len(c.window)); n++ {
		moved = pr.settlePiece(int(n-c.base), now) || moved
	}
	if h.Kind == frame.Ack {
		for i := range uint64(64) {
			for k, field := range []uint64{h.Total, h.Offset} {
				n := h.Ack + 1 + i + 64*uint64(k)
				if field&(1<<i) != 0 && n >= c.base && n-c.base < uint64(len(c.window)) {
					moved = pr.settlePiece(int(n-c.base), now) || moved
				}
			}
		}
	}
	k := 0
	for k < len(c.window) && c.window[k] == nil {
		k++
	}
	if k > 0 {
		c.window = c.window[:copy(c.window, c.window[k:])]
		c.base += uint64(k)
	}
	pr.roomy()
	pr.mu.Unlock()
	if moved {
		pr.feed()
	}
}

// settlePiece ends a piece that is acknowledged; the caller holds mu.
func (pr *peer) settlePiece(i int, now time.Time) bool {
	c := &pr.carrier
	p := c.window[i]
	if p == nil {
		return false
	}
	c.window[i] = nil
	if s := p.s; s != nil {
		s.flight -= p.bytes
		s.delivered += p.bytes
		if d := now.Sub(s.since); d >= windowTime {
			rate := float64(s.delivered) / d.Seconds()
			if s.rate == 0 {
				s.rate = rate
			}
			s.rate += (rate - s.rate) / 4
			s.window = min(max(int(s.rate*windowTime.Seconds()), leastWindow), mostWindow)
			s.since, s.delivered = now, 0
		}
	}
	if p.kept {
		c.kept -= p.bytes
	}
	if p.of != nil {
		p.of.less()
	}
	return true
}

// less notes that one piece more is acknowledged.
func (m *sending) less() {
	if m.left--; m.left == 0 {
		m.done.Store(true)
		m.wake.wake()
	}
}

// roomy wakes senders that wait for room among the copies; the caller holds mu.
func (pr *peer) roomy() {
	if len(pr.rooms) == 0 || pr.carrier.kept >= keepLimit || len(pr.carrier.window) >= keepMost {
		return
	}
	for _, r := range pr.rooms {
		r.room.Store(true)
		r.w.wake()
	}
	pr.rooms = pr.rooms[:0]
}

// number makes a piece of an outbound frame and gives it to a stream, or to
// none if there is none; the caller holds mu.
func (pr *peer) number(o *outbound, s *stream, kept bool, of *sending) {
	c := &pr.carrier
	o.h.Piece = c.base + uint64(len(c.window))
	p := &piece{o: o, h: o.h, b: o.b, bytes: len(o.b), kept: kept, of: of}
	c.window = append(c.window, p)
	if kept {
		c.kept += p.bytes
	}
	pr.assign(p, s)
}

func (pr *peer) assign(p *piece, s *stream) {
	if p.s = s; s == nil {
		pr.carrier.again = append(pr.carrier.again, p)
		return
	}
	if s.flight == 0 {
		s.since, s.delivered = time.Now(), 0
	}
	s.flight += p.bytes
	s.post(p.o)
}

// lightest is the stream with the least under way; the caller holds mu.
func (pr *peer) lightest() *stream {
	var best *stream
	for _, s := range pr.all() {
		if !s.lost.Load() && (best == nil || s.flight < best.flight) {
			best = s
		}
	}
	return best
}

// fittest is the stream for a piece of a long message: that with the most room
// in its window, which is as large as the stream is fast. The caller holds mu.
func (pr *peer) fittest() *stream {
	var best *stream
	for _, x := range pr.all() {
		if x.lost.Load() || x.flight >= x.window {
			continue
		}
		if best == nil || x.flight*best.window < best.flight*x.window {
			best = x
		}
	}
	return best
}

// feed gives the streams that have room what waits for them.
func (pr *peer) feed() {
	pr.mu.Lock()
	c := &pr.carrier
	for len(c.again) > 0 {
		s := pr.lightest()
		if s == nil {
			break
		}
		p := c.again[0]
		c.again = c.again[1:]
		// The old frame may still be in the hands of the stream that broke.
		o := &outbound{h: p.h, call: p.o.call, b: p.b}
		o.h.Flags |= frame.FlagAck
		p.o = o
		pr.e.count.resent.Add(1)
		pr.assign(p, s)
	}
	for len(c.long) > 0 {
		m := c.long[0]
		n := min(len(m.rest), frame.CutSize)
		s := pr.fittest()
		if s == nil || len(c.window) >= keepMost {
			break
		}
		o := &outbound{h: m.proto.h, call: m.proto.call, b: m.rest[:n]}
		o.h.Offset = m.at
		m.at += uint64(n)
		m.rest = m.rest[n:]
		c.long = c.long[1:]
		if len(m.rest) > 0 {
			m.left++
			c.long = append(c.long, m)
		}
		pr.number(o, s, false, m)
	}
	pr.mu.Unlock()
	for _, s := range pr.all() {
		if s.queued.Load() > 0 {
			s.write()
		}
	}
}

// sendNumbered is Send to a peer with several streams.
func (p *port) sendNumbered(pr *peer, o *outbound) error {
	if len(o.b) <= keepSize {
		if err := p.awaitRoom(pr); err != nil {
			return p.end(err)
		}
		keep := &outbound{h: o.h, call: o.call, b: append(buffer.Part(len(o.b))[:0], o.b...)}
		pr.mu.Lock()
		c := &pr.carrier
		if c.kept+len(o.b) > keepLimit/4 || len(c.window)%ackPieces == ackPieces-1 {
			keep.h.Flags |= frame.FlagAck
		}
		s := pr.lightest()
		pr.number(keep, s, true, nil)
		pr.mu.Unlock()
		if s != nil {
			s.write()
		}
		return nil
	}
	m := &sending{proto: o, rest: o.b, left: 1}
	pr.mu.Lock()
	pr.carrier.long = append(pr.carrier.long, m)
	pr.mu.Unlock()
	pr.feed()
	err := p.await(pr, &m.done, true, func(w *waiter) {
		pr.mu.Lock()
		m.wake = w
		pr.mu.Unlock()
	})
	if err != nil {
		pr.recall(m)
		return p.end(err)
	}
	return nil
}

// awaitRoom waits until there is room among the copies.
func (p *port) awaitRoom(pr *peer) error {
	var room atomic.Bool
	pr.mu.Lock()
	if pr.carrier.kept < keepLimit && len(pr.carrier.window) < keepMost {
		pr.mu.Unlock()
		return nil
	}
	pr.rooms = append(pr.rooms, roomWait{rank: pr.rank, room: &room})
	pr.mu.Unlock()
	err := p.await(pr, &room, true, func(w *waiter) {
		pr.mu.Lock()
		setWaiter(pr.rooms, &room, w)
		pr.mu.Unlock()
	})
	pr.mu.Lock()
	pr.rooms = slices.DeleteFunc(pr.rooms, func(r roomWait) bool { return r.room == &room })
	pr.mu.Unlock()
	return err
}

// recall takes the sender's memory back from a message that is not wanted any
// more: what is on its way goes on from copies, as the receiver counts pieces.
func (pr *peer) recall(m *sending) {
	pr.mu.Lock()
	defer pr.mu.Unlock()
	c := &pr.carrier
	c.long = slices.DeleteFunc(c.long, func(x *sending) bool { return x == m })
	for _, p := range c.window {
		if p == nil || p.of != m {
			continue
		}
		p.b = slices.Clone(p.b)
		if p.s != nil {
			p.s.swap(p.o, p.b)
		}
		p.of, p.kept = nil, true
		c.kept += p.bytes
	}
}

// swap replaces a message's memory while nobody reads it.
func (s *stream) swap(o *outbound, b []byte) {
	s.wmu.Lock()
	defer s.wmu.Unlock()
	for s.writing {
		s.wmu.Unlock()
		wait.Yield()
		s.wmu.Lock()
	}
	if len(o.b) > 0 { // it is not written yet
		o.b = b
	}
}

// lose notes the end of a stream, and moves what it carried to the others.
func (pr *peer) lose(s *stream, why error) {
	e := pr.e
	pr.mu.Lock()
	rest := slices.DeleteFunc(slices.Clone(pr.all()), func(x *stream) bool { return x == s })
	if pr.numbered && !e.closed.Load() {
		pr.streams.Store(&rest)
		for _, p := range pr.carrier.window {
			if p != nil && p.s == s {
				p.s = nil
				pr.carrier.again = append(pr.carrier.again, p)
			}
		}
	}
	pr.mu.Unlock()
	bye := pr.bye.Load()
	text := why.Error()
	if bye {
		text = "it closed its endpoint"
	}
	switch {
	case e.closed.Load():
	case !pr.numbered:
		pr.vanish(text)
	default:
		if !bye {
			e.count.paths.Add(1)
			if e.cfg.Log != nil {
				e.cfg.Log.Warn("path lost", "rank", e.cfg.Rank, "peer", pr.rank, "interface", e.rails[s.rail].Name, "left", len(rest), "why", text)
			}
		}
		e.later(func() {
			s.abandon()
			s.dispose()
			if bye {
				if len(rest) == 0 {
					pr.vanish(text)
				}
				return
			}
			if len(rest) == 0 {
				e.later(func() { pr.lastHope(text) })
			}
			pr.feed()
			pr.acknowledge(s) // what was told over the stream may not have come
			if e.dials(e.cfg.Rank, pr.rank) {
				pr.redial(s.rail, s.number)
			}
		})
	}
	e.wakeAll()
}

// later runs f unless the endpoint is closed.
func (e *Endpoint) later(f func()) {
	e.lmu.Lock()
	defer e.lmu.Unlock()
	if !e.closed.Load() {
		e.wg.Go(f)
	}
}

// abandon ends the piece that a broken stream was reading: it will come again.
func (s *stream) abandon() {
	s.rmu.Lock()
	defer s.rmu.Unlock()
	c := &s.cur
	if !c.on || c.slot == nil {
		return
	}
	x, part, p := c.slot, c.part, c.slot.port
	c.on, c.slot, c.part, c.into = false, nil, nil, nil
	p.mu.Lock()
	defer p.mu.Unlock()
	p.let(x, part)
}

// let ends a piece that does not count; the caller holds mu.
func (p *port) let(x *slot, part []byte) {
	x.busy--
	if part != nil {
		buffer.FreePart(part)
	}
	if x.dead {
		p.drop(x)
		return
	}
	p.settle(x)
}

// lastHope finds out whether a peer without any stream is still there: its
// listener answers if it is, and it has a while to come back.
func (pr *peer) lastHope(why string) {
	e := pr.e
	ctx, cancel := context.WithTimeout(e.ctx, goneTime)
	defer cancel()
	for ctx.Err() == nil && pr.alive() == nil && len(pr.all()) == 0 {
		answered := false
		for _, p := range e.pairsWith(pr.rank) {
			conn, err := e.dialOnce(ctx, pr.rank, lane{uint32(p[0]), uint32(p[1]), 0, laneProbe})
			if err == nil {
				conn.Close()
				answered = true
				break
			}
			if !isRefused(err) {
				answered = true // it may be the network
			}
		}
		if !answered {
			break
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
	if len(pr.all()) == 0 && e.ctx.Err() == nil {
		pr.vanish(why)
	}
}

// redial brings a stream back, however long that takes.
func (pr *peer) redial(rail, number int) {
	e := pr.e
	i := slices.IndexFunc(e.pairsWith(pr.rank), func(p [2]int) bool { return p[0] == rail })
	if i < 0 {
		return
	}
	pair, pause := e.pairsWith(pr.rank)[i], redialFirst
	for pr.alive() == nil && e.ctx.Err() == nil {
		ctx, cancel := context.WithTimeout(e.ctx, time.Second)
		conn, err := e.dialOnce(ctx, pr.rank, lane{uint32(pair[0]), uint32(pair[1]), uint32(number), laneData})
		cancel()
		if err == nil {
			if e.add(conn, pr, rail, number) == nil {
				e.count.dialed.Add(1)
				return
			}
			conn.Close()
		}
		select {
		case <-time.After(pause):
		case <-e.ctx.Done():
		}
		pause = min(2*pause, redialMost)
	}
}

// deliver waits until peers with several streams have acknowledged everything,
// while paths may still be changed, but not past the deadline.
func (e *Endpoint) deliver(deadline time.Time) {
	for _, pr := range e.peers {
		asked := false
		for pr.numbered && pr.alive() == nil && !pr.bye.Load() && time.Now().Before(deadline) {
			pr.mu.Lock()
			left := len(pr.carrier.window)
			pr.mu.Unlock()
			if left == 0 {
				break
			}
			if !asked {
				asked = true
				pr.control(&outbound{h: frame.Header{Kind: frame.Ack, Flags: frame.FlagAck}})
			}
			for _, s := range pr.all() {
				s.arm()
			}
			time.Sleep(100 * time.Microsecond)
		}
	}
}

// watchHealth gives up streams whose packets are not answered.
func (e *Endpoint) watchHealth() {
	t := time.NewTicker(healthTime)
	defer t.Stop()
	for {
		select {
		case <-e.ctx.Done():
			return
		case <-t.C:
		}
		for _, pr := range e.peers {
			ss := pr.all()
			for _, s := range ss {
				limit := uint8(giveUp)
				if len(ss) == 1 && !pr.bye.Load() {
					limit = giveUpLast
				}
				if n := s.unanswered(); n >= limit {
					s.fail(fmt.Errorf("%d packets in a row without an answer", n))
				}
			}
		}
	}
}

// unanswered is how often the oldest packet was sent again, or the peer's window
// was asked for (also where nothing leaves the host any more); an answer of any
// kind sets it back to zero.
func (s *stream) unanswered() uint8 {
	if s.conn != nil || s.lost.Load() {
		return 0
	}
	s.amu.Lock()
	defer s.amu.Unlock()
	if s.disposed {
		return 0
	}
	return socket.Unanswered(s.fd)
}
