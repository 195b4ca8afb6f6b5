package comm

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/run/comm/internal/board"
	"github.com/weft-fabric/weft/run/comm/internal/calls"
	"github.com/weft-fabric/weft/run/comm/internal/clock"
	"github.com/weft-fabric/weft/run/reduce"
	"github.com/weft-fabric/weft/run/transport"
)

// Split makes a communicator of the ranks that give the same color, in the order
// of their keys and, where those are equal, of their ranks. A rank with a
// negative color gets none (nil). All ranks of c must call it. It costs one
// all-gather of a few bytes, a barrier and no connection.
//
// If it fails on a rank, c can no longer be used, and a communicator that others got
// of it fails, too, if that rank is in it.
func (c *Comm) Split(ctx context.Context, color, key int) (*Comm, error) {
	if err := c.Err(); err != nil {
		return nil, err
	}
	sub, err := c.split(ctx, color, key, nil)
	if sub == nil || err != nil {
		return nil, err
	}
	return c.adopt(ctx, sub)
}

// adopt makes a new communicator a child of c: what aborts c aborts it.
func (c *Comm) adopt(ctx context.Context, sub *Comm) (*Comm, error) {
	if err := sub.layer(ctx, nil); err != nil {
		sub.abandon()
		return nil, err
	}
	c.world.mu.Lock()
	defer c.world.mu.Unlock()
	sub.parent = c
	c.kids = append(c.kids, sub)
	return sub, nil
}

// split is Split without what is made of the new communicator when it is there. With a gather among all ranks these meet by it.
func (c *Comm) split(ctx context.Context, color, key int, gather transport.Gather) (*Comm, error) {
	sub, err := c.world.newComm(c.epoch)
	if err != nil {
		return nil, err
	}
	if gather == nil {
		err = c.splitInto(ctx, sub, color, key)
	} else {
		err = c.splitBy(ctx, sub, color, key, gather)
	}
	if err != nil {
		sub.abandon()
		return nil, err
	}
	if color < 0 {
		sub.abandon()
		return nil, nil
	}
	return sub, nil
}

// Dup makes a communicator of the same ranks whose operations are independent
// of this one's.
func (c *Comm) Dup(ctx context.Context) (*Comm, error) { return c.Split(ctx, 0, c.Rank()) }

const splitSize = 24 + board.AddressSize

// Group makes a communicator of some ranks of c, which are named by their numbers in it and get new ones in the order in which they
// are named. Only these ranks call it, all with the same list: the others need not know of it, as those of Split must, so it serves
// where not all ranks can be brought to the same place. What the members must know of one another goes through gather, which gives
// every member what all of them gave, in the order of the list, and by which they also wait for one another: it is called twice.
func (c *Comm) Group(ctx context.Context, ranks []int, gather func(ctx context.Context, mine []byte) ([][]byte, error)) (*Comm, error) {
	if err := c.Err(); err != nil {
		return nil, err
	}
	seen := map[int]bool{}
	for _, r := range ranks {
		if r < 0 || r >= c.Size() {
			return nil, errNoRank(r, c.Size())
		}
		if seen[r] {
			return nil, fmt.Errorf("rank %d is named twice in %v", r, ranks)
		}
		seen[r] = true
	}
	if !seen[c.Rank()] {
		return nil, fmt.Errorf("rank %d makes a group of ranks %v, in which it is not", c.Rank(), ranks)
	}
	sub, err := c.world.newComm(c.epoch)
	if err != nil {
		return nil, err
	}
	if err := c.groupInto(ctx, sub, ranks, gather); err != nil {
		sub.abandon()
		return nil, err
	}
	return c.adopt(ctx, sub)
}

// groupInto makes a communicator that is alone so far one of some ranks.
func (c *Comm) groupInto(ctx context.Context, sub *Comm, ranks []int,
	gather func(ctx context.Context, mine []byte) ([][]byte, error)) error {
	all := make([]byte, splitSize*c.Size())
	for r := range c.Size() {
		binary.LittleEndian.PutUint64(all[r*splitSize:], ^uint64(0)) // of no color
	}
	const color = 0
	list := appendList(nil, ranks)
	blobs, err := gather(ctx, append(c.splitPart(sub, color, slices.Index(ranks, c.Rank())), list...))
	if err != nil {
		return err
	}
	if len(blobs) != len(ranks) {
		return fmt.Errorf("a group of %d ranks, and %d answered", len(ranks), len(blobs))
	}
	for i, b := range blobs {
		if len(b) != splitSize+listSize {
			return fmt.Errorf("rank %d sent %d bytes about itself, %d were expected: do all ranks run the same version?",
				ranks[i], len(b), splitSize+listSize)
		}
		if theirs := b[splitSize:]; !bytes.Equal(theirs, list) {
			return fmt.Errorf("rank %d makes a group of ranks %s, rank %d one of ranks %s: all members must give the same list",
				c.Rank(), listIn(list), ranks[i], listIn(theirs))
		}
		copy(all[ranks[i]*splitSize:], b[:splitSize])
	}
	if err := c.assemble(sub, all, color); err != nil {
		return err
	}
	_, err = gather(ctx, nil) // nobody is done before everybody knows the others' boards
	return err
}

// The members that a rank gives to a group are told in a fixed length, as gathers want it: a digest, how many there are, and the first
// of them, for errors.
const (
	listFirst = 16
	listSize  = 8 + 4 + 4*listFirst
)

// appendList encodes a list of members.
func appendList(b []byte, ranks []int) []byte {
	h, le := fnv.New64a(), binary.LittleEndian
	for _, r := range ranks {
		_, _ = h.Write(le.AppendUint32(nil, uint32(r)))
	}
	b = le.AppendUint32(le.AppendUint64(b, h.Sum64()), uint32(len(ranks)))
	for i := range listFirst {
		r := 0
		if i < len(ranks) {
			r = ranks[i]
		}
		b = le.AppendUint32(b, uint32(r))
	}
	return b
}

// listIn prints what appendList encoded.
func listIn(b []byte) string {
	le := binary.LittleEndian
	n := int(le.Uint32(b[8:]))
	var s []string
	for i := range min(n, listFirst) {
		s = append(s, strconv.Itoa(int(le.Uint32(b[12+4*i:]))))
	}
	if n > listFirst {
		s = append(s, fmt.Sprintf("and %d more", n-listFirst))
	}
	return "[" + strings.Join(s, " ") + "]"
}

// splitPart is what a rank tells the others of the communicator that it brings along.
func (c *Comm) splitPart(sub *Comm, color, key int) []byte {
	mine := make([]byte, 24, splitSize)
	le := binary.LittleEndian
	le.PutUint64(mine, uint64(color))
	le.PutUint64(mine[8:], uint64(key))
	le.PutUint64(mine[16:], uint64(c.world.number()))
	sub.shown = color >= 0
	return sub.address().Append(mine)
}

// splitInto makes a communicator that is alone so far one of all ranks that give its color.
func (c *Comm) splitInto(ctx context.Context, sub *Comm, color, key int) error {
	mine := c.splitPart(sub, color, key)
	all := make([]byte, splitSize*c.Size())
	err := c.do(ctx, &request{Op: sched.AllGather, Variant: calls.SplitCall, Type: reduce.Uint8, Root: -1, Count: splitSize, In: mine,
		Out: all}, nil)
	if err != nil {
		return err
	}
	if color >= 0 {
		if err := c.assemble(sub, all, color); err != nil {
			return c.failOutside(err)
		}
	}
	// Nobody is done before everybody knows the others' boards: a rank that fails from here on can tell those that are.
	if err := c.do(ctx, &request{Op: sched.Barrier, Variant: calls.SplitCall, Type: reduce.Uint8, Root: -1}, nil); err != nil {
		sub.failWith(c)
		return err
	}
	return nil
}

// splitBy is splitInto by a gather. It needs no program, and no connections but those of the gather.
func (c *Comm) splitBy(ctx context.Context, sub *Comm, color, key int, gather transport.Gather) error {
	blobs, err := gather(ctx, c.splitPart(sub, color, key))
	if err != nil {
		return err
	}
	if len(blobs) != c.Size() {
		return fmt.Errorf("the gather gave what %d ranks said, and there are %d", len(blobs), c.Size())
	}
	for r, b := range blobs {
		if len(b) != splitSize {
			return fmt.Errorf("rank %d sent %d bytes about itself, %d were expected: do all ranks run the same version?", r, len(b), splitSize)
		}
	}
	if color >= 0 {
		if err := c.assemble(sub, slices.Concat(blobs...), color); err != nil {
			return err
		}
	}
	_, err = gather(ctx, nil) // nobody is done before everybody knows the others' boards
	return err
}

// assemble makes a communicator that is alone so far one of the ranks whose part of what was gathered has its color.
func (c *Comm) assemble(sub *Comm, all []byte, color int) error {
	le := binary.LittleEndian
	type member struct {
		rank, key int
		number    uint32
		at        board.Address
	}
	var group []member
	for r := range c.group.Members {
		b := all[r*splitSize:][:splitSize]
		if int(int64(le.Uint64(b))) == color {
			group = append(group, member{r, int(int64(le.Uint64(b[8:]))), uint32(le.Uint64(b[16:])), board.AddressIn(b[24:])})
		}
	}
	slices.SortStableFunc(group, func(a, b member) int { return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.rank, b.rank)) })
	members, at := make([]int, len(group)), make([]board.Address, len(group))
	rank := -1
	for i, m := range group {
		members[i], at[i] = c.group.Members[m.rank], m.at
		if m.rank == c.Rank() {
			rank = i
		}
	}
	sub.enter(members)
	sub.become(group[0].number, rank, sub.group.Members)
	sub.shown = false // from now on its members let go of its board
	return sub.meet(at)
}

// number gives a number for a communicator that no rank gives to another one, so
// that several may be split at once: ranks take turns in numbering. The world's
// own is 1, and bit 31 tells messages between two ranks from collectives; after
// 2^31 divided by the ranks of the world, numbers come again.
func (w *world) number() uint32 {
	size := uint32(w.all.Size())
	return 2 + uint32(w.all.Rank()) + (w.next.Add(1)-1)%(1<<31/size-2)*size
}

// Shrink makes a communicator of the ranks that are left, with the next epoch:
// those that call Shrink, too, within a grace of two seconds (Grace) for ranks that
// live but do not call it. It does not matter which ranks these are. One that calls
// it later gets ErrExcluded. No process is started and nothing is connected anew.
// The old communicator is closed: calls that this rank has started on it, or that other goroutines are in, end with ErrClosed.
//
// There is one decision. If a majority is demanded (Config.Quorum, and by default if
// the ranks are on several hosts), fewer ranks get ErrNoQuorum: the others may have
// gone on without them. All errors are *Failure. After one that a time limit or the end of ctx caused, the others may count this
// rank as a member: Shrink again takes it to them.
func (c *Comm) Shrink(ctx context.Context) (*Comm, error) {
	if c.group.Boards == nil {
		return nil, fmt.Errorf("rank %d: shrink: %w", c.Rank(), ErrClosed)
	}
	if err := c.fenced(); err != nil {
		return nil, err
	}
	if c.next == nil {
		sub, err := c.world.newComm(c.epoch + 1)
		if err != nil {
			return nil, err
		}
		c.next = sub
	}
	sub := c.next
	s := shrink{peers: &c.peers, id: c.id, ctx: ctx, next: sub.address(), epoch: uint64(c.epoch) + 1, end: c.until(ctx, clock.Now())}
	members, id, at, err := s.agree()
	if err != nil {
		return nil, err
	}
	c.next = nil
	c.halt() // other goroutines may be in calls
	defer c.queue.letGo()
	if err := c.moveTo(ctx, sub, members, id, at); err != nil {
		sub.abandon()
		return nil, err
	}
	return sub, c.release()
}

// moveTo makes a communicator that is alone so far that of some members of this one.
func (c *Comm) moveTo(ctx context.Context, sub *Comm, members []int, id uint32, at []board.Address) error {
	if err := c.fenced(); err != nil {
		return err
	}
	old := make([]int, len(members))
	for i, m := range members {
		old[i] = c.group.Members[m]
	}
	rank := slices.Index(members, c.Rank())
	sub.enter(old)
	sub.become(id, rank, sub.group.Members)
	if err := sub.meet(at); err != nil {
		return err
	}
	if err := sub.layer(ctx, nil); err != nil && sub.Err() == nil { // else a call on it says so, and it can shrink again
		return err
	}
	return nil
}

// fenced is nil unless a rank that is stopped may still store to the output of a call that this rank gave up.
func (c *Comm) fenced() error {
	if c.unfenced == nil {
		return nil
	}
	return fmt.Errorf("rank %d: shrink: a rank that is stopped may still store to memory of this one: %w", c.Rank(), c.unfenced)
}
