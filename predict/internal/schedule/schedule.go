// Package schedule simulates a pipeline schedule: every forward, backward and weight-gradient pass of
// every micro-batch on every rank runs when its inputs have arrived.
//
//	rank 0  F0 F1 F2 F3       B0 F4 B1 ...
//	rank 1     F0 F1 F2    B0 F3 B1 ...
//	rank 2        F0 F1 B0 F2 B1 ...
//	rank 3           F0 B0 F1 B1 ...
//
// Step time, waiting times and live activations follow from the run; no bubble formula is used. Kinds
// with a published order (gpipe, 1f1b, interleaved, zb-h1, zb-h2) keep it. In dualpipe a rank takes the
// first of: a backward pass, a forward pass if memory allows, a weight gradient. zb-v keeps the order that
// this gives for passes of equal length; zb-1p and zb-2p take the better of both.
package schedule

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Kind is a schedule by name.
type Kind string

// The kinds.
const (
	GPipe       Kind = "gpipe"
	OneFOneB    Kind = "1f1b"
	Interleaved Kind = "interleaved"
	ZBH1        Kind = "zb-h1"
	ZBH2        Kind = "zb-h2"
	ZB1P        Kind = "zb-1p"
	ZB2P        Kind = "zb-2p"
	ZBV         Kind = "zb-v"
	DualPipe    Kind = "dualpipe"
)

// Kinds lists them.
func Kinds() []Kind {
	return []Kind{GPipe, OneFOneB, Interleaved, ZBH1, ZBH2, ZB1P, ZB2P, ZBV, DualPipe}
}

// ParseKind reads a name.
func ParseKind(s string) (Kind, error) {
	k := Kind(strings.ToLower(strings.ReplaceAll(s, "_", "-")))
	switch k {
	case "zbh1":
		k = ZBH1
	case "zbv", "zbvzerobubble":
		k = ZBV
	case "1f1b-i", "interleaved1f1b", "vpp", "interleaved-1f1b":
		k = Interleaved
	}
	if slices.Contains(Kinds(), k) {
		return k, nil
	}
	var names []string
	for _, k := range Kinds() {
		names = append(names, string(k))
	}
	return "", fmt.Errorf("unknown schedule %q; known: %s", s, strings.Join(names, ", "))
}

// ParseKinds reads names joined by commas; "all" means all, and no name means none.
func ParseKinds(s string) (out []Kind, err error) {
	for _, name := range strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' }) {
		if strings.EqualFold(name, "all") {
			return Kinds(), nil
		}
		k, err := ParseKind(name)
		if err != nil {
			return nil, err
		}
		out = append(out, k)
	}
	return out, nil
}

// Splits reports whether a kind runs weight gradients apart from input gradients.
func (k Kind) Splits() bool {
	switch k {
	case ZBH1, ZBH2, ZB1P, ZB2P, ZBV, DualPipe:
		return true
	}
	return false
}

// Copies is how often each rank holds the parameters of a stage: two in DualPipe, where both
// directions run at once.
func (k Kind) Copies() int {
	if k == DualPipe {
		return 2
	}
	return 1
}

// Cost is what the passes of one chunk of layers take, in seconds.
type Cost struct{ F, B, W float64 }

// Pipe is what to run.
type Pipe struct {
	Kind   Kind
	Ranks  int
	Chunks int // of layers a rank; 1 unless interleaved (ZB-V has 2)
	Micro  int // micro-batches
	Cost   []Cost
	// Hops is the time of an activation from each rank to the next, and from the last to the first; none for no time.
	// Sync means that a rank computes nothing while it sends.
	Hops []float64
	Sync bool
	// Trace asks for the spans.
	Trace bool
}

// Span is one pass of a rank.
type Span struct {
	Rank, Chunk, Micro int
	Pass               byte // 'F', 'B' (with W where they are not apart), 'W'
	Begin, End         float64
}

// Result is what a run gave.
type Result struct {
	Time float64 // from the first pass to the last
	// Period is that of a step in a row of steps: Time, or where ranks check gradients later and begin the next step without waiting for one
	// another (zero-bubble kinds but zb-v), the longest of a rank.
	Period float64
	Busy   []float64 // by rank
	Alive  []int     // by rank: most chunk activations held at once
	Bubble float64   // share of the time that the busiest rank is idle
	Spans  []Span
	// LastB is, by rank, when the last micro-batch's backward begins; the rest may hide gradients.
	LastB []float64
}

// Check reports what makes a pipe impossible.
func (p Pipe) Check() error {
	switch {
	case len(p.Cost) != p.Ranks*p.Chunks:
		return fmt.Errorf("%d costs for %d chunks", len(p.Cost), p.Ranks*p.Chunks)
	case len(p.Hops) != 0 && len(p.Hops) != p.Ranks:
		return fmt.Errorf("%d hops between %d ranks", len(p.Hops), p.Ranks)
	}
	return p.Legal()
}

// Legal reports why no pipe of this kind, with these numbers of ranks, chunks and micro-batches, can run.
func (p Pipe) Legal() error {
	switch {
	case p.Ranks < 1 || p.Micro < 1 || p.Chunks < 1:
		return fmt.Errorf("a pipeline needs ranks, chunks and micro-batches of at least 1; there are %d, %d and %d", p.Ranks, p.Chunks, p.Micro)
	case p.Kind == Interleaved && p.Chunks > 1 && p.Micro%p.Ranks != 0:
		return fmt.Errorf("interleaved schedules need micro-batches in multiples of pp: %d micro-batches, pp %d", p.Micro, p.Ranks)
	case p.Kind == ZBV && p.Chunks != 2:
		return fmt.Errorf("zb-v has two chunks a rank; there are %d", p.Chunks)
	case p.Kind == DualPipe && (p.Ranks%2 != 0 || p.Micro%2 != 0):
		return fmt.Errorf("dualpipe needs even numbers of stages and of micro-batches; there are %d and %d", p.Ranks, p.Micro)
	case p.Kind != Interleaved && p.Kind != ZBV && p.Chunks != 1:
		return fmt.Errorf("%s has one chunk a rank; there are %d", p.Kind, p.Chunks)
	}
	return nil
}

// Holds is what a run gives as Alive of a rank, known before it; false for kinds without a published order.
func (p Pipe) Holds(rank int) (int, bool) {
	switch {
	case p.Kind == ZBH1 || p.Kind == ZBH2:
		return p.inOrder(rank), true
	case p.Kind.Splits():
		return 0, false
	case p.Kind == GPipe:
		return p.Micro, true
	case p.Chunks == 1:
		return min(p.Micro, p.Ranks-rank), true
	}
	return min(p.ahead(rank)+1, p.Micro*p.Chunks), true
}

// inOrder is what a rank of the zero-bubble kinds holds in the order that order gives: the micro-batches that it is ahead by, those whose
// weight gradients it holds back, and the one at hand.
func (p Pipe) inOrder(rank int) int {
	n := p.Ranks
	if p.Kind == ZBH2 || p.Kind == ZB2P {
		n = 2*n - 1
	}
	return min(n, p.Micro)
}

// ahead is how many forward passes a rank of an interleaved schedule runs before its first backward pass and the forward pass before that.
// Megatron until core 0.8 ran all of them first where there are as many micro-batches as ranks; since 0.10 it does not.
func (p Pipe) ahead(rank int) int {
	return min(p.Micro*p.Chunks, (p.Ranks-rank-1)*2+(p.Chunks-1)*p.Ranks)
}

// hop is the time of an activation between two ranks, either way.
func (p Pipe) hop(a, b int) float64 {
	if a > b {
		a, b = b, a
	}
	switch {
	case a == b || len(p.Hops) == 0:
		return 0
	case a == 0 && b == p.Ranks-1 && p.Ranks > 2:
		return p.Hops[b]
	}
	return p.Hops[a]
}

// rankOf says who runs virtual stage s. In a V the second half runs backwards.
func (p Pipe) rankOf(s int) int {
	if p.Kind == ZBV && s >= p.Ranks {
		return 2*p.Ranks - 1 - s
	}
	return s % p.Ranks
}

// Run runs it.
func (p Pipe) Run() (*Result, error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	if p.Ranks == 1 && p.Chunks == 1 && !p.Trace {
		c := p.Cost[0]
		t := float64(p.Micro) * (c.F + c.B + c.W)
		alive := 1
		if p.Kind == GPipe {
			alive = p.Micro
		}
		return &Result{Time: t, Period: t, Busy: []float64{t}, Alive: []int{alive}, LastB: []float64{t - c.B - c.W}}, nil
	}
	switch p.Kind {
	case ZBV:
		r, _, err := p.walk(p.fixed().ranks)
		return r, err
	case DualPipe:
		return p.greedy(), nil
	case ZBH1, ZBH2:
		return p.ordered()
	case ZB1P, ZB2P: // found by a search in the paper: the better of two ways here
		a, err := p.ordered()
		if err != nil {
			return nil, err
		}
		b, _, err := p.walk(p.fixed().ranks)
		if err == nil && b.Period < a.Period {
			return b, nil
		}
		return a, err
	}
	return p.ordered()
}

type pass struct {
	kind  byte
	stage int
	micro int
}

// order is the published sequence of a rank.
func (p Pipe) order(rank int) []pass {
	each := 2 // passes of a micro-batch
	if p.Kind.Splits() {
		each = 3
	}
	seq := make([]pass, 0, each*p.Micro*p.Chunks)
	n := p.Ranks
	switch {
	case p.Kind == GPipe:
		for j := range p.Micro {
			seq = append(seq, pass{'F', rank, j})
		}
		for j := range p.Micro {
			seq = append(seq, pass{'B', rank, j})
		}
	case p.Kind.Splits():
		// Rank i runs ahead by as many forward passes as memory allows and holds weight gradients
		// back, i of them with the memory of 1F1B (H1) and 2i with twice that (H2), so that all
		// ranks end together.
		ahead, behind := n-1-rank, rank
		if p.Kind == ZBH2 || p.Kind == ZB2P {
			ahead, behind = 2*(n-1-rank), 2*rank
		}
		ahead = min(ahead, p.Micro)
		for j := range ahead {
			seq = append(seq, pass{'F', rank, j})
		}
		w := 0
		for j := range p.Micro {
			if j+ahead < p.Micro {
				seq = append(seq, pass{'F', rank, j + ahead})
			}
			seq = append(seq, pass{'B', rank, j})
			if j >= behind {
				seq = append(seq, pass{'W', rank, w})
				w++
			}
		}
		for ; w < p.Micro; w++ {
			seq = append(seq, pass{'W', rank, w})
		}
	case p.Chunks == 1:
		warm := min(p.Micro, n-1-rank)
		for j := range warm {
			seq = append(seq, pass{'F', rank, j})
		}
		for j := warm; j < p.Micro; j++ {
			seq = append(seq, pass{'F', rank, j}, pass{'B', rank, j - warm})
		}
		for j := p.Micro - warm; j < p.Micro; j++ {
			seq = append(seq, pass{'B', rank, j})
		}
	default:
		// Megatron's order: groups of n micro-batches pass chunk 0, then chunk 1, and so on.
		total := p.Micro * p.Chunks
		f, b := turn{pipe: &p, kind: 'F', rank: rank}, turn{pipe: &p, kind: 'B', rank: rank}
		warm := p.ahead(rank)
		for range warm {
			seq = append(seq, f.next())
		}
		for range total - warm {
			seq = append(seq, f.next(), b.next())
		}
		for range warm {
			seq = append(seq, b.next())
		}
	}
	return seq
}

// turn gives the passes of one kind of a rank in Megatron's interleaved order.
type turn struct {
	pipe *Pipe
	kind byte
	rank int

	group, chunk, micro int // micro-batches that went before, and where it is among those of the group
}

func (t *turn) next() pass {
	chunk := t.chunk
	if t.kind == 'B' {
		chunk = t.pipe.Chunks - 1 - chunk
	}
	out := pass{t.kind, chunk*t.pipe.Ranks + t.rank, t.group + t.micro}
	if t.micro++; t.micro == t.pipe.Ranks {
		t.micro = 0
		if t.chunk++; t.chunk == t.pipe.Chunks {
			t.chunk, t.group = 0, t.group+t.pipe.Ranks
		}
	}
	return out
}

// ordered runs the sequences of the ranks: each pass starts when its rank is free and its input is there.
func (p Pipe) ordered() (*Result, error) {
	if r := p.steady(); r != nil {
		return r, nil
	}
	r, _, err := p.walk(p.inTurn())
	return r, err
}

// steady runs a long pipeline by a short one, or gives nil. Times of passes are sums and maxima of earlier ones, so what is late by
// as much as its inputs stays so: once every pass of three groups of micro-batches is later than the same pass of the group before by one
// and the same time, all that follow are, and so are the last ones, in which the pipeline runs empty. No pass waits for one that is more
// than three groups away.
//
//	groups   0 1 2 3 4 5 6 7        forward, each group compared with the next from 3 on
//	               0 1 2 3 4 5 6 7  backward, from 2 to 5; then the pipeline runs empty
func (p Pipe) steady() *Result {
	if p.Trace || p.Kind != OneFOneB && p.Kind != Interleaved {
		return nil
	}
	const groups = 8
	for short := groups * p.Ranks; short <= p.Micro/2; short *= 2 {
		q := p
		q.Micro = short + p.Micro%p.Ranks
		r, done, err := q.walk(q.inTurn())
		if err != nil {
			return nil
		}
		if period, ok := done.period(q, groups*p.Ranks); ok {
			return p.stretched(r, done, (p.Micro-q.Micro)/p.Ranks, period)
		}
	}
	return nil
}

// times is when the passes of a run ended, by stage and micro-batch, and when ranks began and ended.
type times struct {
	forward, backward []float64
	first, last       []float64
}

// period is the time from each of the last steady groups of micro-batches to the next, if it is one for all.
func (t *times) period(p Pipe, window int) (float64, bool) {
	n, group := p.Micro, p.Ranks
	period := t.forward[n-1] - t.forward[n-1-group]
	same := func(done []float64, from, to int) bool {
		for stage := range group * p.Chunks {
			x := done[stage*n : (stage+1)*n]
			for j := from; j < to; j++ {
				if math.Abs(x[j+group]-x[j]-period) > 1e-11*x[j+group] {
					return false
				}
			}
		}
		return true
	}
	begin := n - window // of the last eight groups
	return period, same(t.forward, begin+3*group, n-group) && same(t.backward, begin+2*group, begin+5*group)
}

// stretched is a run of more groups of micro-batches than r.
func (p Pipe) stretched(r *Result, t *times, groups int, period float64) *Result {
	later := float64(groups) * period
	r.Time += later
	for rank := range p.Ranks {
		t.last[rank] += later
		r.LastB[rank] += later
		for v := range p.Chunks {
			c := p.Cost[v*p.Ranks+rank]
			r.Busy[rank] += float64(groups*p.Ranks) * (c.F + c.B + c.W)
		}
	}
	r.finish(p, t.first, t.last)
	return r
}

// inTurn is the published sequences of all ranks.
func (p Pipe) inTurn() [][]pass {
	seqs := make([][]pass, p.Ranks)
	for i := range seqs {
		seqs[i] = p.order(i)
	}
	return seqs
}

// walk runs sequences pass by pass.
func (p Pipe) walk(seqs [][]pass) (*Result, *times, error) {
	stages := p.Ranks * p.Chunks
	doneF := make([]float64, stages*p.Micro)
	doneB := make([]float64, stages*p.Micro)
	for i := range doneF {
		doneF[i], doneB[i] = math.NaN(), math.NaN()
	}
	r := &Result{Busy: make([]float64, p.Ranks), Alive: make([]int, p.Ranks), LastB: make([]float64, p.Ranks)}
	first, last := make([]float64, p.Ranks), make([]float64, p.Ranks)
	at, free, alive := make([]int, p.Ranks), make([]float64, p.Ranks), make([]int, p.Ranks)
	before, after := p.crossings()
	for moved := true; moved; {
		moved = false
		for rank := range p.Ranks {
			for at[rank] < len(seqs[rank]) {
				x := seqs[rank][at[rank]]
				ready := 0.0
				switch {
				case x.kind == 'W':
				case x.kind == 'F' && x.stage > 0:
					ready = doneF[(x.stage-1)*p.Micro+x.micro] + before[x.stage]
				case x.kind == 'B' && x.stage == stages-1:
					ready = doneF[x.stage*p.Micro+x.micro]
				case x.kind == 'B':
					ready = doneB[(x.stage+1)*p.Micro+x.micro] + after[x.stage]
				}
				if math.IsNaN(ready) {
					break
				}
				begin := max(ready, free[rank])
				c := p.Cost[x.stage]
				took := c.F
				switch {
				case x.kind == 'W':
					took = c.W
				case x.kind == 'B' && p.Kind.Splits():
					took = c.B
				case x.kind == 'B':
					took = c.B + c.W
				}
				end := begin + took
				switch x.kind {
				case 'F':
					doneF[x.stage*p.Micro+x.micro] = end
					alive[rank]++
					r.Alive[rank] = max(r.Alive[rank], alive[rank])
				case 'W':
					alive[rank]--
				default:
					doneB[x.stage*p.Micro+x.micro] = end
					if !p.Kind.Splits() {
						alive[rank]--
					}
					if x.micro == p.Micro-1 && (r.LastB[rank] == 0 || x.stage/p.Ranks == p.Chunks-1 || p.Kind == ZBV) {
						r.LastB[rank] = begin
					}
				}
				if at[rank] == 0 {
					first[rank] = begin
				}
				last[rank] = end
				free[rank] = end + p.blocked(rank, x.stage, x.kind)
				r.Busy[rank] += took
				if p.Trace {
					r.Spans = append(r.Spans, Span{rank, x.stage / p.Ranks, x.micro, x.kind, begin, end})
				}
				r.Time = max(r.Time, end)
				at[rank]++
				moved = true
			}
		}
	}
	for rank := range p.Ranks {
		if at[rank] < len(seqs[rank]) {
			return nil, nil, fmt.Errorf("schedule %s with %d ranks, %d chunks, %d micro-batches does not finish", p.Kind, p.Ranks, p.Chunks,
				p.Micro)
		}
	}
	r.finish(p, first, last)
	return r, &times{doneF, doneB, first, last}, nil
}

// crossings gives the time of an activation from the stage before each, and of a gradient from the stage after it.
func (p Pipe) crossings() (before, after []float64) {
	stages := p.Ranks * p.Chunks
	before, after = make([]float64, stages), make([]float64, stages)
	for s := range stages {
		if s > 0 {
			before[s] = p.hop(p.rankOf(s-1), p.rankOf(s))
		}
		if s < stages-1 {
			after[s] = p.hop(p.rankOf(s+1), p.rankOf(s))
		}
	}
	return before, after
}

// blocked is how long a rank waits for what a pass sends.
func (p Pipe) blocked(rank, stage int, kind byte) float64 {
	switch {
	case !p.Sync:
	case kind == 'F' && stage < p.Ranks*p.Chunks-1:
		return p.hop(rank, p.rankOf(stage+1))
	case kind == 'B' && stage > 0:
		return p.hop(rank, p.rankOf(stage-1))
	}
	return 0
}

// finish derives what follows from when ranks began and ended.
func (r *Result) finish(p Pipe, begin, end []float64) {
	r.Period = r.Time
	if p.Kind.Splits() && p.Kind != ZBV {
		r.Period = 0
		for i := range begin {
			r.Period = max(r.Period, end[i]-begin[i])
		}
	}
	if r.Period > 0 {
		r.Bubble = 1 - slices.Max(r.Busy)/r.Period
	}
}
