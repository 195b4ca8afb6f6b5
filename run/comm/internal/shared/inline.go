package shared

import (
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/run/comm/internal/board"
	"github.com/weft-fabric/weft/run/comm/internal/flat"
	"github.com/weft-fabric/weft/run/comm/internal/op"
	"github.com/weft-fabric/weft/run/comm/internal/plan"
	"github.com/weft-fabric/weft/run/reduce"
	"github.com/weft-fabric/weft/run/transport/wait"
)

// Inline is what a rank does in an operation of which every input fits into an entry, worked out once for all operations of one
// layout: what a rank gives is in the line that says that it entered, and nothing else has to be found, waited for or given
// back. The call itself is most of the time of such an operation: without this mode it takes 1.4 times as long (2026-11-16).
type Inline struct {
	gives  bool // others read this rank's input
	parts  []part
	reads  []int32 // ranks whose entries it needs
	atOnce bool    // it needs nobody's, or nobody needs its own: it may be over without waiting
}

// part is a part of the output: what the ranks have at some place of their inputs, moved or summed.
type part struct {
	lo, hi int
	srcs   []source
	order  *reduce.Order
}

type source struct{ rank, at int }

// NewInline gives the inline form of an operation that has one.
func NewInline(o *op.Op, rank int) *Inline {
	own := o.Form.Rank(rank)
	b := &Inline{gives: len(own.Exports) > 0, reads: own.Reads, atOnce: own.OneWay}
	if o.Op == sched.Broadcast && rank == o.Root { // which has it where it belongs
		return b
	}
	for _, list := range [][]flat.Kernel{own.Sums, own.Moves} {
		for _, k := range list {
			p := part{order: k.Order}
			p.lo, p.hi = o.OutSpan(flat.Chunk{Rank: int32(rank), Index: k.Dsts[0].Index})
			for _, c := range k.Srcs {
				at, _ := o.InSpan(c)
				p.srcs = append(p.srcs, source{int(c.Rank), at})
			}
			if p.lo < p.hi {
				b.parts = append(b.parts, p)
			}
		}
	}
	return b
}

// RunInline runs an operation in its inline form.
func (r *Runner) RunInline(o *op.Op, b *Inline) error {
	if err := r.enterInline(o, b, b.atOnce); err != nil {
		return err
	}
	return r.FinishInline(o, b)
}

// enterInline says that this rank has entered, and gives what the others read.
func (r *Runner) enterInline(o *op.Op, b *Inline, atOnce bool) error {
	o.Mode = plan.Inline
	if err := r.mayEnter(o); err != nil {
		return err
	}
	line, entry := r.g.Mine().EntryAt(board.EntryOffset(o.Call.Seq)), plan.Nowhere
	if b.gives {
		entry = plan.InEntry
		exportInline(o, line.Data())
	}
	r.announce(o, line, uint64(entry), atOnce)
	return nil
}

// MayEnterNow reports whether nothing keeps this rank from entering an operation: then EnterEarly does not wait.
func (r *Runner) MayEnterNow(seq uint64) bool {
	mine := r.g.Mine()
	return seq-r.window.low < board.Window && mine.NoticeWord().Load() == 0 && mine.WasGivenUp(seq) < 0
}

// EnterEarly enters an operation that FinishInline carries out, at once or later, and on another goroutine if need be. It reports whether
// the ranks that this one needs are there; if they are not, it has looked for them for some 20 us, unless ranks share cores.
func (r *Runner) EnterEarly(o *op.Op, b *Inline, look bool) (there bool, err error) {
	if err := r.enterInline(o, b, false); err != nil {
		return false, err
	}
	for _, i := range b.reads {
		if !r.g.Boards[i].Entry(o.Call.Seq).Flag().Soon(o.Call.Seq, r.g.Waiter, look) {
			r.g.Waiter.Settle()
			return false, nil
		}
	}
	return true, nil
}

// FinishInline ends an operation that was entered.
func (r *Runner) FinishInline(o *op.Op, b *Inline) error {
	seq := o.Call.Seq
	at := board.EntryOffset(seq)
	for _, i := range b.reads {
		if _, err := r.awaitEntry(o, int(i)); err != nil {
			return err
		}
	}
	if len(b.reads) == r.g.Size()-1 {
		r.window.low = seq
	}
	r.fillInline(o, b, at)
	return nil
}

// exportInline puts an input into an entry line. The second half of the line comes first: others look at the first one all the
// time, and would take it away between a store to it and the flag's, which is 0.13 us each time.
func exportInline(o *op.Op, dst []byte) {
	const first = 32
	n := len(o.In)
	if o.Scaled() || n <= first {
		o.Export(dst[:n])
		return
	}
	copy(dst[first:n], o.In[first:])
	copy(dst[:first], o.In)
}

// fillInline fills the output with what is in the entries at an offset.
func (r *Runner) fillInline(o *op.Op, b *Inline, at int) {
	for k := range b.parts {
		p := &b.parts[k]
		dst := o.Out[p.lo:p.hi]
		if len(p.srcs) == 1 {
			src := r.given(o, p.srcs[0], at, len(dst))
			switch len(dst) { // a call of copy takes longer than these
			case 4:
				*(*[4]byte)(dst) = [4]byte(src)
			case 8:
				*(*[8]byte)(dst) = [8]byte(src)
			default:
				copy(dst, src)
			}
			continue
		}
		r.srcs = r.srcs[:0]
		for _, s := range p.srcs {
			r.srcs = append(r.srcs, r.given(o, s, at, len(dst)))
		}
		r.apply(o.Type, o.Reduce, r.srcs, p.order, dst, nil)
	}
}

// given is n bytes of what a source has.
func (r *Runner) given(o *op.Op, s source, at, n int) []byte {
	if s.rank == r.g.Rank {
		return o.In[s.at:][:n]
	}
	return r.g.Boards[s.rank][at+board.DataAt+s.at:][:n]
}

// RunAtOnce runs an operation in its inline form if nothing has to be waited for, and reports whether it did. The caller has to
// settle the flag that was raised, after it changed something else atomically. Where it can it takes 0.8 of the time of
// RunInline: of 0.15 us, as much as looking at the clock and five locked instructions take, every call and every load count.
func (r *Runner) RunAtOnce(o *op.Op, b *Inline) (raised wait.Raised, done bool) {
	g, seq := r.g, o.Call.Seq
	mine := g.Mine()
	if !b.atOnce || seq-r.window.low >= board.Window || mine.NoticeWord().Load() != 0 {
		return raised, false
	}
	at, next := board.EntryOffset(seq), board.EntryOffset(seq+1)
	for _, i := range b.reads {
		line := g.Boards[i].EntryAt(at)
		if line.Flag().Load() < seq || line.Sig() != o.Sig {
			return raised, false
		}
		g.Boards[i].EntryAt(next).Flag().Fetch() // which is likely to be there, too
	}
	line, entry := mine.EntryAt(at), plan.Nowhere
	if b.gives {
		entry = plan.InEntry
		exportInline(o, line.Data())
	}
	o.Began = g.Watch.About()
	o.Call.Put(mine.Call(seq))
	mine.SetBegan(seq, o.Began)
	raised = line.Flag().RaiseNow(seq, o.Sig, uint64(entry), mine.Sleepers())
	if b.gives {
		mine.EntryAt(next).Flag().Own()
	}
	if seq&63 == 0 {
		g.ShowCPU()
	}
	r.fillInline(o, b, at)
	if len(b.reads) == g.Size()-1 {
		r.window.low = seq
	}
	g.Flight.Begin(&o.Call, o.Program, max(len(o.In), len(o.Out)), o.Began)
	return raised, true
}
