package conform

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/weft-fabric/weft/run/transport"
)

// capabilities: what an endpoint says it can do is there.
func capabilities(e transport.Endpoint) error {
	can := e.Can()
	if can.Name == "" || can != e.Can() {
		return fmt.Errorf("capabilities %+v, then %+v", can, e.Can())
	}
	if (e.Memory() != nil) != can.SharedMemory {
		return fmt.Errorf("shared memory is %t, the endpoint's memory %v", can.SharedMemory, e.Memory())
	}
	p, err := begun(e, 7)
	if err != nil {
		return err
	}
	if (p.Holder() != nil) != can.Holds {
		return fmt.Errorf("holding messages is %t, the port's holder %v", can.Holds, p.Holder())
	}
	return p.Close()
}

// exchangesOnOne: a message goes round the ranks on one channel while another
// comes, which is received, taken, or taken in place of the one that is sent.
func exchangesOnOne(e transport.Endpoint) error {
	p, err := begun(e, 7)
	if err != nil {
		return err
	}
	me, size := e.Rank(), e.Size()
	next, before := (me+1)%size, (me+size-1)%size
	for k, n := range sizes {
		src, got := message(n, number(me, next, 0, k)), make([]byte, n)
		in, at := transport.Incoming{From: before, N: n, Dst: got}, 0
		if k%3 > 0 {
			in.Dst, in.After = nil, k%3 == 2
			if in.After {
				got = src
			}
			in.Take = func(piece []byte) { at += copy(got[at:], piece) }
		}
		if err := p.Exchange(transport.Outgoing{To: next, Bytes: src}, in, nil); err != nil {
			return fmt.Errorf("round %d: %w", k, err)
		}
		if err := same(got, number(before, me, 0, k)); err != nil {
			return fmt.Errorf("round %d: %w", k, err)
		}
	}
	return p.Close()
}

// atOnce: ranks that send and receive at once do so with one another and with such
// as do one after the other, and no message waits for another.
func atOnce(e transport.Endpoint) error {
	p, err := begun(e, 7)
	if err != nil {
		return err
	}
	me, size := e.Rank(), e.Size()
	next, before := (me+1)%size, (me+size-1)%size
	out, in := me%2, before%2 // channels
	for k := range 4 * len(sizes) {
		length := func(from int) int { return sizes[(k+5*from)%len(sizes)] }
		src, dst := message(length(me), number(me, next, out, k)), make([]byte, length(before))
		switch {
		case k%4 != me:
			err = p.Exchange(transport.Outgoing{To: next, Channel: out, Bytes: src},
				transport.Incoming{From: before, Channel: in, N: len(dst), Dst: dst}, func(bool) {})
		case k%8 < 4:
			if err = p.Send(next, out, src); err == nil {
				err = p.Recv(before, in, dst)
			}
		default:
			if err = p.Recv(before, in, dst); err == nil {
				err = p.Send(next, out, src)
			}
		}
		if err == nil {
			err = same(dst, number(before, me, in, k))
		}
		if err != nil {
			return fmt.Errorf("round %d: %w", k, err)
		}
	}
	return p.Close()
}

// channels: messages of different channels do not disturb one another, whatever
// order they are sent and received in.
func channels(e transport.Endpoint) error {
	const n, rounds = 8, 30
	p, err := begun(e, 7)
	if err != nil {
		return err
	}
	me, size := e.Rank(), e.Size()
	next, before := (me+1)%size, (me+size-1)%size
	err = Together(n, func(c int) error {
		for k := range rounds {
			length := func(from int) int { return sizes[(c*7+k*5+from)%(len(sizes)-2)] }
			b := make([]byte, length(before))
			p.Expect(before, c, b)
			if err := p.Send(next, c, message(length(me), number(me, next, c, k))); err != nil {
				return fmt.Errorf("channel %d, send %d: %w", c, k, err)
			}
			if err := p.Recv(before, c, b); err != nil {
				return fmt.Errorf("channel %d, receive %d: %w", c, k, err)
			}
			if err := same(b, number(before, me, c, k)); err != nil {
				return fmt.Errorf("channel %d: %w", c, err)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return p.Close()
}

// mixed: whether a message was announced, and whether it is received or taken,
// is the receiver's business; a sender's memory is its own again after Send,
// got from Alloc or not.
func mixed(e transport.Endpoint) error {
	const rounds = 300
	p, err := begun(e, 7)
	if err != nil {
		return err
	}
	registered, err := e.Verbs().Alloc(1 << 20)
	if err != nil {
		return err
	}
	same1 := rand.New(rand.NewPCG(1, 2)) // what both ranks know
	length := make([]int, rounds)
	for k := range length {
		length[k] = same1.IntN(1 << same1.IntN(20))
	}
	if e.Rank() == 0 {
		plain := make([]byte, 1<<20)
		for k, n := range length {
			b := plain[:n]
			if k%3 == 0 {
				b = registered[64*(k%5) : 64*(k%5)+n : 1<<20]
			}
			fill(b, uint64(k))
			if err := p.Send(1, 2, b); err != nil {
				return fmt.Errorf("send %d: %w", k, err)
			}
			clear(b)
		}
		return closed(p, e, registered)
	}
	own := rand.New(rand.NewPCG(3, 4))
	var ahead [][]byte // announced and not received
	for k := 0; k < rounds; k++ {
		for len(ahead) < rounds-k && own.IntN(3) == 0 {
			b := make([]byte, length[k+len(ahead)])
			if own.IntN(2) == 0 && len(ahead) == 0 {
				b = registered[:len(b)]
			}
			p.Expect(0, 2, b)
			ahead = append(ahead, b)
		}
		b := make([]byte, length[k])
		if len(ahead) > 0 {
			b, ahead = ahead[0], ahead[1:]
			if err := p.Recv(0, 2, b); err != nil {
				return fmt.Errorf("receive %d: %w", k, err)
			}
		} else if own.IntN(2) == 0 {
			if err := p.Recv(0, 2, b); err != nil {
				return fmt.Errorf("receive %d: %w", k, err)
			}
		} else {
			at := 0
			if err := p.Take(0, 2, len(b), func(piece []byte) { at += copy(b[at:], piece) }); err != nil {
				return fmt.Errorf("take %d: %w", k, err)
			}
		}
		if err := same(b, uint64(k)); err != nil {
			return err
		}
	}
	return closed(p, e, registered)
}

// closed closes a port and frees memory.
func closed(p transport.Port, e transport.Endpoint, b []byte) error {
	if err := p.Close(); err != nil {
		return err
	}
	return e.Verbs().Free(b)
}

// allToAll: everybody announces, sends and receives everything on one channel.
func allToAll(e transport.Endpoint) error {
	p, err := begun(e, 7)
	if err != nil {
		return err
	}
	me, size := e.Rank(), e.Size()
	for k, n := range []int{0, 100, 5000, 70000, 1 << 20} {
		got := make([][]byte, size)
		for r := range size {
			got[r] = make([]byte, n+r)
			if r != me {
				p.Expect(r, 0, got[r])
			}
		}
		for d := 1; d < size; d++ {
			to := (me + d) % size
			if err := p.Send(to, 0, message(n+me, number(me, to, 0, k))); err != nil {
				return fmt.Errorf("send to %d: %w", to, err)
			}
		}
		for d := 1; d < size; d++ {
			from := (me + d) % size
			if err := p.Recv(from, 0, got[from]); err != nil {
				return fmt.Errorf("receive from %d: %w", from, err)
			}
			if err := same(got[from], number(from, me, 0, k)); err != nil {
				return err
			}
		}
	}
	return p.Close()
}

// heard receives the message of call k+1, after which its sender must have been seen in that call or a later one.
func heard(p transport.Port, from, k int, b []byte) error {
	if err := p.Recv(from, 0, b); err != nil {
		return fmt.Errorf("call %d: %w", k+1, err)
	}
	if err := same(b, uint64(k)); err != nil {
		return fmt.Errorf("call %d: %w", k+1, err)
	}
	c, ok := p.Last(from)
	if !ok || c.Seq < uint64(k+1) || c.Comm != 7 || c != call(7, c.Seq) {
		return fmt.Errorf("a message of call %d came, but its sender was last seen doing %+v (%v)", k+1, c, ok)
	}
	return nil
}

// calls: ranks go on to the next call when they are done, not when all are, and
// Last tells how far a peer has got.
func calls(e transport.Endpoint) error {
	const rounds = 200
	p, err := e.Port(transport.Group{ID: 7, Epoch: 1, Members: everyone(e)})
	if err != nil {
		return err
	}
	me, size := e.Rank(), e.Size()
	if _, ok := p.Last((me + 1) % size); ok && me == 0 {
		// Rank 1 sends nothing before it has heard of rank 0.
		return fmt.Errorf("rank 1 was seen doing something before it did")
	}
	b := make([]byte, 40)
	for k := range rounds {
		p.Begin(call(7, uint64(k+1)), impatient())
		if me > 0 {
			if err := heard(p, me-1, k, b); err != nil {
				return err
			}
		}
		if me < size-1 {
			if err := p.Send(me+1, 0, message(len(b), uint64(k))); err != nil {
				return fmt.Errorf("call %d: %w", k+1, err)
			}
		}
	}
	return p.Close()
}

// subset is a communicator of some ranks.
type subset struct {
	id      uint32
	members []int
}

// open opens a port for every subset that has this rank, nil for the others, which must refuse it.
func open(e transport.Endpoint, groups []subset) (ports []transport.Port, err error) {
	for _, g := range groups {
		p, err := e.Port(transport.Group{ID: g.id, Epoch: 1, Members: g.members})
		switch member := slices.Contains(g.members, e.Rank()); {
		case member && err != nil:
			return nil, err
		case member:
			p.Begin(call(g.id, 1), impatient())
		case err == nil:
			p.Close()
			return nil, fmt.Errorf("a port for members %v, of which rank %d is not one", g.members, e.Rank())
		default:
			p = nil
		}
		ports = append(ports, p)
	}
	return ports, nil
}

// communicators: ports of different communicators do not disturb one another,
// and ranks are those of the communicator, in its order.
func communicators(e transport.Endpoint) error {
	groups := []subset{{1, []int{0, 1, 2, 3}}, {2, []int{3, 1}}, {3, []int{2, 0}}, {4, []int{3, 2, 1, 0}}, {5, []int{1, 3, 0}}}
	ports, err := open(e, groups)
	if err != nil {
		return err
	}
	// Everything is sent before anything is received, and received in another order.
	for i, g := range groups {
		me := slices.Index(g.members, e.Rank())
		if me < 0 {
			continue
		}
		to := (me + 1) % len(g.members)
		if err := ports[i].Send(to, 0, message(100, number(me, to, i, 0))); err != nil {
			return fmt.Errorf("communicator %d: %w", g.id, err)
		}
	}
	for i := len(groups) - 1; i >= 0; i-- {
		g := groups[i]
		me := slices.Index(g.members, e.Rank())
		if me < 0 {
			continue
		}
		from, b := (me+len(g.members)-1)%len(g.members), make([]byte, 100)
		if err := ports[i].Recv(from, 0, b); err != nil {
			return fmt.Errorf("communicator %d: %w", g.id, err)
		}
		if err := same(b, number(from, me, i, 0)); err != nil {
			return fmt.Errorf("communicator %d: %w", g.id, err)
		}
		if err := ports[i].Close(); err != nil {
			return err
		}
	}
	return nil
}

// manyPorts: ports are cheap, and a rank may close its own while the peer has
// not yet made its.
func manyPorts(e transport.Endpoint) error {
	for id := range uint32(1000) {
		p, err := begun(e, id)
		if err != nil {
			return fmt.Errorf("port %d: %w", id, err)
		}
		peer := 1 - e.Rank()
		b := make([]byte, 16)
		// One sends and closes, the other receives and closes, in turn.
		if int(id)%2 == e.Rank() {
			err = p.Send(peer, 0, message(16, uint64(id)))
		} else if err = p.Recv(peer, 0, b); err == nil {
			err = same(b, uint64(id))
		}
		if err != nil {
			return fmt.Errorf("port %d: %w", id, err)
		}
		if err := p.Close(); err != nil {
			return err
		}
	}
	return nil
}
