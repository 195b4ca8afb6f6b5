package plan

import (
	"github.com/weft-fabric/weft/predict/internal/schedule"
)

// scale weighs splits of layers over stages by a few sums of each rank: a search asks for millions of them, and nearly all are too
// slow or too big. What it finds is what pricer.least and pricer.footprints give, less rounding, without the optimizer's time.
type scale struct {
	moe []int // layers with experts below each layer

	// Of one state and set of modules that are computed again.
	seconds     [4][2]float64 // a layer's passes by kind, as variant says
	first, last [4]float64    // what the first and the last chunk take besides: embedding; head and layers that predict further tokens
	state, kept [2]float64    // a layer's state, and what a micro-batch leaves in it
	fixed       float64       // bytes of every rank
	embedding   float64       // more bytes of the rank of the first chunk
	head        float64       // more bytes of the rank of the last chunk
	tied        float64       // bytes of the copy of a tied embedding, unless that rank has both ends
	ready       bool

	splits bool   // some schedule of the search splits backward
	ranks  []rank // used again
}

// variant tells layouts of one state apart that take other times: whether expert traffic is hidden, and whether backward is split.
func variant(l *Layout) int { return b2i(l.EPOverlap) + 2*b2i(l.Schedule.Splits()) }

// newScale counts the layers with experts.
func newScale(p *pricer) *scale {
	s := &scale{moe: make([]int, p.m.Layers+1)}
	for i := range p.m.Layers {
		s.moe[i+1] = s.moe[i] + p.experts(i, i+1)
	}
	return s
}

// set weighs the parts that all splits of a layout consist of.
func (s *scale) set(p *pricer, factor float64) {
	q := *p
	gather, reduce := p.zero3()
	kindsOf := []schedule.Kind{schedule.OneFOneB, schedule.ZBH1}[:1+b2i(s.splits)]
	for i := range 2 * len(kindsOf) {
		q.l.EPOverlap, q.l.Schedule = i%2 == 1, kindsOf[i/2]
		q.l.PP, q.l.VPP, q.cut = 2, 1, []int{0, 0}
		q.scratch = scratch{}
		ends := q.stages(factor)
		v := variant(&q.l)
		s.first[v], s.last[v] = ends[0].sum(), ends[1].sum()
		for kind := range 2 {
			s.seconds[v][kind] = q.one(kind == 1, factor, gather, reduce).sum()
			if !p.l.Overlap && p.l.PP > 1 && p.f == DeepSpeed {
				s.seconds[v][kind] += 2 * p.h.Stage
			}
		}
	}
	b := p.bytesPer()
	share := float64(p.l.Sharded())
	shareE := max(float64(p.l.ExpertData())*share/float64(p.l.DP*p.l.CP), 1)
	if p.l.ZeRO == 0 {
		share, shareE = 1, 1
	}
	each := b.weights + b.gradients + b.optimizer + p.cast()
	shared := b.sharedW + b.sharedG + b.sharedO + b.transient
	bytes := func(x held) float64 { return x.dense*(each+shared/share) + x.experts*(each+shared/shareE) }
	kinds, first, last, tied := p.parts()
	s.state = [2]float64{bytes(kinds[0]), bytes(kinds[1])}
	s.embedding, s.head, s.tied = bytes(first), bytes(last)+p.logitsLeast(), bytes(tied)
	s.kept = p.keptBy()
	s.fixed = p.workspace() + p.live() + p.again1() + p.passing()
	s.ready = true
}

// rounding is how far sums in another order may be off.
const rounding = 1 + 1e-9

// rank is what a pipeline rank has of both kinds of layers.
type rank struct{ dense, moe float64 }

func (x rank) of(each [2]float64) float64 { return x.dense*each[0] + x.moe*each[1] }

// spread counts the layers of each rank.
func (s *scale) spread(l *Layout, counts []int) []rank {
	s.ranks = append(s.ranks[:0], make([]rank, l.PP)...)
	at, r := 0, 0
	for i, n := range counts {
		moe := s.moe[at+n] - s.moe[at]
		at += n
		to := r
		if l.Schedule == schedule.ZBV && i >= l.PP {
			to = l.PP - 1 - r
		}
		s.ranks[to].dense += float64(n - moe)
		s.ranks[to].moe += float64(moe)
		if r++; r == l.PP {
			r = 0
		}
	}
	return s.ranks
}

// quick reports whether a split may take no longer than limit seconds without its optimizer. It calls spread.
func (s *scale) quick(l *Layout, hops []float64, counts []int, limit float64) bool {
	ranks := s.spread(l, counts)
	if l.PP == 1 || l.Schedule == schedule.DualPipe { // nothing to split, or halves of two stages
		return true
	}
	limit *= rounding
	v, micro := variant(l), float64(l.MicroBatches())
	each := s.seconds[v]
	wait, at := 0.0, 0
	for r, x := range ranks {
		busy := x.of(each)
		if r == 0 {
			busy += s.first[v]
		}
		if r == s.end(l) {
			busy += s.last[v]
		}
		if wait+micro*busy > limit {
			return false
		}
		if !l.Schedule.Splits() {
			n := counts[r]
			moe := s.moe[at+n] - s.moe[at]
			at += n
			wait += rank{float64(n - moe), float64(moe)}.of(each) + 2*hops[r]
			if r == 0 {
				wait += s.first[v]
			}
		}
	}
	return true
}

// bytesOf is what the split that quick was asked about takes at least. alive is how many micro-batches' chunks each rank holds at once; nil
// where that is not known, and at least one.
func (s *scale) bytesOf(l *Layout, alive []float64) float64 {
	if l.PP == 1 || l.Schedule == schedule.DualPipe {
		return 0
	}
	most := 0.0
	for r, x := range s.ranks {
		chunks := 1.0
		if alive != nil {
			chunks = alive[r]
		}
		bytes := s.fixed + x.of(s.state) + x.of(s.kept)*chunks/float64(l.VPP)
		if r == 0 {
			bytes += s.embedding
		}
		if r == s.end(l) {
			bytes += s.head
			if r > 0 {
				bytes += s.tied
			}
		}
		most = max(most, bytes)
	}
	return most
}

// end is the rank of the last chunk.
func (s *scale) end(l *Layout) int {
	if l.Schedule == schedule.ZBV {
		return 0
	}
	return l.PP - 1
}
