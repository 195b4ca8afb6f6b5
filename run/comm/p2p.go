package comm

import (
	"context"
	"errors"
	"fmt"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/run/comm/internal/calls"
	"github.com/weft-fabric/weft/run/comm/internal/group"
	"github.com/weft-fabric/weft/run/comm/internal/op"
	"github.com/weft-fabric/weft/run/comm/internal/pair"
	"github.com/weft-fabric/weft/run/reduce"
	"github.com/weft-fabric/weft/run/transport"
)

// messages are sends and receives of a communicator: what they ask of it.
type messages struct {
	*pair.Messages
	c        *Comm
	affinity group.Affinity
}

// messagesWith gives the messages with a rank. Their port is made when it is first needed.
func (c *Comm) messagesWith(peer int) (*messages, error) {
	if peer < 0 || peer >= c.Size() {
		return nil, errNoRank(peer, c.Size())
	}
	if f := c.failed.Load(); f != nil {
		return nil, f
	}
	if m := c.messages.Load(); m != nil {
		return m, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.messages.Load() == nil {
		port, err := c.world.ep.Port(transport.Group{ID: c.id | 1<<31, Epoch: c.epoch, Members: c.group.Members, Words: calls.Words{}})
		if err != nil {
			return nil, err
		}
		call := calls.Call{Epoch: c.epoch, Comm: c.id, Seq: 1, Op: sched.SendRecv, Variant: calls.PointToPoint, Root: -1}
		m := &messages{c: c}
		m.Messages = pair.New(m, port, call.Wire(), c.Rank(), c.Size())
		c.messages.Store(m)
	}
	return c.messages.Load(), nil
}

// Failed is why the communicator can no longer be used, or nil.
func (m *messages) Failed() error {
	if f := m.c.failed.Load(); f != nil {
		return f
	}
	return asError(m.c.heard())
}

// Until is when what begins now must be over.
func (m *messages) Until(ctx context.Context, now int64) int64 { return m.c.until(ctx, now) }

// HasClosed reports whether a rank closed the communicator.
func (m *messages) HasClosed(rank int) bool { return m.c.hasClosed(rank) }

// Late is the failure of a message whose time limit passed.
func (m *messages) Late(what string, peer int) error { return m.c.lateMessage(what, peer) }

// Ended is the failure of a message whose context ended.
func (m *messages) Ended(what string, err error) error { return m.c.ended(what, err) }

// Fail marks the communicator as failed and gives the error of a message.
func (m *messages) Fail(err error) error { return m.c.failOutside(err) }

// Show tells the others which rank this one waits for.
func (m *messages) Show(rank int) {
	if b := m.c.group.Boards; b != nil {
		b[m.c.Rank()].PairsWith(rank)
	}
}

// Begin looks for a better core where ranks outnumber the cores.
func (m *messages) Begin() {
	if m.c.group.Host.Crowded {
		m.affinity.Spread(m.c.group)
	}
}

// endOf is where the end of a message is told, nil if its caller waits for it.
func endOf(opts []Option) (end func(error), err error) {
	for _, o := range opts {
		switch {
		case o.handle != nil:
			end = o.handle.end
		case o.atWait:
			return nil, errors.New("send/recv: AtWait is for collectives")
		case o.scaled:
			return nil, fmt.Errorf("send/recv: Factor(%v) is for reductions with PreMulSum", o.factor)
		case o.cause != 0: // messages are matched by their ends
		case o.want.program != nil:
			return nil, fmt.Errorf("send/recv: Using(%s) is for collectives; messages run no program", o.want.program.Name)
		default:
			return nil, errors.New("send/recv: ByMessages is for collectives; messages run no program")
		}
	}
	return end, nil
}

// message makes one send or receive.
func (c *Comm) message(ctx context.Context, peer int, what string, t reduce.Type, b []byte, opts []Option) error {
	m, err := c.messagesWith(peer)
	if err != nil {
		return err
	}
	end, err := endOf(opts)
	if err != nil {
		return err
	}
	k := c.flight.BeginMessage(what, peer, t, len(b))
	if end == nil {
		err := m.Message(ctx, peer, what, t, b, nil)
		c.flight.EndMessage(k, err)
		return err
	}
	return m.Message(ctx, peer, what, t, b, func(err error) {
		c.flight.EndMessage(k, err)
		end(err)
	})
}

// Send sends buf to a rank, which receives it with Recv. Messages from one rank
// to another keep their order. It returns once buf may be changed; a rank that
// sends to itself must have the receive under way (RecvAsync) or the
// message fit in a thousand that are kept.
func Send[T Element](ctx context.Context, c *Comm, buf []T, to int, opts ...Option) error {
	return c.message(ctx, to, pair.Sending, reduce.TypeOf[T](), reduce.Bytes(buf), opts)
}

// Recv receives what a rank sent, which must have as many elements as buf, of the
// same type.
func Recv[T Element](ctx context.Context, c *Comm, buf []T, from int, opts ...Option) error {
	return c.message(ctx, from, pair.Receiving, reduce.TypeOf[T](), reduce.Bytes(buf), opts)
}

// SendRecv sends src to a rank and receives dst from one, which may be another, at
// once: neither waits for the other's end. The others may have Send and Recv for it.
// dst and src share nothing.
func SendRecv[T Element](ctx context.Context, c *Comm, dst, src []T, from, to int, opts ...Option) error {
	if from < 0 || from >= c.Size() {
		return errNoRank(from, c.Size())
	}
	if op.Overlap(reduce.Bytes(dst), reduce.Bytes(src)) {
		return errors.New("send/recv: dst overlaps src; give two buffers that share nothing")
	}
	m, err := c.messagesWith(to)
	if err != nil {
		return err
	}
	end, err := endOf(opts)
	if err != nil {
		return err
	}
	in := c.flight.BeginMessage(pair.Receiving, from, reduce.TypeOf[T](), len(reduce.Bytes(dst)))
	out := c.flight.BeginMessage(pair.Sending, to, reduce.TypeOf[T](), len(reduce.Bytes(src)))
	done := func(err error) {
		c.flight.EndMessage(in, err)
		c.flight.EndMessage(out, err)
	}
	if end == nil {
		err := m.Exchange(ctx, reduce.TypeOf[T](), from, reduce.Bytes(dst), to, reduce.Bytes(src), nil)
		done(err)
		return err
	}
	return m.Exchange(ctx, reduce.TypeOf[T](), from, reduce.Bytes(dst), to, reduce.Bytes(src), func(err error) {
		done(err)
		end(err)
	})
}
