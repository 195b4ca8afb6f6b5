package schedule

import (
	"math"
	"slices"
	"sync"

	"github.com/weft-fabric/weft/model/heap"
)

// room reports whether a rank may begin a forward pass of a stage when it holds the activations of
// held of its passes, and alive of all its stages.
func (p Pipe) room(stage, held, alive int) bool {
	switch p.Kind {
	case ZBH1, ZB1P:
		return alive < p.Ranks
	case ZBH2, ZB2P:
		return alive < 2*p.Ranks-1
	case ZBV: // a micro-batch comes back to its rank: p of them are 2p chunks
		return stage >= p.Ranks || held < p.Ranks
	default: // DualPipe: each direction as in 1F1B, and one more
		return held < p.Ranks-stage
	}
}

// moment is a time at which a rank may find new work.
type moment struct {
	at   float64
	seq  int
	rank int
}

// Before orders by time, then by what was noted first.
func (x moment) Before(y moment) bool { return x.at < y.at || x.at == y.at && x.seq < y.seq }

// greedy runs dualpipe: whenever a rank is free it takes a backward pass if one
// is ready, else a forward pass if its memory allows, else a weight gradient.
func (p Pipe) greedy() *Result {
	r, _ := p.choose(p.Micro, false)
	return r
}

// plan is an order of passes, and the most chunk activations that each rank holds at once in it.
type plan struct {
	ranks [][]pass
	alive []int
}

// memo is the plan that was made last: a search asks for many pipelines of the same numbers, one after the other.
type memo struct {
	sync.Mutex
	kind                 Kind
	ranks, chunks, micro int
	plan                 *plan
}

var whole, begun memo // of all micro-batches, and until a first stage has begun a few

// of makes the plan of a pipe if all passes took the same time, and messages none.
func (m *memo) of(p Pipe, micro int, begin bool) *plan {
	m.Lock()
	defer m.Unlock()
	if m.plan == nil || m.kind != p.Kind || m.ranks != p.Ranks || m.chunks != p.Chunks || m.micro != micro {
		q := Pipe{Kind: p.Kind, Ranks: p.Ranks, Chunks: p.Chunks, Micro: p.Micro, Cost: slices.Repeat([]Cost{{1, 1, 1}}, p.Ranks*p.Chunks)}
		r, order := q.choose(micro, begin)
		order.alive = r.Alive
		m.kind, m.ranks, m.chunks, m.micro, m.plan = p.Kind, p.Ranks, p.Chunks, micro, order
	}
	return m.plan
}

// fixed is the order of zb-v, zb-1p and zb-2p: that of greedy if all passes took the same time, and messages none. Frameworks fix the order
// before they know what passes take, too. Chosen anew for every set of times, it would be faster with some longer passes than with short
// ones.
func (p Pipe) fixed() *plan { return whole.of(p, p.Micro, false) }

// HoldsAtLeast is a lower bound of Alive. Where ranks do not keep a published order, it is what they hold until the first stage has begun a
// few micro-batches for each rank: until then nobody knows how many more there are. Of dualpipe, whose ranks choose their passes while they
// run, it needs the costs.
func (p Pipe) HoldsAtLeast() []int {
	few := min(p.Micro, 2*p.Ranks+2)
	switch p.Kind {
	case DualPipe:
		r, _ := p.choose(few, true)
		return r.Alive
	case ZBV:
		return begun.of(p, few, true).alive
	}
	out := make([]int, p.Ranks)
	for i := range out {
		n, known := p.Holds(i)
		if !known { // zb-1p and zb-2p: in this order or the other, whichever is faster
			n = min(p.inOrder(i), begun.of(p, few, true).alive[i])
		}
		out[i] = n
	}
	return out
}

// choose runs that many micro-batches, or only until a first stage has begun all of them, and gives the order of passes.
func (p Pipe) choose(micro int, begin bool) (*Result, *plan) {
	// Lanes are pipelines over the same ranks: one, or two in opposite directions.
	lanes, perLane := 1, micro
	if p.Kind == DualPipe {
		lanes, perLane = 2, micro/2
	}
	order := &plan{ranks: make([][]pass, p.Ranks)}
	stages := p.Ranks * p.Chunks
	idx := func(lane, stage, micro int) int { return (lane*stages+stage)*perLane + micro }
	n := lanes * stages * perLane
	inf := math.Inf(1)
	readyF, readyB := make([]float64, n), make([]float64, n)
	for i := range readyF {
		readyF[i], readyB[i] = inf, inf
	}
	rankOf := func(lane, stage int) int {
		if lane == 1 {
			return p.Ranks - 1 - stage
		}
		return p.rankOf(stage)
	}
	type place struct{ lane, stage int }
	mine := make([][]place, p.Ranks)
	for lane := range lanes {
		for s := range stages {
			r := rankOf(lane, s)
			mine[r] = append(mine[r], place{lane, s})
		}
	}
	nextF, nextB, held := make([]int, lanes*stages), make([]int, lanes*stages), make([]int, lanes*stages)
	at := func(x place) int { return x.lane*stages + x.stage }
	pendingW := make([][]pass, p.Ranks)
	laneOfW := make([][]int, p.Ranks)
	free, alive, left := make([]float64, p.Ranks), make([]int, p.Ranks), make([]int, p.Ranks)
	for lane := range lanes {
		for j := range perLane {
			readyF[idx(lane, 0, j)] = 0
		}
	}
	r := &Result{Busy: make([]float64, p.Ranks), Alive: make([]int, p.Ranks), LastB: make([]float64, p.Ranks)}
	for i := range left {
		left[i] = len(mine[i]) * perLane
	}
	q := &heap.Heap[moment]{}
	seq := 0
	wake := func(rank int, at float64) {
		seq++
		q.Push(moment{at, seq, rank})
	}
	for i := range p.Ranks {
		wake(i, 0)
	}
	first, last := make([]float64, p.Ranks), make([]float64, p.Ranks)
	for i := range first {
		first[i] = inf
	}
	span := func(rank, stage, micro int, kind byte, begin, end, sync float64) {
		r.Busy[rank] += end - begin
		order.ranks[rank] = append(order.ranks[rank], pass{kind, stage, micro})
		r.Time = max(r.Time, end)
		first[rank], last[rank] = min(first[rank], begin), max(last[rank], end)
		free[rank] = end + sync
		if p.Trace {
			r.Spans = append(r.Spans, Span{rank, stage / p.Ranks, micro, kind, begin, end})
		}
		wake(rank, free[rank])
	}
	wait := func(send float64) float64 {
		if p.Sync {
			return send
		}
		return 0
	}
	for q.Len() > 0 {
		m := q.Pop()
		rank, now := m.rank, m.at
		if now < free[rank] {
			continue
		}
		// A backward pass, the earliest micro-batch first and the deepest chunk before others.
		best, found := place{}, false
		for _, pl := range mine[rank] {
			j := nextB[at(pl)]
			if j < perLane && readyB[idx(pl.lane, pl.stage, j)] <= now && (!found || pl.stage > best.stage) {
				best, found = pl, true
			}
		}
		if found {
			j := nextB[at(best)]
			nextB[at(best)]++
			c := p.Cost[best.stage]
			end, send := now+c.B, 0.0
			if best.stage > 0 {
				i := idx(best.lane, best.stage-1, j)
				next := rankOf(best.lane, best.stage-1)
				send = p.hop(rank, next)
				readyB[i] = end + send
				wake(next, readyB[i])
			}
			if left[rank]--; left[rank] == 0 {
				r.LastB[rank] = now
			}
			pendingW[rank] = append(pendingW[rank], pass{'W', best.stage, j})
			laneOfW[rank] = append(laneOfW[rank], best.lane)
			span(rank, best.stage, j, 'B', now, end, wait(send))
			continue
		}
		// A forward pass. The last chunk's first, so that backward may begin.
		for _, pl := range mine[rank] {
			j := nextF[at(pl)]
			if j < perLane && readyF[idx(pl.lane, pl.stage, j)] <= now && p.room(pl.stage, held[at(pl)], alive[rank]) &&
				(!found || pl.stage > best.stage) {
				best, found = pl, true
			}
		}
		if found {
			j := nextF[at(best)]
			nextF[at(best)]++
			end, send := now+p.Cost[best.stage].F, 0.0
			if best.stage < stages-1 {
				i := idx(best.lane, best.stage+1, j)
				next := rankOf(best.lane, best.stage+1)
				send = p.hop(rank, next)
				readyF[i] = end + send
				wake(next, readyF[i])
			} else {
				readyB[idx(best.lane, best.stage, j)] = end
			}
			alive[rank]++
			held[at(best)]++
			r.Alive[rank] = max(r.Alive[rank], alive[rank])
			if begin && best.stage == 0 && j == perLane-1 {
				return r, order
			}
			span(rank, best.stage, j, 'F', now, end, wait(send))
			continue
		}
		if len(pendingW[rank]) > 0 {
			w, lane := pendingW[rank][0], laneOfW[rank][0]
			pendingW[rank], laneOfW[rank] = pendingW[rank][1:], laneOfW[rank][1:]
			alive[rank]--
			held[at(place{lane, w.stage})]--
			span(rank, w.stage, w.micro, 'W', now, now+p.Cost[w.stage].W, 0)
		}
	}
	r.finish(p, first, last)
	order.alive = r.Alive
	return r, order
}
