package comm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weft-fabric/weft/run/comm/internal/clock"
	"github.com/weft-fabric/weft/run/reduce"
	"github.com/weft-fabric/weft/run/transport"
)

// One-sided operations: a rank reads and writes memory of another, which takes
// no part in it. The memory is what that rank got from Alloc; the rank tells its
// Key to the others, for example with AllGather.
//
// Writes to one rank become visible in the order in which they were posted, and
// a notice after everything posted before it. A read, and an atomic operation,
// is complete when its result is there. Atomic operations work on 8 bytes at a
// multiple of 8, and are atomic with the owner's sync/atomic. A key that its rank
// did not give, or whose memory it freed, also while the operation is under way, and
// what reaches beyond that memory, is an error. So is the key of memory that a failed
// collective stored to: its rank has to give a new one. Posting never blocks and returns a Ticket; its Wait and Poll tell how
// the operation ended, also if it could not be posted. They need not be called.

// Key names memory that a rank got from Alloc, to the other ranks. It means the
// same on all of them, and the key of what lies k bytes behind is larger by k.
type Key uint64

// KeyOf is the key of memory got from Alloc, or of a part of it.
func KeyOf[T Element](c *Comm, s []T) (Key, error) {
	k, err := c.world.ep.Verbs().Key(reduce.Bytes(s))
	return Key(k), err
}

// Put writes src to memory of a rank. src must not be changed before the
// operation is complete.
func Put[T Element](c *Comm, dst Key, src []T, to int) Ticket {
	return c.post("put to", to, func(m int) (transport.Ticket, error) {
		return c.world.ep.Verbs().Write(m, transport.Key(dst), reduce.Bytes(src))
	})
}

// Get reads memory of a rank into dst.
func Get[T Element](c *Comm, dst []T, src Key, from int) Ticket {
	return c.post("get from", from, func(m int) (transport.Ticket, error) {
		return c.world.ep.Verbs().Read(m, reduce.Bytes(dst), transport.Key(src))
	})
}

// CompareSwap stores new in a word of a rank if it holds old; was gets what it held.
func CompareSwap(c *Comm, word Key, old, new uint64, was *uint64, to int) Ticket {
	return c.post("compare and swap at", to, func(m int) (transport.Ticket, error) {
		return c.world.ep.Verbs().CompareSwap(m, transport.Key(word), old, new, was)
	})
}

// FetchAdd adds to a word of a rank; was gets what it held.
func FetchAdd(c *Comm, word Key, add uint64, was *uint64, to int) Ticket {
	return c.post("fetch and add at", to, func(m int) (transport.Ticket, error) {
		return c.world.ep.Verbs().FetchAdd(m, transport.Key(word), add, was)
	})
}

// Notify leaves a number with a rank once everything posted to it before is there.
func Notify(c *Comm, value uint32, to int) Ticket {
	return c.post("notify", to, func(m int) (transport.Ticket, error) { return c.world.ep.Verbs().Notify(m, value) })
}

// Ticket is a one-sided operation that was posted.
type Ticket struct {
	c    *Comm
	what string
	peer int
	id   transport.Ticket
	err  error // it was not posted
}

// post posts an operation to a rank of the communicator.
func (c *Comm) post(what string, peer int, post func(member int) (transport.Ticket, error)) Ticket {
	t := Ticket{c: c, what: what, peer: peer}
	m, err := c.member(peer)
	if err != nil {
		t.err = err
		return t
	}
	if t.id, err = post(m); err != nil {
		t.err = t.failure(err)
	}
	return t
}

// Poll says whether the operation is complete, and its error then, and returns at once.
func (t Ticket) Poll() (complete bool, err error) {
	if t.err != nil {
		return true, t.err
	}
	if err = t.c.world.verbs.look(t.id); err == errPending {
		return false, nil
	}
	return true, t.failure(err)
}

// Wait returns once the operation is complete, with its error. It gives up, and
// may be called again, when ctx ends, the time limit passes or the communicator
// fails.
func (t Ticket) Wait(ctx context.Context) error {
	if t.err != nil {
		return t.err
	}
	began := clock.Now()
	end := t.c.until(ctx, began)
	for {
		if err := t.c.world.verbs.wait(t.id, min(time.Duration(end-clock.Now()), 10*time.Millisecond)); err != errPending {
			return t.failure(err)
		}
		err := ctx.Err()
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return t.fails(Aborted, fmt.Errorf("is not complete: %w", err))
		}
		if f := t.c.failed.Load(); f != nil {
			return f
		}
		if err != nil || clock.Now() > end {
			return t.fails(Timeout, fmt.Errorf("is not complete after %s", time.Duration(clock.Now()-began).Round(time.Millisecond)))
		}
	}
}

// failure is the error of an operation as its caller is told.
func (t Ticket) failure(err error) error {
	var g *transport.Gone
	switch {
	case err == nil:
		return nil
	case errors.As(err, &g) && g.Left:
		return t.fails(Left, fmt.Errorf("failed: %w", err))
	case g != nil && g.Cause != nil:
		return t.fails(Broken, fmt.Errorf("failed: %w", err))
	case g != nil:
		return t.fails(Dead, fmt.Errorf("failed: %w", err))
	case errors.Is(err, transport.ErrClosed):
		return t.fails(Closed, fmt.Errorf("failed: %w", err))
	}
	return fmt.Errorf("rank %d: %s rank %d: %w", t.c.Rank(), t.what, t.peer, err)
}

// fails is a failure of the operation alone: the communicator stays usable.
func (t Ticket) fails(k Kind, err error) *Failure {
	f := &Failure{Kind: k, Rank: t.c.Rank(), Culprits: []int{t.peer}, Err: fmt.Errorf("%s rank %d %w", t.what, t.peer, err),
		alias: t.c.aliases([]int{t.peer})}
	if k == Aborted || k == Closed {
		f.Culprits = []int{t.c.Rank()}
	}
	return f
}

// Notice is a number that a rank left here.
type Notice struct {
	From  int // rank of the communicator of all ranks
	Value uint32
}

// Notices gives those that came and were not taken yet, and returns at once.
// Notices belong to the process, not to one communicator.
func (c *Comm) Notices() []Notice {
	v := c.world.verbs.pollNotices()
	defer v.mu.Unlock()
	list := make([]Notice, len(v.notices))
	v.take(list)
	return list
}

// TakeNotices is Notices for callers whose room is limited: it fills list and returns how many it took. The others stay.
func (c *Comm) TakeNotices(list []Notice) int {
	v := c.world.verbs.pollNotices()
	defer v.mu.Unlock()
	return v.take(list)
}

// pollNotices looks for new ones; the lock is held when it returns.
func (v *verbs) pollNotices() *verbs {
	v.mu.Lock()
	v.poll()
	return v
}

// take moves as many notices as fit.
func (v *verbs) take(list []Notice) int {
	k := min(len(list), len(v.notices))
	for i, n := range v.notices[:k] {
		list[i] = Notice{From: n.Peer, Value: n.Notice}
	}
	v.notices = slices.Delete(v.notices, 0, k)
	return k
}

// member is a rank's place in the endpoint.
func (c *Comm) member(rank int) (int, error) {
	if rank < 0 || rank >= c.Size() {
		return 0, errNoRank(rank, c.Size())
	}
	if f := c.failed.Load(); f != nil {
		return 0, f
	}
	return c.group.Members[rank], nil
}
