// Package shared runs flat programs between ranks that share memory:
//
//	enter   each rank publishes its call and its input's address, and reads the entries of the ranks whose input it needs
//	work    sums and moves, directly from the others' inputs
//	leave   each rank waits until nobody uses its memory
//
// Inputs that the others cannot see are copied to shared memory, or pulled by the kernel (process_vm_readv) where allowed. Small
// inputs are stored in the board, several operations deep, so no rank has to wait to leave: the operation is one line written
// and the others' lines read.
//
// Each mode of package plan has a file:
//
//	inline.go   Inline
//	direct.go   Direct; follow.go for inputs that are staged piece by piece
//	store.go    Store: a dead rank's sums are finished by its heir, the lowest rank alive
//	commit.go   Commit: no input changes before the operation can no longer fail
//	pieces.go   Pieces
//	share.go    Share and Pool
package shared

import (
	"unsafe"

	"github.com/weft-fabric/weft/run/comm/internal/board"
	"github.com/weft-fabric/weft/run/comm/internal/clock"
	"github.com/weft-fabric/weft/run/comm/internal/flat"
	"github.com/weft-fabric/weft/run/comm/internal/group"
	"github.com/weft-fabric/weft/run/comm/internal/op"
	"github.com/weft-fabric/weft/run/comm/internal/plan"
	"github.com/weft-fabric/weft/run/reduce"
	"github.com/weft-fabric/weft/run/transport"
)

// Runner is what the modes of a communicator keep from one operation to the next.
type Runner struct {
	g       *group.Group
	window  window
	staging staging
	views   []view // of the members, in the operation under way
	pieces  uint64 // that were staged since the communicator was made
	exchange
	scratch []byte // private memory for pulled inputs
	spoiled bool   // the operation under way failed after it may have overwritten its own input
	lent    []byte // the output that the others may store to, in the operation under way
	fences  []func() error
	srcs    [][]byte // reused
	dsts    [][]byte
}

// New makes the runner of a group.
func New(g *group.Group, verbs transport.Verbs) *Runner {
	return &Runner{g: g, views: make([]view, g.Size()), staging: staging{verbs: verbs, memory: g.Memory}}
}

// Buffers gives the memory that the others see, and forgets it.
func (r *Runner) Buffers() [][]byte { return r.staging.all() }

// run is one operation under way.
type run struct {
	*Runner
	o      *op.Op
	own    *flat.Rank // what this rank does
	call   *plan.Call
	mine   plan.Entry   // as this rank entered
	all    plan.Entries // of the ranks that it read, and its own
	inAt   transport.Handle
	outAt  transport.Handle
	staged []byte // the own stage or slots
	count  int    // ranks whose entries were read
}

// Run runs an operation and notes in it which mode it was.
func (r *Runner) Run(o *op.Op) error {
	r.spoiled = false
	err := r.carryOut(o)
	if err == nil {
		r.lent = nil // all ranks have left: nobody stores to it any more
	}
	return err
}

// carryOut is Run without its end.
func (r *Runner) carryOut(o *op.Op) error {
	x := run{Runner: r, o: o, own: o.Form.Rank(r.g.Rank), call: &o.Plan, mine: o.Plan.SmallAs}
	if o.Plan.Small {
		return x.small()
	}
	x.asks()
	x.mine = plan.Enter(x.call)
	if err := x.enter(); err != nil {
		return err
	}
	if x.mine&plan.Growing != 0 {
		x.fill()
	}
	if err := x.read(x.own.Reads); err != nil {
		return err
	}
	root := plan.Entry(0)
	if o.Form.Rooted {
		if err := x.readForRoot(); err != nil {
			return err
		}
		root = r.views[o.Root].entry
	}
	if len(o.In) > board.SmallSize || o.Form.Pushes {
		r.g.Waiter.Settle() // after small work the caller does it
	}
	x.all.Add(x.mine, true)
	if len(o.In) > board.SmallSize {
		o.Entered = clock.Ticks()
	}
	o.Mode = plan.Settle(x.call, x.mine, root, &x.all)
	switch o.Mode {
	case plan.Store:
		return x.storeAll()
	case plan.Commit:
		return x.commit()
	case plan.Pieces:
		return x.byPieces()
	case plan.Share:
		return x.share()
	case plan.Pool:
		return x.pool()
	}
	return x.direct()
}

// small runs an operation on small buffers of this rank.
func (x *run) small() error {
	if err := x.enter(); err != nil {
		return err
	}
	if err := x.read(x.own.Reads); err != nil {
		return err
	}
	x.o.Mode = plan.Direct
	return x.direct()
}

// Asks collects what the plan asks of a call, whatever its buffers are.
func Asks(o *op.Op, g *group.Group) plan.Call {
	c := plan.Call{Op: o.Op, Rank: g.Rank, Ranks: g.Size(), Root: o.Root, In: len(o.In), Out: len(o.Out), Reduces: o.Reduce != 0,
		Scaled: o.Scaled(),
		Uneven: o.Counts != nil, Unknown: o.Theirs != nil, Host: plan.Host{Pulls: g.Host.Pulls, Full: g.Host.Full, Crowded: g.Host.Crowded}}
	if f := o.Form; f != nil {
		c.Program = plan.Program{Flat: true, Pushes: f.Pushes, InPlace: f.InPlace, Exports: len(f.Rank(g.Rank).Exports) > 0, Rooted: f.Rooted}
	}
	for i := range g.Members {
		c.Largest = max(c.Largest, o.InBytes(i, g.Size()))
	}
	c.SetSmall()
	return c
}

// asks completes what the plan asks for: how the buffers lie.
func (x *run) asks() {
	o, g, c := x.o, x.g, x.call
	c.Overlap, c.InSeen, c.OutSeen = o.Overlap, false, false
	c.Exact = o.Overlap && unsafe.SliceData(o.In) == unsafe.SliceData(o.Out)
	if c.Pushes || c.In > board.SmallSize {
		x.inAt, c.InSeen = g.Memory.Handle(o.In)
	}
	if c.Pushes || c.Rooted && c.Rank == c.Root && c.Out > board.SmallSize {
		if x.outAt, c.OutSeen = g.Memory.Handle(o.Out); c.OutSeen {
			c.OutSeen = mayLend(g.Memory, o.Out)
		}
	}
}

// enter says what this rank calls and where its input lies.
func (x *run) enter() error {
	if err := x.mayEnter(x.o); err != nil {
		return err
	}
	g, o := x.g, x.o
	line := g.Mine().Entry(o.Call.Seq)
	in, err := x.give(line)
	if err != nil {
		return err
	}
	if x.mine&plan.OutSeen != 0 {
		line.SetOut(uint64(x.outAt))
		x.lent = o.Out
	}
	if x.call.Logs() {
		if err := x.staging.journal(g.Mine()); err != nil {
			return err
		}
	}
	x.announce(o, line, uint64(x.mine), x.own.OneWay && max(len(o.In), len(o.Out)) <= board.SmallSize)
	v := &x.views[g.Rank]
	v.in, v.out, v.entry, v.addr = in, o.Out, x.mine, 0
	return nil
}

// give puts the input where the others find it, as the plan says, and gives it as the own sums read it.
func (x *run) give(line board.Line) ([]byte, error) {
	o, n := x.o, len(x.o.In)
	switch x.mine.Input() {
	case plan.InEntry:
		exportInline(o, line.Data())
		if o.Scaled() {
			return line.Data()[:n], nil
		}
	case plan.InSmall:
		if err := x.mayWriteSmall(o); err != nil {
			return nil, err
		}
		small := x.g.Mine().Small(o.Call.Seq)[:n]
		o.Export(small)
		if o.Scaled() {
			return small, nil
		}
	case plan.Lent:
		line.SetIn(uint64(x.inAt))
	case plan.Pulled:
		line.SetIn(uint64(uintptr(unsafe.Pointer(&o.In[0])))) // o holds it for as long as others read it
	case plan.InSlots:
		b, h, err := x.staging.atLeast(&x.staging.slots, slots*pieceSize)
		if err != nil {
			return nil, err
		}
		x.staged = b
		line.SetIn(uint64(h))
	case plan.Staged:
		return x.stage(line)
	default:
		if o.Scaled() && n > 0 {
			return x.stage(line) // for the own sums alone
		}
	}
	return o.In, nil
}

// stage copies the input to a stage. A growing one is filled once the others know of it.
func (x *run) stage(line board.Line) ([]byte, error) {
	o := x.o
	if err := x.mayStage(o); err != nil {
		return nil, err
	}
	b, h, err := x.staging.input(o.Call.Seq, len(o.In), o.Form.Pushes)
	if err != nil {
		return nil, err
	}
	x.staged = b
	if x.mine.Input() == plan.Staged {
		line.SetIn(uint64(h))
	}
	switch {
	case x.mine&plan.Growing != 0:
		line.SetOut(x.pieces)
	case o.Scaled():
		reduce.ScaleTo(o.Type, b, o.In, o.Factor)
		return b, nil
	default:
		for _, k := range x.own.Exports {
			lo, hi := o.InSpan(flat.Chunk{Rank: int32(x.g.Rank), Index: k})
			reduce.Copy(b[lo:hi], o.In[lo:hi])
		}
	}
	return o.In, nil
}

// announce lets the others see the own entry, of which the line holds the rest. An operation that may be over at once begins
// when it turns out that it is not.
func (r *Runner) announce(o *op.Op, line board.Line, entry uint64, atOnce bool) {
	g, seq := r.g, o.Call.Seq
	o.Call.Put(g.Mine().Call(seq))
	line.Flag().RaiseWith(seq, o.Sig, entry, g.Mine().Sleepers(), g.Waiter)
	g.Mine().Entry(seq + 1).Flag().Own()
	// The others can go on; what follows is done while their entries are on their way.
	if !atOnce || o.Began != 0 {
		r.begin(o)
	}
	if seq&63 == 0 || max(len(o.In), len(o.Out)) > board.SmallSize { // it takes 50 ns
		g.ShowCPU()
	}
}

// begin takes the time of an operation's beginning.
func (r *Runner) begin(o *op.Op) {
	r.record(o)
	r.g.Mine().SetBegan(o.Call.Seq, o.Began)
}

// record is begin for an operation whose line on the board may not be written yet.
func (r *Runner) record(o *op.Op) {
	o.Began = r.g.Watch.Look()
	r.g.Flight.Begin(&o.Call, o.Program, max(len(o.In), len(o.Out)), o.Began)
}

// readForRoot reads the root's entry if this rank may work for it and, if it is to do a share of its sum, those of the others.
func (x *run) readForRoot() error {
	x.views[x.o.Root].entry &^= plan.OutSeen | plan.Pooled // of an earlier operation, unless it was just read
	if x.g.Rank == x.o.Root {
		x.views[x.o.Root].entry = x.mine
		return nil
	}
	if !plan.Helps(x.call, x.mine) {
		return nil
	}
	if err := x.read(x.own.Helps[:1]); err != nil {
		return err
	}
	if x.views[x.o.Root].entry&(plan.OutSeen|plan.Pooled) == 0 {
		return nil
	}
	return x.read(x.own.Helps[1:])
}

// read waits for the entries of other ranks and finds their memory.
func (x *run) read(ranks []int32) error {
	for _, k := range ranks {
		i := int(k)
		line, err := x.awaitEntry(x.o, i)
		if err != nil {
			return err
		}
		e := plan.Entry(line.Entry())
		x.all.Add(e, false)
		if err := x.look(i, e, line); err != nil {
			return err
		}
	}
	if x.count += len(ranks); x.count == x.g.Size()-1 {
		x.window.low = x.o.Call.Seq
	}
	return nil
}

// awaitEntry waits for the entry of another rank and compares its call.
func (r *Runner) awaitEntry(o *op.Op, i int) (board.Line, error) {
	g, seq := r.g, o.Call.Seq
	line := g.Boards[i].Entry(seq)
	if line.Flag().Load() >= seq {
		if o.Began == 0 { // then that of the next operation is likely to be there, too
			g.Boards[i].Entry(seq + 1).Flag().Fetch()
		}
	} else {
		if o.Began == 0 {
			r.begin(o)
		}
		if err := g.Await(i, line.Flag(), seq); err != nil {
			return nil, err
		}
	}
	if line.Sig() != o.Sig {
		return nil, &Mismatch{Rank: i}
	}
	return line, nil
}
