package comm

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/run/comm/internal/board"
	"github.com/weft-fabric/weft/run/comm/internal/calls"
	"github.com/weft-fabric/weft/run/comm/internal/chunks"
	"github.com/weft-fabric/weft/run/comm/internal/group"
	"github.com/weft-fabric/weft/run/comm/internal/op"
	"github.com/weft-fabric/weft/run/comm/internal/plan"
	"github.com/weft-fabric/weft/run/comm/internal/script"
	"github.com/weft-fabric/weft/run/comm/internal/shared"
	"github.com/weft-fabric/weft/run/reduce"
	"github.com/weft-fabric/weft/run/transport"
)

// request is a call as its user makes it.
type request = op.Request

// current is the operation under way.
type current struct {
	op.Op
	ctx      context.Context
	prepared *prepared
	inline   *shared.Inline // nil if it has no such form
	mixed    uint64         // the signature of the call, but for its number
	lost     bool           // it is in place, failed, and its input is overwritten
	starts   plan.Mode      // as far as this rank's call tells
	usual    bool           // of equal blocks, by the program that is chosen: it may be made again as it is
	limit    atomic.Int64   // by the clock; set when it is first asked for, by any channel
	asked    atomic.Int64   // when that was
	missed   atomic.Int64   // when a rank was first seen to be gone whose messages may suffice; not without a limit
}

// again reports whether a call is the one before once more, on any buffers.
func (o *current) again(r *request) bool {
	return o.usual && o.Request.Op == r.Op && o.Variant == r.Variant && o.Type == r.Type && o.Reduce == r.Reduce && o.Root == r.Root &&
		o.Count == r.Count && r.Counts == nil && len(o.In) == len(r.In) && len(o.Out) == len(r.Out)
}

// repeat carries out the call of the operation before once more, on any buffers, and lets go of the communicator.
func (c *Comm) repeat(ctx context.Context, r *request) error {
	o := &c.cur
	c.nextLike(ctx, r)
	if o.inline != nil && o.prepared.judge == nil {
		o.Sig = calls.Mix(o.mixed^c.before, c.seq)
		if raised, done := c.shared.RunAtOnce(&o.Op, o.inline); done {
			c.before = o.Sig
			c.flight.End(plan.Inline, 0, true, &o.Steps, nil)
			if c.flight.Publish(true) {
				go c.queue.work(nil)
			}
			raised.Settled()
			return nil
		}
	}
	return c.run(true)
}

// nextLike makes the call of the operation before the one under way once more.
func (c *Comm) nextLike(ctx context.Context, r *request) {
	o := &c.cur
	c.seq++
	c.makeGood()
	o.Call.Seq = c.seq
	if c.world.mem == nil { // the operation before is part of what ranks have to agree on
		o.Call.Program = o.prepared.digest ^ r.Salt ^ c.before
		o.mixed = o.Call.Signature()
	}
	if o.Salt != r.Salt && c.world.mem != nil {
		o.Call.Program = o.prepared.digest ^ r.Salt
		o.mixed = o.Call.Signature()
	}
	o.ctx, o.In, o.Out, o.Salt = ctx, r.In, r.Out, r.Salt
}

// start makes a call the operation under way; the caller's turn it is.
func (c *Comm) start(ctx context.Context, r *request, asked want, factor float64) error {
	if f := c.failed.Load(); f != nil {
		return f
	}
	if err := checkRequest(r, c.Size(), factor); err != nil {
		return c.refused(err)
	}
	c.library.ctx = ctx
	p, err := c.library.find(r, asked)
	c.library.ctx = nil
	if err != nil {
		return c.refused(err)
	}
	if err := ctx.Err(); err != nil {
		return c.failOutside(c.ended(r.Op.String()+" was called too late", err))
	}
	c.seq++
	c.makeGood()
	o := &c.cur
	o.Request, o.ctx, o.prepared, o.Factor = *r, ctx, p, factor
	o.Program, o.Form = p.program, p.flat
	o.Call = calls.Call{Epoch: c.epoch, Comm: c.id, Seq: c.seq, Op: r.Op, Variant: r.Variant, Type: r.Type, Reduce: r.Reduce,
		Root: int32(r.Root), Count: uint64(r.Count), Program: p.digest ^ r.Salt, Cause: r.Cause}
	if r.Counts != nil && r.Variant != calls.AllToAllV {
		o.Call.Count = uint64(total(r.Counts))
		for _, k := range r.Counts { // the total alone would not tell [1 2] from [2 1]
			o.Call.Program = o.Call.Program*0x9E3779B97F4A7C15 + uint64(k)
		}
	}
	if c.world.mem == nil {
		o.Call.Program ^= c.before
	}
	o.mixed = o.Call.Signature()
	o.usual = asked == (want{}) && factor == 1 && r.Counts == nil && r.Cause == 0 // calls with a cause have an option and are never made again
	o.layOut(c.group)
	o.starts = plan.Start(&o.Plan)
	if p.levels != nil {
		o.starts = plan.Levels
	}
	return nil
}

// layOut works out where the chunks of the program lie, and the inline form if the operation has one.
func (o *current) layOut(g *group.Group) {
	p := o.prepared
	o.OutOnly, o.inline = nil, nil
	if o.Counts != nil {
		o.Chunks = chunks.New(p.program, o.Type.Size(), 0, o.Counts)
		if o.Theirs != nil {
			l := chunks.New(p.program, o.Type.Size(), 0, o.Theirs)
			o.OutOnly = &l
		}
		o.Plan = shared.Asks(&o.Op, g)
		return
	}
	fresh := p.layout.Size != o.Type.Size() || p.layout.Count != o.Count
	if fresh {
		p.layout = chunks.New(p.program, o.Type.Size(), o.Count, nil)
		p.script.Relaid()
	}
	o.Chunks = p.layout
	o.Plan = shared.Asks(&o.Op, g)
	if plan.Start(&o.Plan) != plan.Inline {
		return
	}
	if p.inline == nil || fresh && p.layout.Per > 1 { // else it is that of other types of as many bytes, too
		p.inline = shared.NewInline(&o.Op, g.Rank)
	}
	o.inline = p.inline
}

// run carries out the operation under way, and ends the caller's turn if it is told to.
func (c *Comm) run(letGo bool) error {
	if c.cur.prepared.judge == nil {
		return c.carryOut(letGo)
	}
	err := c.runJudged()
	if letGo {
		c.queue.letGo()
	}
	return err
}

// carryOut is run of a single operation.
func (c *Comm) carryOut(letGo bool) error {
	o := &c.cur
	c.reset(o)
	var err error
	switch o.Mode = o.starts; o.Mode {
	case plan.Alone:
		c.begin(o, c.group.Watch.Look())
		o.alone()
	case plan.Inline:
		err = c.shared.RunInline(&o.Op, o.inline)
	case plan.Script:
		err = c.runScript(o)
	case plan.Levels:
		err = c.runLevels(o)
	default:
		err = c.shared.Run(&o.Op)
	}
	return c.conclude(o, err, letGo)
}

// reset makes the operation under way one that has not begun.
func (c *Comm) reset(o *current) {
	o.Began, o.Entered, o.lost = 0, 0, false
	if o.limit.Load() != 0 {
		o.limit.Store(0)
		o.missed.Store(0)
	}
	before := c.before
	if c.world.mem == nil {
		before = 0 // it is in the call
	}
	o.Sig = calls.Mix(o.mixed^before, o.Call.Seq)
	o.Steps.Reset(false)
	o.Overlap = keepsInput(o.Request.Op) && op.Overlap(o.In, o.Out)
}

// enterEarly enters a started call that is the one before once more, if that needs no wait; its caller's turn it is. It reports whether
// the call was entered, and whether all is there to end it.
func (c *Comm) enterEarly(q *queued) (entered, there bool, err error) {
	o := &c.cur
	if !c.likeBefore(q) || o.inline == nil || o.prepared.judge != nil || !c.shared.MayEnterNow(c.seq+1) {
		return false, false, nil
	}
	c.nextLike(q.ctx, &q.request)
	c.reset(o)
	there, err = c.shared.EnterEarly(&o.Op, o.inline, c.queue.looks())
	return true, there || err != nil, err
}

// finish ends a call that was entered early, with the error that entering it had.
func (c *Comm) finish(err error, letGo bool) error {
	o := &c.cur
	if err == nil {
		err = c.shared.FinishInline(&o.Op, o.inline)
	}
	return c.conclude(o, err, letGo)
}

// conclude ends the operation under way.
func (c *Comm) conclude(o *current, err error, letGo bool) error {
	atOnce := o.Began == 0
	if atOnce { // or it could not even enter
		c.begin(o, c.group.Watch.About())
	}
	if err != nil {
		err = c.giveUp(c.fail(err))
	} else {
		c.before = o.Sig
	}
	c.flight.End(o.Mode, o.Entered, atOnce, &o.Steps, err)
	raised := c.group.Waiter.Raised() // the waiter is another one's to use once this one lets go
	if c.flight.Publish(letGo) {
		go c.queue.work(nil)
	}
	raised.Settled()
	if err != nil {
		c.dump(err)
	}
	return err
}

// giveUp marks the operation under way as given up on all boards before its error is returned: from then on the caller may change
// its memory, though a rank that was stopped may still be in the operation (package shared). A rank that finds the mark asks for the
// reason, so this rank has told it by then: that of a phase among the ranks of all hosts.
func (c *Comm) giveUp(err error) error {
	if c.above != nil {
		_ = c.above.fail(c.above.fromPhase(c, err))
	}
	c.tellWhy()
	lost, bad := c.cur.lost, error(nil)
	if c.shared != nil {
		lost, bad = c.shared.GiveUp(&c.cur.Op)
	}
	if lost {
		err = overwritten(err)
	}
	if bad != nil {
		c.unfenced = bad
		return fmt.Errorf("%w; a rank that is stopped may still store to the output of this call, as that could not be moved: %w", err, bad)
	}
	return err
}

// begin notes when the operation under way began.
func (c *Comm) begin(o *current, at int64) {
	o.Began = at
	c.group.Mine().SetBegan(o.Call.Seq, at)
	c.flight.Begin(&o.Call, o.Program, max(len(o.In), len(o.Out)), at)
}

// keepsInput reports whether an operation in place must not lose its input before it is over. The others write nothing to their
// input but what is there.
func keepsInput(op sched.Collective) bool {
	return op != sched.Broadcast && op != sched.AllGather && op != sched.Gather && op != sched.Scatter
}

// runScript runs the operation by messages.
func (c *Comm) runScript(o *current) error {
	g := c.group
	c.begin(o, g.Watch.Look())
	p, err := o.prepared.scriptOf(g.Rank, c.world.ep.Can().Depth)
	if err != nil {
		return err
	}
	if !o.Overlap && !p.Script.Clean() && (o.Request.Op != sched.Broadcast || g.Rank == o.Root) {
		o.Overlap = op.Overlap(o.In, o.Out)
	}
	if c.scripts == nil {
		port, err := c.world.ep.Port(transport.Group{ID: c.id, Epoch: c.epoch, Members: g.Members, Words: calls.Words{}})
		if err != nil {
			return err
		}
		c.scripts = script.NewRunner(g, port, c.world.ep.Can().Overlaps)
	}
	if g.Memory != nil {
		err = c.shared.Arrive(&o.Op)
	} else {
		announce(g.Mine(), &o.Call)
	}
	if err != nil {
		return err
	}
	return c.scripts.Run(&o.Op, p)
}

// alone is every operation of a single rank.
func (o *current) alone() {
	if len(o.Out) == 0 || len(o.In) == 0 || o.Request.Op == sched.Barrier {
		return
	}
	if o.Scaled() {
		reduce.ScaleTo(o.Type, o.Out, o.In, o.Factor)
		return
	}
	if &o.Out[0] != &o.In[0] {
		reduce.Copy(o.Out, o.In)
	}
}

// refuse is the end of a call that is wrong in itself. The others, which may be waiting for this rank in it, are told, if nothing
// else is under way that says which number the call would have had.
func (c *Comm) refuse(err error) error {
	if c.failed.Load() == nil && c.flight.Take() {
		_ = c.refused(err)
		c.queue.letGo()
	}
	return err
}

// refused is refuse when it is the caller's turn.
func (c *Comm) refused(err error) error {
	if c.failed.Load() == nil && c.group.Boards != nil && c.Size() > 1 {
		c.refusal = c.seq + 1
		c.spread(c.refusal)
	}
	return err
}

// makeGood takes a refusal back when the call is made again and is right. This rank does not mind those of others then: they may
// all have made the same mistake.
func (c *Comm) makeGood() {
	if c.refusal == c.seq {
		c.spread(0)
	}
}

// announce writes on a board what its rank has begun.
func announce(b board.Board, call *calls.Call) {
	var text [transport.CallSize]byte
	call.Put(text[:])
	b.Enter(call.Seq, &text)
}
