package ring

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/weft-fabric/weft/run/reduce"
	"github.com/weft-fabric/weft/run/transport"
)

// Expect announces where a message will be wanted.
func (p *Port) Expect(from, channel int, dst []byte) {
	l, err := p.enter(channel)
	if err != nil {
		return // Recv will say so
	}
	defer l.leave()
	if from < 0 || from >= len(p.members) {
		return
	}
	w := l.way(from)
	if len(w.queue) == 0 {
		l.announced = append(l.announced, w)
	}
	w.queue = append(w.queue, announcement{dst: dst, form: transport.FormOf(channel, len(dst))})
}

// Recv takes the next message of a way into dst.
func (p *Port) Recv(from, channel int, dst []byte) error {
	l, err := p.enter(channel)
	if err != nil {
		return err
	}
	defer l.leave()
	if from < 0 || from >= len(p.members) {
		return fmt.Errorf("receive from rank %d; ranks are 0 to %d", from, len(p.members)-1)
	}
	w := l.way(from)
	if len(w.queue) > 0 {
		a, received := l.pop(w)
		if unsafe.SliceData(a.dst) != unsafe.SliceData(dst) || len(a.dst) != len(dst) {
			return fmt.Errorf("receive from rank %d on channel %d: not into the memory that was announced for it", from, channel)
		}
		if received {
			return a.err
		}
	}
	return l.receive(w, dst, transport.FormOf(channel, len(dst)), nil)
}

// Take takes the next message of a way piece after piece.
func (p *Port) Take(from, channel, n int, f func(piece []byte)) error {
	l, err := p.enter(channel)
	if err != nil {
		return err
	}
	defer l.leave()
	if from < 0 || from >= len(p.members) {
		return fmt.Errorf("take from rank %d; ranks are 0 to %d", from, len(p.members)-1)
	}
	w := l.way(from)
	if len(w.queue) > 0 {
		return fmt.Errorf("take from rank %d on channel %d: the message was announced, so it has to be received", from, channel)
	}
	return l.receive(w, nil, transport.FormOf(channel, n), f)
}

// way is the way from a member, which need not have made it.
func (l *lane) way(from int) *inWay {
	w := l.in[from]
	if w == nil {
		w = &inWay{from: from}
		l.in[from] = w
	}
	return w
}

// pop removes the oldest announcement of a way and says whether its message has
// been received.
func (l *lane) pop(w *inWay) (announcement, bool) {
	a, received := w.queue[0], w.done > 0
	w.queue = append(w.queue[:0], w.queue[1:]...)
	if received {
		w.done--
	}
	if len(w.queue) == 0 {
		for i, x := range l.announced {
			if x == w {
				l.announced = append(l.announced[:i], l.announced[i+1:]...)
				break
			}
		}
	}
	return a, received
}

// serve receives what was announced and has come. It reports whether there was anything.
func (l *lane) serve() bool {
	rung := l.p.h.heads[l.p.h.rank].bell.Load()
	any := false
	for _, w := range l.announced {
		if w.way == nil {
			if w.looked == rung+1 {
				continue
			}
			w.looked = rung + 1
			if !l.find(w) {
				continue
			}
		}
		for w.done < len(w.queue) && l.waiting(w) {
			a := &w.queue[w.done]
			if a.err = l.receive(w, a.dst, a.form, nil); a.err != nil {
				// Nothing behind it can be received; those get the same error.
				for i := w.done; i < len(w.queue); i++ {
					w.queue[i].err = a.err
				}
				w.done = len(w.queue)
				break
			}
			w.done++
			any = true
		}
	}
	return any
}

// find looks for a way that a member may have made.
func (l *lane) find(w *inWay) bool {
	p := l.p
	b := p.peer(w.from)
	if b == nil {
		return false
	}
	for at := b.words()[p.me].first.Load(); at != 0; {
		x := p.h.wayAt(p.members[w.from], at)
		if x == nil {
			return false
		}
		if int(x.channel) == l.channel {
			w.way = x
			return true
		}
		at = x.next
	}
	return false
}

// await waits for the next message of a way.
func (l *lane) await(w *inWay) error {
	bell := &l.p.h.heads[l.p.h.rank].bell
	for w.way == nil {
		rung := bell.Load()
		if l.find(w) {
			break
		}
		if err := l.wait(bell, rung+1, w.from, &l.p.waiter, 0); err != nil {
			if l.find(w) {
				break
			}
			return err
		}
	}
	return l.waitPosted(w, w.next+1, 0)
}

// waiting reports whether a message of a way waits to be taken. Those of epochs
// that have ended are dropped.
func (l *lane) waiting(w *inWay) bool {
	for w.holds(w.next) {
		s := &w.slots[w.next%depth]
		if s.tag.Load() == l.p.tag || uint32(s.epoch.Load()) >= l.p.call.Epoch {
			return true
		}
		w.next++
		w.taken.Post(w.next)
		l.p.h.count.dropped.Add(1)
	}
	return false
}

// receive takes the next message of a way into dst, or hands it to f.
func (l *lane) receive(w *inWay, dst []byte, form transport.Form, f func([]byte)) error {
	p := l.p
	for {
		if err := l.await(w); err != nil {
			return err
		}
		if l.waiting(w) {
			break
		}
	}
	s := &w.slots[w.next%depth]
	if tag := s.tag.Load(); tag != p.tag {
		return &transport.Mismatch{Rank: p.me, Peer: w.from, Mine: p.call, Theirs: p.theirs(w.from, tag, uint32(s.epoch.Load())), Words: p.words}
	}
	if s.form != form {
		return &transport.Mismatch{Rank: p.me, Peer: w.from, Mine: p.call, Theirs: p.call, Channel: l.channel, Sent: s.form, Want: form,
			Words: p.words}
	}
	n := form.Bytes()
	if err := l.get(w, s, dst, n, f); err != nil {
		return err
	}
	w.next++
	w.taken.Post(w.next)
	more(&l.count.received, 1)
	more(&l.count.receivedBytes, uint64(n))
	return nil
}

// get reads a message of n bytes, wherever it is.
func (l *lane) get(w *inWay, s *slot, dst []byte, n int, f func([]byte)) error {
	if s.kind == eager {
		if f != nil {
			f(s.data[:n:n])
		} else {
			copy(dst, s.data[:n])
		}
		return nil
	}
	if s.kind == copied {
		return l.follow(w, s, dst, n, f)
	}
	c := s.claim.Load()
	for {
		if state := c & stateMask; state != open && state != moving {
			return l.gaveUp(w) // or an earlier attempt to read it failed
		}
		if s.claim.CompareAndSwap(c, reading|c&^stateMask) {
			break // the sender moves nothing any more
		}
		c = s.claim.Load()
	}
	moved := min(int(c>>stateBits)*piece, n)
	rank := l.p.members[w.from]
	err := l.unmoved(rank, s, dst, n, moved, f)
	if !s.claim.CompareAndSwap(reading|c&^stateMask, read) {
		return l.gaveUp(w)
	}
	return err
}

// unmoved reads a message whose first bytes are in the stage and the others
// where they were.
func (l *lane) unmoved(rank int, s *slot, dst []byte, n, moved int, f func([]byte)) error {
	if moved > 0 {
		b, err := l.p.h.s.At(rank, transport.Handle(s.stage), moved)
		if err != nil {
			return err
		}
		if f != nil {
			f(b)
		} else {
			reduce.Copy(dst[:moved], b)
			dst = dst[moved:]
		}
		if moved == n {
			return nil
		}
	}
	if s.kind == foreign {
		return l.pull(rank, uintptr(s.where)+uintptr(moved), dst, n-moved, f)
	}
	b, err := l.p.h.s.At(rank, transport.Handle(s.where)+transport.Handle(moved), n-moved)
	if err != nil {
		return err
	}
	if f != nil {
		f(b)
	} else {
		reduce.Copy(dst, b)
	}
	return nil
}

// gaveUp is the error for a message whose sender gave it up. It had a reason,
// which mostly reaches this rank, too, within a moment, and then is the better
// error.
func (l *lane) gaveUp(w *inWay) error {
	const moment = 10 // asks
	if err := l.waitPosted(w, math.MaxUint64, moment); err != errLate {
		return err
	}
	return fmt.Errorf("rank %d gave up sending message %d on channel %d of operation %d", w.from, w.next+1, l.channel, l.p.call.Seq)
}

// pull reads a message out of the sender's process.
func (l *lane) pull(rank int, addr uintptr, dst []byte, n int, f func([]byte)) error {
	l.p.h.count.pulledBytes.Add(uint64(n))
	if f == nil {
		return l.p.h.s.Pull(rank, addr, dst)
	}
	if l.scratch == nil {
		l.scratch = make([]byte, piece)
	}
	for done := 0; done < n; {
		b := l.scratch[:min(piece, n-done)]
		if err := l.p.h.s.Pull(rank, addr+uintptr(done), b); err != nil {
			return err
		}
		f(b)
		done += len(b)
	}
	return nil
}

// follow reads a message that the sender moves, behind it.
func (l *lane) follow(w *inWay, s *slot, dst []byte, n int, f func([]byte)) error {
	b, err := l.p.h.s.At(l.p.members[w.from], transport.Handle(s.stage), n)
	if err != nil {
		return err
	}
	for done := 0; done < n; {
		end := min(done+piece, n)
		if err := l.wait(&w.staged, s.base+uint64(end), w.from, &l.p.waiter, 0); err != nil {
			return err
		}
		if f != nil {
			f(b[done:end:end])
		} else {
			reduce.Copy(dst[done:end], b[done:end])
		}
		done = end
	}
	return nil
}
