package conform

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/weft-fabric/weft/run/transport"
)

var endings = []Scenario{
	{Name: "stop while receiving", Ranks: 2, Run: stopReceiving},
	{Name: "stop while sending", Ranks: 2, Run: stopSending},
	{Name: "sending given up", Ranks: 2, Run: givenUp},
	{Name: "a rank leaves", Ranks: 3, Run: leaves},
	{Name: "last words", Ranks: 2, Run: lastWords},
	{Name: "closed while waiting", Ranks: 2, Run: closedWaiting},
}

var errEnough = errors.New("enough")

// countdown is a Stop that ends a wait at the n-th time it is asked.
func countdown(n int64) (transport.Stop, *atomic.Int64) {
	asked := new(atomic.Int64)
	return func() error {
		if asked.Add(1) >= n {
			return errEnough
		}
		return nil
	}, asked
}

// stopReceiving: a wait asks whether to go on, and ends when it is told to.
func stopReceiving(e transport.Endpoint) error {
	bar, err := newBarrier(e)
	if err != nil {
		return err
	}
	p, err := e.Port(transport.Group{ID: 7, Epoch: 1, Members: everyone(e)})
	if err != nil {
		return err
	}
	if e.Rank() == 0 {
		for k, try := range []func() error{
			func() error { return p.Recv(1, 0, make([]byte, 8)) },
			func() error { return p.Recv(1, 3, make([]byte, 80000)) },
			func() error { return p.Take(1, 1, 100, func([]byte) {}) },
		} {
			stop, asked := countdown(3)
			p.Begin(call(7, uint64(k+1)), stop)
			if err := try(); !errors.Is(err, errEnough) {
				return fmt.Errorf("wait %d ended with %v, want what stop says", k, err)
			}
			if n := asked.Load(); n != 3 {
				return fmt.Errorf("wait %d asked %d times, want 3", k, n)
			}
		}
	}
	if err := bar.wait(); err != nil {
		return err
	}
	return p.Close()
}

// stopSending: a peer that takes nothing makes Send wait at last, and stop ends that.
func stopSending(e transport.Endpoint) error {
	bar, err := newBarrier(e)
	if err != nil {
		return err
	}
	p, err := e.Port(transport.Group{ID: 7, Epoch: 1, Members: everyone(e)})
	if err != nil {
		return err
	}
	if e.Rank() == 0 {
		for channel, n := range []int{100, 50000} {
			stop, asked := countdown(40)
			p.Begin(call(7, uint64(channel+1)), stop)
			const most = 1 << 30
			for sent := 0; err == nil; sent += n {
				if sent > most {
					return fmt.Errorf("%d bytes were sent to a rank that takes none", sent)
				}
				err = p.Send(1, channel, message(n, 1))
			}
			if !errors.Is(err, errEnough) || asked.Load() != 40 {
				return fmt.Errorf("send ended with %v after %d asks, want what stop says at the 40th", err, asked.Load())
			}
			err = nil
		}
	}
	if err := bar.wait(); err != nil {
		return err
	}
	return p.Close()
}

// givenUp: a rank whose Send was stopped may change its memory at once. Its peer
// gets the message as it was, or an error, and never anything else.
func givenUp(e transport.Endpoint) error {
	const n = 1 << 20
	bar, err := newBarrier(e)
	if err != nil {
		return err
	}
	p, err := e.Port(transport.Group{ID: 7, Epoch: 1, Members: everyone(e)})
	if err != nil {
		return err
	}
	registered, err := e.Verbs().Alloc(n)
	if err != nil {
		return err
	}
	for k, b := range [][]byte{make([]byte, n), registered} {
		c := call(7, uint64(k+1))
		stopped := e.Rank() == 0
		if stopped {
			stop, _ := countdown(1)
			p.Begin(c, stop)
			fill(b, uint64(k))
			err := p.Send(1, k, b)
			if err != nil && !errors.Is(err, errEnough) {
				return fmt.Errorf("send ended with %v", err)
			}
			clear(b)
		}
		if err := bar.wait(); err != nil {
			return err
		}
		if !stopped {
			stop, _ := countdown(3)
			p.Begin(c, stop)
			if err := p.Recv(0, k, b); err == nil {
				if err := same(b, uint64(k)); err != nil {
					return fmt.Errorf("a message whose sending may have been stopped: %w", err)
				}
			}
		}
		if err := bar.wait(); err != nil {
			return err
		}
	}
	return closed(p, e, registered)
}

// gone checks that an error says which rank is gone.
func gone(err error, rank int) error {
	var g *transport.Gone
	if !errors.As(err, &g) || g.Rank != rank || g.Why == "" {
		return fmt.Errorf("got %v, want that rank %d is gone, and why", err, rank)
	}
	return nil
}

// leaves: waits for a rank that leaves end, and those for others go on.
func leaves(e transport.Endpoint) error {
	bar, err := newBarrier(e)
	if err != nil {
		return err
	}
	p, err := begun(e, 7)
	if err != nil {
		return err
	}
	if err := bar.wait(); err != nil {
		return err
	}
	if e.Rank() == 2 {
		return e.Close()
	}
	if err := gone(p.Recv(2, 0, make([]byte, 8)), 2); err != nil {
		return err
	}
	if err := gone(e.Alive(2), 2); err != nil {
		return err
	}
	peer := 1 - e.Rank()
	if err := e.Alive(peer); err != nil {
		return err
	}
	for k, n := range sizes {
		b := make([]byte, n)
		p.Expect(peer, 1, b)
		if err := p.Send(peer, 1, message(n, uint64(k))); err != nil {
			return err
		}
		if err := p.Recv(peer, 1, b); err != nil {
			return err
		}
		if err := same(b, uint64(k)); err != nil {
			return err
		}
	}
	// Ports of those that are left work.
	q, err := e.Port(transport.Group{ID: 8, Epoch: 2, Members: []int{1, 0}})
	if err != nil {
		return err
	}
	q.Begin(call(8, 1), impatient())
	b := make([]byte, 64)
	if err := q.Send(e.Rank(), 0, message(64, 9)); err != nil { // the member of the peer has the own rank's number
		return err
	}
	if err := q.Recv(e.Rank(), 0, b); err != nil {
		return err
	}
	if err := same(b, 9); err != nil {
		return err
	}
	// Nobody leaves before the other is done.
	if err := q.Send(e.Rank(), 0, nil); err != nil {
		return err
	}
	if err := q.Recv(e.Rank(), 0, nil); err != nil {
		return err
	}
	if err := q.Close(); err != nil {
		return err
	}
	return p.Close()
}

// lastWords: what a rank sent before it left arrives.
func lastWords(e transport.Endpoint) error {
	p, err := begun(e, 7)
	if err != nil {
		return err
	}
	const words = 5
	if e.Rank() == 1 {
		for k := range words {
			if err := p.Send(0, 0, message(1000, uint64(k))); err != nil {
				return err
			}
		}
		if err := p.Close(); err != nil {
			return err
		}
		return e.Close()
	}
	for k := range words {
		b := make([]byte, 1000)
		if err := p.Recv(1, 0, b); err != nil {
			return fmt.Errorf("word %d: %w", k, err)
		}
		if err := same(b, uint64(k)); err != nil {
			return err
		}
	}
	if err := gone(p.Recv(1, 0, make([]byte, 8)), 1); err != nil {
		return err
	}
	return p.Close()
}

// closedWaiting: closing the endpoint ends the rank's own waits.
func closedWaiting(e transport.Endpoint) error {
	bar, err := newBarrier(e)
	if err != nil {
		return err
	}
	if err := bar.wait(); err != nil {
		return err
	}
	if e.Rank() == 1 {
		// Stays until the other has gone, and sends nothing.
		return gone(bar.p.Recv(0, 5, make([]byte, 8)), 0)
	}
	p, err := e.Port(transport.Group{ID: 7, Epoch: 1, Members: everyone(e)})
	if err != nil {
		return err
	}
	asked := make(chan struct{})
	var once atomic.Bool
	p.Begin(call(7, 1), func() error {
		if !once.Swap(true) {
			close(asked)
		}
		return nil
	})
	ended := make(chan error)
	go func() { ended <- p.Recv(1, 0, make([]byte, 8)) }()
	<-asked
	if err := e.Close(); err != nil {
		return err
	}
	if err := <-ended; !errors.Is(err, transport.ErrClosed) {
		return fmt.Errorf("a wait on a closed endpoint ended with %v, want %v", err, transport.ErrClosed)
	}
	if err := p.Send(1, 0, nil); !errors.Is(err, transport.ErrClosed) {
		return fmt.Errorf("send on a closed endpoint: %v, want %v", err, transport.ErrClosed)
	}
	if _, err := e.Port(transport.Group{ID: 8, Epoch: 1, Members: everyone(e)}); !errors.Is(err, transport.ErrClosed) {
		return fmt.Errorf("a port of a closed endpoint: %v, want %v", err, transport.ErrClosed)
	}
	return nil
}
