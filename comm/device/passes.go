package device

import (
	"github.com/weft-fabric/weft/comm/internal/chunks"
	"github.com/weft-fabric/weft/comm/internal/flat"
	"github.com/weft-fabric/weft/sched"
)

// pass is one sweep over memory that a rank does: dsts = srcs[0] op srcs[1] op ..., or a copy if there is one source.
type pass struct {
	srcs  []place // of in
	dsts  []place // of out
	bytes int
}

// place is where bytes lie in a buffer of a rank.
type place struct{ rank, at int }

// passesOf is what a rank does of a program in flat form. Which chunks it reads, in which order, and where it stores their sum
// is the form's word; chunks that follow one another in all their buffers are done in one pass.
func passesOf(p *sched.Program, form *flat.Form, layout chunks.Layout, rank int) []pass {
	var list []pass
	add := func(k *flat.Kernel) {
		n := pass{}
		for _, s := range k.Srcs {
			lo, hi := layout.Span(p.Op, sched.In, int(s.Rank), int(s.Index))
			n.srcs, n.bytes = append(n.srcs, place{int(s.Rank), lo}), hi-lo
		}
		for _, d := range k.Dsts {
			lo, _ := layout.Span(p.Op, sched.Out, int(d.Rank), int(d.Index))
			n.dsts = append(n.dsts, place{int(d.Rank), lo})
		}
		if n.bytes == 0 {
			return
		}
		if last := len(list) - 1; last >= 0 && list[last].leadsTo(&n) {
			list[last].bytes += n.bytes
			return
		}
		list = append(list, n)
	}
	for i := range form.Ranks[rank].Sums {
		add(&form.Ranks[rank].Sums[i])
	}
	for i := range form.Ranks[rank].Moves {
		add(&form.Ranks[rank].Moves[i])
	}
	return list
}

// leadsTo reports whether a pass begins where this one ends, in all buffers.
func (p *pass) leadsTo(next *pass) bool {
	if len(p.srcs) != len(next.srcs) || len(p.dsts) != len(next.dsts) {
		return false
	}
	for i, s := range p.srcs {
		if next.srcs[i] != (place{s.rank, s.at + p.bytes}) {
			return false
		}
	}
	for i, d := range p.dsts {
		if next.dsts[i] != (place{d.rank, d.at + p.bytes}) {
			return false
		}
	}
	return true
}
