package ring

import (
	"fmt"
	"runtime"
	"time"
	"unsafe"

	"github.com/weft-fabric/weft/run/reduce"
	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/wait"
)

const (
	waySize = int(unsafe.Sizeof(way{}))

	// piece is how much is copied at a time where a message goes through memory
	// of its own on the way: half of a small second-level cache.
	piece = 256 << 10

	maxSpare = 16 << 20 // what a way keeps for the next message to move
)

func nap() { time.Sleep(50 * time.Microsecond) }

// Send gives b to a member.
func (p *Port) Send(to, channel int, b []byte) error {
	l, err := p.enter(channel)
	if err != nil {
		return err
	}
	defer l.leave()
	if to < 0 || to >= len(p.members) {
		return fmt.Errorf("send to rank %d; ranks are 0 to %d", to, len(p.members)-1)
	}
	o, err := l.room(to, l)
	if err != nil {
		return err
	}
	s, err := l.put(o, to, b, transport.FormOf(channel, len(b)), &l.waiter)
	l.waiter.Settle()
	if err == nil && s != nil {
		err = l.handOver(o, s, to, b, l)
	}
	runtime.KeepAlive(b)
	return err
}

// Exchange is a Send and a receive at once. On different channels, Send does not
// wait for the peer before the other message was received. A message that is
// taken, or that comes on the same channel, is received after the Send, which
// does not need it: a Send that waits too long moves its message out of the way.
func (p *Port) Exchange(out transport.Outgoing, in transport.Incoming, waits func(sending bool)) error {
	if out.To < 0 || out.To >= len(p.members) || in.From < 0 || in.From >= len(p.members) {
		return fmt.Errorf("send to rank %d and receive from rank %d; ranks are 0 to %d", out.To, in.From, len(p.members)-1)
	}
	if in.Take != nil || transport.Way(out.Channel) == transport.Way(in.Channel) {
		return p.oneByOne(out, in)
	}
	l, err := p.enter(out.Channel)
	if err != nil {
		return err
	}
	err = l.sendRecv(out.To, out.Channel, out.Bytes, in.From, in.Channel, in.Dst, waits)
	l.leave()
	return err
}

// oneByOne is Exchange by a rank that sends, then receives.
func (p *Port) oneByOne(out transport.Outgoing, in transport.Incoming) error {
	if err := p.Send(out.To, out.Channel, out.Bytes); err != nil {
		return err
	}
	if in.Take != nil {
		return p.Take(in.From, in.Channel, in.N, in.Take)
	}
	return p.Recv(in.From, in.Channel, in.Dst)
}

func (l *lane) sendRecv(to, channel int, src []byte, from, fromChannel int, dst []byte, waits func(sending bool)) error {
	in, err := l.p.lane(fromChannel)
	if err != nil {
		return err
	}
	w := in.way(from)
	if len(w.queue) > 0 {
		return fmt.Errorf("receive from rank %d on channel %d: messages were announced, so they have to be received before", from, fromChannel)
	}
	want := transport.FormOf(fromChannel, len(dst))
	full := l.out[to] != nil && l.out[to].full()
	if full { // there may be no room for the one before the other was received
		in.announced = append(in.announced, w)
		w.queue = append(w.queue, announcement{dst: dst, form: want})
	}
	o, err := l.room(to, in)
	var s *slot
	if err == nil {
		s, err = l.put(o, to, src, transport.FormOf(channel, len(src)), &in.waiter)
	}
	there := false
	if full {
		var a announcement
		if a, there = in.pop(w); there && err == nil {
			err = a.err
		}
	}
	if err == nil && !there {
		if err = in.receive(w, dst, want, nil); err == nil {
			in.waiter.Raised().Settled() // the word that a message was taken went out in between
		}
	}
	in.waiter.Settle()
	if err != nil {
		if s != nil {
			l.giveUp(s)
		}
		return err
	}
	if s != nil {
		if waits != nil && o.taken.Load() < o.next {
			waits(true)
		}
		err = l.handOver(o, s, to, src, l)
	}
	runtime.KeepAlive(src)
	return err
}

// room gives the way to a member once there is room for a message, and meanwhile
// receives what was announced on a lane.
func (l *lane) room(to int, serves *lane) (*outWay, error) {
	o := l.out[to]
	if o == nil {
		var err error
		if o, err = l.newWay(to); err != nil {
			return nil, err
		}
	}
	if o.full() {
		if err := l.waitServing(serves, &o.taken, o.next-depth+1, to, &l.p.waiter, 0); err != nil {
			return nil, err
		}
	}
	return o, nil
}

// full reports whether no message may be posted before another is taken.
func (o *outWay) full() bool {
	if o.next-o.free >= depth {
		o.free = o.taken.Load()
	}
	return o.next-o.free >= depth
}

// newWay makes a way to a member and rings its bell.
func (l *lane) newWay(to int) (*outWay, error) {
	p := l.p
	b, err := p.h.s.Alloc(waySize)
	if err != nil {
		return nil, fmt.Errorf("way to rank %d: %w", to, err)
	}
	at, _ := p.h.s.Registered(b)
	w := as[way](b)
	w.channel = uint32(l.channel)
	p.mu.Lock()
	first := &p.head.words()[to].first
	w.next = first.Load()
	first.Store(uint64(at))
	p.mu.Unlock()
	p.h.heads[p.members[to]].bell.Add(1)
	o := &outWay{way: w, block: b}
	l.out[to] = o
	return o, nil
}

// put posts a message, for which there is room; w must settle. If a slot is
// returned, the receiver reads b where it lies, and handOver must follow.
func (l *lane) put(o *outWay, to int, b []byte, form transport.Form, w *wait.Waiter) (*slot, error) {
	p := l.p
	p.publish()
	more(&l.count.sent, 1)
	more(&l.count.sentBytes, uint64(len(b)))
	s := &o.slots[o.next%depth]
	if len(b) <= Eager {
		s.kind = eager
		// What lies in the line of the flag comes last: the receiver looks at it all
		// the time, and would take it away between two stores.
		if len(b) > inLine {
			copy(s.data[inLine:], b[inLine:])
			copy(s.data[:inLine], b)
		} else {
			copy(s.data[:], b)
		}
		l.post(o, s, form, w)
		return nil, nil
	}
	l.reap(o)
	if h, ok := p.h.s.Handle(b); ok {
		s.kind, s.where = lent, uint64(h)
	} else if p.h.s.Pullable(p.members[to]) {
		s.kind, s.where = foreign, uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b))))
	} else {
		s.kind = copied
	}
	s.claim.Store(open)
	if s.kind == copied || to == p.me {
		s.kind = copied
		at, err := l.prepare(o, s, len(b), o.next+1)
		if err != nil {
			return nil, err
		}
		s.base = o.bytes
		l.post(o, s, form, w)
		w.Settle()
		l.copyAll(o, at, b)
		return nil, nil
	}
	l.post(o, s, form, w)
	return s, nil
}

// post makes a message visible.
func (l *lane) post(o *outWay, s *slot, form transport.Form, w *wait.Waiter) {
	s.form = form // a store first: else the slot is loaded, only to see whether it is there
	wait.Release(&s.epoch, uint64(l.p.call.Epoch))
	wait.Release(&s.tag, l.p.tag)
	o.next++
	s.posted().RaiseFor(o.next, &o.asleep, w)
}

// copyAll copies a message into its stage; the receiver follows behind.
func (l *lane) copyAll(o *outWay, at, b []byte) {
	l.p.h.count.stagedBytes.Add(uint64(len(b)))
	for len(b) > 0 {
		n := min(piece, len(b))
		reduce.Copy(at[:n], b[:n])
		o.bytes += uint64(n)
		o.staged.Post(o.bytes)
		at, b = at[n:], b[n:]
	}
}

// patience is how to wait for a receiver before moving a message of n bytes:
// about as long as moving it takes, 0.1 ns a byte, so that it never takes more
// than twice the time of the better choice, but not longer than any wait spins.
func (p *Port) patience(n int) wait.Waiter {
	w := p.waiter
	w.Spin = min(w.Spin, 256+n/512)
	w.Yield = min(w.Yield, 1+n/(8<<10))
	return w
}

// handOver waits until the receiver has read a message where it lies. If it does
// not come, the sender moves the message out of the way, until it does.
func (l *lane) handOver(o *outWay, s *slot, to int, b []byte, serves *lane) error {
	w := l.p.patience(len(b))
	err := l.waitServing(serves, &o.taken, o.next, to, &w, 1)
	if err == errLate {
		if s.claim.Load() == open && l.moveAway(o, s, b) {
			return nil
		}
		err = l.waitServing(serves, &o.taken, o.next, to, &l.p.waiter, 0)
	}
	if err != nil && l.giveUp(s) {
		err = nil
	}
	return err
}

// giveUp ends a message that may be changed from now on: what the receiver reads
// of it after that must not count. It reports whether the receiver has it already.
func (l *lane) giveUp(s *slot) bool {
	for {
		c := s.claim.Load()
		if c == read {
			return true
		}
		if s.claim.CompareAndSwap(c, dead) {
			return false
		}
	}
}

// moveAway moves a message to a stage. It reports whether all of it was; if not,
// the receiver has taken over, or there is no memory for it, and it has to come.
func (l *lane) moveAway(o *outWay, s *slot, b []byte) bool {
	at, err := l.prepare(o, s, len(b), o.next)
	if err != nil {
		return false
	}
	if !s.claim.CompareAndSwap(open, moving) {
		l.unstage(o)
		return false
	}
	done := 0
	for k := uint64(0); done < len(b); k++ {
		end := min(done+piece, len(b))
		reduce.Copy(at[done:end], b[done:end])
		if !s.claim.CompareAndSwap(moving|k<<stateBits, moving|(k+1)<<stateBits) {
			break
		}
		done = end
	}
	l.p.h.count.stagedBytes.Add(uint64(done))
	return done == len(b)
}

// prepare gets memory to move a message of n bytes to, until a number of messages
// have been taken.
func (l *lane) prepare(o *outWay, s *slot, n int, until uint64) ([]byte, error) {
	b := o.spare
	if cap(b) >= n {
		o.spare = nil
	} else {
		var err error
		if b, err = l.p.h.s.Alloc(n); err != nil {
			return nil, err
		}
	}
	b = b[:n]
	at, _ := l.p.h.s.Registered(b)
	s.stage = uint64(at)
	o.stages = append(o.stages, stage{until, b})
	return b, nil
}

// unstage takes back the last prepare.
func (l *lane) unstage(o *outWay) {
	last := len(o.stages) - 1
	l.recycle(o, o.stages[last].b)
	o.stages = o.stages[:last]
}

// reap gives back the memory of moved messages that were taken.
func (l *lane) reap(o *outWay) {
	taken := o.taken.Load()
	for len(o.stages) > 0 && o.stages[0].until <= taken {
		l.recycle(o, o.stages[0].b)
		o.stages = o.stages[1:]
	}
}

// recycle keeps the larger of b and what is kept already, unless it is very
// large, and gives the rest back.
func (l *lane) recycle(o *outWay, b []byte) {
	if cap(b) <= maxSpare && cap(b) > cap(o.spare) {
		b, o.spare = o.spare, b
	}
	if b != nil {
		_ = l.p.h.s.Free(b)
	}
}
