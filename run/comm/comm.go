// Package comm runs collective operations on slices between ranks, over shared memory
// and tcp. A rank is a process (Join) or a goroutine (Local); the code is the same.
//
//	cfg, err := comm.FromEnv()            // what weft run and torchrun set
//	c, err := comm.Join(ctx, cfg)         // meet the other ranks
//	err = comm.AllReduce(ctx, c, gradients, comm.Sum)
//	half, err := c.Split(ctx, c.Rank()%2, 0)
//
// Data calls are functions with arguments in one order: context, communicator,
// destination, source, counts, reduction, ranks, options. Calls about a communicator
// are methods. A function whose name ends in Async returns a Handle at once.
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
//	  run the program      flat    ranks read each other's memory in place
//	        │              script  any program: send, receive, reduce, step by step
//	        ▼
//	  transport            mem     goroutines of one process
//	                       shm     processes of one host
//	                       tcp     hosts
//	                       mixed   processes of several hosts: shm inside, tcp between
//
// weft algo verify proves and weft sim simulates the same program.
//
// Guarantees of every operation:
//   - All ranks end with the same bits, on every run, because the program fixes the
//     order of each sum.
//   - Ranks that call different things get an error that names both.
//   - Every wait ends: with the operation, a death, the context, the time limit or an
//     abort. The error is a *Failure with the ranks at fault and what they were last
//     seen doing. errors.Is distinguishes ErrDead, ErrTimeout, ErrMismatch and others.
//   - An operation that returns nil has its whole result, even on a rank that was
//     stopped in it and that the others gave up on.
//   - A failed operation has not changed its input, or sets Failure.Overwritten. If all
//     ranks had entered, it may complete although one of them dies.
//
// After a failure a communicator only returns errors; Shrink makes a new one from the
// survivors.
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

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/predict/cost"
	"github.com/weft-fabric/weft/run/comm/choice"
	"github.com/weft-fabric/weft/run/comm/internal/board"
	"github.com/weft-fabric/weft/run/comm/internal/flight"
	"github.com/weft-fabric/weft/run/comm/internal/group"
	"github.com/weft-fabric/weft/run/comm/internal/script"
	"github.com/weft-fabric/weft/run/comm/internal/shared"
	"github.com/weft-fabric/weft/run/reduce"
	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/wait"
	"github.com/weft-fabric/weft/run/transport/witness"
)

// Comm is a rank's place in a group of ranks. Calls on it are carried out in
// the order in which they are made, and every rank of the group must make the
// same ones in the same order. It is safe to use from several goroutines, but
// then their order is not known to the other ranks.
type Comm struct {
	peers
	id      uint32
	epoch   uint32
	library library
	flight  *Flight
	failed  atomic.Pointer[Failure]
	queue   queue

	// What follows is owned by whoever carries operations out (queue.go).
	seq      uint64         // of the last operation that was given a number
	before   uint64         // the signature of the operation before: ranks that differed in it differ in the next, too
	refusal  uint64         // the operation that this rank's last call would have been, if it was wrong in itself
	cur      current        // the operation under way
	shared   *shared.Runner // nil where memory is not shared
	unfenced error          // why the output of an operation that was given up may still be stored to
	scripts  *script.Runner // made when first used

	shown bool  // ranks may know its board though it has met none of them: they may still write there, so its memory is not given back
	next  *Comm // that of a Shrink which failed: the next Shrink takes it, as the others may know its board already

	probing  probing
	mu       sync.Mutex               // of those that make what follows
	messages atomic.Pointer[messages] // point to point, made when first used
	mail     atomic.Pointer[mail]     // with tags, made when first used

	levels *levels // how collectives run over several hosts; nil where they do not
	above  *Comm   // whose phases this one carries out; nil for those that users see

	// Guarded by the world's mu.
	parent *Comm   // that it was split from; nil if that is closed
	kids   []*Comm // that were split from it and are not closed
}

// process is what all communicators of a process share.
type process struct {
	all      transport.Endpoint // of all ranks
	room     closer
	cfg      Config
	majority bool            // Shrink needs one
	witness  witness.Witness // that decides between two halves; nil: that with rank 0 goes on
	ledger   witness.Ledger  // where ranks of one host that share no memory keep what they decided; nil where they need none
	id       [16]byte        // of the ranks of this Join, by which a witness tells them from others
	next     atomic.Uint32   // communicators that this rank had a number for
	verbs    verbs
	refs     atomic.Int32
	mu       sync.Mutex
	retired  []retired   // memory of closed communicators that others may still read
	dumped   atomic.Bool // the flight recorder, after a failure
	tellers  tellers
	started  time.Time
	events   flight.Links // what happened to the links
}

// world is what communicators share that reach their ranks in the same way: all of a
// process, or, where ranks of a host share memory and hosts do not, those inside this
// host, those between hosts, and the others.
type world struct {
	*process
	ep      transport.Endpoint
	mem     transport.Memory // nil where ranks do not see one another's memory
	pulls   bool             // every rank may copy out of memory that others do not see
	links   cost.Links       // what the choice of programs is based on
	choices *choice.Tables

	hostTables map[int]*choice.Table // by ranks: of phases inside hosts, where these are not all of the host; guarded by mu

	made   *choice.Programs // that were made for these links; nil for none
	key    choice.Key       // what is kept of the links belongs to
	hosts  []int            // by rank of the endpoint
	apart  []string         // by rank: why it shares no memory with the host it says it is on; empty if it does
	pids   []int            // of processes, by rank of the endpoint
	local  int              // ranks on this machine, which share its cores
	shared int              // hosts that share the cores of a machine, at most

	inside, across *world // nil but where transports are mixed
	mates          []int  // of inside: the ranks of all that its ranks are
}

type closer interface{ Close() error }

// Rank is the own number in the group, from 0.
func (c *Comm) Rank() int { return c.group.Rank }

// Size is the number of ranks of the group.
func (c *Comm) Size() int { return len(c.group.Members) }

// Epoch counts the failures that the group outlived (Shrink).
func (c *Comm) Epoch() int { return int(c.epoch) }

// Transport names what carries the bytes: mem, shm, tcp, mixed, or ucx with what UCX took.
func (c *Comm) Transport() string { return c.world.ep.Can().Name }

// Links are what the links between the ranks were found to cost.
func (c *Comm) Links() *Links {
	l := c.world.links
	return &l
}

// Chosen is the program that a collective runs by, for the bytes of the larger of its buffers: of all phases, where it runs in
// several. All ranks have the same.
func (c *Comm) Chosen(op Collective, root int, bytes int64) (*Program, error) {
	r := request{Op: op, Type: reduce.Uint8, Root: -1, Count: int(bytes)}
	if op.Rooted() {
		r.Root = root
	}
	if op.Reduces() {
		r.Reduce = reduce.Sum
	}
	if op.Blocks() {
		r.Count /= c.Size()
	}
	p, err := c.library.find(&r, want{})
	if err != nil {
		return nil, err
	}
	return p.program, nil
}

// Message is how long the messages of a collective are at most, in bytes: one of longer chunks is carried out run by run.
func (c *Comm) Message(op Collective) int { return c.library.table().Message(op) }

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
// shrunk. Only the rank that got it may free it, with Free, or use it for something
// else. It may do so as soon as its own calls on the memory have returned. After nil
// no other rank uses the memory any more. After an error a rank that was stopped in
// the call may still read it: it then gets an error, too. It cannot store to it:
// memory that others were allowed to store to gets other pages, at the same address,
// before the error is returned, and its keys are no longer good.
//
// Other ranks' Put and Get are not calls of this rank, so have a Barrier before the
// Free of memory whose Key they know; a Put or Get that comes after it, or is under
// way, is an error there, and never reaches what is allocated later. What is not
// freed goes when the last communicator of the Join or Local is closed; using the
// memory after that, even to read it, crashes the process. Memory of a rank that died
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
//
// Close of nil does nothing: that is what a Shrink that failed leaves in c, err = c.Shrink(ctx).
func (c *Comm) Close() error {
	if c == nil {
		return nil
	}
	if c.failed.Load() == nil {
		c.failed.CompareAndSwap(nil, &Failure{Kind: Closed, Rank: c.Rank(), Err: ErrClosed})
	}
	c.queue.own() // what is queued ends with the error above
	c.world.tellers.wait()
	defer c.queue.letGo()
	return c.release()
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

// asError is a failure as an error: nil stays nil.
func asError(f *Failure) error {
	if f == nil {
		return nil
	}
	return f
}

// until is when what begins now must be over.
func (c *Comm) until(ctx context.Context, now int64) int64 {
	end := now + int64(c.world.cfg.Timeout)
	if d, ok := ctx.Deadline(); ok {
		end = min(end, now+int64(time.Until(d)))
	}
	return end
}
