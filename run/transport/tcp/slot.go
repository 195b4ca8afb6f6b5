//go:build linux

package tcp

import (
	"math"
	"slices"
	"sync/atomic"

	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/internal/buffer"
	"github.com/weft-fabric/weft/run/transport/internal/frame"
	"github.com/weft-fabric/weft/run/transport/wire"
)

// slot is a message on the receiver: asked for, come, or both. Its port's lock
// guards it but for done.
type slot struct {
	port    *port
	from    int // rank of the endpoint
	channel uint32
	msgno   uint32
	call    [transport.CallSize]byte // if it is of a call that has not begun
	piece   uint64                   // and the number of the piece of it that came first, if it has one

	known bool // its form is
	form  transport.Form
	total int  // bytes of it
	got   int  // bytes that are where they belong, or in parts
	came  bool // at least one piece has

	asked   bool // dst or take is set
	counted bool // among those that are expected of the peer
	dst     []byte
	take    func([]byte)
	after   *atomic.Int64 // no more bytes than these are handed out; nil without a limit
	handed  int           // bytes that take got
	handing bool          // take is being called, by whoever set this

	whole   bool // dst is not to be written before all has come
	patient bool // which it does in the socket
	here    int  // bytes that are there
	sure    bool // they are all, and are being read

	parts  []part // what came before it was asked for
	busy   int    // pieces that are being read
	direct []int  // where those of them begin that are numbered and read into dst
	dead   bool   // nobody wants it any more
	done   atomic.Bool

	waited bool // by its receiver
	wake   *wire.Waiter
}

// aheadKey names a message of a call that has not begun.
type aheadKey struct {
	from           int
	channel, msgno uint32
	seq            uint64
}

// partCost is what a piece in memory of its own takes: its bytes, a slot and a
// header of the allocator.
func partCost(b []byte) int64 { return int64(len(b)) + 320 }

// part is a piece in memory of its own.
type part struct {
	at int
	b  []byte
}

const (
	maxAhead = 1 << 18 // messages of one way that may come before they are asked for: more than credit allows
	maxGap   = 4096    // messages of one way that may be overtaken by another: as many as pieces can
)

// way is the messages from one rank on one channel within a call.
type way struct {
	base  uint32  // number of the first slot
	next  uint32  // number of the next message to announce
	slots []*slot // slots[head:], from base on
	head  int
	sent  uint32 // messages sent to that rank
	used  bool
	out   *wire.Outbound
}

// at is the slot of a message, made if needed; nil if the number cannot be.
func (p *port) at(w *way, from, channel int, msgno uint32) *slot {
	i := msgno - w.base
	if i >= maxAhead || i > uint32(len(w.slots)-w.head+maxGap) {
		return nil
	}
	for uint32(len(w.slots)-w.head) <= i {
		s := p.slot()
		s.from, s.channel, s.msgno = from, uint32(transport.Way(channel)), w.base+uint32(len(w.slots)-w.head)
		w.slots = append(w.slots, s)
	}
	return w.slots[w.head+int(i)]
}

// shift takes the first slot off a way; the caller holds mu.
func (w *way) shift() {
	w.slots[w.head] = nil
	w.base++
	if w.head++; w.head == len(w.slots) {
		w.slots, w.head = w.slots[:0], 0
	} else if w.head > 64 && w.head > len(w.slots)/2 {
		n := copy(w.slots, w.slots[w.head:])
		clear(w.slots[n:])
		w.slots, w.head = w.slots[:n], 0
	}
}

// empty ends all messages of a way; the caller holds mu.
func (p *port) empty(w *way) {
	for _, s := range w.slots[w.head:] {
		p.drop(s)
	}
	w.base += uint32(len(w.slots) - w.head)
	clear(w.slots)
	w.slots, w.head = w.slots[:0], 0
}

// slot is a fresh one; the caller holds mu.
func (p *port) slot() *slot {
	if n := len(p.free); n > 0 {
		s := p.free[n-1]
		p.free = p.free[:n-1]
		return s
	}
	return &slot{port: p}
}

// retire gives a slot back whose message was taken, unless a stream that broke or was overtaken still reads a piece of it: that ends the
// slot. The caller holds mu.
func (p *port) retire(s *slot) {
	if s.busy > 0 {
		s.dead, s.came = true, false // its bytes are repaid already
		return
	}
	*s = slot{port: p, parts: s.parts[:0], direct: s.direct[:0]}
	if len(p.free) < 64 {
		p.free = append(p.free, s)
	}
}

// drop ends a slot whose message nobody wants any more. It is not used again,
// as others may still look at it. The caller holds mu.
func (p *port) drop(s *slot) {
	s.dead = true
	if s.counted {
		s.counted = false
		p.expectLess(s.from)
	}
	if s.busy > 0 {
		return // whoever is reading into it ends it
	}
	if s.came && p.Attached {
		p.repay(s.from, s.total)
	}
	p.freeParts(s)
}

func (p *port) freeParts(s *slot) {
	for _, x := range s.parts {
		p.e.wire.Link(s.from).Buffered.Add(-partCost(x.b))
		buffer.FreePart(x.b)
	}
	clear(s.parts)
	s.parts = s.parts[:0]
}

// is notes the form of a message, which is false if it is known to be another.
func (s *slot) is(f transport.Form) bool {
	if s.known {
		return s.form == f
	}
	s.known, s.form, s.total = true, f, f.Bytes()
	return true
}

// adopt puts what came early where it was asked for; the caller holds mu, which
// is given up while operands are handed out.
func (p *port) adopt(s *slot) {
	if s.take != nil {
		p.hand(s)
		return
	}
	if len(s.direct) > 0 {
		// A piece that came again is put where it belongs when the stream that broke no longer reads it there: what that
		// one reads may have been altered.
		s.parts = slices.DeleteFunc(s.parts, func(x part) bool {
			if slices.Contains(s.direct, x.at) {
				return false
			}
			copy(s.dst[x.at:], x.b)
			p.e.wire.Link(s.from).Buffered.Add(-partCost(x.b))
			buffer.FreePart(x.b)
			return true
		})
		return
	}
	for _, x := range s.parts {
		copy(s.dst[x.at:], x.b)
	}
	p.freeParts(s)
}

// read ends the reading of a piece, and says whether it was read into dst and is numbered; the caller holds mu.
func (s *slot) read(h *frame.Header, mode wire.Mode) bool {
	s.busy--
	if mode != wire.Direct || h.Piece == 0 {
		return false
	}
	i := slices.Index(s.direct, int(h.Offset))
	s.direct = slices.Delete(s.direct, i, i+1)
	return true
}

// hand hands out the parts that follow what was handed out already, as far as they may
// be; the caller holds mu, which is given up meanwhile.
func (p *port) hand(s *slot) {
	if s.handing {
		return // and looks again before it ends
	}
	s.handing = true
	for i := 0; i < len(s.parts) && !s.dead; i++ {
		x := s.parts[i]
		if x.at > s.handed {
			continue
		}
		// A stream that broke may have handed out the beginning, or all of it.
		rest := x.b[min(s.handed-x.at, len(x.b)):]
		some := rest[:s.may(len(rest))]
		if len(some) < len(rest) && len(some) == 0 {
			break
		}
		if len(some) > 0 {
			s.busy++
			p.mu.Unlock()
			s.take(some)
			p.mu.Lock()
			s.busy--
			s.handed += len(some)
		}
		if i = slices.IndexFunc(s.parts, func(y part) bool { return y.at == x.at }); len(some) == len(rest) {
			s.parts = slices.Delete(s.parts, i, i+1)
			p.e.wire.Link(s.from).Buffered.Add(-partCost(x.b))
			buffer.FreePart(x.b)
		}
		i = -1
	}
	s.handing = false
}

// may is how many of n bytes that follow may be handed out: all of them, or what was sent
// from their place, in multiples of 64.
func (s *slot) may(n int) int {
	if s.after == nil {
		return n
	}
	if m := int(s.after.Load()) - s.handed; m < n {
		return max(m, 0) &^ 63
	}
	return n
}

// Take gets bytes of the message as they come.
func (s *slot) Take(b []byte) { s.take(b) }

// May is how many bytes from an offset on may be handed out by now.
func (s *slot) May(offset int) int {
	if a := s.after; a != nil {
		return int(a.Load()) - offset
	}
	return math.MaxInt
}

// Let ends a piece that does not count, of which some bytes may have been handed out.
func (s *slot) Let(h *frame.Header, mode wire.Mode, own []byte, gave int) {
	p := s.port
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.read(h, mode) && !s.dead && len(s.parts) > 0 {
		p.adopt(s)
	}
	if own != nil {
		buffer.FreePart(own)
	}
	if mode == wire.Take {
		s.handing = false
		s.handed += gave
		if !s.dead && len(s.parts) > 0 {
			p.hand(s)
		}
	}
	if s.dead {
		p.drop(s)
		return
	}
	p.settle(s)
}

// Arrived is the end of a piece. It says whether the message is complete.
func (s *slot) Arrived(h *frame.Header, mode wire.Mode, b []byte) bool {
	p := s.port
	p.mu.Lock()
	defer p.mu.Unlock()
	s.read(h, mode)
	if mode == wire.Take {
		s.handing = false
	}
	if s.dead {
		if b != nil {
			buffer.FreePart(b)
		}
		p.drop(s)
		return false
	}
	switch mode {
	case wire.Take:
		s.handed += h.Length
		if len(s.parts) > 0 {
			p.hand(s)
		}
	case wire.Part:
		p.e.wire.Link(s.from).Buffered.Add(partCost(b))
		s.parts = append(s.parts, part{int(h.Offset), b})
		if s.asked && (!s.whole || s.got+h.Length == s.total) {
			p.adopt(s)
		}
	}
	s.got += h.Length
	s.came = true
	whole := s.got == s.total
	p.settle(s)
	if whole && s.busy > 0 && !s.done.Load() {
		// What is still being read came over another stream meanwhile.
		p.e.wire.Later(p.e.wire.Link(s.from).Spare)
	}
	return whole
}

// settle tells the receiver once a message is complete; the caller holds mu.
func (p *port) settle(s *slot) {
	if s.dead {
		if s.busy == 0 {
			p.drop(s)
		}
		return
	}
	if !s.came || s.got < s.total || s.done.Load() || (s.asked && (s.busy > 0 || (s.take != nil && s.handed < s.total))) {
		return
	}
	if s.counted {
		s.counted = false
		p.expectLess(s.from)
	}
	s.done.Store(true)
	s.wake.Wake()
}

var _ wire.Landing = (*slot)(nil)
