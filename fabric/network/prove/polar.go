package prove

import (
	"fmt"
	"slices"
)

// maxHashes is up to how many remainders of a hash are followed.
const maxHashes = 1 << 13

// polarised looks for switches that use only some of their paths, since the switches before them chose by the same
// hash: a flow's hash h takes path h mod w of w. Every remainder that reaches a switch is followed, hash by hash. No file
// says in which order a switch counts its paths, so two are tried: neighbour by neighbour, and one of each neighbour in
// turn. Switches whose files say nothing of a hash are taken to have one of their own, as Linux has.
func (p *prover) polarised() Verdict {
	v := Verdict{Property: "no path is left out by hashing", Of: "routes with a choice"}
	if !slices.ContainsFunc(p.n.routers, func(d *Device) bool { return d.hash != "" }) {
		return v
	}
	for _, c := range p.classes {
		if len(c.chain) == 1 && p.hashes(c, &v, byNeighbour) {
			p.hashes(c, &v, inTurn)
		}
	}
	return v
}

// flowsOf is which remainders of each hash reach a router.
type flowsOf map[string][]bool

// byNeighbour and inTurn are orders in which a switch may count its next hops.
func byNeighbour(next []int32) []int32 { return slices.Sorted(slices.Values(next)) }

func inTurn(next []int32) (out []int32) {
	left := slices.Sorted(slices.Values(next))
	for len(left) > 0 {
		once := slices.Compact(slices.Clone(left))
		for _, to := range once {
			at := slices.Index(left, to)
			left = slices.Delete(left, at, at+1)
		}
		out = append(out, once...)
	}
	return out
}

// hashes follows the flows to a class; false if they were refuted.
func (p *prover) hashes(c *class, v *Verdict, order func([]int32) []int32) bool {
	before := v.Broken
	r := p.w.rib(c.chain[0].origins, c.chain[0].shut, nil, &p.base)
	next, period := map[int32][]int32{}, map[string]int{}
	var routers []int32
	for u, d := range p.n.routers {
		if r.dist[u] <= 0 {
			continue
		}
		p.w.hops(r, int32(u), nil, func(e edge) { next[int32(u)] = append(next[int32(u)], e.to) })
		next[int32(u)] = order(next[int32(u)])
		routers = append(routers, int32(u))
		if period[d.hash] = lcm(max(1, period[d.hash]), max(1, len(next[int32(u)]))); period[d.hash] > maxHashes {
			v.refute(1, Counterexample{Path: []string{d.Name}, Why: fmt.Sprintf("more than %d remainders of a hash: not decided", maxHashes)})
			return false
		}
	}
	slices.SortStableFunc(routers, func(a, b int32) int { return int(r.dist[b] - r.dist[a]) })
	in := map[int32]flowsOf{}
	for _, u := range p.sourcesOf(c) {
		in[u] = flowsOf{}
		for hash, n := range period {
			in[u][hash] = slices.Repeat([]bool{true}, n)
		}
	}
	for _, u := range routers {
		if in[u] != nil {
			p.choose(u, in, next[u], v, c)
		}
	}
	return v.Broken == before
}

// choose hands the flows of a router on to its next hops, and counts those that get any.
func (p *prover) choose(u int32, in map[int32]flowsOf, next []int32, v *Verdict, c *class) {
	d, used := p.n.routers[u], 0
	for i, to := range next {
		if in[to] == nil {
			in[to] = flowsOf{}
		}
		for hash, flows := range in[u] {
			if hash == "" || hash != d.hash {
				in[to].add(hash, flows, func(int) bool { return true })
			} else if in[to].add(hash, flows, func(h int) bool { return h%len(next) == i }) {
				used++
			}
		}
	}
	if d.hash == "" || len(next) < 2 {
		return
	}
	v.Cases++
	if used < len(next) {
		v.refute(1, Counterexample{Packet: "to " + c.chain[0].String(), Path: []string{d.Name},
			Why: fmt.Sprintf("%s uses %d of %d paths: a switch before it chose by the same hash (%s)", d.Name, used, len(next), d.hash)})
	}
}

// add adds those of some remainders that take a path, and reports whether any does.
func (f flowsOf) add(hash string, from []bool, takes func(h int) bool) (some bool) {
	if f[hash] == nil {
		f[hash] = make([]bool, len(from))
	}
	for h, there := range from {
		if there && takes(h) {
			f[hash][h], some = true, true
		}
	}
	return some
}

func lcm(a, b int) int {
	x, y := a, b
	for y > 0 {
		x, y = y, x%y
	}
	return a / x * b
}
