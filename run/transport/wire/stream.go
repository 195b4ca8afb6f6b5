//go:build linux

package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/run/transport/auth"
	"github.com/weft-fabric/weft/run/transport/internal/buffer"
	"github.com/weft-fabric/weft/run/transport/internal/frame"
	"github.com/weft-fabric/weft/run/transport/internal/socket"
	"github.com/weft-fabric/weft/run/transport/meter"
	"github.com/weft-fabric/weft/run/transport/wait"
)

// stream is one connection with a peer. Whoever waits for the peer reads and
// writes it; the pump does when no one is waiting. The lock of its reading side
// is held over calls of the system, which never block, and over the reductions
// that take their operands as they come.
type Stream struct {
	e       *Node
	peer    *Link
	rail    int    // this rank's
	pair    int    // of rails, in the order that both ends have
	number  int    // among those of its rails
	attempt uint32 // of its dialer that made it
	born    time.Time
	quiet   time.Time // since when its packets are not answered; zero while they are. Of watchHealth alone
	shut    bool      // for writing, at the end
	roomy   bool      // its buffers are larger than any piece
	fd      int
	conn    net.Conn  // under TLS, instead of fd
	ends    string    // both addresses, ours first
	in      *auth.Key // makes the checksums of what comes, under rmu
	out     *auth.Key // and of what goes, under wmu
	kick    chan struct{}

	id     int32 // with the pump
	lost   atomic.Bool
	hung   atomic.Bool // nothing can be written to it any more
	queued atomic.Int32
	armed  atomic.Uint32 // events for which the pump is woken

	rmu     sync.Mutex
	reads   uint64 // successful ones
	seen    uint64 // reads at the last tick
	quickIn uint64 // bytes of messages that were taken the short way
	stage   []byte // headers and small messages come here first
	r, w    int    // stage[r:w] is not yet used
	paused  bool   // the next message is not wanted yet
	cur     inbound
	rmsg    socket.Vector

	// What the last frame was about, for Above, under rmu: its port, and the first eight bytes of its call.
	Memo    any
	MemoGen uint64
	Key     uint64

	wmu      sync.Mutex
	quickOut uint64      // bytes that were sent the short way
	quicks   uint64      // and messages
	queue    []*Outbound // queue[first:], first in, first out, but long messages take turns
	first    int
	writing  bool
	wbuf     [frame.HeaderSize + joinSize]byte // the frame under way: its header, and a short piece
	wmsg     socket.Vector

	// Of numbered pieces, under the peer's lock: bytes under way, how many may
	// be, and how fast they are delivered.
	flight, window, delivered int
	since                     time.Time
	rate                      float64

	amu      sync.Mutex // arming and closing
	disposed bool
}

// joinSize is the length up to which a piece is copied behind its header, which
// leaves the system one address to look at: two bare processes exchange 112 bytes
// in 6.5 us so and in 7.2 from two (medians of three runs). Between ranks the
// difference is within the noise.
const joinSize = 2 << 10

// stageSize is how much is read before it is known where it belongs. Messages
// up to this size need one call; of longer ones this much is copied.
const stageSize = 8 << 10

// inbound is the frame that is being read.
type inbound struct {
	h     frame.Header
	on    bool
	mode  Mode
	to    Landing // nil if it goes nowhere
	into  []byte  // the rest of where the piece goes
	all   []byte  // and all of it
	part  []byte  // the same, if it is memory of its own
	left  int     // bytes of the piece that have not come
	chunk int     // bytes in the scratch memory that were not handed out
	gave  int     // and bytes of the piece that were
}

// takeSize is the scratch memory of Take: large enough for few calls, small
// enough to stay in the L2 cache until it is added.
const takeSize = 128 << 10

var takes = buffer.Pool{Size: takeSize, Most: 16}

// Head is the header of the piece that is being read.
func (s *Stream) Head() *frame.Header { return &s.cur.h }

// Land says where the piece of the header goes: into b if it goes to its receiver's memory.
func (s *Stream) Land(to Landing, m Mode, b []byte) {
	c := &s.cur
	c.to, c.mode = to, m
	switch m {
	case Direct, Whole:
		c.into, c.all = b, b
	case Part:
		c.part = buffer.Part(c.h.Length)
		c.into, c.all = c.part, c.part
	}
}

// Here is how many bytes of the piece of the header, and of what follows it, have come.
func (s *Stream) Here() int { return s.w - s.r - frame.HeaderSize + socket.Unread(s.fd) }

// Holds says that the piece of the header is a whole message, and may wait in the socket until all of it has come.
func (s *Stream) Holds() bool {
	h := &s.cur.h
	return s.conn == nil && h.Piece == 0 && h.Flags&frame.FlagSum == 0 && h.Length == int(h.Total)
}

// Roomy says that the socket has room for any piece.
func (s *Stream) Roomy() bool { return s.roomy }

// Link is that with the stream's other end.
func (s *Stream) Link() *Link { return s.peer }

// TryRead begins to read the stream, unless somebody else does or it is lost. EndRead ends it. The descriptor of a stream that is lost may be
// another one's already, whose bytes nobody else would get.
func (s *Stream) TryRead() bool {
	if !s.rmu.TryLock() {
		return false
	}
	if s.lost.Load() { // dispose says so before it closes the descriptor, under this lock
		s.rmu.Unlock()
		return false
	}
	return true
}

// EndRead is the end of what TryRead began.
func (s *Stream) EndRead() { s.rmu.Unlock() }

// Lost says that the stream broke.
func (s *Stream) Lost() bool { return s.lost.Load() }

// Read takes what has come, up to a budget of bytes so that writing has its
// turn, and says whether anything did. eager readers also take what nobody
// asked for yet. A reader that wants one message stops at its end: what follows is
// most likely for itself, and will be asked for by then. The caller began with TryRead.
func (s *Stream) Read(budget int, eager bool, want *atomic.Bool) bool {
	moved := false
	for budget > 0 && !s.lost.Load() {
		ok, err := s.digest(eager, want)
		if err != nil {
			s.fail(err)
			return true
		}
		if !ok || (want != nil && want.Load()) {
			return moved
		}
		n, full, err := s.fill()
		switch {
		case err != nil:
			s.fail(err)
			return true
		case n < 0:
			return moved
		case n == 0:
			s.fail(io.EOF)
			return true
		}
		budget -= n
		if !moved {
			moved = true
			s.reads++
		}
		if !full {
			break // the socket is empty; asking again would cost a call
		}
	}
	if _, err := s.digest(eager, want); err != nil {
		s.fail(err)
	}
	return moved
}

// fill reads once from the socket: the rest of the piece under way where it
// belongs, and what follows into the stage, which is empty then; or more of a
// header. full says that there may be more.
func (s *Stream) fill() (n int, full bool, err error) {
	c := &s.cur
	if s.r == s.w {
		s.r, s.w = 0, 0
	}
	if !c.on {
		if s.r > 0 {
			s.w = copy(s.stage, s.stage[s.r:s.w])
			s.r = 0
		}
		room := s.stage[s.w:]
		n, err = socket.Recv(s.fd, room)
		s.w += max(n, 0)
		return n, n == len(room), err
	}
	dst := s.room()
	n, err = socket.Recv2(s.fd, dst, s.stage, &s.rmsg)
	if n > 0 {
		meter.Came(n)
		k := min(n, len(dst))
		s.took(dst[:k])
		s.w = n - k
	}
	return n, n == len(dst)+len(s.stage), err
}

// room is where the next bytes of the piece go.
func (s *Stream) room() []byte {
	c := &s.cur
	switch c.mode {
	case Take:
		if c.into == nil {
			c.into = takes.Get()
		}
		return c.into[c.chunk : c.chunk+min(c.left, len(c.into)-c.chunk)]
	case Drop:
		return s.e.trash[:min(c.left, len(s.e.trash))]
	}
	return c.into[:c.left]
}

// took is what happens with bytes that came into room.
func (s *Stream) took(b []byte) {
	c := &s.cur
	c.left -= len(b)
	switch c.mode {
	case Take:
		c.chunk += len(b)
		if c.left == 0 || c.chunk >= len(c.into)/2 {
			s.hand()
		}
	case Direct, Part, Whole:
		c.into = c.into[len(b):]
	}
}

// hand hands out what is in the scratch memory, in multiples of 64 bytes: the rest
// waits for what follows.
func (s *Stream) hand() {
	c := &s.cur
	n := min(c.chunk, s.may())
	if n < c.chunk || c.left > 0 {
		n &^= 63
	}
	if n > 0 {
		c.to.Take(c.into[:n])
		c.gave += n
		c.chunk = copy(c.into, c.into[n:c.chunk])
	}
}

// may is how many bytes may be handed out.
func (s *Stream) may() int {
	return s.cur.to.May(int(s.cur.h.Offset) + s.cur.gave)
}

// held says that the scratch memory is full of what may not be handed out yet.
func (s *Stream) held() bool {
	c := &s.cur
	if c.mode != Take || c.chunk == 0 || (c.left > 0 && c.chunk < len(c.into)) {
		return false
	}
	s.hand()
	return c.chunk > 0 && (c.left == 0 || c.chunk == len(c.into))
}

// digest uses up the stage, or what is in it up to the end of the message that is
// wanted. It is false if the reader should stop.
func (s *Stream) digest(eager bool, want *atomic.Bool) (bool, error) {
	c := &s.cur
	for {
		if c.on && s.held() {
			return false, nil
		}
		if c.on && c.left > 0 {
			if s.r == s.w {
				return true, nil
			}
			if c.mode == Take && c.chunk == 0 && c.left <= s.w-s.r && s.r%8 == 0 && c.left <= s.may() {
				// All of it is here, and need not be moved before it is added.
				b := s.stage[s.r : s.r+c.left]
				s.r += c.left
				c.left = 0
				c.gave = len(b)
				c.to.Take(b)
				continue
			}
			if c.mode == Drop { // the trash is all streams' and only for the kernel to write to
				b := s.stage[s.r:min(s.w, s.r+c.left)]
				s.r += len(b)
				s.took(b)
				continue
			}
			dst := s.room()
			n := copy(dst, s.stage[s.r:s.w])
			s.r += n
			s.took(dst[:n])
			continue
		}
		if c.on {
			if c.h.Flags&frame.FlagSum != 0 && c.mode != Drop && s.in.Piece(c.all) != c.h.Sum {
				return false, fmt.Errorf("piece of %d bytes: %w", c.h.Length, auth.ErrAltered)
			}
			s.finish()
			continue
		}
		if s.w-s.r < frame.HeaderSize {
			return true, nil
		}
		b := (*[frame.HeaderSize]byte)(s.stage[s.r:])
		if want != nil && want.Load() && s.mine(b) {
			return false, nil
		}
		sum := [4]byte(b[52:56])
		if err := c.h.Parse(b, s.in); err != nil {
			return false, err
		}
		ok, err := s.begin((*Call)(b[56:]), eager)
		if err != nil {
			return false, err
		}
		if s.paused = !ok; !ok {
			copy(b[52:], sum[:]) // it will be read again
			return false, nil
		}
		s.r += frame.HeaderSize
		s.in.Next()
		if c.on && c.mode == Whole {
			if err := s.swallow(); err != nil {
				return false, err
			}
		}
	}
}

// mine says whether a frame is of the communicator whose message came last, and
// no caller that waits for the peer sleeps.
func (s *Stream) mine(b *[frame.HeaderSize]byte) bool {
	return s.Memo != nil && b[2] == frame.Data && s.peer.waiting.Load() == 0 && binary.LittleEndian.Uint64(b[56:]) == s.Key
}

// begin finds out where a piece belongs. It is false if the piece shall stay
// in the socket.
func (s *Stream) begin(call *Call, eager bool) (bool, error) {
	c := &s.cur
	if c.h.Ack > 0 || c.h.Kind == frame.Ack {
		s.peer.acked(&c.h)
	}
	if c.h.Kind != frame.Data {
		s.control(call)
		return true, nil
	}
	c.to, c.mode, c.left, c.chunk, c.gave, c.all = nil, Drop, c.h.Length, 0, 0, nil
	if c.h.Piece > 0 {
		if s.peer.Have(c.h.Piece) {
			c.on = true
			s.e.count.again.Add(1)
			return true, nil
		}
	}
	if !s.e.above.Route(s, call, eager) {
		return false, nil
	}
	c.on = true
	return true, nil
}

// control takes a frame without a piece.
func (s *Stream) control(call *Call) {
	h := &s.cur.h
	if h.Piece > 0 {
		if !s.peer.claim(h.Piece) {
			s.e.count.again.Add(1)
			return
		}
		defer s.peer.owe(s, 0, h.Flags&frame.FlagAck != 0)
	}
	if h.Kind == frame.Bye {
		s.peer.bye.Store(true)
		return
	}
	s.e.above.Told(s, call, h)
}

// finish ends the piece under way.
func (s *Stream) finish() {
	c := &s.cur
	c.on = false
	if c.mode == Take && c.into != nil {
		takes.Put(c.into)
	}
	to, part := c.to, c.part
	c.to, c.into, c.part, c.all = nil, nil, nil, nil
	s.e.traffic[s.rail].received.Add(uint64(c.h.Length))
	if c.h.Piece > 0 && !s.peer.claim(c.h.Piece) {
		// It came over another stream meanwhile.
		if to != nil {
			to.Let(&c.h, c.mode, part, c.gave)
		}
		to = nil
	}
	now := to == nil || c.h.Flags&frame.FlagAck != 0
	if to != nil {
		// The sender of a long message waits until all of it is acknowledged.
		whole := to.Arrived(&c.h, c.mode, part)
		now = now || (whole && c.h.Total > KeepSize)
	}
	if c.h.Piece > 0 {
		s.peer.owe(s, c.h.Length, now)
	}
}

// outbound is a message that is being sent, a piece at a time.
type Outbound struct {
	H    frame.Header
	Call Call
	B    []byte       // of the message that is yet to be sent, from the frame under way on
	head int          // bytes of the frame's header that were written
	body int          // and of its piece
	want int          // length of the frame's piece
	Most int          // and how long others may be, if that is more than frame.PieceSize
	Gone atomic.Int64 // bytes of the message that were written, without bounds once all were
	Done atomic.Bool
	wake *Waiter
}

// Begin makes o the message b of a call.
func (o *Outbound) Begin(h frame.Header, call *Call, b []byte) {
	o.H, o.Call, o.B, o.head, o.body, o.Most = h, *call, b, 0, 0, 0
	o.Done.Store(false)
	o.Gone.Store(0)
}

// Tell says who is to be woken when a message is out; nil for nobody.
func (s *Stream) Tell(o *Outbound, w *Waiter) {
	s.wmu.Lock()
	o.wake = w
	s.wmu.Unlock()
}

// start makes the header of the next frame; the caller holds the writing side.
func (s *Stream) start(o *Outbound) {
	o.want = min(len(o.B), max(o.Most, frame.PieceSize))
	o.H.Length = o.want
	if s.e.sums && o.H.Kind == frame.Data {
		o.H.Flags |= frame.FlagSum
		o.H.Sum = s.out.Piece(o.B[:o.want])
	}
	if o.H.Kind != frame.Ack {
		o.H.Ack = s.peer.carrier.mark.Load()
	}
	copy(s.wbuf[56:], o.Call[:])
	o.H.Put((*[frame.HeaderSize]byte)(s.wbuf[:]), s.out)
}

// Post queues a message.
func (s *Stream) Post(o *Outbound) {
	s.wmu.Lock()
	s.queue = append(s.queue, o)
	s.queued.Add(1)
	s.wmu.Unlock()
}

// Send is Post and write.
func (s *Stream) Send(o *Outbound) {
	s.wmu.Lock()
	s.queue = append(s.queue, o)
	s.queued.Add(1)
	s.drain(false)
}

// write moves what is queued into the socket as far as there is room, and says
// whether anything went.
func (s *Stream) write() bool {
	s.wmu.Lock()
	return s.drain(false)
}

// WriteFrame is write of one frame.
func (s *Stream) WriteFrame() bool {
	s.wmu.Lock()
	return s.drain(true)
}

// drain is write, or WriteFrame, by the caller that holds wmu, which it gives up.
func (s *Stream) drain(once bool) bool {
	if s.conn != nil {
		s.wmu.Unlock()
		select {
		case s.kick <- struct{}{}:
		default:
		}
		return false
	}
	moved := false
	if s.writing {
		s.wmu.Unlock()
		return false
	}
	s.writing = true
	var err error
	for s.first < len(s.queue) && !s.lost.Load() {
		o := s.queue[s.first]
		if o.head == 0 {
			s.start(o)
		}
		s.wmu.Unlock()
		var n int
		if o.head == 0 && o.want <= joinSize {
			copy(s.wbuf[frame.HeaderSize:], o.B[:o.want])
			n, err = socket.Send(s.fd, s.wbuf[:frame.HeaderSize+o.want])
		} else {
			n, err = socket.Send2(s.fd, s.wbuf[o.head:frame.HeaderSize], o.B[o.body:o.want], &s.wmsg)
		}
		s.wmu.Lock()
		if n <= 0 {
			break
		}
		moved = true
		if !s.sent(o, n) || once {
			break // a socket that did not take all is full
		}
	}
	s.writing = false
	s.wmu.Unlock()
	if err != nil {
		s.hangUp(err) // only now, as others may wait for the end of this
	}
	return moved
}

// sent notes that n bytes of a frame are written, and says whether that was
// all of it; the caller holds wmu.
func (s *Stream) sent(o *Outbound, n int) bool {
	meter.Sent(n)
	k := min(n, frame.HeaderSize-o.head)
	if o.head == 0 && k > 0 {
		s.out.Next()
	}
	o.head += k
	o.body += n - k
	o.Gone.Add(int64(n - k))
	if o.head < frame.HeaderSize || o.body < o.want {
		return false
	}
	s.e.traffic[s.rail].sent.Add(uint64(o.want))
	o.H.Offset += uint64(o.want)
	o.B = o.B[o.want:]
	o.head, o.body = 0, 0
	if len(o.B) == 0 {
		s.pop()
		s.queued.Add(-1)
		o.Gone.Store(math.MaxInt64)
		o.Done.Store(true)
		o.wake.Wake()
	} else if s.first+1 < len(s.queue) {
		s.pop()
		s.queue = append(s.queue, o)
	}
	return true
}

func (s *Stream) pop() {
	s.queue[s.first] = nil
	if s.first++; s.first == len(s.queue) {
		s.queue, s.first = s.queue[:0], 0
	}
}

// Cancel takes a message back that is not wanted any more. A frame that was
// begun is completed from a copy, as others follow it.
func (s *Stream) Cancel(o *Outbound) {
	s.wmu.Lock()
	defer s.wmu.Unlock()
	for s.writing {
		s.wmu.Unlock()
		wait.Yield()
		s.wmu.Lock()
	}
	for i := s.first; i < len(s.queue); i++ {
		if s.queue[i] != o {
			continue
		}
		if o.head == 0 {
			s.queue = append(s.queue[:i], s.queue[i+1:]...)
			s.queued.Add(-1)
			return
		}
		rest := &Outbound{H: o.H, Call: o.Call, head: o.head, body: o.body, want: o.want}
		rest.B = append([]byte(nil), o.B[:o.want]...)
		s.queue[i] = rest
		return
	}
}

// hangUp ends a stream to which nothing can be written. If the peer has closed it, what it sent before is taken first: a rank that ends
// with its last operation lets the others end it. The caller may hold rmu but not wmu.
func (s *Stream) hangUp(why error) {
	if !closedByPeer(why) || s.e.closed.Load() {
		s.fail(why)
		return
	}
	if s.hung.Swap(true) {
		return
	}
	s.e.Later(func() {
		s.rmu.Lock()
		for s.Read(readBudget, true, nil) && !s.lost.Load() {
		}
		s.rmu.Unlock()
		s.fail(why)
	})
}

// closedByPeer says that writing failed because the peer, or its host, closed the connection.
func closedByPeer(err error) bool {
	return errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET)
}

// fail ends the stream. The caller may hold rmu but not wmu.
func (s *Stream) fail(why error) {
	if s.lost.Swap(true) {
		return
	}
	if s.conn != nil {
		s.conn.Close()
		select {
		case s.kick <- struct{}{}:
		default:
		}
	} else {
		_ = unix.Shutdown(s.fd, unix.SHUT_RDWR)
	}
	if why == io.EOF {
		why = errClosed
	}
	s.peer.lose(s, why)
}

// swallow reads the piece under way, all of which is here.
func (s *Stream) swallow() error {
	c := &s.cur
	for c.left > 0 {
		if s.r < s.w {
			n := copy(c.into, s.stage[s.r:s.w])
			s.r += n
			s.took(c.into[:n])
			continue
		}
		if n, _, err := s.fill(); n <= 0 {
			if err == nil {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
	}
	return nil
}
