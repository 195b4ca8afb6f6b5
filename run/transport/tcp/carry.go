//go:build linux

package tcp

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/internal/buffer"
	"github.com/weft-fabric/weft/run/transport/internal/frame"
	"github.com/weft-fabric/weft/run/transport/wait"
)

// Between hosts, and with more than one stream to a peer, messages are cut into pieces that are
// numbered for the peer and kept until it has acknowledged them. Short messages go over
// the first stream that is not lost, pieces of long ones over whichever has room in its window, so that
// faster streams carry more. Channels that run side by side have streams of their own (channels.go). When a stream breaks, what it had not delivered goes over the others, or
// over the next one that can be made, and what comes twice is dropped by its number. Short
// messages are copied so that their sender need not wait; of longer ones the sender's memory is the copy.
const (
	keepSize  = 256 << 10 // messages up to this length are copied: an all-to-all of 1 MiB among 2 hosts of 4 ranks takes 16 to 25 ms so and 20 to 28 with 64 KiB, on 2 busy cores
	keepLimit = 2 << 20   // bytes of copies before senders wait
	keepMost  = 512       // pieces before senders wait; the receiver tells 4096 apart
	keepNear  = 2 << 10   // copies up to this length are used again by the next piece

	ackBytes  = frame.CutSize // received before an acknowledgement goes out: the sender measures streams by them
	ackPieces = 64

	// A stream may have as much under way as it delivers in windowTime: acknowledgements come from the peer's process, which may wait
	// for a core that long, and the wire is to have work meanwhile. How fast it delivers is measured over rateTime or more.
	windowTime  = 32 * time.Millisecond
	rateTime    = 4 * time.Millisecond
	firstWindow = 1 << 20
	leastWindow = frame.CutSize
	mostWindow  = 8 << 20
)

// piece is one that was numbered.
type piece struct {
	o     *outbound // the frame of a piece that is no copy; its fields change as it is written
	h     frame.Header
	call  [transport.CallSize]byte
	b     []byte
	s     *stream // that carries it; nil if none does
	bytes int
	kept  bool // b is a copy
	again bool // it was sent more than once
	of    *sending
}

// sending is a long message.
type sending struct {
	proto *outbound
	rest  []byte // not yet cut
	at    uint64
	on    int // the number of its streams, or anyStream
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
	free   []*piece // to be used again

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
	return pr.carrier.claim(n)
}

func (c *carrier) claim(n uint64) bool {
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

// took is claim of a short message and owe and acked of what its header says, at once.
func (pr *peer) took(s *stream, n, ack uint64, bytes int) bool {
	pr.mu.Lock()
	c := &pr.carrier
	if !c.claim(n) {
		pr.mu.Unlock()
		return false
	}
	c.debt += bytes
	c.owed++
	tell := c.debt >= ackBytes || c.owed >= ackPieces
	moved := pr.settleUpTo(ack)
	pr.mu.Unlock()
	if tell {
		pr.acknowledge(s)
	}
	if moved {
		pr.feed()
	}
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
	s := pr.first(anyStream)
	pr.number(o, s, true, nil)
	pr.mu.Unlock()
	if s != nil {
		s.flush()
	}
}

// acked takes an acknowledgement.
func (pr *peer) acked(h *frame.Header) {
	pr.mu.Lock()
	moved := pr.settleUpTo(h.Ack)
	if h.Kind == frame.Ack && h.Total|h.Offset != 0 {
		c := &pr.carrier
		now := time.Now()
		for i := range uint64(64) {
			for k, field := range []uint64{h.Total, h.Offset} {
				n := h.Ack + 1 + i + 64*uint64(k)
				if field&(1<<i) != 0 && n >= c.base && n-c.base < uint64(len(c.window)) {
					moved = pr.settlePiece(int(n-c.base), now) || moved
				}
			}
		}
		pr.shift()
	}
	pr.mu.Unlock()
	if moved {
		pr.feed()
	}
}

// settleUpTo ends the pieces up to a number, and says whether there may be room for what waits;
// the caller holds mu.
func (pr *peer) settleUpTo(ack uint64) (moved bool) {
	c := &pr.carrier
	if ack < c.base || len(c.window) == 0 {
		return false
	}
	now := time.Now()
	for n := c.base; n <= ack && n-c.base < uint64(len(c.window)); n++ {
		pr.settlePiece(int(n-c.base), now)
	}
	pr.shift()
	return len(c.long) > 0 || len(c.again) > 0
}

// shift takes the pieces that are acknowledged out of the window; the caller holds mu.
func (pr *peer) shift() {
	c := &pr.carrier
	k := 0
	for k < len(c.window) && c.window[k] == nil {
		k++
	}
	if k > 0 {
		c.window = c.window[:copy(c.window, c.window[k:])]
		c.base += uint64(k)
		if !pr.down.IsZero() && len(pr.all()) > 0 {
			pr.e.later(pr.isBack)
		}
	}
	pr.roomy()
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
		if d := now.Sub(s.since); d >= rateTime {
			rate := float64(s.delivered) / d.Seconds()
			if s.rate == 0 {
				s.rate = rate
			}
			s.rate += (rate - s.rate) / 4
			s.window = min(max(int(s.rate*windowTime.Seconds()), leastWindow), mostWindow)
			s.since, s.delivered = now, 0
		}
	}
	if p.of != nil {
		p.of.less()
	}
	if p.kept {
		c.kept -= p.bytes
		// A copy is read by nobody until it is sent again.
		if cap(p.b) == keepNear && !p.again && len(c.free) < keepMost {
			c.free = append(c.free, p)
		} else if !p.again && cap(p.b) > keepNear {
			buffer.FreePart(p.b)
		}
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
	if len(pr.rooms) == 0 || !pr.hasRoom() {
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
	p := &piece{o: o, h: o.h, call: o.call, b: o.b, bytes: len(o.b), kept: kept, of: of}
	c.window = append(c.window, p)
	if kept {
		c.kept += p.bytes
	}
	if pr.assign(p, s) {
		s.post(o)
	}
}

// assign gives a piece to a stream, which is false if there is none; the caller holds mu.
func (pr *peer) assign(p *piece, s *stream) bool {
	if p.s = s; s == nil {
		pr.carrier.again = append(pr.carrier.again, p)
		return false
	}
	if s.flight == 0 {
		s.since, s.delivered = time.Now(), 0
	}
	s.flight += p.bytes
	return true
}

// first is the stream for short messages: the first that is not lost, of those with a number if there is one. Their receiver looks
// there first. The caller holds mu.
func (pr *peer) first(number int) *stream {
	var first *stream
	for _, s := range pr.all() {
		switch {
		case s.lost.Load():
		case s.carries(number):
			return s
		case first == nil:
			first = s
		}
	}
	return first
}

// fittest is the stream for a piece of a long message: that with the most room in its window, which is as large as the stream is
// fast, of those with a number, or of all if these are lost. The caller holds mu.
func (pr *peer) fittest(number int) *stream {
	number = pr.sound(number)
	var best *stream
	for _, x := range pr.all() {
		if x.lost.Load() || x.flight >= x.window || !x.carries(number) {
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
		s := pr.first(anyStream)
		if s == nil {
			break
		}
		p := c.again[0]
		c.again = c.again[1:]
		if p.h.Piece < c.base || c.window[p.h.Piece-c.base] != p {
			continue // it had come, after all
		}
		// The old frame may still be in the hands of the stream that broke.
		o := &outbound{h: p.h, call: p.call, b: p.b}
		o.h.Flags |= frame.FlagAck
		p.o, p.again = o, true
		pr.e.count.resent.Add(1)
		pr.assign(p, s)
		s.post(o)
	}
	for i := 0; i < len(c.long) && len(c.window) < keepMost; {
		m := c.long[i]
		n := min(len(m.rest), frame.CutSize)
		s := pr.fittest(m.on)
		if s == nil {
			i++ // those of other streams may go on
			continue
		}
		o := &outbound{h: m.proto.h, call: m.proto.call, b: m.rest[:n]}
		o.h.Offset = m.at
		m.at += uint64(n)
		m.rest = m.rest[n:]
		c.long = slices.Delete(c.long, i, i+1)
		if len(m.rest) > 0 {
			m.left++
			c.long = append(c.long, m)
		}
		pr.number(o, s, false, m)
	}
	pr.mu.Unlock()
	for _, s := range pr.all() {
		s.flush()
	}
}

// flush writes what is queued, and lets the pump write what the socket has no room for.
func (s *stream) flush() {
	if s.queued.Load() == 0 {
		return
	}
	if s.write(); s.queued.Load() > 0 {
		s.arm()
	}
}

// sendKept sends a message that is not long to a peer whose pieces are numbered, from a copy, and does not
// wait for its end.
func (p *port) sendKept(pr *peer, channel int, msgno uint32, b []byte) error {
	pr.mu.Lock()
	for !pr.hasRoom() {
		pr.mu.Unlock()
		if err := p.awaitRoom(pr); err != nil {
			return p.end(err)
		}
		pr.mu.Lock()
	}
	c := &pr.carrier
	x := c.copyOf(b)
	x.h = frame.Header{Kind: frame.Data, Length: len(b), Total: uint64(len(b)), Channel: uint32(channel), Msgno: msgno, Piece: c.base + uint64(len(c.window))}
	x.call = p.Enc
	c.window = append(c.window, x)
	c.kept += len(b)
	s := pr.first(p.streamOf(channel))
	ok := pr.assign(x, s)
	if ok && s.queued.Load() == 0 {
		c.debt, c.owed = 0, 0 // the header tells
	}
	h := x.h
	pr.mu.Unlock()
	if ok {
		s.sendNow(h, &p.Enc, b)
	}
	return nil
}

// copyOf is a piece with a copy of b; the caller holds the peer's lock.
func (c *carrier) copyOf(b []byte) *piece {
	var x *piece
	if n := len(c.free); n > 0 && len(b) <= keepNear {
		x = c.free[n-1]
		c.free = c.free[:n-1]
		*x = piece{b: x.b[:keepNear]}
	} else if len(b) <= keepNear {
		x = &piece{b: make([]byte, keepNear)}
	} else {
		x = &piece{b: buffer.Part(len(b))}
	}
	x.b = x.b[:len(b)]
	copy(x.b, b)
	x.bytes, x.kept = len(b), true
	return x
}

// sendNow writes a short frame, unless others are queued before it. What the socket has no room
// for is queued as a copy.
func (s *stream) sendNow(h frame.Header, call *[transport.CallSize]byte, b []byte) {
	if o, err := s.try(h, call, b, true); o != nil {
		if err != nil {
			s.hangUp(err)
		} else {
			s.flush()
		}
	}
}

// sendNumbered is Send of a long message to a peer whose pieces are numbered.
func (p *port) sendNumbered(pr *peer, o *outbound) error {
	m := &sending{proto: o, rest: o.b, on: p.streamOf(int(o.h.Channel)), left: 1}
	pr.mu.Lock()
	pr.carrier.long = append(pr.carrier.long, m)
	pr.mu.Unlock()
	pr.feed()
	err := p.await(pr, m.on, &m.done, true, func(w *waiter) {
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

// hasRoom says whether there is room among the copies; the caller holds mu.
func (pr *peer) hasRoom() bool {
	return pr.carrier.kept < keepLimit && len(pr.carrier.window) < keepMost
}

// awaitRoom waits until there is room among the copies.
func (p *port) awaitRoom(pr *peer) error {
	var room atomic.Bool
	pr.mu.Lock()
	if pr.hasRoom() {
		pr.mu.Unlock()
		return nil
	}
	pr.rooms = append(pr.rooms, roomWait{rank: pr.rank, room: &room})
	pr.mu.Unlock()
	err := p.await(pr, anyStream, &room, true, func(w *waiter) {
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
		p.of, p.kept, p.again = nil, true, true
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

// abandon ends the piece that a broken stream was reading: it will come again.
func (s *stream) abandon() {
	s.rmu.Lock()
	defer s.rmu.Unlock()
	if c := &s.cur; c.on && c.slot != nil {
		s.release()
		c.on = false
	}
}

// spare ends the reading of pieces that came over other streams meanwhile: the link of a stream may be dead, and the
// message would wait until that is known.
func (pr *peer) spare() {
	for _, s := range pr.any() {
		s.rmu.Lock()
		if c := &s.cur; c.on && c.slot != nil && c.h.Piece > 0 && pr.have(c.h.Piece) {
			s.release()
		}
		s.rmu.Unlock()
	}
}

// release lets go of the message whose piece is being read, and lets the rest of the piece go nowhere; the caller holds rmu.
func (s *stream) release() {
	c := &s.cur
	x, part, mode, p := c.slot, c.part, c.mode, c.slot.port
	if mode == modeTake && c.into != nil {
		takes.Put(c.into)
	}
	c.slot, c.part, c.into, c.all, c.mode = nil, nil, nil, nil, modeDrop
	p.mu.Lock()
	defer p.mu.Unlock()
	p.let(x, &c.h, part, mode, c.gave)
}

// let ends a piece that does not count, of which some bytes may have been handed out; the caller holds mu.
func (p *port) let(x *slot, h *frame.Header, part []byte, mode uint8, gave int) {
	if x.read(h, mode) && !x.dead && len(x.parts) > 0 {
		p.adopt(x)
	}
	if part != nil {
		buffer.FreePart(part)
	}
	if mode == modeTake {
		x.handing = false
		x.handed += gave
		if !x.dead && len(x.parts) > 0 {
			p.hand(x)
		}
	}
	if x.dead {
		p.drop(x)
		return
	}
	p.settle(x)
}

// deliver waits until peers whose pieces are numbered have acknowledged everything, and have heard what this rank acknowledges. A
// peer that is reached has so much time for it, all together; one that no link reaches has its outage.
func (e *Endpoint) deliver(left time.Duration) {
	var waits []*peer
	for _, pr := range e.peers {
		if pr.numbered && pr.alive() == nil && !pr.bye.Load() && (len(pr.all()) > 0 || pr.owes()) {
			pr.control(&outbound{h: frame.Header{Kind: frame.Ack, Flags: frame.FlagAck}})
			waits = append(waits, pr)
		}
	}
	for _, pr := range waits {
		for last := time.Now(); pr.alive() == nil && !pr.bye.Load() && pr.owes() && left > 0; {
			for _, s := range pr.all() {
				s.arm()
			}
			time.Sleep(100 * time.Microsecond)
			now := time.Now()
			if pr.answers() {
				left -= now.Sub(last)
			}
			last = now
		}
	}
}

// owes says whether pieces are not acknowledged.
func (pr *peer) owes() bool {
	pr.mu.Lock()
	defer pr.mu.Unlock()
	return len(pr.carrier.window) > 0
}

// answers says whether a stream's packets are answered.
func (pr *peer) answers() bool {
	for _, s := range pr.all() {
		if s.lost.Load() {
			continue
		}
		if n, _ := s.unanswered(); n == 0 {
			return true
		}
	}
	return false
}
