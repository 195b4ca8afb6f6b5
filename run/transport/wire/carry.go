//go:build linux

package wire

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/weft-fabric/weft/run/transport/internal/buffer"
	"github.com/weft-fabric/weft/run/transport/internal/frame"
	"github.com/weft-fabric/weft/run/transport/wait"
)

// Between hosts, and with more than one stream to a peer, messages are cut into pieces that are
// numbered for the peer and kept until it has acknowledged them. Short messages go over
// the first stream that is not lost, pieces of long ones over whichever has room in its window, so that
// faster streams carry more. Channels that run side by side have streams of their own (channels.go). When a stream breaks, what it had not
// delivered goes over the others, or over the next one that can be made, and what comes twice is dropped by its number. Short messages are
// copied so that their sender need not wait; of longer ones the sender's memory is the copy.
const (
	KeepSize  = 256 << 10 // messages up to this length are copied: an all-to-all of 1 MiB among 2 hosts of 4 ranks takes 16 to 25 ms so and 20 to 28 with 64 KiB, on 2 busy cores
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
	o     *Outbound // the frame of a piece that is no copy; its fields change as it is written
	h     frame.Header
	call  Call
	b     []byte
	s     *Stream // that carries it; nil if none does
	bytes int
	kept  bool // b is a copy
	late  bool // which its sender still makes, from memory that it keeps until then
	again bool // it was sent more than once
	of    *sending
}

// sending is a long message.
type sending struct {
	proto *Outbound
	rest  []byte // not yet cut
	at    uint64
	on    int // the number of its streams, or AnyStream
	left  int // pieces that are not acknowledged, and one while there is a rest
	done  atomic.Bool
	wake  *Waiter
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

// Have says whether a piece has come before.
func (pr *Link) Have(n uint64) bool {
	pr.mu.Lock()
	defer pr.mu.Unlock()
	c := &pr.carrier
	return n <= c.cum || (n <= c.cum+4096 && c.ahead[n/64%64]&(1<<(n%64)) != 0)
}

// claim notes a piece that came, and says whether it is the first of its number.
func (pr *Link) claim(n uint64) bool {
	pr.mu.Lock()
	defer pr.mu.Unlock()
	return pr.carrier.claim(n)
}

// claim marks a piece as arrived, and says whether it is the first time: after an outage pieces are sent again and may
// come twice. Pieces may overtake each other by up to 4096; what is further ahead is refused.
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
func (pr *Link) took(s *Stream, n, ack uint64, bytes int) bool {
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

// InOrder says whether nothing is missing among what came, nor before a piece
// that is coming.
func (pr *Link) InOrder(piece uint64) bool {
	if !pr.Numbered {
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
func (pr *Link) owe(s *Stream, bytes int, now bool) {
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
func (pr *Link) acknowledge(s *Stream) {
	pr.mu.Lock()
	c := &pr.carrier
	c.debt, c.owed = 0, 0
	o := &Outbound{H: frame.Header{Kind: frame.Ack}}
	// The pieces after the first that is missing, as a map of bits.
	for i := range uint64(64) {
		for k, field := range []*uint64{&o.H.Total, &o.H.Offset} {
			n := c.cum + 1 + i + 64*uint64(k)
			if c.ahead[n/64%64]&(1<<(n%64)) != 0 {
				*field |= 1 << i
			}
		}
	}
	o.H.Ack = c.cum
	pr.mu.Unlock()
	if s.lost.Load() {
		ss := pr.Streams()
		if len(ss) == 0 {
			return
		}
		s = ss[0]
	}
	s.Send(o)
}

// Control sends a frame without a piece, over the first stream; to a peer with
// several it is numbered, so that it arrives though the stream may break.
func (pr *Link) Control(o *Outbound) {
	if !pr.Numbered {
		if ss := pr.Streams(); len(ss) > 0 {
			ss[0].Send(o)
		}
		return
	}
	pr.mu.Lock()
	s := pr.First(AnyStream)
	pr.number(o, s, true, nil)
	pr.mu.Unlock()
	if s != nil {
		s.flush()
	}
}

// acked takes an acknowledgement.
func (pr *Link) acked(h *frame.Header) {
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
func (pr *Link) settleUpTo(ack uint64) (moved bool) {
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
func (pr *Link) shift() {
	c := &pr.carrier
	k := 0
	for k < len(c.window) && c.window[k] == nil {
		k++
	}
	if k > 0 {
		c.window = c.window[:copy(c.window, c.window[k:])]
		c.base += uint64(k)
		if !pr.down.IsZero() && len(pr.Streams()) > 0 {
			pr.e.Later(pr.isBack)
		}
	}
	pr.roomy()
}

// settlePiece ends a piece that is acknowledged; the caller holds mu.
func (pr *Link) settlePiece(i int, now time.Time) bool {
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
	if p.late = false; p.kept {
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
		m.wake.Wake()
	}
}

// roomy wakes senders that wait for room among the copies; the caller holds mu.
func (pr *Link) roomy() {
	if len(pr.rooms) == 0 || !pr.hasRoom() {
		return
	}
	for _, r := range pr.rooms {
		r.Give()
	}
	pr.rooms = pr.rooms[:0]
}

// number makes a piece of an outbound frame and gives it to a stream, or to
// none if there is none; the caller holds mu.
func (pr *Link) number(o *Outbound, s *Stream, kept bool, of *sending) {
	c := &pr.carrier
	o.H.Piece = c.base + uint64(len(c.window))
	p := &piece{o: o, h: o.H, call: o.Call, b: o.B, bytes: len(o.B), kept: kept, of: of}
	c.window = append(c.window, p)
	if kept {
		c.kept += p.bytes
	}
	if pr.assign(p, s) {
		s.Post(o)
	}
}

// assign gives a piece to a stream, which is false if there is none; the caller holds mu.
func (pr *Link) assign(p *piece, s *Stream) bool {
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

// First is the stream for short messages: the first that is not lost, of those with a number if there is one. Their receiver looks
// there first. The caller holds mu.
func (pr *Link) First(number int) *Stream {
	var first *Stream
	for _, s := range pr.Streams() {
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
func (pr *Link) fittest(number int) *Stream {
	number = pr.sound(number)
	var best *Stream
	for _, x := range pr.Streams() {
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
func (pr *Link) feed() {
	pr.mu.Lock()
	c := &pr.carrier
	for len(c.again) > 0 {
		s := pr.First(AnyStream)
		if s == nil {
			break
		}
		p := c.again[0]
		c.again = c.again[1:]
		if p.h.Piece < c.base || c.window[p.h.Piece-c.base] != p {
			continue // it had come, after all
		}
		if p.late { // its sender goes on from here
			c.again = slices.Insert(c.again, 0, p)
			break
		}
		// The old frame may still be in the hands of the stream that broke.
		o := &Outbound{H: p.h, Call: p.call, B: p.b}
		o.H.Flags |= frame.FlagAck
		p.o, p.again = o, true
		pr.e.count.resent.Add(1)
		pr.assign(p, s)
		s.Post(o)
	}
	for i := 0; i < len(c.long) && len(c.window) < keepMost; {
		m := c.long[i]
		n := min(len(m.rest), frame.CutSize)
		s := pr.fittest(m.on)
		if s == nil {
			i++ // those of other streams may go on
			continue
		}
		o := &Outbound{H: m.proto.H, Call: m.proto.Call, B: m.rest[:n]}
		o.H.Offset = m.at
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
	for _, s := range pr.Streams() {
		s.flush()
	}
}

// flush writes what is queued, and lets the pump write what the socket has no room for.
func (s *Stream) flush() {
	if s.queued.Load() == 0 {
		return
	}
	if s.write(); s.queued.Load() > 0 {
		s.arm()
	}
}

// SendKept sends a message that is not long to a peer whose pieces are numbered, keeps a copy, and does not
// wait for its end. on is the number of the streams that it takes. The copy of a message of more than keepNear is made once the
// message is on its way, while the peer works on it.
func (pr *Link) SendKept(p Caller, on int, h frame.Header, call *Call, b []byte) error {
	pr.mu.Lock()
	for !pr.hasRoom() {
		pr.mu.Unlock()
		if err := pr.awaitRoom(p); err != nil {
			return err
		}
		pr.mu.Lock()
	}
	c := &pr.carrier
	x := c.pieceFor(len(b))
	h.Piece = c.base + uint64(len(c.window))
	x.h, x.call = h, *call
	c.window = append(c.window, x)
	c.kept += len(b)
	s := pr.First(on)
	ok := pr.assign(x, s)
	if ok && s.queued.Load() == 0 {
		c.debt, c.owed = 0, 0 // the header tells
	}
	if x.late = ok && len(b) > keepNear; !x.late {
		copy(x.b, b)
	}
	late := x.late // x may be another message's from here on, unless it is late
	pr.mu.Unlock()
	if ok {
		s.sendNow(h, call, b)
	}
	if late {
		pr.keep(x, b)
	}
	return nil
}

// keep makes the copy of a message that is on its way, unless it has arrived already. If its stream broke meanwhile, it is sent again.
func (pr *Link) keep(x *piece, b []byte) {
	pr.mu.Lock()
	if x.late {
		copy(x.b, b)
		x.late = false
	}
	again := len(pr.carrier.again) > 0
	pr.mu.Unlock()
	if again {
		pr.feed()
	}
}

// pieceFor is a piece with memory for a copy of n bytes; the caller holds the peer's lock.
func (c *carrier) pieceFor(n int) *piece {
	var x *piece
	if k := len(c.free); k > 0 && n <= keepNear {
		x = c.free[k-1]
		c.free = c.free[:k-1]
		*x = piece{b: x.b[:keepNear]}
	} else if n <= keepNear {
		x = &piece{b: make([]byte, keepNear)}
	} else {
		x = &piece{b: buffer.Part(n)}
	}
	x.b, x.bytes, x.kept = x.b[:n], n, true
	return x
}

// sendNow writes a short frame, unless others are queued before it. What the socket has no room
// for is queued as a copy.
func (s *Stream) sendNow(h frame.Header, call *Call, b []byte) {
	if o, err := s.try(h, call, b, true); o != nil {
		if err != nil {
			s.hangUp(err)
		} else {
			s.flush()
		}
	}
}

// SendLong sends a long message to a peer whose pieces are numbered, and waits until all of it is acknowledged.
func (pr *Link) SendLong(p Caller, on int, o *Outbound) error {
	m := &sending{proto: o, rest: o.B, on: on, left: 1}
	pr.mu.Lock()
	pr.carrier.long = append(pr.carrier.long, m)
	pr.mu.Unlock()
	pr.feed()
	err := pr.Await(p, m.on, &m.done, true, func(w *Waiter) {
		pr.mu.Lock()
		m.wake = w
		pr.mu.Unlock()
	})
	if err != nil {
		pr.recall(m)
	}
	return err
}

// hasRoom says whether there is room among the copies; the caller holds mu.
func (pr *Link) hasRoom() bool {
	return pr.carrier.kept < keepLimit && len(pr.carrier.window) < keepMost
}

// awaitRoom waits until there is room among the copies.
func (pr *Link) awaitRoom(p Caller) error {
	var room atomic.Bool
	pr.mu.Lock()
	if pr.hasRoom() {
		pr.mu.Unlock()
		return nil
	}
	pr.rooms = append(pr.rooms, Room{Rank: pr.Rank, Made: &room})
	pr.mu.Unlock()
	err := pr.Await(p, AnyStream, &room, true, func(w *Waiter) {
		pr.mu.Lock()
		SetWaiter(pr.rooms, &room, w)
		pr.mu.Unlock()
	})
	pr.mu.Lock()
	pr.rooms = slices.DeleteFunc(pr.rooms, func(r Room) bool { return r.Made == &room })
	pr.mu.Unlock()
	return err
}

// recall takes the sender's memory back from a message that is not wanted any
// more: what is on its way goes on from copies, as the receiver counts pieces.
func (pr *Link) recall(m *sending) {
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
func (s *Stream) swap(o *Outbound, b []byte) {
	s.wmu.Lock()
	defer s.wmu.Unlock()
	for s.writing {
		s.wmu.Unlock()
		wait.Yield()
		s.wmu.Lock()
	}
	if len(o.B) > 0 { // it is not written yet
		o.B = b
	}
}

// abandon ends the piece that a broken stream was reading: it will come again.
func (s *Stream) abandon() {
	s.rmu.Lock()
	defer s.rmu.Unlock()
	if c := &s.cur; c.on && c.to != nil {
		s.release()
		c.on = false
	}
}

// Spare ends the reading of pieces that came over other streams meanwhile: the link of a stream may be dead, and the
// message would wait until that is known.
func (pr *Link) Spare() {
	for _, s := range pr.any() {
		s.rmu.Lock()
		if c := &s.cur; c.on && c.to != nil && c.h.Piece > 0 && pr.Have(c.h.Piece) {
			s.release()
		}
		s.rmu.Unlock()
	}
}

// release lets go of the message whose piece is being read, and lets the rest of the piece go nowhere; the caller holds rmu.
func (s *Stream) release() {
	c := &s.cur
	to, own, mode := c.to, c.part, c.mode
	if mode == Take && c.into != nil {
		takes.Put(c.into)
	}
	c.to, c.part, c.into, c.all, c.mode = nil, nil, nil, nil, Drop
	to.Let(&c.h, mode, own, c.gave)
}

// Release ends the reading of messages that nobody wants any more: once it returns, nothing is written to their memory.
func (pr *Link) Release(unwanted func(Landing) bool) {
	for _, s := range pr.any() {
		s.rmu.Lock()
		if to := s.cur.to; to != nil && unwanted(to) {
			s.forget()
		}
		s.rmu.Unlock()
	}
}

// forget lets the rest of the piece under way go nowhere; the caller holds rmu.
func (s *Stream) forget() {
	c := &s.cur
	if c.mode == Take && c.into != nil {
		takes.Put(c.into)
	}
	to, own, mode := c.to, c.part, c.mode
	c.to, c.part, c.into, c.mode = nil, nil, nil, Drop
	to.Arrived(&c.h, mode, own)
}

// deliver waits until peers whose pieces are numbered have acknowledged everything, and have heard what this rank acknowledges. A
// peer that is reached has so much time for it, all together; one that no link reaches has its outage.
func (e *Node) deliver(left time.Duration) {
	var waits []*Link
	for _, pr := range e.peers {
		if pr.Numbered && pr.Alive() == nil && !pr.bye.Load() && (len(pr.Streams()) > 0 || pr.owes()) {
			pr.Control(&Outbound{H: frame.Header{Kind: frame.Ack, Flags: frame.FlagAck}})
			waits = append(waits, pr)
		}
	}
	for _, pr := range waits {
		for last := time.Now(); pr.Alive() == nil && !pr.bye.Load() && pr.owes() && left > 0; {
			for _, s := range pr.Streams() {
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
func (pr *Link) owes() bool {
	pr.mu.Lock()
	defer pr.mu.Unlock()
	return len(pr.carrier.window) > 0
}

// answers says whether a stream's packets are answered.
func (pr *Link) answers() bool {
	for _, s := range pr.Streams() {
		if s.lost.Load() {
			continue
		}
		if n, _ := s.unanswered(); n == 0 {
			return true
		}
	}
	return false
}
