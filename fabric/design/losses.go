package design

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/model/sets"
	"github.com/weft-fabric/weft/model/topo"
)

// Loss is what one lost part costs, found by taking it out of the graph.
type Loss struct {
	Part          string  `json:"part"`                // "leaf-spine cable", "spine", "plane"
	Of            int     `json:"of"`                  // how many such parts there are
	Example       string  `json:"example"`             // the one taken out: the worst of the sorts there are
	HostsCutOff   int     `json:"hosts_cut_off"`       // hosts that no longer reach the rest
	GPUsCutOff    int     `json:"gpus_cut_off"`        // their accelerators
	GPUsDegraded  int     `json:"gpus_degraded"`       // accelerators of hosts that keep less than their full rate
	HostLeft      float64 `json:"host_bandwidth_left"` // of the worst host, as a share; 0 if one is cut off
	Bisection     float64 `json:"bisection_bytes_per_s"`
	BisectionLeft float64 `json:"bisection_left"` // share of the whole fabric's
	Pieces        int     `json:"pieces"`         // sets of switches with hosts on them that no longer meet, beyond those there were
}

// breaker tries removals.
type breaker struct {
	v     *view
	h     *halfFlow
	full  float64
	sets  sets.Sets[int32]
	left  []int64       // by host: rate still attached
	main  map[int32]int // by root of a set of joined switches: hosts on it
	whole int           // how many such sets the whole fabric has

	cutOff []topo.HostID // by the last try
}

// Pieces says that a fabric falls apart although nothing is broken.
type Pieces struct {
	Count       int      `json:"count"`         // parts of the fabric that do not meet, with hosts on them
	Hosts       int      `json:"hosts"`         // all that are attached
	HostsCutOff int      `json:"hosts_cut_off"` // that are not in the largest part
	Examples    []string `json:"examples"`      // some of them
}

// pieces looks at the fabric as it is; nil if all hosts reach each other.
func (b *breaker) pieces() *Pieces {
	l := b.try(removal{}, nil)
	if l.HostsCutOff == 0 {
		return nil
	}
	p := &Pieces{Count: len(b.main), HostsCutOff: l.HostsCutOff}
	for h := range b.v.g.Hosts {
		if b.v.capacity[h] > 0 && (b.v.gpus[h] > 0 || b.v.computes == 0) {
			p.Hosts++
		}
	}
	for _, h := range b.cutOff[:min(len(b.cutOff), 4)] {
		p.Examples = append(p.Examples, b.v.g.Hosts[h].Name)
	}
	return p
}

// example names some of the hosts that are cut off.
func (p *Pieces) example() string {
	s := strings.Join(p.Examples, ", ")
	if p.HostsCutOff > len(p.Examples) {
		s += " and others"
	}
	return s
}

func (v *view) breaker(h *halfFlow, full float64) *breaker {
	b := &breaker{v: v, h: h, full: full, left: make([]int64, len(v.g.Hosts)), main: map[int32]int{}}
	b.try(removal{}, nil)
	b.whole = len(b.main)
	return b
}

// try measures the fabric without some parts; gone hosts are not counted among
// the cut off or degraded ones, for they are what was lost.
func (b *breaker) try(r removal, gone map[topo.HostID]bool) Loss {
	v := b.v
	b.join(r)
	alive := func(i int, e *end) bool { return !e.service && !r.ends[int32(i)] && !r.nodes[e.at] && !gone[e.host] }
	l := b.count(b.largest(alive), alive, gone)
	if len(gone) > 0 {
		ends := map[int32]bool{}
		for i := range v.ends {
			if gone[v.ends[i].host] {
				ends[int32(i)] = true
			}
		}
		for e := range r.ends {
			ends[e] = true
		}
		r.ends = ends
	}
	l.Bisection = float64(b.h.run(r))
	if b.full > 0 {
		l.BisectionLeft = l.Bisection / b.full
	}
	return l
}

// join finds which switches still reach each other.
func (b *breaker) join(r removal) {
	b.sets = sets.New[int32](len(b.v.nodes))
	for i, t := range b.v.links {
		if r.cables[int32(i)] && t.count == 1 || r.nodes[t.a] || r.nodes[t.b] {
			continue
		}
		b.sets.Join(t.a, t.b)
	}
}

// largest returns the set of switches that most hosts are attached to: the fabric that is left. Ties go to the lowest
// number, and -1 means that no host is attached at all. It leaves the hosts of every set in main.
func (b *breaker) largest(alive func(int, *end) bool) int32 {
	clear(b.main)
	last := map[int32]topo.HostID{} // of each set
	for i := range b.v.ends {
		e := &b.v.ends[i]
		if !alive(i, e) {
			continue
		}
		root := b.sets.Find(e.at)
		if h, seen := last[root]; !seen || h != e.host { // endpoints come host by host
			last[root] = e.host
			b.main[root]++
		}
	}
	root, most := int32(-1), 0
	for s := range int32(len(b.v.nodes)) {
		if n := b.main[s]; n > most {
			root, most = s, n
		}
	}
	return root
}

// count tells the hosts outside the largest set from those inside that lost bandwidth.
func (b *breaker) count(root int32, alive func(int, *end) bool, gone map[topo.HostID]bool) Loss {
	v := b.v
	clear(b.left)
	b.cutOff = b.cutOff[:0]
	joined := make([]bool, len(v.g.Hosts))
	for i := range v.ends {
		e := &v.ends[i]
		if alive(i, e) {
			b.left[e.host] += e.rate
			joined[e.host] = joined[e.host] || b.sets.Find(e.at) == root
		}
	}
	l := Loss{HostLeft: 1, Pieces: max(0, len(b.main)-b.whole)}
	for h := range v.g.Hosts {
		if v.capacity[h] == 0 || gone[topo.HostID(h)] || v.gpus[h] == 0 && v.computes > 0 {
			continue
		}
		switch {
		case !joined[h]:
			l.HostsCutOff++
			l.GPUsCutOff += int(v.gpus[h])
			l.HostLeft = 0
			b.cutOff = append(b.cutOff, topo.HostID(h))
		case b.left[h] < v.capacity[h]:
			l.GPUsDegraded += int(v.gpus[h])
			l.HostLeft = min(l.HostLeft, float64(b.left[h])/float64(v.capacity[h]))
		}
	}
	return l
}

// worse orders losses: the more GPUs cut off, the less bisection left, the more degraded, the worse.
func worse(a, b Loss) bool {
	return cmp.Or(cmp.Compare(a.GPUsCutOff, b.GPUsCutOff), cmp.Compare(a.HostsCutOff, b.HostsCutOff),
		cmp.Compare(b.BisectionLeft, a.BisectionLeft), cmp.Compare(a.GPUsDegraded, b.GPUsDegraded)) > 0
}

// sample groups parts by what they are joined to and gives one of each sort, at most limit of them.
func sample(n int, sort func(i int) [3]int64, limit int) []int {
	seen := map[[3]int64]bool{}
	var picked []int
	for i := range n {
		s := sort(i)
		if s[0] >= 0 && !seen[s] && len(picked) < limit {
			seen[s] = true
			picked = append(picked, i)
		}
	}
	return picked
}

const sorts = 3 // sorts of one part that are tried

// wholes takes out one plane and one fabric, where there are several.
func (b *breaker) wholes() []Loss {
	list := b.groups("plane", func(n *topo.Node) int { return int(n.Plane) }, func(i int) string { return fmt.Sprintf("plane %d", i) })
	return append(list, b.groups("fabric", func(n *topo.Node) int { return int(n.Fabric) },
		func(i int) string { return b.v.g.Fabrics[i].Name })...)
}

// upAndDown adds up, for every switch, what enters from below and leaves upwards.
func (v *view) upAndDown() (down, up []int64) {
	down, up = make([]int64, len(v.nodes)), make([]int64, len(v.nodes))
	for _, e := range v.ends {
		down[e.at] += e.rate
	}
	for _, t := range v.links {
		switch {
		case v.tier[t.a] < v.tier[t.b]:
			up[t.a], down[t.b] = up[t.a]+t.rate, down[t.b]+t.rate
		case v.tier[t.a] > v.tier[t.b]:
			up[t.b], down[t.a] = up[t.b]+t.rate, down[t.a]+t.rate
		}
	}
	return down, up
}

// worst tries the picked parts and gives the one that costs most; none if none is picked.
func worst(part string, of int, picked []int, name func(int) string, try func(int) Loss) []Loss {
	var list []Loss
	for _, i := range picked {
		l := try(i)
		l.Part, l.Of, l.Example = part, of, name(i)
		if len(list) == 0 {
			list = []Loss{l}
		} else if worse(l, list[0]) {
			list[0] = l
		}
	}
	return list
}

// hostCables takes out a cable between a host and its leaf.
func (b *breaker) hostCables(down, up []int64) []Loss {
	v := b.v
	if v.direct {
		return nil
	}
	picked := sample(len(v.ends), func(i int) [3]int64 {
		e := &v.ends[i]
		if e.service {
			return [3]int64{-1}
		}
		return [3]int64{e.rate, down[e.at], up[e.at]}
	}, sorts)
	return worst("host cable", len(v.ends), picked, func(i int) string { return v.g.LinkName(v.ends[i].id) }, func(i int) Loss {
		return b.try(removal{ends: map[int32]bool{int32(i): true}}, nil)
	})
}

// trunks takes out a cable between two tiers, or inside one; one of a bundle where a link has several.
func (b *breaker) trunks() []Loss {
	v := b.v
	between := func(t *trunk) [2]uint8 { return [2]uint8{min(v.tier[t.a], v.tier[t.b]), max(v.tier[t.a], v.tier[t.b])} }
	count := map[[2]uint8]int{}
	for i := range v.links {
		count[between(&v.links[i])] += int(v.links[i].count)
	}
	tiers := slices.SortedFunc(maps.Keys(count), func(a, b [2]uint8) int { return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1])) })
	var list []Loss
	for _, k := range tiers {
		part := tierName(k[0]) + "-" + tierName(k[1]) + " cable"
		if v.direct {
			part = "cable between chips"
		}
		sort := func(i int) [3]int64 {
			if between(&v.links[i]) != k {
				return [3]int64{-1}
			}
			return [3]int64{v.links[i].rate}
		}
		picked := sample(len(v.links), sort, sorts)
		for _, i := range b.h.cut {
			if sort(i)[0] >= 0 {
				picked = append(picked, i)
				break
			}
		}
		list = append(list, worst(part, count[k], picked, func(i int) string { return v.g.LinkName(v.links[i].id) }, func(i int) Loss {
			return b.try(removal{cables: map[int32]bool{int32(i): true}}, nil)
		})...)
	}
	return list
}

// switches takes out a switch of every tier.
func (b *breaker) switches(down, up []int64) []Loss {
	v := b.v
	var list []Loss
	for t := uint8(1); t <= v.top() && !v.direct; t++ {
		count := 0
		for p := range v.nodes {
			if v.tier[p] == t {
				count++
			}
		}
		picked := sample(len(v.nodes), func(i int) [3]int64 {
			if v.tier[i] != t {
				return [3]int64{-1}
			}
			return [3]int64{down[i], up[i]}
		}, sorts)
		if p, ok := b.critical(t); ok {
			picked = append(picked, p)
		}
		list = append(list, worst(tierName(t), count, picked, func(i int) string { return v.g.NodeName(v.nodes[i]) }, func(i int) Loss {
			return b.try(removal{nodes: map[int32]bool{int32(i): true}}, nil)
		})...)
	}
	return list
}

// groups takes out a whole plane or fabric, where there are several.
func (b *breaker) groups(part string, of func(*topo.Node) int, name func(int) string) []Loss {
	v := b.v
	var have []int
	for _, n := range v.nodes {
		if x := of(&v.g.Nodes[n]); x >= 0 && !slices.Contains(have, x) {
			have = append(have, x)
		}
	}
	slices.Sort(have)
	if len(have) < 2 {
		return nil
	}
	gone := map[int32]bool{}
	for p, n := range v.nodes {
		if of(&v.g.Nodes[n]) == have[0] {
			gone[int32(p)] = true
		}
	}
	return worst(part, len(have), []int{have[0]}, name, func(int) Loss { return b.try(removal{nodes: gone}, nil) })
}

// critical finds a node of a tier at the narrowest cut.
func (b *breaker) critical(tier uint8) (int, bool) {
	for _, i := range b.h.cut {
		for _, p := range []int32{b.v.links[i].a, b.v.links[i].b} {
			if b.v.tier[p] == tier {
				return int(p), true
			}
		}
	}
	return 0, false
}
