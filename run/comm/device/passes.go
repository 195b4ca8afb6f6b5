package device

import (
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/run/comm/internal/chunks"
	"github.com/weft-fabric/weft/run/comm/internal/flat"
	"github.com/weft-fabric/weft/run/reduce"
)

// pass is one sweep over memory that a rank does: dsts = srcs[0] op srcs[1] op ... in an order, or a copy if there is one source.
type pass struct {
	srcs  []place // of in
	dsts  []place // of out
	order *reduce.Order
	bytes int
}

// place is where bytes lie in a buffer of a rank.
type place struct{ rank, at int }

// passesOf is what ranks from one up to another do of a program in flat form. Which chunks it reads, in which order, and where it stores
// their sum is the form's word; chunks that follow one another in all their buffers are done in one pass.
func passesOf(p *sched.Program, form *flat.Form, layout chunks.Layout, first, end int) []pass {
	var list []pass
	add := func(k *flat.Kernel) {
		n := pass{order: k.Order}
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
	for rank := first; rank < end; rank++ {
		r := form.Rank(rank)
		for i := range r.Sums {
			add(&r.Sums[i])
		}
		for i := range r.Moves {
			add(&r.Moves[i])
		}
	}
	return list
}

// passesOfPairs is what ranks from one up to another do of an all-to-all with lengths of its own: each reads what is for it.
func passesOfPairs(pairs []pair, size, first, end int) []pass {
	var list []pass
	for _, p := range pairs {
		if p.count > 0 && p.to >= first && p.to < end {
			list = append(list, pass{srcs: []place{{p.from, p.src * size}}, dsts: []place{{p.to, p.dst * size}}, bytes: p.count * size})
		}
	}
	return list
}

// leadsTo reports whether a pass begins where this one ends, in all buffers.
func (p *pass) leadsTo(next *pass) bool {
	if len(p.srcs) != len(next.srcs) || len(p.dsts) != len(next.dsts) || p.order != next.order {
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
