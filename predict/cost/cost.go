// Package cost gives a program its time by closed forms and by replay over
// measured links, and picks the cheapest.
//
//	Work, closed forms (Algos) ──► Model: AlphaBeta, Flat ──┐
//	Program ──► Links.Replay, message by message ───────────┴─► time ─► Select
//
// Links is what processes measure of one another when they meet; comm chooses
// programs by it. Nothing here knows of GPUs, catalogues or topologies: what NCCL
// does on those is package tune.
package cost

import (
	"fmt"
	"math"
	"math/bits"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/unit"
)

// Work is what a program asks of the busiest rank: messages one after the other, bytes over its links one way (sent or
// received, whichever is more), and bytes it adds up.
type Work struct {
	Steps   float64 `json:"steps"`
	Wire    float64 `json:"wire_bytes"`
	Reduced float64 `json:"reduced_bytes"`
}

// Model gives a cost its time.
type Model interface {
	Time(c Work) unit.Time
}

// AlphaBeta is the alpha-beta-gamma model:
//
//	L = Launch + Alpha * steps
//	W = wire bytes * Beta + reduced bytes * Gamma
//	t = (L^Overlap + W^Overlap)^(1/Overlap)
//
// With Overlap 1, also taken for 0, it is the textbook sum.
type AlphaBeta struct {
	Launch  float64 // us
	Alpha   float64 // us a step
	Beta    float64 // us a byte over the wire
	Gamma   float64 // us a byte reduced
	Overlap float64
}

// Time is the model's time of a cost.
func (m AlphaBeta) Time(c Work) unit.Time { return Span(m.Micros(c)) }

// Micros is the same in microseconds.
func (m AlphaBeta) Micros(c Work) float64 {
	p := m.Overlap
	if p <= 0 {
		p = 1
	}
	return Join(m.Launch+m.Alpha*c.Steps, m.Beta*c.Wire+m.Gamma*c.Reduced, p)
}

// Algo is an algorithm as Select sees it.
type Algo struct {
	Name string
	Cost func(bytes unit.Bytes) Work
}

// Algos lists the algorithms of a collective over n ranks with what they ask of the busiest rank for a buffer of S bytes, in
// closed form. Names are those of package algo, and a test counts its programs. At powers of two, log being log2 n:
//
//	                               steps     bytes        reduced
//	all-reduce  ring               2(n-1)    2S(n-1)/n    S(n-1)/n
//	            double-binary-tree 2 log     2S           S              pipelined: steps of one piece
//	            recursive-doubling log       S log        S log
//	            rabenseifner       2 log     2S(n-1)/n    S(n-1)/n
//	            direct             2         2S(n-1)/n    S(n-1)/n       every pair at once
//	all-gather  ring, halving-doubling, direct: half of the above; bruck log and S(n-1)/n, reduce-scatter likewise but for bruck
//	broadcast   ring n-1 and S, double-binary-tree log and S; reduce likewise
//	all-to-all  pairwise n-1 and S(n-1)/n, bruck log and S/2 log, direct 1
//	gather      direct 1 and S(n-1)/n, binomial log and S(n-1)/n; scatter likewise
//	barrier     recursive-doubling, dissemination: log
//
// Between powers of two trees, bruck and dissemination round log up, and binomial down. The others fold: some ranks hand all
// they have to a neighbour before and get the result after, which costs steps and about S each way.
func Algos(op sched.Collective, n int) ([]Algo, error) {
	if n < 1 {
		return nil, fmt.Errorf("%d ranks; at least 1 expected", n)
	}
	f := formsOf(n)
	switch op {
	case sched.AllReduce:
		return []Algo{
			f.ring(2, 2*f.share, f.share),
			f.form("double-binary-tree", 2*f.up, min(2, f.ranks/2), min(1, (f.ranks-1)/2)),
			f.form("recursive-doubling", f.folded, f.down+f.fold, f.down+f.fold),
			f.form("rabenseifner", 2*f.down+3*f.fold, 2*f.core+1.5*f.fold, f.core+.5*f.fold),
			f.form("direct", 2, 2*f.share, f.share),
		}, nil
	case sched.ReduceScatter:
		return []Algo{f.ring(1, f.share, f.share), f.form("halving-doubling", f.folded, f.halves, f.halves),
			f.form("direct", 1, f.share, f.share)}, nil
	case sched.AllGather:
		return []Algo{f.ring(1, f.share, 0), f.form("halving-doubling", f.folded, f.halves, 0), f.form("bruck", f.up, f.share, 0),
			f.form("direct", 1, f.share, 0)}, nil
	case sched.Broadcast:
		return []Algo{f.ring(1, 1, 0), f.form("double-binary-tree", f.up, 1, 0)}, nil
	case sched.Reduce:
		return []Algo{f.ring(1, 1, 1), f.form("double-binary-tree", f.up, 1, 1)}, nil
	case sched.AllToAll:
		return []Algo{f.form("pairwise", f.ranks-1, f.share, 0), f.form("bruck", f.up, f.bits, 0), f.form("direct", 1, f.share, 0)}, nil
	case sched.Gather, sched.Scatter:
		return []Algo{f.form("direct", 1, f.share, 0), f.form("binomial", f.down, f.share, 0)}, nil
	case sched.SendRecv:
		return []Algo{f.form("direct", 1, 1, 0)}, nil
	case sched.Barrier:
		return []Algo{f.form("recursive-doubling", f.folded, 0, 0), f.form("dissemination", f.up, 0, 0)}, nil
	}
	return nil, fmt.Errorf("no closed form for %s", op)
}

// forms is what closed forms are made of, for one number of ranks.
type forms struct {
	ranks, share float64 // n and (n-1)/n
	up, down     float64 // log2 n rounded up and down
	fold         float64 // 1 between powers of two, where some ranks fold into others, else 0
	core         float64 // (p-1)/p of the p ranks that are left then, the highest power of two
	folded       float64 // steps of an exchange between these, with the steps before and after it
	halves       float64 // S that the busiest of them receives in it, where each ends with its own part
	bits         float64 // S that a rank passes on if block k travels once for each set bit of k
}

// formsOf counts what algorithms over powers of two cost on n ranks. Where n is no power of two, the ranks beyond the
// largest one fold: they give their input to a partner first, and get the result from it last.
func formsOf(n int) forms {
	p := 1 << (bits.Len(uint(n)) - 1)
	extra := n - p // ranks that fold
	f := forms{ranks: float64(n), share: float64(n-1) / float64(n), up: float64(bits.Len(uint(n - 1))), down: float64(bits.Len(uint(p)) - 1),
		core: float64(p-1) / float64(p)}
	f.folded = f.down
	if extra > 0 {
		// The longest chain crosses all bits, so it ends opposite to where it began. It folds at both ends if more than half fold.
		f.fold, f.folded = 1, f.down+1
		if extra > p/2 {
			f.folded++
		}
	}
	// With each step a rank is left with half of the ranks, and with as many of those that folded as there can be among them.
	kept := 0
	for half := p / 2; half > 0; half /= 2 {
		kept += half + min(extra, half)
	}
	f.halves = f.fold + float64(kept)/f.ranks
	ones := 0
	for bit := 1; bit < n; bit *= 2 {
		ones += n/(2*bit)*bit + max(0, n%(2*bit)-bit)
	}
	f.bits = float64(ones) / f.ranks
	return f
}

// form is an algorithm by its steps and the parts of S; one rank has nothing to do.
func (f *forms) form(name string, steps, wire, reduced float64) Algo {
	if f.ranks == 1 {
		steps, wire, reduced = 0, 0, 0
	}
	return Algo{name, func(b unit.Bytes) Work {
		s := max(float64(b), 0)
		return Work{steps, wire * s, reduced * s}
	}}
}

// ring is a ring that is gone round some times.
func (f *forms) ring(rounds, wire, reduced float64) Algo {
	return f.form("ring", rounds*(f.ranks-1), wire, reduced)
}

// Span turns microseconds into a Time, and what no Time can hold into the longest.
func Span(us float64) unit.Time {
	if math.IsNaN(us) || us*1e6 >= math.MaxInt64 {
		return math.MaxInt64
	}
	return unit.Time(math.Round(us * 1e6))
}

// Join joins two spans that overlap in part: (a^p + b^p)^(1/p).
func Join(a, b, p float64) float64 {
	big, small := max(a, b), min(a, b)
	if small <= 0 {
		return big
	}
	return big * math.Pow(1+math.Pow(small/big, p), 1/p)
}
