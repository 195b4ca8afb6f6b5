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

// Work is what a program asks of the busiest rank: steps one after the other,
// bytes sent over its links one way, and bytes it adds up. collective/verify reports
// the same figures of a program; Algos has them in closed form.
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

// Algos lists closed forms for n ranks: steps, bytes a rank sends and bytes it
// reduces, for a buffer of S bytes. log is log2 n rounded up.
//
//	all-reduce      ring                 2(n-1)   2S(n-1)/n    S(n-1)/n
//	                double-binary-tree   2 log    2S           S             pipelined
//	                recursive-doubling   log      S log        S log
//	                rabenseifner         2 log    2S(n-1)/n    S(n-1)/n
//	                direct               2        2S(n-1)/n    S(n-1)/n      every pair at once
//	reduce-scatter  ring, halving, direct: half of the above; all-gather likewise, Bruck for any n
//	broadcast       ring n-1 + S, double-binary-tree log + S; reduce likewise
//	all-to-all      pairwise n-1 + S(n-1)/n, bruck log + S/2 log
//
// Ranks that are no power of two cost recursive doubling and Rabenseifner a step
// and a buffer more, before and after.
func Algos(op sched.Collective, n int) ([]Algo, error) {
	if n < 1 {
		return nil, fmt.Errorf("%d ranks; at least 1 expected", n)
	}
	ranks := float64(n)
	share := (ranks - 1) / ranks
	log := 0.0
	if n > 1 {
		log = float64(bits.Len(uint(n - 1)))
	}
	fold := 0.0 // whether some ranks fold into others first
	if n&(n-1) != 0 {
		fold = 1
	}
	floor := math.Floor(math.Log2(ranks))
	form := func(name string, steps, wire, reduced float64) Algo {
		return Algo{name, func(b unit.Bytes) Work {
			s := max(float64(b), 0)
			return Work{steps, wire * s, reduced * s}
		}}
	}
	switch op {
	case sched.AllReduce:
		return []Algo{
			form("ring", 2*(ranks-1), 2*share, share),
			form("double-binary-tree", 2*log, 2*min(1, ranks-1), min(1, ranks-1)),
			form("recursive-doubling", floor+2*fold, floor+2*fold, floor+fold),
			form("rabenseifner", 2*floor+2*fold, 2*share+2*fold, share+fold),
			form("direct", min(2, 2*(ranks-1)), 2*share, share),
		}, nil
	case sched.ReduceScatter:
		return []Algo{form("ring", ranks-1, share, share), form("recursive-halving", floor+2*fold, share+2*fold, share+fold),
			form("direct", min(1, ranks-1), share, share)}, nil
	case sched.AllGather:
		return []Algo{form("ring", ranks-1, share, 0), form("recursive-doubling", floor+2*fold, share+2*fold, 0), form("bruck", log, share, 0),
			form("direct", min(1, ranks-1), share, 0)}, nil
	case sched.Broadcast:
		return []Algo{form("ring", ranks-1, min(1, ranks-1), 0), form("double-binary-tree", log, min(1, ranks-1), 0)}, nil
	case sched.Reduce:
		return []Algo{form("ring", ranks-1, min(1, ranks-1), min(1, ranks-1)),
			form("double-binary-tree", log, min(1, ranks-1), min(1, ranks-1))}, nil
	case sched.AllToAll:
		return []Algo{form("pairwise", ranks-1, share, 0), form("bruck", log, log/2, 0), form("direct", min(1, ranks-1), share, 0)}, nil
	case sched.Gather, sched.Scatter:
		return []Algo{form("direct", min(1, ranks-1), share, 0), form("binary-tree", log, share, 0)}, nil
	case sched.SendRecv:
		return []Algo{form("direct", min(1, ranks-1), min(1, ranks-1), 0)}, nil
	case sched.Barrier:
		return []Algo{form("recursive-doubling", log, 0, 0), form("ring", 2*(ranks-1), 0, 0)}, nil
	}
	return nil, fmt.Errorf("no closed form for %s", op)
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
