package comm

import (
	"context"
	"fmt"
	"time"

	"github.com/weft-fabric/weft/reduce"
	"github.com/weft-fabric/weft/transport"
)

// One-sided operations: a rank reads and writes memory of another, which takes
// no part in it. The memory is what that rank got from Alloc; the rank tells its
// Key to the others, for example with AllGather.
//
// Writes to one rank become visible in the order in which they were posted, and
// a notice after everything posted before it. A read, and an atomic operation,
// is complete when its result is there. Atomic operations work on 8 bytes at a
// multiple of 8, and are atomic with the owner's sync/atomic. A key that its rank
// did not give, or whose memory it freed, and what reaches beyond that memory, is an
// error of the call or of its end. The end need not be asked for (Poll, Complete).

// Key names memory got from Alloc, or a part of it, to other ranks. The key of
// what lies k bytes behind is larger by k.
func Key[T reduce.Element](c *Comm, s []T) (transport.Key, error) {
	return c.world.ep.Key(reduce.Bytes(s))
}

// Put writes src to memory of a rank. src must not be changed before the
// operation is complete.
func Put[T reduce.Element](c *Comm, to int, dst transport.Key, src []T) (transport.Ticket, error) {
	m, err := c.member(to)
	if err != nil {
		return 0, err
	}
	return c.world.ep.Write(m, dst, reduce.Bytes(src))
}

// Get reads memory of a rank into dst.
func Get[T reduce.Element](c *Comm, from int, dst []T, src transport.Key) (transport.Ticket, error) {
	m, err := c.member(from)
	if err != nil {
		return 0, err
	}
	return c.world.ep.Read(m, reduce.Bytes(dst), src)
}

// CompareSwap stores new in a word of a rank if it holds old; was is what it held.
func (c *Comm) CompareSwap(to int, word transport.Key, old, new uint64, was *uint64) (transport.Ticket, error) {
	m, err := c.member(to)
	if err != nil {
		return 0, err
	}
	return c.world.ep.CompareSwap(m, word, old, new, was)
}

// FetchAdd adds to a word of a rank; was is what it held.
func (c *Comm) FetchAdd(to int, word transport.Key, add uint64, was *uint64) (transport.Ticket, error) {
	m, err := c.member(to)
	if err != nil {
		return 0, err
	}
	return c.world.ep.FetchAdd(m, word, add, was)
}

// Notify leaves a number with a rank once everything posted to it before is there.
func (c *Comm) Notify(to int, value uint32) (transport.Ticket, error) {
	m, err := c.member(to)
	if err != nil {
		return 0, err
	}
	return c.world.ep.Notify(m, value)
}

// Poll says whether an operation is complete, and its error then, and returns at once.
func (c *Comm) Poll(t transport.Ticket) (complete bool, err error) {
	err = c.world.verbs.look(t)
	if err == errPending {
		return false, nil
	}
	return true, err
}

// Complete waits until an operation is complete. It gives up, and may be called
// again, when ctx ends, the time limit passes or the communicator fails.
func (c *Comm) Complete(ctx context.Context, t transport.Ticket) error {
	began := clock()
	end := c.until(ctx, began)
	for {
		if err := c.world.verbs.wait(t, min(time.Duration(end-clock()), 10*time.Millisecond)); err != errPending {
			return err
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("one-sided operation %d is not complete: %w", t, err)
		}
		if f := c.failed.Load(); f != nil {
			return f
		}
		if clock() > end {
			return fmt.Errorf("one-sided operation %d is not complete after %s: %w", t, time.Duration(end-began).Round(time.Millisecond), context.DeadlineExceeded)
		}
	}
}

// Notice is a number that a rank left here.
type Notice struct {
	From  int // rank of the communicator of all ranks
	Value uint32
}

// Notices gives those that came since it was last called, and returns at once.
// Notices belong to the process, not to one communicator.
func (c *Comm) Notices() []Notice {
	v := &c.world.verbs
	v.mu.Lock()
	defer v.mu.Unlock()
	v.poll()
	var list []Notice
	for _, n := range v.notices {
		list = append(list, Notice{From: n.Peer, Value: n.Notice})
	}
	v.notices = v.notices[:0]
	return list
}

// member is a rank's place in the endpoint.
func (c *Comm) member(rank int) (int, error) {
	if rank < 0 || rank >= len(c.members) {
		return 0, fmt.Errorf("rank %d is not in a communicator of %d", rank, len(c.members))
	}
	if f := c.failed.Load(); f != nil {
		return 0, f
	}
	return c.members[rank], nil
}
