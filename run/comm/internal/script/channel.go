package script

import (
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/step"
	"github.com/weft-fabric/weft/run/comm/internal/clock"
	"github.com/weft-fabric/weft/run/comm/internal/op"
	"github.com/weft-fabric/weft/run/reduce"
	"github.com/weft-fabric/weft/run/transport"
)

// summer adds up what comes piece by piece.
type summer struct {
	t        reduce.Type
	red      reduce.Op
	acc, dst []byte
	off      int
	undo     *undo        // where what dst holds has to be saved, or nil
	bounce   []byte       // for sums that are only passed on
	add      func([]byte) // the method, bound once
}

// set makes the summer ready for an operation.
func (s *summer) set(o *op.Op) {
	s.t, s.red = o.Type, o.Reduce
	if o.Op == sched.Barrier {
		s.red = reduce.BOr
	}
	if s.add == nil {
		s.add = s.take
	}
}

// begin makes the summer ready for a message.
func (s *summer) begin(acc, dst []byte, u *undo) { s.acc, s.dst, s.off, s.undo = acc, dst, 0, u }

// take adds a piece of a message to what is there: src first, as step.Effect says.
func (s *summer) take(piece []byte) {
	dst, acc := s.dst[s.off:s.off+len(piece)], s.acc[s.off:s.off+len(piece)]
	s.off += len(piece)
	if s.undo != nil {
		s.undo.sum(s.t, s.red, dst, acc, piece)
	} else {
		reduce.Apply(s.t, s.red, dst, acc, piece)
	}
}

// passing is memory for a sum of n bytes that is only passed on.
func (s *summer) passing(n int) []byte {
	if len(s.bounce) < n {
		s.bounce = make([]byte, n)
	}
	return s.bounce[:n]
}

// lane is a channel under way.
type lane struct {
	*Runner
	sp    *space
	list  []action
	sum   *summer
	done  *marks // of all channels; nil if there is only this one
	waits bool   // another channel may wait for what this one has done
	end   int    // the index of a receive that waits for the whole message, -1 if there is none

	// A message that is to be sent, if there is one: with the next that is received, where the transport can do both at once
	// and the program lets it.
	b    []byte // nil if there is none
	a    *action
	sent int // its index
}

// channel runs the actions of a channel in order.
func (r *Runner) channel(sp *space, list []action, longest int, sum *summer, done *marks) error {
	sum.set(sp.o)
	l := lane{Runner: r, sp: sp, list: list, sum: sum, done: done, waits: done != nil && done.waits, end: -1}
	if done == nil { // else another channel may still fail when this one ends
		l.end = sp.ends(r.port, list, longest)
	}
	for i := range list {
		a := &list[i]
		if sp.unsaved && (a.Op.Stores() && a.Dst.Buf == sched.Out || len(a.announce) > 0) {
			sp.save()
		}
		if l.b != nil && !a.Op.Receives() {
			if err := l.flush(); err != nil {
				return err
			}
		}
		next, err := l.do(a, i)
		if err == nil && a.Op.Sends() {
			err = l.post(a, i, next)
		}
		if err != nil {
			return err
		}
		if done != nil {
			done.mark(int(a.Channel))
		}
		if a.Op != sched.Wait && l.a != a { // waits are between channels of one rank, nothing that the others take part in
			sp.o.Steps.Add(&a.Action, clock.Ticks())
		}
	}
	return l.flush()
}

// do runs an action but for its send, and gives what is sent.
func (l *lane) do(a *action, i int) (next []byte, err error) {
	sp := l.sp
	switch {
	case a.left == step.Nothing:
		return nil, l.done.wait(int(a.On), a.Done)
	case a.left == step.Message:
		next = sp.at(a.Dst)
		if i == l.end {
			return next, l.receiveWhole(a, i, next)
		}
		if !a.announced {
			sp.saveFirst(a, next)
		}
		return next, l.receive(a, i, transport.Incoming{N: len(next), Dst: next}, next)
	case a.right == step.Message: // src + message
		acc := sp.at(a.Src)
		var u *undo
		if sp.pieces && a.first {
			u = sp.undo
		}
		if a.Op.Stores() {
			next = sp.at(a.Dst)
		} else {
			next = l.sum.passing(len(acc))
		}
		l.sum.begin(acc, next, u)
		return next, l.receive(a, i, transport.Incoming{N: len(acc), Take: l.sum.add}, next)
	case a.right == step.Dst: // src + dst
		if d := sp.at(a.Dst); len(d) > 0 {
			sp.saveFirst(a, d)
			reduce.Apply(sp.o.Type, l.sum.red, d, sp.at(a.Src), d)
		}
	case a.Op.Stores():
		if d, s := sp.at(a.Dst), sp.at(a.Src); len(d) > 0 && &d[0] != &s[0] {
			sp.saveFirst(a, d)
			reduce.Copy(d, s)
		}
	default:
		next = sp.at(a.Src)
	}
	return next, nil
}

// post announces receives and sends a message, now or with the next receive.
func (l *lane) post(a *action, i int, b []byte) error {
	for _, j := range a.announce {
		x := &l.list[j]
		if d := l.sp.at(x.Dst); len(d) > 0 && int(j) != l.end {
			l.sp.saveFirst(x, d)
			l.port.Expect(int(x.From), int(x.recvOn), d)
		}
	}
	if len(b) > 0 { // messages of no bytes are not sent: both sides know that they are empty
		l.b, l.a, l.sent = b, a, i
	}
	if !l.swaps || l.waits {
		return l.flush()
	}
	return nil
}

// flush sends what is to be sent.
func (l *lane) flush() error {
	if l.b == nil {
		return nil
	}
	to := int(l.a.To)
	l.g.Mine().WaitsFor(to, int(l.a.Channel), l.sent)
	err := l.port.Send(to, int(l.a.sendOn), l.b)
	l.posted()
	return err
}

// posted notes that what was to be sent is sent.
func (l *lane) posted() {
	l.b = nil
	l.sp.o.Steps.Add(&l.a.Action, clock.Ticks())
}

// receive receives a message into dst, or adds it up there, and sends what is to be sent meanwhile.
func (l *lane) receive(a *action, at int, in transport.Incoming, dst []byte) error {
	if c, ok := l.port.(transport.Chooser); ok && l.b != nil && !c.Overlaps(int(l.a.To), int(a.From)) {
		if err := l.flush(); err != nil {
			return err
		}
	}
	if l.b != nil && op.Overlap(l.b, dst) {
		// Sums may follow what is sent, in step with it.
		if in.After = in.Take != nil && &l.b[0] == &dst[0]; !in.After {
			if err := l.flush(); err != nil {
				return err
			}
		}
	}
	if in.N == 0 {
		return nil
	}
	in.From, in.Channel = int(a.From), int(a.recvOn)
	l.g.Mine().WaitsFor(in.From, int(a.Channel), at)
	switch {
	case l.b != nil:
		err := l.port.Exchange(transport.Outgoing{To: int(l.a.To), Channel: int(l.a.sendOn), Bytes: l.b}, in, nil)
		l.posted()
		return err
	case in.Dst != nil:
		return l.port.Recv(in.From, in.Channel, in.Dst)
	}
	return l.port.Take(in.From, in.Channel, in.N, in.Take)
}

// receiveWhole is the last receive of an operation, after what is to be sent was sent.
func (l *lane) receiveWhole(a *action, at int, dst []byte) error {
	h := l.port.Holder()
	if l.b != nil {
		l.g.Mine().WaitsFor(int(l.a.To), int(l.a.Channel), l.sent)
		err := h.SendWhole(int(l.a.To), int(l.a.sendOn), l.b)
		l.posted()
		if err != nil {
			return err
		}
	}
	l.g.Mine().WaitsFor(int(a.From), int(a.Channel), at)
	if !l.sp.pieces { // nothing is overwritten
		return l.port.Recv(int(a.From), int(a.recvOn), dst)
	}
	return h.RecvWhole(int(a.From), int(a.recvOn), dst)
}
