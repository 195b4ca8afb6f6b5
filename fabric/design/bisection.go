package design

import (
	"fmt"
	"math"

	"github.com/weft-fabric/weft/model/flow"
	"github.com/weft-fabric/weft/model/sets"
	"github.com/weft-fabric/weft/model/topo"
)

// Bisection is what two halves of the endpoints can exchange, one way.
type Bisection struct {
	Formula *float64 `json:"formula"`  // bytes a second; absent where the family has no exact formula
	MaxFlow float64  `json:"max_flow"` // bytes a second, on the wiring as it is
	Ideal   float64  `json:"ideal"`    // bytes a second: half of the endpoints at full rate
	Ratio   float64  `json:"ratio"`    // ideal over max-flow: oversubscription from end to end
	Agree   bool     `json:"agree"`    // formula and max-flow are the same to a millionth
	Exact   bool     `json:"exact"`    // no two halves can exchange less
	Method  string   `json:"method"`
}

// removal is what a failure takes out of a view.
type removal struct {
	nodes  map[int32]bool // places
	cables map[int32]bool // trunks that lose one of their cables
	ends   map[int32]bool // endpoints
}

// halves marks the endpoints of the first half.
type halves []bool

// longest finds the longest dimension and how far apart its neighbours lie.
func longest(dims []int) (d, k, stride int) {
	s := 1
	for i, n := range dims {
		if n >= k {
			d, k, stride = i, n, s
		}
		s *= n
	}
	return d, k, stride
}

// halfFlow is a view as a flow network between the two halves, built once and
// run again for every failure. The endpoints of a half are contracted per
// switch, so the network has as many nodes as there are switches.
type halfFlow struct {
	v     *view
	first halves
	net   *flow.Network
	srcs  []int64 // by place, what the first half offers there
	dsts  []int64
	cut   []int // trunks of a narrowest cut of the whole fabric
	base  int   // number of the first arc from the source: place p has base+2p, to the sink base+2(n+p)
}

// halfFlow builds the flow network once: links, and arcs from the source and to the sink whose capacities are set for
// each cut.
func (v *view) halfFlow() *halfFlow {
	n := len(v.nodes)
	h := &halfFlow{v: v, net: flow.New(n+2, len(v.links)+2*n), srcs: make([]int64, n), dsts: make([]int64, n)}
	for _, t := range v.links {
		h.net.Link(int(t.a), int(t.b), t.rate, t.rate)
	}
	h.base = h.net.Arcs()
	for p := range n {
		h.net.Link(n, p, 0, 0)
	}
	for p := range n {
		h.net.Link(p, n+1, 0, 0)
	}
	return h
}

// load sums up by node what the endpoints that are left send from the first half and take in the second.
func (h *halfFlow) load(r removal) {
	clear(h.srcs)
	clear(h.dsts)
	for i, e := range h.v.ends {
		if e.service || r.ends[int32(i)] || r.nodes[e.at] {
			continue
		}
		if h.first[i] {
			h.srcs[e.at] += e.rate
		} else {
			h.dsts[e.at] += e.rate
		}
	}
}

// run finds the flow with some parts gone.
func (h *halfFlow) run(r removal) int64 {
	n := len(h.v.nodes)
	both := func(link int, rate int64) {
		h.net.Set(2*link, rate)
		h.net.Set(2*link+1, rate)
	}
	for i, t := range h.v.links {
		both(i, t.rate)
	}
	h.load(r)
	for p := range n {
		h.net.Set(h.base+2*p, h.srcs[p])
		h.net.Set(h.base+2*(n+p), h.dsts[p])
	}
	for t := range r.cables {
		l := &h.v.links[t]
		both(int(t), l.rate-l.rate/int64(l.count))
	}
	for p := range r.nodes {
		for _, e := range h.v.out(p) {
			both(int(e.link), 0)
		}
	}
	return h.net.Run(n, n+1, flow.Endless)
}

// crossing lists the trunks of a narrowest cut of the last flow: those from
// nodes that the source still reaches to nodes that it does not. A lost part
// costs bandwidth at once only if it lies there.
func (h *halfFlow) crossing() []int {
	var list []int
	in := h.net.Near(len(h.v.nodes))
	for i, t := range h.v.links {
		if in[t.a] != in[t.b] {
			list = append(list, i)
		}
	}
	return list
}

// bisect computes the bisection by flow and by formula.
func (v *view) bisect(h *halfFlow) Bisection {
	first, how, exact := v.worstHalves(h)
	h.first = first
	b := Bisection{MaxFlow: float64(h.run(removal{})), Exact: exact}
	h.cut = h.crossing()
	var a, z int64
	for i, e := range v.ends {
		switch {
		case e.service:
		case h.first[i]:
			a += e.rate
		default:
			z += e.rate
		}
	}
	b.Ideal = float64(min(a, z))
	if b.MaxFlow > 0 {
		b.Ratio = b.Ideal / b.MaxFlow
	}
	formula, rule, ok := v.formula(h.first, b.Ideal)
	b.Method = "max-flow (Dinic) on the links as wired; " + how
	if ok {
		b.Formula = &formula
		b.Agree = math.Abs(formula-b.MaxFlow) <= 1e-6*max(formula, b.MaxFlow)
		b.Method += "; formula: " + rule
	} else {
		b.Method += "; no formula: " + rule
	}
	return b
}

// formula gives the bisection in closed form where the family has one.
func (v *view) formula(first halves, ideal float64) (value float64, rule string, ok bool) {
	family, fabric, same := v.family()
	switch {
	case !same:
		return 0, "the fabrics are of different families", false
	case family == topo.Torus:
		return v.torusFormula(fabric, ideal)
	case family == topo.Dragonfly:
		return v.groupFormula(first, ideal)
	}
	if v.flat() {
		return 0, "links inside a tier make it no tree", false
	}
	return v.treeFormula(first), "every group of joined switches taken as one ideal switch with the sum of its uplinks", true
}

// torusFormula is 2 N/k link for a ring of k on the longest dimension: the cut
// crosses each of the N/k rings twice, once where they close. A mesh, and a
// ring of two, is crossed once.
func (v *view) torusFormula(fabric int, ideal float64) (float64, string, bool) {
	g := v.g
	dims := g.Fabrics[fabric].Dims
	_, k, stride := longest(dims)
	if k < 2 {
		return 0, "the torus has no dimensions", false
	}
	if k%2 == 1 {
		return 0, fmt.Sprintf("a dimension of odd length %d has no two equal halves", k), false
	}
	between := func(a, b int) float64 {
		x, y := g.At(fabric, a*stride), g.At(fabric, b*stride)
		if x == topo.None || y == topo.None {
			return 0
		}
		sum := 0.0
		for _, e := range g.Edges(x) {
			if e.Peer == y {
				sum += float64(g.Rate(e.Link))
			}
		}
		return sum
	}
	n := 1
	for _, d := range dims {
		n *= d
	}
	cut := between(k/2-1, k/2)
	rule := "N/k links where the longest dimension k is cut"
	if wrap := between(0, k-1); wrap > 0 && k > 2 {
		cut += wrap
		rule = "2 N/k links: every ring of the longest dimension k is cut twice"
	}
	return min(ideal, float64(n/k)*cut), fmt.Sprintf("%s (N = %d, k = %d), at most the endpoints' own rate", rule, n, k), true
}

// groupFormula adds up the links between the groups of one half and those of
// the other. It is exact where no group is split; routing by way of a third
// group adds nothing, for it crosses the same cut.
func (v *view) groupFormula(first halves, ideal float64) (float64, string, bool) {
	side := map[int32]bool{}
	for i, e := range v.ends {
		if e.service {
			continue
		}
		pod := v.g.Nodes[v.nodes[e.at]].Pod
		if was, seen := side[pod]; seen && was != first[i] {
			return 0, fmt.Sprintf("the halves meet inside group %d", pod), false
		}
		side[pod] = first[i]
	}
	cut := 0.0
	for _, t := range v.links {
		if side[v.g.Nodes[v.nodes[t.a]].Pod] != side[v.g.Nodes[v.nodes[t.b]].Pod] {
			cut += float64(t.rate)
		}
	}
	return min(ideal, cut), "the links between the groups of one half and those of the other, at most the endpoints' own rate", true
}

// joinUpTo joins switches that trunks inside the tiers up to t link, and adds up the excess of what was joined.
func (v *view) joinUpTo(t uint8, joined sets.Sets[int32], left, right []int64) {
	for _, l := range v.links {
		if v.tier[l.a] > t || v.tier[l.b] > t {
			continue
		}
		if a, b := joined.Find(l.a), joined.Find(l.b); a != b {
			joined.Join(a, b)
			r, o := min(a, b), max(a, b)
			left[r], right[r] = left[r]+left[o], right[r]+right[o]
			left[o], right[o] = 0, 0
		}
	}
}

// lower is the end of a trunk that is in the lower tier.
func (v *view) lower(l trunk) int32 {
	if v.tier[l.a] > v.tier[l.b] {
		return l.b
	}
	return l.a
}

// attached sums up by node the rates of the endpoints of each half.
func (v *view) attached(first halves) (left, right []int64) {
	left, right = make([]int64, len(v.nodes)), make([]int64, len(v.nodes))
	for i, e := range v.ends {
		if e.service {
			continue
		}
		if first[i] {
			left[e.at] += e.rate
		} else {
			right[e.at] += e.rate
		}
	}
	return left, right
}

// treeFormula takes each set of switches joined below a tier as one ideal
// switch. Then the fabric is a tree: in every group the halves exchange what
// they can, and the rest goes up through the group's uplinks. Contracting
// switches never lessens a flow, so this is an upper bound; where every switch
// of a group has its even share of the uplinks it is exact.
func (v *view) treeFormula(first halves) float64 {
	n := len(v.nodes)
	joined := sets.New[int32](n)
	left, right := v.attached(first) // excess by root of the set
	total := int64(0)
	up := make([]int64, n)
	for t := uint8(1); t <= v.top(); t++ {
		v.joinUpTo(t, joined, left, right)
		clear(up)
		for _, l := range v.links {
			if low := v.lower(l); v.tier[low] <= t && max(v.tier[l.a], v.tier[l.b]) > t {
				up[joined.Find(low)] += l.rate
			}
		}
		for p := range n {
			if joined.Find(int32(p)) != int32(p) || v.tier[p] > t {
				continue
			}
			both := min(left[p], right[p])
			total += both
			left[p] = min(left[p]-both, up[p])
			right[p] = min(right[p]-both, up[p])
		}
	}
	return float64(total)
}
