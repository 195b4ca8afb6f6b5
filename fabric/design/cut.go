package design

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/weft-fabric/weft/model/topo"
)

// The bisection is the least that any two halves of the hosts can exchange. Where
// the hosts do not divide evenly, one of them is split between its NICs.
//
// A flow between two halves is bounded by every cut of the switches: by the
// links between the switches in S and the others, the endpoints of the first
// half that are not in S, and those of the second half that are. For a given S
// the worst halves follow by sorting hosts; for given halves the narrowest S
// follows by max-flow. So
//
//	bisection = min over S of ( links out of S + what the worst halves for S add )
//
// which is exact where all S can be tried, and else approached by going back
// and forth between the two from several starts. Each step only lowers it.

// exactSwitches is up to how many switches every cut is tried: 2^15 of them.
const exactSwitches = 16

// cutter holds the endpoints of each host for the search.
type cutter struct {
	v     *view
	hosts [][]nicEnds // of every host that counts
	rates []int64     // by host of that list
	half  int64       // bytes a second: half of all endpoints'
	alike bool        // an even number of hosts that all have the same rates
}

// nicEnds is a NIC with the numbers of its endpoints.
type nicEnds struct {
	node topo.NodeID
	rate int64
	ends []int32
}

// cutter lists the endpoints host by host and NIC by NIC. alike says that all hosts have the same rate and their number
// is even: then half of the hosts is half of the rate.
func (v *view) cutter() *cutter {
	c := &cutter{v: v}
	order := make([]int32, 0, len(v.ends))
	for i := range v.ends {
		if !v.ends[i].service {
			order = append(order, int32(i))
		}
	}
	slices.SortStableFunc(order, func(a, b int32) int {
		x, y := &v.ends[a], &v.ends[b]
		return cmp.Or(cmp.Compare(x.host, y.host), cmp.Compare(x.node, y.node))
	})
	total, last, node := int64(0), topo.HostID(topo.None), topo.NodeID(topo.None)
	for _, i := range order {
		e := &v.ends[i]
		if e.host != last {
			c.hosts, c.rates = append(c.hosts, nil), append(c.rates, 0)
			last = e.host
		}
		at := len(c.hosts) - 1
		if e.node != node {
			c.hosts[at] = append(c.hosts[at], nicEnds{node: e.node})
			node = e.node
		}
		nic := &c.hosts[at][len(c.hosts[at])-1]
		nic.ends, nic.rate = append(nic.ends, i), nic.rate+e.rate
		c.rates[at] += e.rate
		total += e.rate
	}
	c.half = total / 2
	c.alike = len(c.hosts)%2 == 0
	for _, r := range c.rates {
		c.alike = c.alike && r == c.rates[0]
	}
	return c
}

// inOrder takes hosts in an order until they have half of the bandwidth. Of the
// host at the border it takes some NICs, those first that the cut has inside.
func (c *cutter) inOrder(order []int, in []bool) halves {
	first := make(halves, len(c.v.ends))
	left := c.half
	take := func(nics []nicEnds) {
		for _, n := range nics {
			if n.rate > left {
				continue
			}
			left -= n.rate
			for _, i := range n.ends {
				first[i] = true
			}
		}
	}
	for _, h := range order {
		nics := c.hosts[h]
		if c.rates[h] > left && in != nil {
			nics = slices.Clone(nics)
			slices.SortStableFunc(nics, func(a, b nicEnds) int { return cmp.Compare(c.inside(&b, in), c.inside(&a, in)) })
		}
		if take(nics); left == 0 {
			break
		}
	}
	return first
}

// inside is how much of a NIC's bandwidth ends inside a cut.
func (c *cutter) inside(n *nicEnds, in []bool) int64 {
	sum := int64(0)
	for _, i := range n.ends {
		if e := &c.v.ends[i]; in[e.at] {
			sum += e.rate
		}
	}
	return sum
}

// against finds the worst halves for a cut, which in marks by place, and what
// the two may exchange at most.
func (c *cutter) against(in []bool) (halves, int64) {
	v := c.v
	gain := make([]float64, len(c.hosts)) // what a byte of the host costs in the first half instead of the second
	order := make([]int, len(c.hosts))
	for h, nics := range c.hosts {
		within := int64(0)
		for i := range nics {
			within += c.inside(&nics[i], in)
		}
		gain[h], order[h] = float64(c.rates[h]-2*within)/float64(c.rates[h]), h
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(gain[a], gain[b]) })
	first := c.inOrder(order, in)
	cost := int64(0)
	for i := range v.ends {
		if e := &v.ends[i]; !e.service && first[i] != in[e.at] {
			cost += e.rate
		}
	}
	for _, t := range v.links {
		if in[t.a] != in[t.b] {
			cost += t.rate
		}
	}
	return first, cost
}

// every tries all cuts of a small fabric.
func (c *cutter) every() halves {
	n := len(c.v.nodes)
	in := make([]bool, n)
	var worst halves
	least := int64(math.MaxInt64)
	for set := range uint32(1) << n {
		for p := range in {
			in[p] = set>>p&1 == 1
		}
		if first, cost := c.against(in); cost < least {
			worst, least = first, cost
		}
	}
	return worst
}

// improve goes back and forth between halves and cuts until nothing is gained,
// and gives the flow between the halves it ends with.
func (c *cutter) improve(h *halfFlow, first halves) (halves, int64) {
	for {
		h.first = first
		flow := h.run(removal{})
		next, cost := c.against(h.net.Near(len(c.v.nodes))[:len(c.v.nodes)])
		if cost >= flow {
			return first, flow
		}
		first = next
	}
}

// worstHalves looks for the two halves that can exchange least. It says how, and
// whether no halves are worse.
func (v *view) worstHalves(h *halfFlow) (first halves, how string, exact bool) {
	c := v.cutter()
	if len(c.hosts) < 2 {
		return make(halves, len(v.ends)), "fewer than two hosts", true
	}
	if len(v.nodes) <= exactSwitches {
		how := fmt.Sprintf("the worst halves of the hosts, found by trying all cuts of %s",
			plural(len(v.nodes), ternary(v.direct, "chip", "switch")))
		if !c.alike {
			how += "; the hosts do not divide into equal halves, so slightly worse ones are not ruled out"
		}
		return c.every(), how, c.alike
	}
	starts := c.starts()
	least := int64(math.MaxInt64)
	for _, start := range starts {
		if halves, flow := c.improve(h, start); flow < least {
			first, least = halves, flow
		}
	}
	return first, fmt.Sprintf("the worst halves of the hosts found by a search from %d starts; worse ones are not ruled out",
		len(starts)), false
}

// means is by host the mean score of the nodes that it is attached to, weighted by rate.
func (c *cutter) means(score []float64) []float64 {
	sum := make([]float64, len(c.hosts))
	for h, nics := range c.hosts {
		for _, n := range nics {
			for _, i := range n.ends {
				sum[h] += score[c.v.ends[i].at] * float64(c.v.ends[i].rate) / float64(c.rates[h])
			}
		}
	}
	return sum
}

// starts gives halves to begin with: hosts in order, a torus cut across its
// longest dimension, hosts by their distance from a switch, and by the slowest
// mode in which the fabric could swing (the Fiedler vector).
func (c *cutter) starts() []halves {
	v := c.v
	order := make([]int, len(c.hosts))
	for i := range order {
		order[i] = i
	}
	list := []halves{c.inOrder(order, nil)}
	if first, ok := v.torusHalves(); ok {
		list = append(list, first)
	}
	by := func(score []float64) {
		sorted := slices.Clone(order)
		sum := c.means(score)
		slices.SortStableFunc(sorted, func(a, b int) int { return cmp.Compare(sum[a], sum[b]) })
		list = append(list, c.inOrder(sorted, nil))
	}
	seeds := 8
	switch n := len(v.links); {
	case n > 200_000:
		return list
	case n > 20_000:
		seeds = 2
	}
	var w walk
	score := make([]float64, len(v.nodes))
	for i := range seeds {
		from := int32(i * (len(v.nodes) - 1) / max(seeds-1, 1))
		w.reset(len(v.nodes))
		w.dist[from], w.ways[from] = 0, 1
		w.queue = append(w.queue, from)
		w.run(v)
		for p, d := range w.dist {
			score[p] = float64(d)
			if d < 0 {
				score[p] = float64(len(v.nodes))
			}
		}
		by(score)
	}
	by(v.fiedler())
	return list
}

// fiedler approaches the second eigenvector of the fabric's Laplacian by power
// iteration: switches that hang together tightly have like values.
func (v *view) fiedler() []float64 {
	const rounds = 60
	n := len(v.nodes)
	degree := make([]float64, n)
	for _, t := range v.links {
		degree[t.a] += float64(t.rate)
		degree[t.b] += float64(t.rate)
	}
	most := slices.Max(append(degree, 0))
	x, next := make([]float64, n), make([]float64, n)
	for i := range x {
		x[i] = math.Sin(float64(i+1) * 12.9898) // any start that is not even
	}
	for range rounds {
		mean := 0.0
		for _, a := range x {
			mean += a / float64(n)
		}
		norm := 0.0
		for i := range x {
			x[i] -= mean
			norm += x[i] * x[i]
		}
		if norm = math.Sqrt(norm); norm == 0 || most == 0 {
			return x
		}
		for i := range x {
			x[i] /= norm
			next[i] = (2*most - degree[i]) * x[i]
		}
		for _, t := range v.links {
			next[t.a] += float64(t.rate) * x[t.b]
			next[t.b] += float64(t.rate) * x[t.a]
		}
		x, next = next, x
	}
	return x
}

// torusHalves are the endpoints on the low side of the longest dimension.
func (v *view) torusHalves() (halves, bool) {
	f, fabric, ok := v.family()
	if !ok || f != topo.Torus {
		return nil, false
	}
	_, k, stride := longest(v.g.Fabrics[fabric].Dims)
	if k < 2 {
		return nil, false
	}
	first := make(halves, len(v.ends))
	for i, e := range v.ends {
		pos := int(v.g.Nodes[v.nodes[e.at]].Pos)
		first[i] = !e.service && pos >= 0 && pos/stride%k < k/2
	}
	return first, true
}
