package conform

import (
	"fmt"

	"github.com/weft-fabric/weft/run/transport"
)

// call is an operation of a number on a communicator.
func call(comm uint32, seq uint64) transport.Call {
	c := transport.Call{Epoch: 1, Comm: comm, Seq: seq}
	for i := range c.Signature {
		c.Signature[i] = byte(i + 1)
	}
	return c
}

// begun makes a port of all ranks and begins its first call.
func begun(e transport.Endpoint, comm uint32) (transport.Port, error) {
	p, err := e.Port(transport.Group{ID: comm, Epoch: 1, Members: everyone(e)})
	if err != nil {
		return nil, err
	}
	p.Begin(call(comm, 1), impatient())
	return p, nil
}

// sizes are around everything a transport may treat differently.
var sizes = []int{0, 1, 2, 3, 7, 8, 63, 64, 65, 1000, 1024, 4031, 4032, 4033, 4096, 5000, 8191, 8193, 16385, 65535, 65536, 65537, 262143,
	262144, 262145, 1 << 20, 3<<20 + 5}

var messages = []Scenario{
	{Name: "order", Ranks: 3, Run: order},
	{Name: "sizes", Ranks: 2, Run: allSizes},
	{Name: "both send, then receive", Ranks: 2, Run: bothSend},
	{Name: "all wait for one another", Ranks: 4, Run: waitingRing},
	{Name: "announced, and received elsewhere", Ranks: 2, Run: receivedElsewhere},
	{Name: "at once", Ranks: 4, Run: atOnce},
	{Name: "exchanges on one channel", Ranks: 4, Run: exchangesOnOne},
	{Name: "capabilities", Ranks: 2, Run: capabilities},
	{Name: "channels", Ranks: 3, Run: channels},
	{Name: "announced, received and taken in turn", Ranks: 2, Run: mixed},
	{Name: "all to all", Ranks: 5, Run: allToAll},
	{Name: "all send, then take", Ranks: 4, Run: ringOfTakes},
	{Name: "random programs", Ranks: 4, Run: randomPrograms},
	{Name: "calls one after another", Ranks: 3, Run: calls},
	{Name: "communicators", Ranks: 4, Run: communicators},
	{Name: "ports made and closed", Ranks: 2, Run: manyPorts},
}

// order: the k-th message sent on a way is the k-th received on it.
func order(e transport.Endpoint) error {
	const rounds, n = 200, 24
	p, err := begun(e, 7)
	if err != nil {
		return err
	}
	me, size := e.Rank(), e.Size()
	next, before := (me+1)%size, (me+size-1)%size
	for k := range rounds {
		if err := p.Send(next, 0, message(n+k%9, number(me, next, 0, k))); err != nil {
			return fmt.Errorf("send %d: %w", k, err)
		}
		b := make([]byte, n+k%9)
		if err := p.Recv(before, 0, b); err != nil {
			return fmt.Errorf("receive %d: %w", k, err)
		}
		if err := same(b, number(before, me, 0, k)); err != nil {
			return err
		}
	}
	return p.Close()
}

// taken takes a message of n bytes, whose pieces must begin where whole lines of 64 bytes do.
func taken(p transport.Port, n int) ([]byte, error) {
	got := make([]byte, 0, n)
	var broken error
	if err := p.Take(0, 0, n, func(piece []byte) {
		if len(got)%64 != 0 {
			broken = fmt.Errorf("take of %d bytes: a piece after %d bytes, which is no multiple of 64", n, len(got))
		}
		got = append(got, piece...)
	}); err != nil {
		return nil, fmt.Errorf("take %d bytes: %w", n, err)
	}
	if broken == nil && len(got) != n {
		broken = fmt.Errorf("take of %d bytes gave %d", n, len(got))
	}
	return got, broken
}

// allSizes: messages of every size arrive whole, by Recv and by Take.
func allSizes(e transport.Endpoint) error {
	p, err := begun(e, 7)
	if err != nil {
		return err
	}
	for k, n := range sizes {
		if e.Rank() == 0 {
			b := message(n, uint64(k))
			for range 2 {
				if err := p.Send(1, 0, b); err != nil {
					return fmt.Errorf("send %d bytes: %w", n, err)
				}
			}
			clear(b)
			continue
		}
		b := make([]byte, n)
		if err := p.Recv(0, 0, b); err != nil {
			return fmt.Errorf("receive %d bytes: %w", n, err)
		}
		if err := same(b, uint64(k)); err != nil {
			return err
		}
		got, err := taken(p, n)
		if err != nil {
			return err
		}
		if err := same(got, uint64(k)); err != nil {
			return err
		}
	}
	return p.Close()
}

// receivedElsewhere: a message that is received into other memory than was announced for it comes there, or the receive is refused and the
// message is still to be had.
func receivedElsewhere(e transport.Endpoint) error {
	p, err := begun(e, 7)
	if err != nil {
		return err
	}
	for k, n := range sizes {
		if e.Rank() == 0 {
			if err := p.Send(1, 0, message(n, uint64(k))); err != nil {
				return fmt.Errorf("send %d bytes: %w", n, err)
			}
			continue
		}
		announced, other := make([]byte, n), make([]byte, n)
		p.Expect(0, 0, announced)
		got := other
		if err := p.Recv(0, 0, other); err != nil {
			got = announced
			if again := p.Recv(0, 0, announced); again != nil {
				return fmt.Errorf("receive %d bytes elsewhere: %w, then where they were announced: %w", n, err, again)
			}
		}
		if err := same(got, uint64(k)); err != nil {
			return fmt.Errorf("announced, and received elsewhere: %w", err)
		}
	}
	return p.Close()
}

// bothSend: ranks that send to each other first and receive then do not wait
// for each other for ever, whether they announced what they will receive or not.
func bothSend(e transport.Endpoint) error {
	p, err := begun(e, 7)
	if err != nil {
		return err
	}
	me, peer := e.Rank(), 1-e.Rank()
	for k, n := range sizes {
		b := make([]byte, n)
		if k%3 == 0 {
			p.Expect(peer, 0, b)
		}
		if err := p.Send(peer, 0, message(n, number(me, peer, 0, k))); err != nil {
			return fmt.Errorf("send %d bytes: %w", n, err)
		}
		if err := p.Recv(peer, 0, b); err != nil {
			return fmt.Errorf("receive %d bytes: %w", n, err)
		}
		if err := same(b, number(peer, me, 0, k)); err != nil {
			return err
		}
	}
	return p.Close()
}

// waitingRing: a rank that waits for one peer lets in what others send to it. Rank 1 waits for 2, which sends to 3, which waits for 0,
// which sends to 1. Each way holds one message, of any length, so they do not wait for one another for ever.
func waitingRing(e transport.Endpoint) error {
	p, err := begun(e, 7)
	if err != nil {
		return err
	}
	const n = 4 << 20
	if b, ok := p.(transport.Bounded); ok {
		b.Unbound()
	}
	do := [][][2]int{ // by rank, in order: from whom, to whom
		{{0, 1}, {0, 3}},
		{{2, 1}, {0, 1}},
		{{2, 3}, {2, 1}},
		{{0, 3}, {2, 3}},
	}
	for _, m := range do[e.Rank()] {
		from, to := m[0], m[1]
		if from == e.Rank() {
			if err := p.Send(to, 0, message(n, number(from, to, 0, 0))); err != nil {
				return fmt.Errorf("send to rank %d: %w", to, err)
			}
			continue
		}
		b := make([]byte, n)
		if err := p.Recv(from, 0, b); err != nil {
			return fmt.Errorf("receive from rank %d: %w", from, err)
		}
		if err := same(b, number(from, to, 0, 0)); err != nil {
			return err
		}
	}
	return p.Close()
}
