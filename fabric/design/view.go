package design

import (
	"fmt"
	"math"

	"github.com/weft-fabric/weft/model/topo"
)

// view is the network between hosts cut out of a graph: what forwards, the
// links between those nodes, and where endpoints attach. All analyses work on
// it, so that a graph with two million parts inside hosts is walked only once.
//
// What forwards are the switches of every fabric that is not for storage or
// management. Where there are none the chips of a torus forward, then
// NVSwitches that stand outside hosts.
type view struct {
	g     *topo.Graph
	nodes []topo.NodeID
	index []int32 // by NodeID: place in nodes, -1 elsewhere
	tier  []uint8 // by place: 1 leaf, 2 spine, 3 core
	links []trunk
	ends  []end // in host order

	start []int32 // edges of place n are edges[start[n]:start[n+1]]
	edges []edge

	gpus     []int32 // by host: accelerators
	domain   []int32 // by host: the accelerator domain of its first accelerator; hosts without one have one each, negative
	capacity []int64 // by host: bytes a second into the fabric, one way
	computes int     // hosts with accelerators
	direct   bool    // chips forward; there are no switches
}

// trunk is a link between two nodes that forward.
type trunk struct {
	a, b  int32
	count int32
	rate  int64 // bytes a second one way, all its physical links together
	id    topo.LinkID
}

// end is an endpoint's attachment: one link from a NIC to a switch, or a chip itself.
type end struct {
	node    topo.NodeID
	host    topo.HostID
	at      int32
	count   int32
	rate    int64
	id      topo.LinkID // None for a chip
	service bool        // of a host without accelerators, in a cluster that has some
}

type edge struct{ to, link int32 }

func whole(r float64) int64 { return int64(math.Round(r)) }

// compute reports whether a node belongs to a network that accelerators use.
func compute(g *topo.Graph, n *topo.Node) bool {
	return len(g.Fabrics) == 0 || n.Fabric == topo.None || !g.Fabrics[n.Fabric].Service
}

// countGPUs counts accelerators by host, and the hosts that have any.
func (v *view) countGPUs() {
	for i := range v.g.Nodes {
		if n := &v.g.Nodes[i]; n.Kind == topo.GPU && n.Host != topo.None {
			v.gpus[n.Host]++
		}
	}
	for _, c := range v.gpus {
		if c > 0 {
			v.computes++
		}
	}
}

// look takes what forwards between hosts as nodes: the switches of compute fabrics, else chips that forward, else NVSwitches
// outside hosts.
func look(g *topo.Graph) (*view, error) {
	v := &view{g: g, index: make([]int32, len(g.Nodes)), gpus: make([]int32, len(g.Hosts)), capacity: make([]int64, len(g.Hosts))}
	for i := range v.index {
		v.index[i] = -1
	}
	v.countGPUs()
	take := func(want func(*topo.Node) bool) int {
		for i := range g.Nodes {
			if n := &g.Nodes[i]; want(n) {
				v.index[i] = int32(len(v.nodes))
				v.nodes = append(v.nodes, topo.NodeID(i))
				v.tier = append(v.tier, n.Tier)
			}
		}
		return len(v.nodes)
	}
	if take(func(n *topo.Node) bool { return n.Kind == topo.Switch && compute(g, n) }) == 0 {
		v.direct = take(func(n *topo.Node) bool { return n.Kind == topo.GPU && n.Fabric != topo.None }) > 0
	}
	if len(v.nodes) == 0 {
		take(func(n *topo.Node) bool { return n.Kind == topo.NVSwitch && n.Host == topo.None })
	}
	if len(v.nodes) == 0 {
		return nil,
			fmt.Errorf("%q has no network between hosts: no switch of a compute fabric, no torus of chips, no NVSwitch outside a host; add a fabric to design one",
				g.Name)
	}
	v.collect()
	v.order()
	v.tiers()
	v.domains()
	return v, nil
}

// endpoint says whether a node is a host's NIC or accelerator.
func endpoint(n *topo.Node) bool {
	return n.Host != topo.None && (n.Kind == topo.NIC || n.Kind == topo.GPU)
}

// chipEnds makes every chip that forwards an endpoint as well, with the rate of all its links.
func (v *view) chipEnds() {
	sum := make([]int64, len(v.nodes))
	for _, t := range v.links {
		sum[t.a] += t.rate
		sum[t.b] += t.rate
	}
	for at, n := range v.nodes {
		if h := v.g.Nodes[n].Host; h != topo.None {
			v.ends = append(v.ends, end{node: n, host: h, at: int32(at), count: 1, rate: sum[at], id: topo.None})
		}
	}
}

// collect gathers trunks and endpoints.
func (v *view) collect() {
	g := v.g
	for i := range g.Links {
		l := &g.Links[i]
		a, b := v.index[l.A], v.index[l.B]
		rate := whole(float64(g.Rate(topo.LinkID(i))))
		switch {
		case a >= 0 && b >= 0:
			v.links = append(v.links, trunk{a, b, int32(l.Count), rate, topo.LinkID(i)})
		case a >= 0 || b >= 0:
			node, at := l.A, b
			if a >= 0 {
				node, at = l.B, a
			}
			if !v.direct && endpoint(&g.Nodes[node]) {
				v.ends = append(v.ends, end{node: node, host: g.Nodes[node].Host, at: at, count: int32(l.Count), rate: rate, id: topo.LinkID(i)})
			}
		}
	}
	if v.direct {
		v.chipEnds()
	}
	v.capacities()
}

// capacities sums up the rates of each host's endpoints, and marks those of hosts that only serve others.
func (v *view) capacities() {
	for i := range v.ends {
		e := &v.ends[i]
		e.service = v.computes > 0 && v.gpus[e.host] == 0
		v.capacity[e.host] += e.rate
	}
}

// order indexes the trunks by node.
func (v *view) order() {
	v.start = make([]int32, len(v.nodes)+1)
	for _, t := range v.links {
		v.start[t.a+1]++
		v.start[t.b+1]++
	}
	for i := range v.nodes {
		v.start[i+1] += v.start[i]
	}
	v.edges = make([]edge, 2*len(v.links))
	next := make([]int32, len(v.nodes))
	copy(next, v.start)
	for i, t := range v.links {
		v.edges[next[t.a]] = edge{t.b, int32(i)}
		v.edges[next[t.b]] = edge{t.a, int32(i)}
		next[t.a]++
		next[t.b]++
	}
}

func (v *view) out(n int32) []edge { return v.edges[v.start[n]:v.start[n+1]] }

// tiers gives a tier to switches that an import left without one: 1 where
// endpoints attach, else one above the lowest neighbour.
func (v *view) tiers() {
	var queue []int32
	for _, e := range v.ends {
		if v.tier[e.at] == 0 {
			v.tier[e.at] = 1
			queue = append(queue, e.at)
		}
	}
	for q := 0; q < len(queue); q++ {
		for _, e := range v.out(queue[q]) {
			if v.tier[e.to] == 0 {
				v.tier[e.to] = v.tier[queue[q]] + 1
				queue = append(queue, e.to)
			}
		}
	}
}

// domains finds which hosts are joined by links between accelerators.
func (v *view) domains() {
	g := v.g
	roots := acceleratorSets(g)
	v.domain = make([]int32, len(g.Hosts))
	for h := range v.domain {
		v.domain[h] = -1 - int32(h)
		for i, n := range g.HostNodes(topo.HostID(h)) {
			if n.Kind == topo.GPU {
				v.domain[h] = roots.Find(int32(g.Hosts[h].First) + int32(i))
				break
			}
		}
	}
}

// severalDomains reports whether hosts with accelerators are in more than one domain.
func (v *view) severalDomains() bool {
	first, seen := int32(0), false
	for h, d := range v.domain {
		if v.gpus[h] == 0 {
			continue
		}
		if seen && d != first {
			return true
		}
		first, seen = d, true
	}
	return false
}

// top is the highest tier.
func (v *view) top() uint8 {
	top := uint8(0)
	for _, t := range v.tier {
		top = max(top, t)
	}
	return top
}

// family is the family all compute fabrics share; ok is false when they differ.
func (v *view) family() (f topo.Family, fabric int, ok bool) {
	fabric = -1
	for i := range v.g.Fabrics {
		if v.g.Fabrics[i].Service {
			continue
		}
		if fabric >= 0 && v.g.Fabrics[i].Family != f {
			return 0, fabric, false
		}
		f, fabric = v.g.Fabrics[i].Family, i
	}
	if fabric < 0 {
		return topo.Irregular, fabric, true
	}
	return f, fabric, true
}

// flat reports whether some bandwidth lies beside the tiers: in a torus, a
// dragonfly, or where switches of one tier are joined.
func (v *view) flat() bool {
	if f, _, ok := v.family(); ok && (f == topo.Torus || f == topo.Dragonfly) {
		return true
	}
	for _, t := range v.links {
		if v.tier[t.a] == v.tier[t.b] {
			return true
		}
	}
	return false
}

// endpoints lists the attachments that count for bandwidth: those of hosts with
// accelerators, or all where no host has any.
func (v *view) endpoints() []end {
	list := make([]end, 0, len(v.ends))
	for _, e := range v.ends {
		if !e.service {
			list = append(list, e)
		}
	}
	return list
}

// tierName says what a tier is called.
func tierName(t uint8) string {
	switch t {
	case 1:
		return "leaf"
	case 2:
		return "spine"
	case 3:
		return "core"
	}
	return fmt.Sprintf("tier%d", t)
}
