package comm

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"unsafe"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/run/comm/internal/calls"
	"github.com/weft-fabric/weft/run/comm/internal/group"
	"github.com/weft-fabric/weft/run/reduce"
	"github.com/weft-fabric/weft/run/transport"
)

// tokens are the elements that a barrier passes on.
const tokens = 8

// runLevels carries out the operation under way, phase after phase.
func (c *Comm) runLevels(o *current) error {
	g, l, x := c.group, c.levels, o.prepared.levels
	c.begin(o, g.Watch.Look())
	announce(g.Mine(), &o.Call)
	run := phases{o: o, leveled: x, l: l, salt: calls.Mix(o.Call.Signature(), o.Call.Seq)}
	if err := run.measure(); err != nil {
		return err
	}
	for k := range x.Phases {
		ph := &x.Phases[k]
		if ph.Moves != 0 {
			run.move(ph)
			continue
		}
		sub, me := l.inner, l.home
		if ph.Across {
			sub, me = l.outer, l.seat
		}
		if ph.Only >= 0 && ph.Only != me || sub == nil {
			continue
		}
		for t := range ph.Times {
			if err := run.one(sub, k, t); err != nil {
				o.lost = run.overwrites(k)
				return c.fromPhase(sub, err)
			}
		}
	}
	if run.aside != nil {
		reduce.Copy(o.Out, run.aside)
	}
	return nil
}

// overwrites reports whether the input of an operation in place may be lost once its k-th phase has begun.
func (p *phases) overwrites(k int) bool {
	if !p.o.Overlap || p.aside != nil {
		return false
	}
	return slices.ContainsFunc(p.Phases[:k+1], func(ph algo.Phase) bool { return ph.Out.Buf == sched.Out })
}

// phases are those of an operation under way.
type phases struct {
	*leveled
	o      *current
	l      *levels
	salt   uint64
	cell   int   // elements of a cell
	counts []int // of slices, where they differ
	size   int   // bytes of an element
	typ    reduce.Type
	by     reduce.Op
	first  int    // the first phase that is a collective
	last   int    // the last phase that reduces
	aside  []byte // what the last phase puts its result in, where out must stay as it is until all is done
}

// measure finds out how long cells are and gets scratch.
func (p *phases) measure() error {
	o := p.o
	p.typ, p.by, p.size, p.cell, p.last = o.Type, o.Reduce, o.Type.Size(), o.Count, -1
	if p.by == reduce.Avg || p.by == reduce.PreMulSum {
		p.by = reduce.Sum
	}
	switch {
	case o.Request.Op == sched.Barrier:
		p.cell = tokens
	case !p.leader && !o.Request.Op.Blocks():
		p.cell = cellOf(o.Count, p.size, p.Local)
		if p.cell*p.Local != o.Count || p.Sizes != nil {
			p.counts = make([]int, p.l.sizes[p.l.home]) // some ranks may have no part
			for i := range p.counts {
				p.counts[i] = min(max(o.Count-i*p.cell, 0), p.cell)
			}
		}
	}
	for k := range p.Phases {
		if p.Phases[k].Moves == 0 && p.Phases[k].Op.Reduces() {
			p.last = k
		}
	}
	if p.Phases[0].Moves != 0 {
		p.first = 1
	}
	end := &p.Phases[len(p.Phases)-1]
	aside := 0
	if end.Across && end.Out.Buf == sched.Out && o.Overlap {
		aside = len(o.Out)
	}
	need := p.Scratch * p.cell * p.size
	if err := p.l.grow(need + aside); err != nil {
		return err
	}
	if aside > 0 {
		p.aside = p.l.spare[need:][:aside]
	}
	return nil
}

// grow gets scratch that the ranks of this host see.
func (l *levels) grow(n int) error {
	if len(l.spare) >= n {
		return nil
	}
	v := l.inner.world.ep.Verbs()
	if l.spare != nil {
		if err := v.Free(l.spare); err != nil {
			return err
		}
		l.spare = nil
	}
	b, err := v.Alloc(1 << bits.Len(uint(max(n, 4096)-1)))
	l.spare = b
	return err
}

// at is the memory of cells cells of a span, the t-th time.
func (p *phases) at(s algo.Span, t, cells int) []byte {
	if s.Buf == sched.Tmp {
		n := cells * p.cell
		if p.counts != nil && cells == 1 {
			n = p.counts[p.l.seat]
		}
		return p.l.spare[(s.At+t*s.Step)*p.cell*p.size:][:n*p.size]
	}
	if p.o.Request.Op == sched.Barrier { // which has neither
		return p.l.spare[:tokens]
	}
	whole := p.o.In
	if s.Buf == sched.Out {
		if whole = p.o.Out; p.aside != nil {
			whole = p.aside
		}
	}
	from := min((s.At+t*s.Step)*p.cell*p.size, len(whole))
	return whole[from:min(from+cells*p.cell*p.size, len(whole))]
}

// move puts blocks in another order.
func (p *phases) move(ph *algo.Phase) {
	in, out := p.at(ph.In, 0, ph.Cells), p.at(ph.Out, 0, ph.Cells)
	n := p.cell * p.size
	for i, r := range p.l.order {
		from, to := r, i
		if ph.Moves == algo.ToRanks {
			from, to = to, from
		}
		reduce.Copy(out[to*n:][:n], in[from*n:][:n])
	}
}

// one does a phase once.
func (p *phases) one(sub *Comm, k, t int) error {
	ph := &p.Phases[k]
	n := p.Of(ph)
	if ph.Blocks > 0 {
		n = ph.Blocks
	}
	r := request{Op: ph.Op, Type: p.typ, Root: -1, Salt: p.salt}
	if ph.Op.Rooted() {
		r.Root = ph.Root
	}
	if ph.Op.Reduces() {
		r.Reduce = p.by
	}
	if k == p.first && p.o.Reduce == reduce.PreMulSum { // it reads the inputs
		r.Reduce = p.o.Reduce
	}
	if ph.Op == sched.Barrier {
		r.Reduce = 0
		return p.do(sub, k, &r)
	}
	in, out := ph.Cells, ph.Cells
	r.Count = ph.Cells * p.cell
	if ph.Op.Blocks() {
		r.Count /= n
		if ph.Op != sched.ReduceScatter && ph.Op != sched.Scatter && ph.Op != sched.AllToAll {
			in /= n
		}
		if ph.Op == sched.ReduceScatter || ph.Op == sched.Scatter {
			out /= n
		}
	}
	if p.counts != nil {
		if ph.Op.Blocks() {
			r.Count, r.Counts = 0, p.counts
		} else if r.Count = p.counts[p.l.seat]; r.Count == 0 {
			return nil
		}
	}
	root := sub.Rank() == ph.Root
	if root || ph.Op != sched.Scatter && ph.Op != sched.Broadcast {
		r.In = p.at(ph.In, t, in)
	}
	if root || ph.Op != sched.Gather && ph.Op != sched.Reduce {
		r.Out = p.at(ph.Out, t, out)
	}
	var to []byte
	switch { // a broadcast is in place
	case ph.Op == sched.Broadcast && root:
		to, r.Out = r.Out, r.In
	case ph.Op == sched.Broadcast:
		r.In = r.Out
	}
	if err := p.do(sub, k, &r); err != nil {
		return err
	}
	if to != nil && unsafe.SliceData(to) != unsafe.SliceData(r.In) {
		reduce.Copy(to, r.In)
	}
	if k == p.last && p.o.Reduce == reduce.Avg {
		reduce.Finish(p.typ, reduce.Avg, r.Out, p.Ranks)
	}
	return nil
}

// do carries out a phase's call. Between hosts its program is that of the phases; inside it is what the communicator chooses, which is
// the same: by the same table, or straight where blocks differ in length. Steps for empty blocks do nothing, and the proof has none.
func (p *phases) do(sub *Comm, k int, r *request) error {
	if p.outer[k] == nil && r.Reduce != reduce.PreMulSum {
		return sub.do(p.o.ctx, r, nil)
	}
	if !sub.flight.Take() {
		return fmt.Errorf("a phase of operation %d is in progress twice", p.o.Call.Seq)
	}
	if p.outer[k] == nil {
		return sub.doNow(p.o.ctx, r, want{}, p.o.Factor)
	}
	return sub.doNow(p.o.ctx, r, want{program: p.outer[k], unproven: true}, 1)
}

// fromPhase is the error of a phase as one of the whole communicator, whose ranks have other numbers.
func (c *Comm) fromPhase(sub *Comm, err error) error {
	if late, ok := errors.AsType[*group.GivenUp](err); ok {
		return c.wasGivenUp(&group.GivenUp{By: sub.numberAbove(late.By)})
	}
	if said := c.heard(); said != nil {
		return said
	}
	if f := c.failed.Load(); f != nil {
		return f
	}
	if m := c.probing.mismatch(); m != nil {
		return m
	}
	var f *Failure
	if !errors.As(err, &f) {
		return err
	}
	var ranks []int
	for _, r := range f.Culprits {
		ranks = append(ranks, sub.numberAbove(r))
	}
	slices.Sort(ranks)
	switch f.Kind {
	case Dead, Left:
		var g *transport.Gone
		there := errors.As(err, &g)
		if there && len(ranks) == 2 { // a link of this rank
			ranks = slices.DeleteFunc(ranks, func(r int) bool { return r == c.Rank() })
		}
		if len(ranks) == 1 {
			gone := &transport.Gone{Rank: c.group.Members[ranks[0]], Left: f.Kind == Left}
			if there {
				gone.Why = g.Why
			}
			if p, ok := errors.AsType[*transport.Parted](err); ok {
				gone.Cause = p
			}
			return c.gone(ranks[0], gone)
		}
	case Mismatch:
		boards := c.allBoards()
		for i, b := range boards {
			if i == c.Rank() || b == nil {
				continue
			}
			if theirs, ok := callOn(b, c.cur.Call.Seq); ok && theirs.Signature() != c.cur.Call.Signature() {
				return calls.Mismatch(c.Rank(), i, &c.cur.Call, &theirs)
			}
		}
	case Timeout:
		return c.late()
	}
	own := *f
	own.Rank, own.Seq, own.Culprits, own.Report, own.Overwritten = c.Rank(), c.cur.Call.Seq, ranks, nil, false
	own.alias = c.aliases(ranks)
	own.Call = c.cur.Call.String()
	return &own
}

// toldAbove is why the communicator that this one carries out phases of has ended; nil if it has not.
func (c *Comm) toldAbove() *Failure {
	up := c.above
	if up == nil {
		return nil
	}
	if f := up.failed.Load(); f != nil {
		return f
	}
	return up.heard()
}

// partedAbove is the failure of the communicator that this one carries out phases of, if this rank gave up its link with a member: that
// one may wait for what this rank sent it before, and take the link for sound, as nothing that it sends is lost. A phase inside the host
// waits for others, and would not ask.
func (c *Comm) partedAbove() *Failure {
	up := c.above
	if up == nil {
		return nil
	}
	for i := range up.group.Members {
		if i == up.Rank() {
			continue
		}
		err := up.group.Alive(i)
		if _, lost := errors.AsType[*transport.Parted](err); lost {
			_ = up.fail(up.gone(i, err))
			return up.failed.Load()
		}
	}
	return nil
}
