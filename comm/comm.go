// Package comm runs collective operations between ranks: sums, broadcasts and the
// like of slices, over shared memory and tcp. A rank is a process (Join) or a
// goroutine (Local); the code is the same.
//
//	cfg, err := comm.FromEnv()            // what weft run and torchrun set
//	c, err := comm.Join(ctx, cfg)         // meet the other ranks
//	err = comm.AllReduce(ctx, c, gradients, comm.Sum)
//	half, err := c.Split(ctx, c.Rank()%2, 0)
//
// Calls that move data are functions: context, communicator, destination, source,
// counts, reduction, ranks, options, in this order. Calls about a communicator
// itself are methods. A function whose name ends in Async returns a Handle at once.
//
//	comm.AllReduce(ctx, c, buf, comm.Sum)                  on every rank
//	        │
//	        ▼
//	  choose a program     by operation, size and measured links; or Using(program)
//	        │
//	        ▼
//	  compare the calls    operation, count, type, reduction, root, program: a rank
//	        │              that differs is an error that names both ranks
//	        ▼
//	  run the program      flat    ranks read one another's memory where it lies
//	        │              script  any program: send, receive, reduce, step by step
//	        ▼
//	  transport            mem     goroutines of one process
//	                       shm     processes of one host
//	                       tcp     hosts
//
// The program that runs is the one that weft algo verify proves and weft sim
// simulates.
//
// What holds for every operation:
//   - All ranks end with the same bits, on every run, because the program fixes the
//     order of each sum.
//   - Ranks that call different things get an error that names both.
//   - Every wait ends: with the operation, when a rank dies, when the context or
//     the time limit ends, or when any rank aborts. The error is a *Failure. It names
//     the ranks at fault and what they were last seen doing, and errors.Is tells
//     failures apart: ErrDead, ErrTimeout, ErrMismatch and so on.
//   - An operation that failed has not changed its input. One that all ranks had
//     entered may be completed although one of them dies in it.
//
// After a failure a communicator only returns errors; Shrink makes a new one of the
// ranks that are left.
package comm

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weft-fabric/weft/comm/choice"
	"github.com/weft-fabric/weft/cost"
	"github.com/weft-fabric/weft/reduce"
	"github.com/weft-fabric/weft/sched"
	"github.com/weft-fabric/weft/transport"
	"github.com/weft-fabric/weft/transport/wait"
)

// Comm is a rank's place in a group of ranks. Calls on it are carried out in
// the order in which they are made, and every rank of the group must make the
// same ones in the same order. It is safe to use from several goroutines, but
// then their order is not known to the other ranks.
type Comm struct {
	world   *world
	id      uint32
	epoch   uint32
	rank    int
	members []int // ranks of the endpoint

	boards   []board // of the members, where their memory is seen; else only the own one is set
	keys     []transport.Key
	stages   stages
	port     transport.Port        // made when first used
	swapper  transport.Port        // the port, if it receives while it sends
	pairs    atomic.Pointer[pairs] // point to point, made when first used
	waiter   *wait.Waiter
	ready    map[key]*ready // programs by what was called
	prepared map[*sched.Program]*ready
	recent   [8]*ready // of them, the last ones by collective
	views    []view    // of the members in the operation under way
	staged   []byte    // the own stage in the operation under way, if it uses one

	places  places
	crowded bool // ranks that are processes of this host outnumber its cores

	// Whether somebody carries operations out is in the flight recorder's word. Who
	// takes it from idle to running does, and owns what is not guarded otherwise.
	mu    sync.Mutex // guards the queue
	queue []*op
	seq   uint64 // of the last operation that was given a number

	low      uint64    // everybody entered this operation (ahead.go)
	stagedAt [2]uint64 // the operations that used the stages last
	lastSig  uint64    // the signature of the operation before, where boards are seen
	stamp    int64     // the last look at the clock, in ticks
	unseen   int       // operations that may do without one

	// history is the signature of the operation before, where ranks compare
	// their calls by messages alone: it makes the next call differ, too, if
	// ranks differed in one in which they exchanged none.
	history uint64

	cur      op // the operation under way
	phase    phase
	heirs    bool    // leaving: a dead rank's sums are wanted, so its heir must do them
	readers  []int32 // leaving: who is waited for
	pushers  []int32 // who move their blocks to this rank, the root
	grown    uint64  // pieces that were staged
	followed int     // following: whose pieces are waited for
	wanted   uint64  // and how many
	stopFn   transport.Stop
	failed   atomic.Pointer[Failure]
	choices  *choice.Table // made when first used
	flight   *Flight

	parent *Comm   // that it was split from
	kids   []*Comm // that were split from it and are not closed; guarded by the world's mu
}

// world is what the communicators of a process share.
type world struct {
	ep      transport.Endpoint
	mem     transport.Memory // nil where ranks do not see one another's memory
	room    closer
	cfg     Config
	pulls   bool       // every rank may copy out of memory that others do not see
	links   cost.Links // what the choice of programs is based on
	choices *choice.Tables
	next    atomic.Uint32 // communicators that this rank had a number for
	hosts   []int         // by rank of the endpoint
	pids    []int         // of processes, by rank of the endpoint
	local   int           // ranks on this host
	verbs   verbs
	refs    atomic.Int32
	mu      sync.Mutex
	graves  []grave     // memory of closed communicators that others may still read
	dumped  atomic.Bool // the flight recorder, after a failure
	started time.Time
}

type closer interface{ Close() error }

// Rank is the own number in the group, from 0.
func (c *Comm) Rank() int { return c.rank }

// Size is the number of ranks of the group.
func (c *Comm) Size() int { return len(c.members) }

// Epoch counts the failures that the group outlived (Shrink).
func (c *Comm) Epoch() int { return int(c.epoch) }

// Transport names what carries the bytes: mem, shm or tcp.
func (c *Comm) Transport() string { return c.world.ep.Can().Name }

// Links are what the links between the ranks were found to cost.
func (c *Comm) Links() *Links {
	l := c.world.links
	return &l
}

// Counters tells what the transport counted since it began: bytes, messages,
// refused connections, lost paths; and on rank 0, as rendezvous.*, which connections were refused where
// ranks met.
func (c *Comm) Counters() []Counter {
	var list []Counter
	for _, x := range c.world.ep.Counters() {
		list = append(list, Counter(x))
	}
	if r, ok := c.world.room.(interface{ Counters() []transport.Counter }); ok {
		for _, x := range r.Counters() {
			list = append(list, Counter{Name: "rendezvous." + x.Name, Value: x.Value})
		}
	}
	return list
}

// Alloc gets memory that the other ranks see: n elements, all zero. Operations on
// it need no copy, and other ranks may reach it by its Key.
//
// The memory belongs to the process, not to c: it is good on every communicator
// that was made from the same Join or Local, and it stays when c is closed or
// shrunk. Only the rank that got it may free it, with Free. It may do so as soon
// as its own calls on the memory have returned: a collective returns only when no
// other rank reads this rank's memory any more. Other ranks' Put and Get are not
// calls of this rank, so have a Barrier before the Free of memory whose Key they
// know; a Put or Get that comes after it is an error there. What is not freed goes
// when the last communicator of the Join or Local is closed; using the memory
// after that, even to read it, crashes the process. Memory of a rank that died
// stays until the others are done with it.
func Alloc[T Element](c *Comm, n int) ([]T, error) {
	size := reduce.TypeOf[T]().Size()
	if n < 0 || n > math.MaxInt/size {
		return nil, fmt.Errorf("%d elements of %s: want 0 to %d", n, reduce.TypeOf[T](), math.MaxInt/size)
	}
	if n == 0 {
		return nil, nil
	}
	b, err := c.world.ep.Verbs().Alloc(n * size)
	if err != nil {
		return nil, fmt.Errorf("%d elements of %s: %w", n, reduce.TypeOf[T](), err)
	}
	return elements[T](b, n), nil
}

// Free gives back memory got from Alloc: the slice itself or one that begins
// where it does. It is an error to free it twice.
func Free[T Element](c *Comm, s []T) error {
	if cap(s) == 0 {
		return nil
	}
	return c.world.ep.Verbs().Free(reduce.Bytes(s[:cap(s)]))
}

// Close leaves the group. Calls of other ranks that need this one fail from now
// on with ErrLeft, so have a Barrier before. What was sent before still arrives.
// Calls of this rank that are under way end with ErrClosed. Close waits for peers
// to take what was sent, two seconds at most, so it needs no context.
//
// The last communicator of a process to be closed closes its connections. A
// process that ends without Close has died, for those that still wait for it.
func (c *Comm) Close() error {
	if c.failed.Load() == nil {
		c.failed.CompareAndSwap(nil, &Failure{Kind: Closed, Rank: c.rank, Err: ErrClosed})
	}
	c.own() // what is queued ends with the error above
	defer c.disown()
	return c.release()
}

// release gives back what the communicator holds. Its board and stages are
// given back once the other members have let go of them.
func (c *Comm) release() error {
	if c.boards == nil {
		return nil
	}
	var errs []error
	if c.port != nil {
		errs = append(errs, c.port.Close())
	}
	if p := c.pairs.Load(); p != nil {
		errs = append(errs, p.port.Close())
	}
	g := grave{board: c.boards[c.rank], rank: c.rank, members: c.members, stages: c.stages.all()}
	for i, b := range c.boards {
		switch {
		case i == c.rank:
		case b != nil:
			b.letGo(c.rank)
		case c.world.ep.Alive(c.members[i]) == nil:
			if at, bit := letGoBit(c.rank); bit != 0 {
				c.world.verbs.add(c.members[i], c.keys[i]+transport.Key(at), bit)
			}
		}
	}
	c.boards = nil
	w := c.world
	w.mu.Lock()
	w.graves = append(w.graves, g)
	if p := c.parent; p != nil {
		p.kids = slices.DeleteFunc(p.kids, func(k *Comm) bool { return k == c })
	}
	w.mu.Unlock()
	w.sweep()
	if w.refs.Add(-1) == 0 {
		errs = append(errs, w.close())
	}
	return errors.Join(errs...)
}

// grave is memory of a communicator that was closed here.
type grave struct {
	board   board
	stages  [][]byte
	rank    int
	members []int
}

// sweep gives back the memory of closed communicators that no member will look
// at any more.
func (w *world) sweep() {
	w.mu.Lock()
	defer w.mu.Unlock()
	left := w.graves[:0]
	for _, g := range w.graves {
		free := true
		for i, m := range g.members {
			if i != g.rank && !g.board.isLetGo(i) && w.ep.Alive(m) == nil {
				free = false
			}
		}
		if !free {
			left = append(left, g)
			continue
		}
		for _, b := range append(g.stages, g.board) {
			if err := w.ep.Verbs().Free(b); err != nil {
				panic(err) // it was got from this endpoint and not given back before
			}
		}
	}
	w.graves = left
}

func (w *world) close() error {
	var errs []error
	errs = append(errs, w.ep.Close())
	if w.room != nil {
		errs = append(errs, w.room.Close())
	}
	return errors.Join(errs...)
}

// newComm makes a communicator whose members agreed on its number; the caller
// has their boards.
func (w *world) newComm(id, epoch uint32, rank int, members []int) (*Comm, error) {
	c := &Comm{world: w, id: id, epoch: epoch, rank: rank, members: members,
		boards: make([]board, len(members)), keys: make([]transport.Key, len(members)),
		ready: map[key]*ready{}, prepared: map[*sched.Program]*ready{}, views: make([]view, len(members)), flight: newFlight(rank, w.cfg.Flight)}
	b, err := w.ep.Verbs().Alloc(boardSize)
	if err != nil {
		return nil, err
	}
	c.boards[rank] = b
	if can := w.ep.Can(); !can.SharedMemory || can.OneProcess { // else it has a handle, and there are fewer keys than communicators may be
		if c.keys[rank], err = w.ep.Verbs().Key(b); err != nil {
			return nil, err
		}
	}
	c.stopFn = c.stop
	c.setWaiter()
	w.refs.Add(1)
	w.sweep()
	return c, nil
}

// setWaiter chooses how to wait by the ranks of the world that share this host,
// not by those of the communicator: the others use the cores, too.
func (c *Comm) setWaiter() {
	c.waiter = wait.For(c.world.local, c.world.ep.Can().OneProcess)
	if can := c.world.ep.Can(); !placed || !can.SharedMemory || can.OneProcess {
		return
	}
	if c.crowded = c.world.local > runtime.NumCPU(); !c.crowded {
		c.waiter.Late = func() { c.places.part(c) }
	}
}

// meet takes in where the boards of the members are. Every rank gives a blob of
// boardBlob bytes.
func (c *Comm) meet(blobs [][]byte) error {
	for i, b := range blobs {
		if i == c.rank {
			continue
		}
		if len(b) < blobSize {
			return fmt.Errorf("rank %d sent %d bytes about itself, %d were expected: do all ranks run the same version?", i, len(b), blobSize)
		}
		h, k := getBlob(b)
		c.keys[i] = k
		if c.world.mem == nil {
			continue
		}
		m, err := c.world.mem.At(c.members[i], h, boardSize)
		if err != nil {
			return fmt.Errorf("memory of rank %d: %w", i, err)
		}
		c.boards[i] = m
	}
	return nil
}

// until is when what begins now must be over.
func (c *Comm) until(ctx context.Context, now int64) int64 {
	end := now + int64(c.world.cfg.Timeout)
	if d, ok := ctx.Deadline(); ok {
		end = min(end, now+int64(time.Until(d)))
	}
	return end
}
