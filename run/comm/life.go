package comm

import (
	"errors"
	"runtime"
	"slices"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/run/comm/internal/board"
	"github.com/weft-fabric/weft/run/comm/internal/flight"
	"github.com/weft-fabric/weft/run/comm/internal/group"
	"github.com/weft-fabric/weft/run/comm/internal/shared"
	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/wait"
)

// newComm makes a communicator that is alone so far, with a board.
func (w *world) newComm(epoch uint32) (*Comm, error) {
	b, err := w.ep.Verbs().Alloc(board.Size)
	if err != nil {
		return nil, err
	}
	c := &Comm{peers: peers{world: w, keys: make([]transport.Key, 1)}, epoch: epoch, flight: flight.New(0, w.cfg.Flight)}
	c.queue.flight, c.queue.carryOut = c.flight, c.carryOutQueued
	c.flight.SetLinks(&w.events)
	if can := w.ep.Can(); !can.SharedMemory || can.OneProcess { // else it has a handle, and there are fewer keys than communicators may be
		if c.keys[0], err = w.ep.Verbs().Key(b); err != nil {
			return nil, err
		}
	}
	c.group = &group.Group{Boards: []board.Board{b}, Members: []int{w.ep.Rank()}}
	c.become(0, 0, c.group.Members)
	w.refs.Add(1)
	w.sweep()
	return c, nil
}

// become gives a communicator that has a board its place in a group, whose members agreed on its number.
func (c *Comm) become(id uint32, rank int, members []int) {
	w, mine, own := c.world, c.group.Mine(), c.keys[c.Rank()]
	c.id, c.keys = id, make([]transport.Key, len(members))
	c.keys[rank] = own
	c.group = &group.Group{Rank: rank, Members: members, Endpoint: w.ep, Memory: w.mem, Boards: make([]board.Board, len(members)),
		Stop: c.stop, Heard: func() error { return asError(c.heard()) }, Flight: c.flight}
	c.group.Boards[rank] = mine
	c.setWaiter()
	c.library = library{world: w, group: c.group, members: members, levels: func() *levels { return c.levels }, failed: c.hasFailed,
		forms: map[*sched.Program]*form{}}
	c.flight.SetRank(rank)
	if w.mem != nil {
		c.shared = shared.New(c.group, w.ep.Verbs())
	}
	c.appear()
}

// setWaiter chooses how to wait by the ranks of the world that share this host, not by those of the communicator: the others use
// the cores, too.
func (c *Comm) setWaiter() {
	g, can := c.group, c.world.ep.Can()
	g.Waiter = wait.For(c.world.local, can.OneProcess)
	g.Host = group.Host{Pulls: c.world.pulls, Full: c.world.local > runtime.NumCPU()}
	if !group.HasCPU || !can.SharedMemory || can.OneProcess {
		return
	}
	if g.Host.Crowded = g.Host.Full; !g.Host.Crowded {
		g.Waiter.Late = func() { g.Affinity.Spread(g) }
	}
}

// Close leaves the group. Calls of other ranks that need this one fail from now
// on with ErrLeft, so have a Barrier before. What was sent before still arrives.
// Calls of this rank that are under way end with ErrClosed. Close waits for peers
// to take what was sent, two seconds at most, so it needs no context.
//
// The last communicator of a process to be closed closes its connections. A
// process that ends without Close has died, for those that still wait for it.
//
// Close of nil does nothing: that is what a Shrink that failed leaves in c, err = c.Shrink(ctx).
func (c *Comm) Close() error {
	if c == nil {
		return nil
	}
	c.halt()
	defer c.queue.letGo()
	return c.release()
}

// halt ends the calls of this rank that are under way or queued, and those to come; it is the caller's turn then.
func (c *Comm) halt() {
	if c.failed.Load() == nil {
		c.failed.CompareAndSwap(nil, &Failure{Kind: Closed, Rank: c.Rank(), Err: ErrClosed})
	}
	c.queue.own() // what is queued ends with the error above
	c.world.tellers.wait()
}

// release gives back what the communicator holds. Its board and stages are given back once the other members have let go of
// them.
func (c *Comm) release() error {
	g := c.group
	if g.Boards == nil {
		return nil
	}
	if c.next != nil {
		c.next.shown = true
		c.next.abandon()
		c.next = nil
	}
	c.vanish()
	var errs []error
	if c.levels != nil {
		errs = append(errs, c.levels.close())
	}
	if c.scripts != nil {
		errs = append(errs, c.scripts.Close())
	}
	if m := c.messages.Load(); m != nil {
		errs = append(errs, m.Close())
	}
	if m := c.mail.Load(); m != nil {
		errs = append(errs, m.Mail.Close())
	}
	w := c.world
	w.mu.Lock()
	c.disown()
	w.mu.Unlock()
	old := retired{ep: w.ep, board: g.Mine(), rank: g.Rank, members: g.Members}
	if c.shared != nil {
		old.stages, old.fences = append(c.shared.Buffers(), c.library.tables...), c.shared.Fences()
	}
	c.leave(c.last())
	w.mu.Lock()
	g.Boards = nil
	if !c.shown {
		w.retired = append(w.retired, old)
	}
	w.mu.Unlock()
	w.sweep()
	if w.refs.Add(-1) == 0 {
		errs = append(errs, w.close())
	}
	return errors.Join(errs...)
}

// abandon gives back a communicator that did not come about.
func (c *Comm) abandon() {
	_ = c.Close() // of those that it did not meet nobody waits for it
}

// disown gives the communicators that were split from this one to the one that it was split from. The caller holds the world's mu.
func (c *Comm) disown() {
	p := c.parent
	if p != nil {
		p.kids = append(slices.DeleteFunc(p.kids, func(k *Comm) bool { return k == c }), c.kids...)
	}
	for _, k := range c.kids {
		k.parent = p
	}
	c.parent, c.kids = nil, nil
}

// retired is memory of a communicator that was closed here.
type retired struct {
	ep      transport.Endpoint
	board   board.Board
	stages  [][]byte
	fences  []func() error // of outputs that others could store to
	rank    int
	members []int
}

// sweep gives back the memory of closed communicators that no member will look at any more.
func (w *world) sweep() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.retired = slices.DeleteFunc(w.retired, func(old retired) bool {
		for i, m := range old.members {
			if i != old.rank && !old.board.IsLetGo(i) && old.ep.Alive(m) == nil {
				return false
			}
		}
		for _, end := range old.fences {
			if err := end(); err != nil {
				panic(err) // it is memory of this endpoint, which is open
			}
		}
		for _, b := range append(old.stages, old.board) {
			if err := old.ep.Verbs().Free(b); err != nil {
				panic(err) // it was got from this endpoint and not given back before
			}
		}
		return true
	})
}

func (w *world) close() error {
	var errs []error
	errs = append(errs, w.all.Close())
	if w.ledger != nil {
		errs = append(errs, w.ledger.Close())
	}
	if w.room != nil {
		errs = append(errs, w.room.Close())
	}
	return errors.Join(errs...)
}
