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
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weft-fabric/weft/predict/cost"
	"github.com/weft-fabric/weft/run/comm/choice"
	"github.com/weft-fabric/weft/run/comm/internal/flight"
	"github.com/weft-fabric/weft/run/comm/internal/script"
	"github.com/weft-fabric/weft/run/comm/internal/shared"
	"github.com/weft-fabric/weft/run/reduce"
	"github.com/weft-fabric/weft/run/transport"
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
	telling sync.Mutex // held from failed being set until the others are told
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

// Hosts are the hosts of the ranks, numbered from 0 as they come.
func (c *Comm) Hosts() []int {
	number, list := map[int]int{}, make([]int, c.Size())
	for r, m := range c.group.Members {
		h, known := number[c.world.hosts[m]]
		if !known {
			h = len(number)
			number[c.world.hosts[m]] = h
		}
		list[r] = h
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

// tables are shared by the communicators of a shape.
func (w *world) tables() *choice.Tables {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.choices == nil {
		w.choices = choice.NewTables(w.links, w.ep.Can())
	}
	return w.choices
}
