package tune

import (
	"fmt"
	"math/bits"
	"slices"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/topo"
)

// NCCL chooses as if the fabric never blocked. Its bytes still have to pass it,
// so the time counts the cuts of the fabric: what lies below each switch, or
// below each group of switches of a tier, has a number of links upwards, and they
// carry what its NICs send to the others.
//
//	             spines
//	     ╱ ╱ ╱ ╱        ╲ ╲ ╲ ╲      a cut: the uplinks of a leaf
//	   leaf 0            leaf 1
//	  │ │ │ │ │ │       │ │ │ │ │ │
//	  n0    n1          n2    n3
//
// Bytes are taken to spread evenly over a cut's links, as with adaptive routing.

// pattern is who of the nodes sends to whom.
type pattern int

const (
	chain pattern = iota // each node to the next: a ring
	twins                // both ways along the edges of a pair of binary trees
	pairs                // every node to every other
	patterns
)

// fabricLoad gives, for each pattern, how long the busiest cut takes for a byte
// that every node sends: nanoseconds a byte at wire rate. For chain and twins
// the byte goes along one edge; for pairs it is shared out over the other nodes.
type fabricLoad [patterns]float64

// loadOf works out the cuts of a fabric, whose highest switches are of tier top, for nodes with these ports. It gives zeros where
// switches have no tiers.
func loadOf(g *topo.Graph, ports [][]topo.NodeID, top uint8) (load fabricLoad) {
	if ports == nil {
		return load
	}
	each := len(ports[0])
	for tier := uint8(1); tier < top; tier++ {
		part, rate := below(g, tier, ports)
		var sent [patterns]map[topo.NodeID]float64 // by part: bytes that leave it
		for k := range sent {
			sent[k] = map[topo.NodeID]float64{}
		}
		along := func(k pattern, a, b int, bytes float64) {
			for i := range each {
				if from, to := part[ports[a][i]], part[ports[b][i]]; from != to {
					sent[k][from] += bytes / float64(each)
				}
			}
		}
		n := len(ports)
		for a := range n {
			along(chain, a, (a+1)%n, 1)
			for _, b := range [2]int{above(a, n), shiftedAbove(a, n)} {
				if b >= 0 {
					along(twins, a, b, .5)
					along(twins, b, a, .5)
				}
			}
		}
		for i := range each {
			has := map[topo.NodeID]int{}
			for a := range n {
				has[part[ports[a][i]]]++
			}
			for p, count := range has {
				sent[pairs][p] += float64(count) * float64(n-count) / float64(n-1) / float64(each)
			}
		}
		for k := range sent {
			for p, bytes := range sent[k] {
				if r := rate[p]; r > 0 {
					load[k] = max(load[k], bytes/r)
				}
			}
		}
	}
	return load
}

// Blind says what of the fabric the prediction leaves out; empty if nothing.
func (m *NCCL) Blind() string { return m.f.blind }

// unknown says why the cuts of a fabric cannot be told; empty if they can.
func unknown(g *topo.Graph, groups, ports [][]topo.NodeID) string {
	if len(groups) < 2 {
		return ""
	}
	nic := g.Near(groups[0][0])
	if nic == topo.None || g.Nodes[nic].Fabric == topo.None {
		return ""
	}
	f := &g.Fabrics[g.Nodes[nic].Fabric]
	switch {
	case f.Family == topo.Torus || f.Family == topo.Dragonfly:
		return fmt.Sprintf("the fabric %s is a %s, and what it lets through is known for fabrics of tiers only", f.Name, f.Family)
	case ports == nil:
		return fmt.Sprintf("the switches of the fabric %s have no tiers, so what it lets through is not known", f.Name)
	}
	return ""
}

// portsOf lists, for each node, the switches that its NICs are cabled to, in the
// order of its NICs; nil if some node has none. Nodes with fewer set the number.
func portsOf(g *topo.Graph, groups [][]topo.NodeID) [][]topo.NodeID {
	var all [][]topo.NodeID
	least := 0
	for i, group := range groups {
		var list []topo.NodeID
		done := map[topo.NodeID]bool{}
		for _, n := range group {
			nic := g.Near(n)
			if nic == topo.None || done[nic] {
				continue
			}
			done[nic] = true
			for _, e := range g.Edges(nic) {
				if s := &g.Nodes[e.Peer]; g.Class(e.Link).Kind.Network() && s.Kind == topo.Switch && s.Tier > 0 {
					list = append(list, e.Peer)
				}
			}
		}
		if len(list) == 0 {
			return nil
		}
		if i == 0 || len(list) < least {
			least = len(list)
		}
		all = append(all, list)
	}
	for i := range all {
		all[i] = all[i][:least]
	}
	return all
}

// below joins the switches up to a tier that hang together with one of the given ones into parts, each
// named by one of its switches, and gives the rate of a part's links upwards in GB/s.
func below(g *topo.Graph, tier uint8, from [][]topo.NodeID) (part map[topo.NodeID]topo.NodeID, rate map[topo.NodeID]float64) {
	part, rate = map[topo.NodeID]topo.NodeID{}, map[topo.NodeID]float64{}
	low := func(n topo.NodeID) bool {
		s := &g.Nodes[n]
		return s.Kind == topo.Switch && s.Tier > 0 && s.Tier <= tier
	}
	for _, n := range slices.Concat(from...) {
		if _, known := part[n]; known || !low(n) {
			continue
		}
		part[n] = n
		queue := []topo.NodeID{n}
		for len(queue) > 0 {
			at := queue[0]
			queue = queue[1:]
			for _, e := range g.Edges(at) {
				if g.Nodes[e.Peer].Kind != topo.Switch || !g.Class(e.Link).Kind.Network() {
					continue
				}
				if !low(e.Peer) {
					rate[n] += float64(g.Rate(e.Link)) / 1e9
				} else if _, known := part[e.Peer]; !known {
					part[e.Peer] = n
					queue = append(queue, e.Peer)
				}
			}
		}
	}
	return part, rate
}

// above is a node's parent in a binary tree over n nodes in which leaves are odd
// and heights grow with the zeros at the end; -1 at the root.
func above(a, n int) int {
	if a == 0 {
		return -1
	}
	bit := 1 << bits.TrailingZeros(uint(a))
	up := (a ^ bit) | bit<<1
	if up >= n {
		up = a ^ bit
	}
	return up
}

// shiftedAbove is the parent in the second tree: mirrored for an even count,
// shifted by one for an odd count, so that its leaves are inner nodes of the first.
func shiftedAbove(a, n int) int {
	if n%2 == 0 {
		if up := above(n-1-a, n); up >= 0 {
			return n - 1 - up
		}
		return -1
	}
	if up := above((a-1+n)%n, n); up >= 0 {
		return (up + 1) % n
	}
	return -1
}

// fabric is how many microseconds the busiest cut of the fabric takes at wire rate.
func (f *facts) fabric(op sched.Collective, a algorithm, bytes float64) float64 {
	switch a {
	case tree, nvlsTree:
		return bytes * f.load[twins] / 1e3
	case collDirect, collChain, nvls:
		return 0 // a switch adds; what passes the cuts is less than what the NICs send
	case pat:
		return f.crossing(op, a, bytes) * f.load[pairs] / 1e3
	case p2p:
		if op != sched.AllToAll {
			return 0
		}
		return f.crossing(op, a, bytes) * f.load[pairs] / 1e3
	}
	return f.crossing(op, a, bytes) * f.load[chain] / 1e3
}
