package comm

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/weft-fabric/weft/comm/calls"
	"github.com/weft-fabric/weft/reduce"
	"github.com/weft-fabric/weft/sched"
	"github.com/weft-fabric/weft/transport"
)

// Split makes a communicator of the ranks that give the same color, in the order
// of their keys and, where those are equal, of their ranks. A rank with a
// negative color gets none (nil). All ranks of c must call it. It costs one
// all-gather of a few bytes and no connection.
func (c *Comm) Split(ctx context.Context, color, key int) (*Comm, error) {
	if err := c.Err(); err != nil {
		return nil, err
	}
	sub, err := c.split(ctx, color, key)
	if sub != nil {
		c.world.mu.Lock()
		sub.parent = c
		c.kids = append(c.kids, sub)
		c.world.mu.Unlock()
	}
	return sub, err
}

// Dup makes a communicator of the same ranks whose operations are independent
// of this one's.
func (c *Comm) Dup(ctx context.Context) (*Comm, error) { return c.Split(ctx, 0, c.rank) }

const splitSize = 24 + blobSize

func (c *Comm) split(ctx context.Context, color, key int) (*Comm, error) {
	sub, err := c.world.newComm(0, c.epoch, 0, []int{c.members[c.rank]})
	if err != nil {
		return nil, err
	}
	mine := make([]byte, 24, splitSize)
	le := binary.LittleEndian
	le.PutUint64(mine, uint64(color))
	le.PutUint64(mine[8:], uint64(key))
	le.PutUint64(mine[16:], uint64(c.world.number()))
	mine = sub.blob(mine)
	all := make([]byte, splitSize*c.Size())
	err = c.do(ctx, &request{op: sched.AllGather, variant: calls.SplitCall, t: reduce.Uint8, root: -1, count: splitSize, in: mine, out: all}, nil)
	if err != nil {
		sub.abandon()
		return nil, err
	}
	if color < 0 {
		sub.abandon()
		return nil, nil
	}
	type member struct {
		rank, key int
		number    uint32
		blob      []byte
	}
	var group []member
	for r := range c.members {
		b := all[r*splitSize:][:splitSize]
		if int(int64(le.Uint64(b))) == color {
			group = append(group, member{r, int(int64(le.Uint64(b[8:]))), uint32(le.Uint64(b[16:])), b[24:]})
		}
	}
	slices.SortStableFunc(group, func(a, b member) int { return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.rank, b.rank)) })
	members, blobs := make([]int, len(group)), make([][]byte, len(group))
	rank := -1
	for i, m := range group {
		members[i], blobs[i] = c.members[m.rank], m.blob
		if m.rank == c.rank {
			rank = i
		}
	}
	sub.become(group[0].number, rank, members)
	return sub, sub.meet(blobs)
}

// number gives a number for a communicator that no rank gives to another one, so
// that several may be split at once: ranks take turns in numbering. The world's
// own is 1, and bit 31 tells messages between two ranks from collectives; after
// 2^31 divided by the ranks of the world, numbers come again.
func (w *world) number() uint32 {
	size := uint32(w.ep.Size())
	return 2 + uint32(w.ep.Rank()) + (w.next.Add(1)-1)%(1<<31/size-2)*size
}

// become gives a communicator that has a board its place in a group.
func (c *Comm) become(id uint32, rank int, members []int) {
	mine, key := c.boards[c.rank], c.keys[c.rank]
	c.id, c.rank, c.members = id, rank, members
	c.boards, c.keys = make([]board, len(members)), make([]transport.Key, len(members))
	c.boards[rank], c.keys[rank] = mine, key
	c.views = make([]view, len(members))
	c.flight.rank = rank
	c.setWaiter()
}

// abandon gives back a communicator that nobody else knows of.
func (c *Comm) abandon() {
	c.members = c.members[:1]
	_ = c.Close()
}

// blob is what the others must know of the own board.
func (c *Comm) blob(b []byte) []byte {
	var h transport.Handle
	if c.world.mem != nil {
		h, _ = c.world.mem.Handle(c.boards[c.rank])
	}
	return putBlob(b, h, c.keys[c.rank])
}

// Shrink makes a communicator of the ranks that are left, with the next epoch:
// those that call Shrink, too, before ctx ends or a grace of two seconds passes
// for those that live but do not call it. No process is started and nothing is
// connected anew. The old communicator is closed.
func (c *Comm) Shrink(ctx context.Context) (*Comm, error) {
	if c.boards == nil {
		return nil, fmt.Errorf("rank %d: shrink: %w", c.rank, ErrClosed)
	}
	sub, err := c.world.newComm(0, c.epoch+1, 0, []int{c.members[c.rank]})
	if err != nil {
		return nil, err
	}
	s := shrink{c: c, ctx: ctx, sub: sub, end: c.until(ctx, clock())}
	members, id, blobs, err := s.agree()
	if err != nil {
		sub.abandon()
		return nil, fmt.Errorf("rank %d: shrink to epoch %d: %w", c.rank, c.epoch+1, err)
	}
	old := make([]int, len(members))
	rank := -1
	for i, m := range members {
		old[i] = c.members[m]
		if m == c.rank {
			rank = i
		}
	}
	sub.become(id, rank, old)
	if err := sub.meet(blobs); err != nil {
		return nil, err
	}
	c.failed.CompareAndSwap(nil, &Failure{Kind: Closed, Rank: c.rank, Err: ErrClosed})
	return sub, c.release()
}
