package design

import (
	"slices"

	"github.com/weft-fabric/weft/model/flow"
	"github.com/weft-fabric/weft/model/topo"
)

// Paths is the diversity of paths between hosts.
type Paths struct {
	Pairs         int    `json:"pairs"`   // host pairs looked at
	Sources       int    `json:"sources"` // hosts taken as one end; the other end is every other host
	Min           uint64 `json:"min"`     // equal-cost shortest paths between two hosts, all their NICs together
	Median        uint64 `json:"median"`
	Max           uint64 `json:"max"`
	DisjointPairs int    `json:"disjoint_pairs"` // pairs for which disjoint paths were counted
	DisjointMin   int    `json:"disjoint_min"`   // paths that share no cable, by max-flow
	DisjointMax   int    `json:"disjoint_max"`
	ECMPMin       int    `json:"ecmp_min"`       // uplinks a leaf may choose from, least
	ECMPMax       int    `json:"ecmp_max"`       // and most
	ECMPPeers     int    `json:"ecmp_peers"`     // different switches above a leaf, least
	WorstSwitches int    `json:"worst_switches"` // switches on the longest of the shortest paths, NIC to NIC
	WorstFrom     string `json:"worst_from"`
	WorstTo       string `json:"worst_to"`

	longest map[[2]string][2]topo.NodeID // a longest path for every two models of host
}

// far notes a path between two NICs by the number of switches on it, one for every two models of host.
func (p *Paths) far(v *view, hops int, a, b *end) {
	if hops < p.WorstSwitches {
		return
	}
	if hops > p.WorstSwitches {
		p.WorstSwitches, p.longest = hops, map[[2]string][2]topo.NodeID{}
		p.WorstFrom, p.WorstTo = v.g.NodeName(a.node), v.g.NodeName(b.node)
	}
	models := [2]string{v.g.Hosts[a.host].Model, v.g.Hosts[b.host].Model}
	if _, seen := p.longest[models]; !seen {
		p.longest[models] = [2]topo.NodeID{a.node, b.node}
	}
}

// sources picks up to limit hosts, evenly spread.
func (v *view) sources(limit int) []topo.HostID {
	var all []topo.HostID
	for h := range v.g.Hosts {
		if v.capacity[h] > 0 && (v.gpus[h] > 0 || v.computes == 0) {
			all = append(all, topo.HostID(h))
		}
	}
	if len(all) <= limit {
		return all
	}
	picked := make([]topo.HostID, limit)
	for i := range picked {
		picked[i] = all[i*(len(all)-1)/(limit-1)]
	}
	return picked
}

// walk is a breadth-first search over the nodes that forward, with the number
// of shortest ways to each. Parallel cables are different ways.
type walk struct {
	dist  []int32
	ways  []uint64
	queue []int32
}

func (w *walk) reset(n int) {
	if w.dist == nil {
		w.dist, w.ways = make([]int32, n), make([]uint64, n)
	}
	for i := range w.dist {
		w.dist[i], w.ways[i] = -1, 0
	}
	w.queue = w.queue[:0]
}

// run counts the shortest paths to every node, breadth first. Parallel cables are as many paths.
func (w *walk) run(v *view) {
	for q := 0; q < len(w.queue); q++ {
		n := w.queue[q]
		for _, e := range v.out(n) {
			if w.dist[e.to] < 0 {
				w.dist[e.to] = w.dist[n] + 1
				w.queue = append(w.queue, e.to)
			}
			if w.dist[e.to] == w.dist[n]+1 {
				w.ways[e.to] = more(w.ways[e.to], w.ways[n], v.links[e.link].count)
			}
		}
	}
}

// most is where counts of ways end: the ways across a large torus are too many for a number.
const most = 1 << 62

// more adds ways times cables to a sum, and stays at most.
func more(sum, ways uint64, cables int32) uint64 {
	if ways > (most-sum)/uint64(cables) {
		return most
	}
	return sum + ways*uint64(cables)
}

// paths measures diversity from some hosts to all, and the longest way.
func (v *view) paths() Paths {
	var p Paths
	hosts := v.sources(8)
	p.Sources = len(hosts)
	apart := v.severalDomains()
	from := make([][]end, len(v.g.Hosts))
	for _, e := range v.ends {
		if !e.service {
			from[e.host] = append(from[e.host], e)
		}
	}
	var w walk
	var counts []uint64
	for _, h := range hosts {
		// All NICs at once: ways between two hosts, by whichever NICs lie closest.
		w.reset(len(v.nodes))
		for _, e := range from[h] {
			if w.dist[e.at] < 0 {
				w.dist[e.at] = 0
				w.queue = append(w.queue, e.at)
			}
			w.ways[e.at] += uint64(e.count)
		}
		w.run(v)
		for other := range from {
			if topo.HostID(other) == h || len(from[other]) == 0 {
				continue
			}
			best, ways := int32(-1), uint64(0)
			for _, e := range from[other] {
				switch d := w.dist[e.at]; {
				case d < 0:
				case best < 0 || d < best:
					best, ways = d, more(0, w.ways[e.at], e.count)
				case d == best:
					ways = more(ways, w.ways[e.at], e.count)
				}
			}
			counts = append(counts, ways)
		}
		// One NIC: the longest shortest path between two NICs of different hosts.
		// Hosts of one accelerator domain have a shorter one, beside the network.
		w.reset(len(v.nodes))
		first := from[h][0]
		w.dist[first.at], w.ways[first.at] = 0, 1
		w.queue = append(w.queue, first.at)
		w.run(v)
		for i := range v.ends {
			e := &v.ends[i]
			if e.service || e.host == h || w.dist[e.at] < 0 || apart && v.domain[e.host] == v.domain[h] {
				continue
			}
			p.far(v, int(w.dist[e.at])+1, &first, e)
		}
	}
	if p.Pairs = len(counts); p.Pairs > 0 {
		slices.Sort(counts)
		p.Min, p.Median, p.Max = counts[0], counts[len(counts)/2], counts[len(counts)-1]
	}
	v.disjoint(&p, hosts)
	v.ecmp(&p)
	return p
}

// disjoint counts ways that share no cable between neighbouring sample hosts.
func (v *view) disjoint(p *Paths, hosts []topo.HostID) {
	n := len(v.nodes)
	net := flow.New(len(v.nodes)+2, len(v.links)+64)
	for _, t := range v.links {
		net.Link(int(t.a), int(t.b), int64(t.count), int64(t.count))
	}
	arcs := net.Arcs()
	p.DisjointMin = -1
	for i := 1; i < len(hosts); i++ {
		net.Trim(arcs)
		for _, e := range v.ends {
			unit := int64(e.count)
			if v.direct {
				unit = int64(len(v.out(e.at)))
			}
			switch e.host {
			case hosts[i-1]:
				net.Link(n, int(e.at), unit, 0)
			case hosts[i]:
				net.Link(int(e.at), n+1, unit, 0)
			}
		}
		ways := int(net.Run(n, n+1, flow.Endless))
		p.DisjointPairs++
		p.DisjointMax = max(p.DisjointMax, ways)
		if p.DisjointMin < 0 || ways < p.DisjointMin {
			p.DisjointMin = ways
		}
	}
	p.DisjointMin = max(p.DisjointMin, 0)
}

// ecmp counts the uplinks of leaves and the switches they lead to.
func (v *view) ecmp(p *Paths) {
	seen := false
	peers := map[int32]bool{}
	attached := make([]bool, len(v.nodes))
	for _, e := range v.ends {
		attached[e.at] = true
	}
	for n := range int32(len(v.nodes)) {
		if v.tier[n] != 1 || !attached[n] || v.top() < 2 {
			continue
		}
		clear(peers)
		up := 0
		for _, e := range v.out(n) {
			if v.tier[e.to] > 1 {
				up += int(v.links[e.link].count)
				peers[e.to] = true
			}
		}
		if !seen {
			p.ECMPMin, p.ECMPPeers = up, len(peers)
		}
		p.ECMPMin, p.ECMPPeers, p.ECMPMax = min(p.ECMPMin, up), min(p.ECMPPeers, len(peers)), max(p.ECMPMax, up)
		seen = true
	}
}
