package design

import (
	"fmt"
	"slices"

	"github.com/weft-fabric/weft/topo"
	"github.com/weft-fabric/weft/topo/catalog"
	"github.com/weft-fabric/weft/unit"
)

// Paths is the diversity of ways between hosts.
type Paths struct {
	Pairs         int    `json:"pairs"`   // host pairs looked at
	Sources       int    `json:"sources"` // hosts taken as one end; the other end is every other host
	Min           uint64 `json:"min"`     // equal-cost shortest ways between two hosts, all their NICs together
	Median        uint64 `json:"median"`
	Max           uint64 `json:"max"`
	DisjointPairs int    `json:"disjoint_pairs"` // pairs for which disjoint ways were counted
	DisjointMin   int    `json:"disjoint_min"`   // ways that share no cable, by max-flow
	DisjointMax   int    `json:"disjoint_max"`
	ECMPMin       int    `json:"ecmp_min"`       // uplinks a leaf may choose from, least
	ECMPMax       int    `json:"ecmp_max"`       // and most
	ECMPPeers     int    `json:"ecmp_peers"`     // different switches above a leaf, least
	WorstSwitches int    `json:"worst_switches"` // switches on the longest of the shortest ways, NIC to NIC
	WorstFrom     string `json:"worst_from"`
	WorstTo       string `json:"worst_to"`
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
		// One NIC: the longest shortest way between two NICs of different hosts.
		w.reset(len(v.nodes))
		first := from[h][0]
		w.dist[first.at], w.ways[first.at] = 0, 1
		w.queue = append(w.queue, first.at)
		w.run(v)
		for _, e := range v.ends {
			if e.service || e.host == h || w.dist[e.at] < 0 {
				continue
			}
			if hops := int(w.dist[e.at]) + 1; hops > p.WorstSwitches {
				p.WorstSwitches, p.WorstFrom, p.WorstTo = hops, v.g.NodeName(first.node), v.g.NodeName(e.node)
			}
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
	n := int32(len(v.nodes))
	net := newNetwork(len(v.nodes)+2, len(v.links)+64)
	for _, t := range v.links {
		net.add(t.a, t.b, int64(t.count), int64(t.count))
	}
	clean, arcs := slices.Clone(net.room), len(net.to)
	heads := slices.Clone(net.first)
	p.DisjointMin = -1
	for i := 1; i < len(hosts); i++ {
		net.to, net.next = net.to[:arcs], net.next[:arcs]
		net.room = append(net.room[:0], clean...)
		copy(net.first, heads)
		for _, e := range v.ends {
			unit := int64(e.count)
			if v.direct {
				unit = int64(len(v.out(e.at)))
			}
			switch e.host {
			case hosts[i-1]:
				net.add(n, e.at, unit, 0)
			case hosts[i]:
				net.add(e.at, n+1, unit, 0)
			}
		}
		ways := int(net.flow(n, n+1))
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
		if !seen || up < p.ECMPMin {
			p.ECMPMin = up
		}
		if !seen || len(peers) < p.ECMPPeers {
			p.ECMPPeers = len(peers)
		}
		p.ECMPMax = max(p.ECMPMax, up)
		seen = true
	}
}

// Latency is the budget of one message on the longest way, beside the terms S1 gives.
type Latency struct {
	From  string        `json:"from"`
	To    string        `json:"to"`
	Terms []LatencyTerm `json:"terms"`
	Total float64       `json:"total_us"` // of the terms that the hardware sets
}

// LatencyTerm is one part of the budget.
type LatencyTerm struct {
	Name     string  `json:"name"`
	Micros   float64 `json:"us"`
	Document string  `json:"document"` // what S1 says of it
	How      string  `json:"how"`
}

// packet is the frame that is sent once over the slowest link while switches cut through: InfiniBand's largest MTU.
const packet = 4 * unit.KiB

// switchDefault stands in for a switch the catalogue does not know: between the
// 130 ns of InfiniBand HDR and the 500 to 800 ns of Ethernet chips.
const switchDefault = 500 * unit.Nanosecond

// software is what the measured floor of a two-node NCCL all-reduce over
// InfiniBand, 46 us for small messages, leaves after two crossings of one
// switch between two H100 hosts, about 3 us each.
const software = 40.0

// latency adds up the longest way, GPU to GPU where there are GPUs.
func (v *view) latency(c *catalog.Catalog, p Paths) Latency {
	g := v.g
	var l Latency
	a, errA := g.Lookup(p.WorstFrom)
	b, errB := g.Lookup(p.WorstTo)
	if errA != nil || errB != nil {
		return l
	}
	if g.Near(a) != topo.None && g.Near(b) != topo.None && g.Nodes[a].Kind == topo.NIC {
		a, b = g.Near(a), g.Near(b)
	}
	way, err := g.Route(topo.Flow{From: a, To: b}, nil)
	if err != nil {
		return l
	}
	l.From, l.To = g.NodeName(a), g.NodeName(b)
	// Where bytes are striped over NVSwitches, shares of one hop add up to one,
	// so weighting by them gives the latency of one way.
	var wire, host, switches, nics, hops, inside, crossed, adapters float64
	slowest := unit.Rate(0)
	unknown := false
	for _, u := range way {
		share := float64(u.Share)
		class := g.Class(u.Link)
		if class.Kind.Network() || class.Kind.Accelerator() {
			wire += share * float64(class.Latency)
			crossed += share
			if slowest == 0 || class.Rate < slowest {
				slowest = class.Rate
			}
		} else {
			host += share * float64(class.Latency)
			inside += share
		}
		_, at := g.Links[u.Link].Ends(u.Forward)
		switch n := &g.Nodes[at]; n.Kind {
		case topo.Switch, topo.NVSwitch:
			hops += share
			s, err := c.Switch(n.Model)
			if err != nil {
				s.Latency, unknown = switchDefault, true
			}
			switches += share * float64(s.Latency)
		case topo.NIC:
			adapters += share
			if a, err := c.NIC(n.Model); err == nil {
				nics += share * float64(a.Latency)
			} else {
				nics += share * float64(nicDefault)
			}
		}
	}
	how := fmt.Sprintf("%.0f switches, port to port, from the catalogue", hops)
	if unknown {
		how += fmt.Sprintf(" (%s where it knows none)", switchDefault)
	}
	l.add("wires", wire, "", fmt.Sprintf("%.0f links with their SerDes and error correction", crossed))
	l.add("switches", switches, "", how)
	if slowest > 0 {
		l.add("one packet", float64(packet.Over(slowest)), "", fmt.Sprintf("%s sent once at %s; switches cut through", packet, slowest))
	}
	l.add("inside the hosts", host, "", fmt.Sprintf("%.0f PCIe and socket links", inside))
	transmission := l.Total
	l.Terms = append(l.Terms, LatencyTerm{"transmission", transmission, "2-10 us", "the above together"})
	l.add("protocol (NICs)", nics, "1-2 us", fmt.Sprintf("%.0f adapters; RDMA keeps the protocol in the adapter", adapters))
	if adapters > 0 {
		l.Terms = append(l.Terms, LatencyTerm{"software", software, "10-100 us", "the measured 46 us floor of a two-node NCCL all-reduce less its two crossings of the network"})
	}
	l.Terms = append(l.Terms, v.queueing(slowest))
	return l
}

// add enters so many picoseconds; what is not on the way is left out.
func (l *Latency) add(name string, ps float64, doc, how string) {
	if us := ps / float64(unit.Microsecond); us > 0 {
		l.Terms = append(l.Terms, LatencyTerm{name, us, doc, how})
		l.Total += us
	}
}

// nicDefault stands in for an adapter the catalogue does not know.
const nicDefault = 130 * unit.Nanosecond

// queueing is an incast computed: every other port of the fullest leaf sends
// 64 KiB to one port at once.
func (v *view) queueing(rate unit.Rate) LatencyTerm {
	ports := map[int32]int{}
	full := 0
	for _, e := range v.ends {
		ports[e.at] += int(e.count)
		full = max(full, ports[e.at])
	}
	if v.direct || full < 2 || rate <= 0 {
		return LatencyTerm{"queueing", 0, "0 to some ms", "no switch to queue in"}
	}
	burst := unit.Bytes(full-1) * 64 * unit.KiB
	return LatencyTerm{"queueing, worst", burst.Over(rate).Microseconds(), "0 to some ms", fmt.Sprintf("an incast of 64 KiB from each of %d ports of one leaf into one; 0 without congestion", full-1)}
}
