package plan

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sort"

	"github.com/weft-fabric/weft/model/heap"
	"github.com/weft-fabric/weft/model/work"
	"github.com/weft-fabric/weft/predict/internal/kernel"
	"github.com/weft-fabric/weft/predict/internal/schedule"
)

// ParseSchedules reads a list of pipeline schedules, such as 1f1b,interleaved, for Wish.Schedules.
func ParseSchedules(text string) ([]schedule.Kind, error) { return schedule.ParseKinds(text) }

// Wish is what a search may choose from. Zero values mean everything that can run.
type Wish struct {
	Batch, Seq int
	Dtype      string
	Grad       string
	Phase      string
	Schedules  []schedule.Kind // nil for those that the framework has
	Release    string
	Factor     float64
	Reserve    float64 // share of the memory that a layout leaves free, where any layout does
	Top        int     // how many candidates to keep; 0 for 10
	Within     float64 // candidates up to Within times the best are looked at for the front; 0 for 1.1
	// Progress, if set, is called now and then with the layouts priced so far and the best step.
	Progress func(priced int, best float64)
	// Stop, if set, is asked now and then; once it says yes, the search ends with what it has (Found.Stopped).
	Stop func() bool
}

// Found is what a search gives. A candidate is a layout with the split of its layers over stages that is fastest.
type Found struct {
	Best       *Cost
	Candidates []*Cost // that fit, the fastest first
	Front      []*Cost // within Within times the best, of candidates and of layouts with even stages: no other has both less time and less memory
	TooBig     int     // layouts, or whole families of them, that a bound on their memory excludes
	Bounded    int     // the same by a bound on their time
	Priced     int     // priced in full
	Over       *Cost   // where nothing fits: of those looked at the one that misses by the least
	Stopped    bool    // Wish.Stop ended the search: a faster layout may exist
}

// Search looks for the fastest layout that fits. It leaves a layout out only where a bound proves that it cannot fit or cannot be
// among those kept, so the best it finds is the best there is.
func Search(m *work.Model, mc *Machine, f Framework, w Wish) (*Found, error) {
	return search(m, mc, f, w, habits)
}

func search(m *work.Model, mc *Machine, f Framework, w Wish, h Habits) (*Found, error) {
	if w.Batch < 1 || w.Seq < 1 && m.CNN == nil {
		return nil, fmt.Errorf("a search needs the batch in sequences and the sequence length: say --batch and --seq")
	}
	if m.Linear != nil {
		return nil,
			fmt.Errorf("%s has linear-attention layers, and training steps are predicted for attention alone; weft sim serve has them", m.Name)
	}
	s := newSearcher(m, mc, f, w, h)
	if m.CNN != nil {
		s.convolutions()
	} else {
		families := s.roots()
		s.begin(families)
		// The first round finds steps to beat, the second what beats them with another split; the third fills the front.
		for _, s.round = range []round{{even: true}, {}, {even: true, front: true}} {
			s.walk(families)
		}
	}
	if len(s.fit) == 0 && w.Reserve > 0 && !s.out.Stopped {
		w.Reserve = 0
		return search(m, mc, f, w, h)
	}
	if len(s.fit) == 0 {
		return s.nothing()
	}
	out := s.out
	out.Best = s.fit[0]
	out.Candidates = s.fit[:min(s.top, len(s.fit))]
	low := math.Inf(1)
	for _, c := range s.fit {
		if c.Step > out.Best.Step*s.within {
			break
		}
		if c.Peak < low*.98 {
			low = c.Peak
			out.Front = append(out.Front, c)
		}
	}
	for _, c := range slices.Concat(out.Candidates, out.Front) {
		if c.Nearest == nil {
			c.Nearest = nearestPoint(s.question(c.Layout))
		}
	}
	return out, nil
}

// round is what one walk over all families looks at.
type round struct {
	even  bool // stages of as many layers each, or as near as can be, alone
	front bool // also layouts that are too slow to be candidates and may be on the front
}

// searcher is a search under way.
type searcher struct {
	*space
	mc     *Machine
	h      Habits
	factor float64
	from   string
	room   float64 // bytes in use that a rank may have at most
	top    int
	within float64

	round
	slow  float64          // how many times as long as by themselves steps of the grid that is looked at take; 1 outside of grids
	open  float64          // the least that a layout of the family that is looked at takes, if it may fit
	fit   []*Cost          // candidates, the fastest first
	known map[string]*Cost // candidates by their names without the split
	out   *Found
	least Layout // of the layouts that are too big the smallest, by a bound
	small float64

	rules  map[rule]bool
	still  *Machine // the machine, if transfers took no time
	chains map[grain]float64
	t      kernel.Type
	at     pricer // of the state that is looked at
	trial  pricer // of the leaf that is looked at
	leaves []leaf // of a grid, used again for the next
	scale  *scale
	counts []int // of an even split, used again
}

func newSearcher(m *work.Model, mc *Machine, f Framework, w Wish, h Habits) *searcher {
	s := &searcher{space: newSpace(m, mc, f, w), mc: mc, top: w.Top, within: w.Within, out: &Found{}, known: map[string]*Cost{},
		small: math.Inf(1), slow: 1, rules: map[rule]bool{}, chains: map[grain]float64{}}
	still := *mc
	still.still, still.products, still.attentions = true, nil, nil
	s.still = &still
	s.t = gemmType(s.base.Dtype)
	s.scale = newScale(newPricer(m, mc, f, s.base, h))
	s.scale.splits = slices.ContainsFunc(s.schedules(), schedule.Kind.Splits)
	if s.top == 0 {
		s.top = 10
	}
	if s.within == 0 {
		s.within = 1.1
	}
	s.factor, s.from, s.h = s.question(s.base).factors(h)
	s.room = (mc.Usable()*(1-w.Reserve) - contextBytes) / (1 + torn)
	return s
}

func (s *searcher) question(l Layout) Question {
	return Question{Model: s.m, Machine: s.mc, Framework: s.f, Layout: l, Release: s.w.Release, Factor: s.w.Factor}
}

// kept is the step that a layout must reach to be among the candidates, and wide the one to be on the front.
func (s *searcher) kept() float64 {
	if len(s.fit) < s.top {
		return math.Inf(1)
	}
	return s.fit[s.top-1].Step / s.slow
}

func (s *searcher) wide() float64 {
	if len(s.fit) < s.top {
		return math.Inf(1)
	}
	if !s.front {
		return s.kept()
	}
	return max(s.kept(), s.fit[0].Step*s.within/s.slow)
}

// branch is a family, with the least that its layouts take. Families are many and few are looked at, so at first it is what they take if
// transfers take no time; times is nil until they count.
type branch struct {
	l     Layout
	at    int // among families, which breaks ties
	times *unitTimes
	least float64
	chain float64 // of one micro-batch through all layers
	first float64 // least, before anything was learnt of a family
	grids []place // of a family that was walked
}

// Before says whether layouts of b can be faster than those of other.
func (b *branch) Before(other *branch) bool {
	return b.least < other.least || b.least == other.least && b.at < other.at
}

// grain is what of a layout decides what its kernels take.
type grain struct {
	tp, cp, micro, etp, ep int
	sequence               bool
}

// alone is the least time of one micro-batch through all layers, one after the other, if transfers took no time: their times only add
// to those of kernels, or take longer beside them.
func (s *searcher) alone(l Layout) float64 {
	key := grain{l.TP, l.CP, l.Micro, l.ETP, l.EP, l.Sequence}
	t, known := s.chains[key]
	if !known {
		t = newPricer(s.m, s.still, s.f, l, s.h).chain(s.factor)
		s.chains[key] = t
	}
	return t
}

// count has a family's transfers count.
func (s *searcher) count(x *branch) {
	p := newPricer(s.m, s.mc, s.f, x.l, s.h)
	x.chain = p.chain(s.factor)
	x.times = p.times
	x.least = s.shared(x.l, x.chain)
	x.first = x.least
}

// shared is the least time of a step: whatever data ranks and stages there are, they share the work of a batch. Fewer GPUs wait less for
// the slowest of them, which is worth less than what they have to do more.
func (s *searcher) shared(l Layout, chain float64) float64 {
	return float64(s.w.Batch) / float64(l.Micro) * chain * float64(l.TP*l.CP) / float64(s.gpus) * s.h.waits(s.gpus)
}

// place is a number of data ranks and stages, and the least that layouts there take, as far as walks have learnt.
type place struct {
	dp, pp int
	least  float64
}

// roots gives the families of which one micro-batch fits.
func (s *searcher) roots() (out []*branch) {
	s.families(func(l Layout) {
		if !s.placed(l) {
			return
		}
		p := newPricer(s.m, s.mc, s.f, l, s.h)
		if bytes := p.passing() + p.logitsLeast(); bytes > s.room { // one micro-batch alone
			l.Recompute = work.Recompute{Full: true} // nothing of the family is smaller
			s.tooBig(l, bytes+unseen)
			return
		}
		if !s.feasible(l) {
			return
		}
		least := s.shared(l, s.alone(l))
		out = append(out, &branch{l: l, at: len(out), least: least, first: least})
	})
	return out
}

// walk looks at families, those that can be fastest first. What it learns of a family, whose fastest layouts may not fit, is its bound in
// the next walk.
func (s *searcher) walk(families []*branch) {
	var open heap.Heap[*branch]
	open.Set(slices.Clone(families))
	for open.Len() > 0 {
		x := open.First()
		if x.least > s.wide() || s.stopped() {
			s.out.Bounded += open.Len()
			return
		}
		open.Pop()
		if x.times == nil {
			s.count(x)
			open.Push(x)
			continue
		}
		s.open = math.Inf(1)
		s.family(x)
		x.least = max(x.least, s.open)
	}
}

// begin looks for steps to beat among the schedules whose memory is known before they run, where others are asked for as well: what is
// too big among those is found out one by one.
func (s *searcher) begin(families []*branch) {
	all := s.schedules()
	var known []schedule.Kind
	for _, kind := range all {
		if _, ok := (schedule.Pipe{Kind: kind, Ranks: 2, Chunks: 1, Micro: 2}).Holds(0); ok {
			known = append(known, kind)
		}
	}
	if len(known) == 0 {
		return
	}
	if len(known) == len(all) {
		s.scout(families)
		return
	}
	w := s.w.Schedules
	s.w.Schedules = known
	s.scout(families)
	for _, s.round = range []round{{even: true}, {}} {
		s.walk(families)
	}
	s.w.Schedules = w
	for _, x := range families { // what was learnt of them does not hold for the others
		x.least, x.grids = x.first, nil
	}
}

// scout looks at families with one sequence in a micro-batch. The families that can be fastest have many, and most do not fit: a search
// that begins there has no step to beat for long.
func (s *searcher) scout(families []*branch) {
	var short []*branch
	for _, x := range families {
		if x.l.Micro == 1 {
			short = append(short, x)
		}
	}
	s.round = round{even: true}
	s.walk(short)
}

// stopped asks Wish.Stop, and remembers a yes.
func (s *searcher) stopped() bool {
	if s.w.Stop != nil && !s.out.Stopped {
		s.out.Stopped = s.w.Stop()
	}
	return s.out.Stopped
}

// rule is what of a layout decides whether its family can run.
type rule struct {
	tp, cp, ep, etp int
	sequence        bool
	context         string
}

// feasible reports whether any layout of a family can run: what does not depend on data ranks, stages and micro-batches divides.
func (s *searcher) feasible(l Layout) bool {
	key := rule{l.TP, l.CP, l.EP, l.ETP, l.Sequence, l.Context}
	ok, found := s.rules[key]
	if found {
		return ok
	}
	l.PP, l.VPP, l.DP = 1, 1, 1
	l.Batch = l.Micro
	one := l.TP * l.CP
	for one*l.DP%(l.EP*l.ETP) != 0 { // Check wants data ranks that the experts divide
		l.DP++
	}
	l.Batch *= l.DP
	ok = l.Check(s.m, 0) == nil
	s.rules[key] = ok
	return ok
}

// family looks at the grids of a family, those that can be fastest first. What it learns of a grid is its bound in the next walk.
func (s *searcher) family(x *branch) {
	if x.grids == nil {
		s.grids(x.l, func(l Layout) {
			x.grids = append(x.grids, place{l.DP, l.PP, float64(l.MicroBatches()) * x.chain / float64(l.PP) * s.h.waits(l.GPUs())})
		})
	}
	slices.SortStableFunc(x.grids, func(a, b place) int { return cmp.Compare(a.least, b.least) })
	k := &kin{times: x.times, again: make([]kept, len(s.again))}
	for i := range x.grids {
		g := &x.grids[i]
		if g.least > s.wide() || s.stopped() {
			s.out.Bounded += len(x.grids) - i
			s.open = min(s.open, g.least)
			return
		}
		others := s.open
		s.open = math.Inf(1)
		l := x.l
		l.DP, l.PP = g.dp, g.pp
		s.slow = s.h.waits(l.GPUs())
		s.grid(l, k)
		s.open, s.slow = s.open*s.slow, 1
		g.least = max(g.least, s.open)
		s.open = min(others, s.open)
	}
}

// leaf is a layout with its split, and the least that it takes.
type leaf struct {
	p      *pricer
	stages []chunkTime
	least  float64
	peak   float64 // bytes in use; 0 where only running it tells
}

// kin is what the layouts of a family have in common, by what is computed again.
type kin struct {
	times *unitTimes
	again []kept
	sends *sends // of the grid that is looked at
}

// kept is what a set of modules that are computed again leaves, where parameters are not gathered.
type kept struct {
	known bool
	act   float64
	work  [2]passes
}

// of finds what a set leaves; p is of a layout with it.
func (k *kin) of(set int, p *pricer, factor float64) *kept {
	x := &k.again[set]
	if !x.known {
		*x = kept{true, p.keptLeast(), p.passes(factor, [2]float64{}, [2]float64{})}
	}
	return x
}

// grid prices the leaves of a grid, those that can be fastest first.
func (s *searcher) grid(l Layout, k *kin) {
	all := s.leaves[:0]
	k.sends = nil
	s.sharings(l, func(l Layout) { all = s.state(l, k, all) })
	sort.SliceStable(all, func(i, j int) bool { return all[i].least < all[j].least })
	for i, x := range all {
		if x.least > s.wide() {
			s.out.Bounded += len(all) - i
			break
		}
		if least := x.least + x.p.exchangeLeast(x.stages); least > s.wide() || s.behind(x.p, least, x.peak) {
			s.out.Bounded++
			continue
		}
		s.price(x)
	}
	clear(all)
	s.leaves = all
}

// state adds the leaves of a grid that share state in a certain way. Their memory but for activations is the same whatever they compute
// again, so one bound on it serves all.
func (s *searcher) state(l Layout, k *kin, all []leaf) []leaf {
	p := &s.at
	*p = pricer{m: s.m, mc: s.mc, l: l, f: s.f, h: s.h, t: s.t, tc: perMicro(l), times: k.times}
	e := p.holdsLeast()
	bytes := e.fixed + e.state/float64(l.PP)
	if bytes > s.room {
		l.Recompute = work.Recompute{Full: true} // nothing of the family is smaller
		s.tooBig(l, bytes)
		return all
	}
	p.sends = k.sends
	k.sends = p.hops()
	fixed := e.fixed
	var gather, reduce [2]float64
	e.hop = k.sends.shortest()
	for i, r := range s.again {
		l.Recompute, p.l.Recompute = r, r
		x := k.of(i, p, s.factor)
		e.act, e.work, e.fixed = x.act, x.work, fixed
		if l.ZeRO >= 3 && float64(l.MicroBatches())*e.work[1].all/float64(l.PP) <= s.wide() { // gathers only add
			if e.tail == 0 {
				gather, reduce = p.zero3()
				e.tail = max(gather[0], gather[1]) + max(reduce[0], reduce[1])
			}
			e.work = p.passes(s.factor, gather, reduce)
		}
		if r.Full {
			e.fixed += p.again1()
		}
		// Hidden traffic takes no longer than traffic that is shown.
		least := float64(l.MicroBatches())*e.work[1].all/float64(l.PP) + e.tail
		if least > s.wide() || s.behind(p, least, e.fixed+e.state/float64(l.PP)) {
			s.out.Bounded++
			s.open = min(s.open, least)
			if i == 0 { // what is computed again only adds time, and is no smaller by this bound
				return all
			}
			continue
		}
		all = s.scheduled(l, k, &e, all)
	}
	return all
}

// scheduled adds the leaves that differ in schedule and split alone.
func (s *searcher) scheduled(l Layout, k *kin, e *estimate, all []leaf) []leaf {
	s.scale.ready = false
	s.pipelines(l, func(l Layout) {
		seconds, bytes := e.seconds(l), e.bytes(l)
		if bytes > s.room {
			s.tooBig(l, bytes)
			return
		}
		s.open = min(s.open, seconds)
		if seconds > s.wide() || s.behind(&s.at, seconds, bytes) {
			s.out.Bounded++
		} else {
			all = s.cut(l, k, e, all)
		}
	})
	return all
}

// cut adds the splits of a leaf that may be kept.
func (s *searcher) cut(l Layout, k *kin, e *estimate, all []leaf) []leaf {
	p := &s.trial
	*p = pricer{m: s.m, mc: s.mc, l: l, f: s.f, h: s.h, t: s.t, tc: s.at.tc, times: k.times, sends: k.sends, scratch: p.scratch}
	alive := p.known()
	if alive != nil {
		p.scratch.alive = alive
	}
	if !s.scale.ready {
		s.scale.set(&s.at, s.factor)
	}
	if s.even {
		s.counts = splitInto(s.counts, s.m.Layers, l.PP*l.VPP, 0, 0)
		return s.add(all, l, k, s.counts, alive)
	}
	most := s.m.Layers
	w := &e.work[b2i(l.EPOverlap)]
	for limit := s.wide() / float64(l.MicroBatches()) * (1 + 1e-9); most > 0 && w.slower.of(most, w.light) > limit; {
		most--
	}
	s.splits(l, most, func(l Layout, counts []int) {
		all = s.add(all, l, k, counts, alive)
	})
	return all
}

// add adds a leaf unless a bound excludes it. alive is how many chunks each rank holds at once, where that is known.
func (s *searcher) add(all []leaf, l Layout, k *kin, counts []int, alive []float64) []leaf {
	if !s.scale.quick(&l, k.sends.hops, counts, s.wide()) {
		s.out.Bounded++
		return all
	}
	if bytes := s.scale.bytesOf(&l, alive); bytes > s.room*rounding {
		s.tooBig(l, bytes)
		return all
	}
	p := &s.trial
	*p = pricer{m: s.m, mc: s.mc, l: l, f: s.f, h: s.h, t: s.t, tc: s.at.tc, times: k.times, cut: counts, sends: k.sends, scratch: p.scratch}
	stages := p.stages(s.factor)
	p.scratch.chunks = stages
	least := p.least(stages)
	p.scratch.held = p.held
	if least > s.wide() {
		s.out.Bounded++
		return all
	}
	peak := 0.0
	if alive == nil {
		alive = p.atLeast(stages)
	}
	if alive != nil {
		for _, f := range p.footprints(alive) {
			peak = max(peak, f.peak)
		}
		p.scratch.begins = p.begins
	}
	if peak > s.room {
		s.tooBig(l, peak)
		return all
	}
	if s.behind(p, least, peak) {
		s.out.Bounded++
		return all
	}
	if l.Check(s.m, 0) != nil {
		return all
	}
	kept := newPricer(s.m, s.mc, s.f, l, s.h)
	kept.times, kept.cut, kept.sends = k.times, slices.Clone(counts), k.sends
	return append(all, leaf{kept, slices.Clone(stages), least, peak})
}

// behind reports whether a layout with these lower bounds can be neither a candidate nor on the front: a known one has no more of both.
func (s *searcher) behind(p *pricer, seconds, bytes float64) bool {
	if seconds <= s.kept() || bytes == 0 {
		return false
	}
	peak, _, _ := p.settled(bytes, p.spare())
	for _, c := range s.fit {
		if c.Step > seconds*s.slow {
			return false
		}
		if c.Peak <= peak {
			return true
		}
	}
	return false
}

// price prices a leaf in full and keeps it if it fits.
func (s *searcher) price(x leaf) {
	q := s.question(x.p.l)
	c, err := x.p.price(q, s.factor, s.from, x.stages, s.wide())
	if err != nil {
		return
	}
	if c == nil {
		s.out.Bounded++
		return
	}
	s.out.Priced++
	if s.w.Progress != nil && s.out.Priced%64 == 0 && len(s.fit) > 0 {
		s.w.Progress(s.out.Priced, s.fit[0].Step)
	}
	if c.Over > -s.w.Reserve*c.Capacity {
		if s.out.Over == nil || c.Over < s.out.Over.Over {
			s.out.Over = c
		}
		return
	}
	s.keep(c)
}

// keep adds a candidate, or puts it in the place of the same layout with a slower split.
func (s *searcher) keep(c *Cost) {
	key := uncut(c.Layout)
	if other := s.known[key]; other != nil {
		if other.Step <= c.Step {
			return
		}
		s.fit = slices.DeleteFunc(s.fit, func(o *Cost) bool { return o == other })
	}
	s.known[key] = c
	at := sort.Search(len(s.fit), func(i int) bool { return s.fit[i].Step > c.Step })
	s.fit = slices.Insert(s.fit, at, c)
}

// uncut names a layout without its split.
func uncut(l Layout) string {
	l.FirstLess, l.LastLess = 0, 0
	return l.String()
}

// unseen is more than any GPU has: a family of which only one micro-batch's buffers are known is no answer while there are others.
const unseen = 1e18

// tooBig notes a layout that does not fit, or a family of which it is the smallest.
func (s *searcher) tooBig(l Layout, bytes float64) {
	s.out.TooBig++
	if bytes < s.small && l.Check(s.m, 0) == nil {
		s.small, s.least = bytes, l
	}
}

// nothing answers where no layout fits, or none can run.
func (s *searcher) nothing() (*Found, error) {
	if !math.IsInf(s.small, 1) {
		if c, err := price(s.question(s.least), habits, math.Inf(1)); err == nil && (s.out.Over == nil || c.Over < s.out.Over.Over) {
			s.out.Over = c
		}
	}
	if s.out.Over == nil {
		return nil,
			fmt.Errorf("no layout of %s on up to %d GPUs can run batch %d: a batch that is a multiple of the data ranks is needed, and heads, layers and experts that divide",
				s.m.Name, s.gpus, s.w.Batch)
	}
	s.out.Over.Nearest = nearestPoint(s.question(s.out.Over.Layout))
	return s.out, nil
}

// convolutions prices data parallelism, which is all that a convolutional network is planned with.
func (s *searcher) convolutions() {
	for _, dp := range divisors(s.w.Batch) {
		for _, micro := range divisors(s.w.Batch / dp) {
			for _, zero := range s.zeros(1) {
				l := s.base
				l.DP, l.Micro, l.ETP, l.ZeRO = dp, micro, 1, zero
				if dp <= s.gpus && l.Check(s.m, 0) == nil {
					s.price(leaf{p: newPricer(s.m, s.mc, s.f, l, s.h)})
				}
			}
		}
	}
}

// Beside says why one layout is faster than another, term by term, the largest difference first.
func Beside(winner, other *Cost) []string {
	if winner.Why == nil || other.Why == nil {
		return nil
	}
	flat := func(c *Cost) map[string]float64 {
		out := map[string]float64{}
		var walk func(Term, int)
		walk = func(t Term, depth int) {
			if depth > 0 && len(t.Terms) == 0 || depth == 2 {
				out[t.Name] = t.Value
			}
			if depth < 2 {
				for _, x := range t.Terms {
					walk(x, depth+1)
				}
			}
		}
		walk(*c.Why, 0)
		return out
	}
	a, b := flat(winner), flat(other)
	type diff struct {
		name string
		by   float64
	}
	var all []diff
	for _, name := range []string{"busy", "idle", "gradients", "parameters", "first gather and last reduction", "optimizer"} {
		if d := b[name] - a[name]; math.Abs(d) > .002*winner.Step {
			all = append(all, diff{name, d})
		}
	}
	sort.SliceStable(all, func(i, j int) bool { return math.Abs(all[i].by) > math.Abs(all[j].by) })
	var out []string
	for _, d := range all {
		word := "more"
		if d.by < 0 {
			word = "less"
		}
		out = append(out, fmt.Sprintf("%s: %.3g s %s", d.name, math.Abs(d.by), word))
	}
	return out
}

// Change is what a change of the machine would do for a plan.
type Change struct {
	What string  `json:"what"`
	Step float64 `json:"step_s"`
	Gain float64 `json:"gain"` // share of the step saved
}

// Changes prices the best layouts again on machines that have more of one thing.
func Changes(q Question, layouts []Layout) []Change {
	var out []Change
	base, err := Price(q)
	if err != nil {
		return nil
	}
	try := func(what string, mc *Machine) {
		best := math.Inf(1)
		for _, l := range layouts {
			x := q
			x.Machine, x.Layout, x.Why = mc, l, false
			if c, err := Price(x); err == nil && c.Fits {
				best = min(best, c.Step)
			}
		}
		if !math.IsInf(best, 1) {
			out = append(out, Change{what, best, 1 - best/base.Step})
		}
	}
	more := func(change func(*Machine)) *Machine {
		m := *q.Machine
		m.times, m.products = map[call]spoken{}, nil
		change(&m)
		return &m
	}
	if q.Machine.Domain < q.Machine.GPUs {
		try("twice the NICs", more(func(m *Machine) { m.faster = 2; m.NIC *= 2 }))
		try(fmt.Sprintf("NVLink domains of %d GPUs", 2*q.Machine.Domain), more(func(m *Machine) { m.wider = 2 * m.Domain; m.Domain *= 2 }))
	}
	try("memory twice as fast", more(func(m *Machine) { m.Chip.HBM *= 2 }))
	slices.SortStableFunc(out, func(a, b Change) int {
		if a.Step < b.Step {
			return -1
		}
		return 1
	})
	return out
}
